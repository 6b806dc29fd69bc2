"""Kafka's topic settings, by their names and as texts, to the fields of a Policy.

Pure. Owns which setting is which field; where settings come from, and which of them win, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from headstone.retention.policy import Policy

NO_RETENTION_MS = -1


def policies_of(text: str) -> frozenset[str]:
    """What `cleanup.policy` names; an empty text names nothing."""
    return frozenset(word.strip() for word in text.split(",") if word.strip())


_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "cleanup.policy": ("cleanup_delete", lambda text: {"compact", "delete"} <= policies_of(text)),
    "delete.retention.ms": ("delete_retention_ms", int),
    "min.compaction.lag.ms": ("min_compaction_lag_ms", int),
    "max.compaction.lag.ms": ("max_compaction_lag_ms", int),
    "min.cleanable.dirty.ratio": ("min_cleanable_dirty_ratio", float),
    "segment.bytes": ("segment_bytes", int),
    "internal.segment.bytes": ("segment_bytes", int),
    "segment.index.bytes": ("segment_index_bytes", int),
    "index.interval.bytes": ("index_interval_bytes", int),
    "retention.ms": ("retention_ms", int),
    "retention.bytes": ("retention_bytes", int),
    "producer.id.expiration.ms": ("producer_id_expiration_ms", int),
}
"""Whoever compacts a topic that is only deleted by its settings does not mean them.

In this order: a later name of the same field wins, as `internal.segment.bytes` does in a broker."""

FIELDS = frozenset(name for name, _ in _FIELDS.values())


def with_settings(policy: Policy, settings: Mapping[str, str], fields: Collection[str]) -> Policy:
    """The policy with those of its fields that the settings tell; others than `fields` stay as they are.

    Where they tell of deletion but not of its time, nothing is deleted by time: the broker may have another default.
    """
    changes = {
        name: parse(settings[setting])
        for setting, (name, parse) in _FIELDS.items()
        if setting in settings and name in fields
    }
    if changes.get("cleanup_delete") and "retention.ms" not in settings and "retention_ms" in fields:
        changes["retention_ms"] = NO_RETENTION_MS
    return replace(policy, **changes)
