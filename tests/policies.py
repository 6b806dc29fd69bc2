"""What the oracle is told of one pass, as a policy of the package: one translation for all that compares the two."""

from __future__ import annotations

from headstone.retention.policy import Policy, kafka_rules
from tests.oracle.cleaner import Pass


def policy_of(settings: Pass) -> Policy:
    common = Policy(
        now_ms=settings.now_ms,
        delete_retention_ms=settings.delete_retention_ms,
        producer_id_expiration_ms=settings.producer_expiration_ms,
        min_compaction_lag_ms=settings.lag_ms,
        segment_bytes=settings.segment_bytes,
        segment_index_bytes=settings.segment_index_bytes,
        index_keys_max=settings.keys_max,
        tombstones_below=settings.mtro,
        markers_below=settings.mxro,
        plain_below=settings.plain_below,
    )
    return common if settings.coordinated else kafka_rules(common)
