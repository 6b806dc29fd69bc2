"""Kafka's topic settings by name, as fields of a policy."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from headstone.errors import UsageError
from headstone.retention.policy import Policy
from headstone.retention.settings import (
    BY_NAME,
    FIELDS,
    IF_SET,
    IN_FORCE,
    TOPIC_SETTINGS,
    names_copied,
    setting_of,
    with_settings,
)

POLICY = Policy(now_ms=5)


def test_every_setting_has_its_field() -> None:
    settings = {
        "cleanup.policy": "delete, compact", "delete.retention.ms": "1", "min.compaction.lag.ms": "2",
        "max.compaction.lag.ms": "3", "min.cleanable.dirty.ratio": "0.25", "segment.bytes": "4",
        "segment.index.bytes": "5", "index.interval.bytes": "6", "retention.ms": "7", "retention.bytes": "8",
        "producer.id.expiration.ms": "9", "compression.type": "producer",
    }  # fmt: skip
    told = Policy(
        now_ms=5, cleanup_delete=True, delete_retention_ms=1, min_compaction_lag_ms=2, max_compaction_lag_ms=3,
        min_cleanable_dirty_ratio=0.25, segment_bytes=4, segment_index_bytes=5, index_interval_bytes=6, retention_ms=7,
        retention_bytes=8, producer_id_expiration_ms=9,
    )  # fmt: skip
    assert with_settings(POLICY, settings, FIELDS) == told
    assert with_settings(POLICY, {**settings, "internal.segment.bytes": "44"}, FIELDS) == replace(
        told, segment_bytes=44
    )
    assert with_settings(POLICY, settings, {"segment_bytes"}) == replace(POLICY, segment_bytes=4)
    assert with_settings(POLICY, settings, ()) == with_settings(POLICY, {}, FIELDS) == POLICY


@pytest.mark.parametrize(
    ("settings", "fields", "retention_ms"),
    [
        ({"cleanup.policy": "compact,delete"}, FIELDS, -1),
        ({"cleanup.policy": "compact,delete", "retention.ms": "7"}, FIELDS, 7),
        ({"cleanup.policy": "compact,delete"}, FIELDS - {"retention_ms"}, POLICY.retention_ms),
        ({"cleanup.policy": "compact"}, FIELDS, POLICY.retention_ms),
        ({"cleanup.policy": "delete"}, FIELDS, POLICY.retention_ms),
    ],
)
def test_nothing_is_deleted_by_a_default_that_the_broker_may_not_have(
    settings: dict[str, str], fields: frozenset[str], retention_ms: int
) -> None:
    assert with_settings(POLICY, settings, fields).retention_ms == retention_ms


@pytest.mark.parametrize(
    ("policies", "deletes"), [("compact,delete", True), ("compact", False), ("delete", False), ("", False)]
)
def test_deletion_needs_both_policies(policies: str, deletes: bool) -> None:
    """Whoever compacts a topic by name although its policy is `delete` does not want it deleted."""
    assert with_settings(POLICY, {"cleanup.policy": policies}, FIELDS).cleanup_delete == deletes


def test_the_table_has_each_name_once_and_defaults_in_their_ranges() -> None:
    assert len(BY_NAME) == len(TOPIC_SETTINGS)
    for setting in TOPIC_SETTINGS:
        if setting.field is not None and setting.kind is not str:
            assert setting.low <= setting.default <= setting.high
            assert type(setting.default) is setting.kind
    assert {field.name for field in fields(Policy)} >= FIELDS


def test_what_is_copied_of_a_topic() -> None:
    assert names_copied(IN_FORCE) == (
        "cleanup.policy", "delete.retention.ms", "min.cleanable.dirty.ratio", "min.compaction.lag.ms",
        "max.compaction.lag.ms",
    )  # fmt: skip
    assert names_copied(IF_SET) == ("retention.ms", "retention.bytes", "max.message.bytes", "compression.type")


def test_a_setting_is_the_topics_own_or_kafkas_default() -> None:
    assert setting_of({}, "delete.retention.ms") == 86_400_000
    assert setting_of({"delete.retention.ms": "7"}, "delete.retention.ms") == 7
    assert setting_of({"min.cleanable.dirty.ratio": "0.25"}, "min.cleanable.dirty.ratio") == 0.25
    with pytest.raises(UsageError, match=r"delete\.retention\.ms of the topic: 'soon' is not a duration, such as 90s"):
        setting_of({"delete.retention.ms": "soon"}, "delete.retention.ms")
