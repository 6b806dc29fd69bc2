"""From the command line to the policy that decides: what nobody asked for does not go, and no option is another's."""

from __future__ import annotations

import pytest

from headstone.cli.compact import request
from headstone.cli.main import parser
from headstone.cli.output import Output
from headstone.retention.policy import Policy, kafka_rules

NOW_MS = 1_700_000_000_000


def chosen(*words: str) -> Policy:
    words = ("compact", "logs", "--out", "compacted", "--now-ms", str(NOW_MS), *words)
    return request(parser().parse_args(words), Output()).policy


def test_nothing_goes_by_default() -> None:
    asked_for_nothing = chosen()
    assert asked_for_nothing == Policy(now_ms=NOW_MS)
    assert (asked_for_nothing.tombstones_below, asked_for_nothing.markers_below) == (0, 0)
    assert (asked_for_nothing.plain_below, asked_for_nothing.cleanup_delete) == (0, False)


@pytest.mark.parametrize(
    ("option", "field"),
    [
        ("--tombstones-below", "tombstones_below"),
        ("--markers-below", "markers_below"),
        ("--plain-below", "plain_below"),
        ("--delete-retention-ms", "delete_retention_ms"),
        ("--producer-id-expiration-ms", "producer_id_expiration_ms"),
        ("--min-compaction-lag-ms", "min_compaction_lag_ms"),
        ("--max-compaction-lag-ms", "max_compaction_lag_ms"),
        ("--segment-bytes", "segment_bytes"),
        ("--segment-index-bytes", "segment_index_bytes"),
        ("--index-interval-bytes", "index_interval_bytes"),
        ("--index-keys-max", "index_keys_max"),
        ("--retention-ms", "retention_ms"),
        ("--retention-bytes", "retention_bytes"),
    ],
)
def test_an_option_sets_its_own_number_and_no_other(option: str, field: str) -> None:
    number = 1 << 22
    assert chosen(option, str(number)) == Policy(now_ms=NOW_MS, **{field: number})  # type: ignore[arg-type]


def test_kafkas_rules_and_deletion_are_asked_for_by_name() -> None:
    assert chosen("--rules", "kafka") == kafka_rules(Policy(now_ms=NOW_MS))
    assert chosen("--cleanup-policy", "compact,delete") == Policy(now_ms=NOW_MS, cleanup_delete=True)
