"""The settings that decide about records, as data: clocks, retentions, watermarks.

Two rule sets over one implementation: `kafka` removes by time alone; `coordinated` needs time and a watermark. A watermark of
NO_LIMIT turns the one into the other, so no rule asks which set it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headstone.units import DAY_MS

NO_LIMIT = 2**63 - 1
KAFKA = "kafka"
COORDINATED = "coordinated"
RULES = (KAFKA, COORDINATED)
"""The names of the rule sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """tombstones_below is MTRO, markers_below is MXRO; both exclusive. Names are those of Kafka's topic configs."""

    now_ms: int
    delete_retention_ms: int = DAY_MS
    producer_id_expiration_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NO_LIMIT
    min_cleanable_dirty_ratio: float = 0.5
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    index_keys_max: int | None = None
    cleanup_delete: bool = False
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    tombstones_below: int = 0
    markers_below: int = 0
    plain_below: int = 0
    """Committed transactional data below it, in rewritten segments, becomes plain data: it no longer needs its marker.

    Exclusive. A broker's own cleaner, which knows no watermark, drops such a marker by time alone. A replica that stopped
    inside the transaction then never learns of its end. So this is 0 unless every replica is known to be past it."""


def kafka_rules(policy: Policy) -> Policy:
    """The policy without watermarks: only time decides, as in a broker's cleaner."""
    return replace(policy, tombstones_below=NO_LIMIT, markers_below=NO_LIMIT, plain_below=0)


def horizon_after(now_ms: int, delete_retention_ms: int) -> int:
    """now + delete.retention.ms, or -1 if that overflows: then the batch is never stamped (retention 'for ever')."""
    horizon = now_ms + delete_retention_ms
    return horizon if horizon <= NO_LIMIT else -1


def has_passed(horizon_ms: int, now_ms: int) -> bool:
    """Whether time allows removal after this horizon. The kernels say the same of a batch (`verdicts`)."""
    return 0 <= horizon_ms <= now_ms
