"""The library's settings for each capability, with the defaults, which the parser reads too.

Light, because a parser reads it. A value out of range is refused when the settings are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headstone import bounds
from headstone.bounds import COUNT, DURATION_MS, INTERVAL_MS, MOMENT_MS, OFFSET, by_name, expect_all, several
from headstone.cluster.defaults import BYTES_PER_SECOND
from headstone.errors import UsageError
from headstone.lake.defaults import CODEC, FLUSH_AGE_MS, OBJECT_BYTES, POLL_EVERY_MS
from headstone.log import codecs
from headstone.pipeline.machine import AUTO, PATHS, TASK_MEMORY_BYTES
from headstone.retention.policy import COORDINATED, RULES
from headstone.retention.settings import BY_NAME, CLEANUP_POLICY, checked, known_setting

INSPECTION_NOW_MS = INSPECTION_LAG_MS = 0
"""The facts of a log do not depend on the time of the call, unless the caller wants that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """What to audit, wherever the replicas are."""

    topics: tuple[str, ...] = ()
    """Only these; empty for all but a cluster's internal ones."""
    keys: tuple[bytes, ...] = ()
    """For each of these keys, report what every replica has."""
    now_ms: int | None = None
    """For the forecast; None: now."""
    delete_retention_ms: int = BY_NAME["delete.retention.ms"].default
    """Of the topics, for the forecast."""
    bytes_per_second: int = BYTES_PER_SECOND
    """Limit for reading a cluster, over all brokers."""

    def __post_init__(self) -> None:
        several("topics", self.topics)
        several("keys", self.keys, bytes)
        expect_all(self, {"now_ms": MOMENT_MS, "delete_retention_ms": DURATION_MS, "bytes_per_second": COUNT})


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """The settings of a compaction; docs/compact.md explains each at the option of that name."""

    rules: str = COORDINATED
    topics: tuple[str, ...] = ()
    """Only these; empty for every compacted one."""
    all_topics: bool = False
    eligible_only: bool = False
    """Only what the cleaner would choose now, dirtiest first."""
    topic_settings: Mapping[str, str] = field(default_factory=dict)
    """By Kafka's names, such as {"delete.retention.ms": "1d"}: they win over a topic's own."""
    now_ms: int | None = None
    """The clock that decides; None: now."""
    dirty_from: int | None = None
    tombstones_below: int | None = None
    """MTRO, exclusive; None: no tombstone goes because of its age."""
    markers_below: int | None = None
    """MXRO, exclusive."""
    plain_below: int | None = None
    peers: tuple[str | Path, ...] = ()
    """Log directories of the other replicas, from which watermarks are computed."""
    index_keys_max: int | None = None
    task_memory_bytes: int = TASK_MEMORY_BYTES
    path: str = AUTO
    """Whether a partition is one task or several: `pipeline.machine.PATHS`."""
    drop_keyless: bool = False
    force_offline: bool = False
    """In place although the broker did not stop cleanly."""
    clean: bool = False
    """With an output in an object store: take over what another run has begun there and may still be at work on."""

    def __post_init__(self) -> None:
        several("topics", self.topics)
        several("peers", self.peers, (str, Path))
        by_name("topic_settings", self.topic_settings, (str, int, float))
        for name, text in self.topic_settings.items():
            checked(name, text)
        if self.rules not in RULES:
            raise UsageError(f"rules {self.rules}: expected {' or '.join(RULES)}")
        if self.path not in PATHS:
            raise UsageError(f"path {self.path}: expected {', '.join(PATHS)}")
        offsets = ("dirty_from", "tombstones_below", "markers_below", "plain_below")
        expect_all(
            self,
            {
                "now_ms": MOMENT_MS, "index_keys_max": COUNT, "task_memory_bytes": bounds.TASK_MEMORY_BYTES,
                **dict.fromkeys(offsets, OFFSET),
            },
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSettings:
    """The settings of an ingest, from log directories or from a cluster."""

    topics: tuple[str, ...] = ()
    """From log directories, empty for all that they hold; from a cluster they must be named."""
    cleanup_policy: str | None = None
    """For these topics, if their source does not tell it: compact, delete, or compact,delete."""
    topic_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By topic and by Kafka's names, for topics that are new to the lake."""
    continuous: bool = False
    """From a cluster: continue until stopped."""
    every_ms: int = POLL_EVERY_MS
    age_ms_max: int = FLUSH_AGE_MS
    """A continuous run writes an object when one is full, or at this age; 0: at once."""
    object_bytes: int = OBJECT_BYTES
    offsets_per_task: int | None = None
    offsets_per_batch: int | None = None
    codec: str = CODEC
    """For what is written from a cluster."""

    def __post_init__(self) -> None:
        """A misspelt policy would silently leave a compacted topic uncompacted."""
        several("topics", self.topics)
        by_name("topic_settings", self.topic_settings, Mapping)
        for topic, settings in self.topic_settings.items():
            by_name(f"topic_settings of {topic}", settings, (str, int, float))
            for name in settings:
                known_setting(name)
        if self.cleanup_policy is not None:
            checked(CLEANUP_POLICY, self.cleanup_policy)
        if self.codec not in codecs.NAMES:
            raise UsageError(f"codec {self.codec!r}: there are {', '.join(codecs.NAMES)}")
        counts = ("object_bytes", "offsets_per_task", "offsets_per_batch")
        expect_all(self, {"every_ms": INTERVAL_MS, "age_ms_max": DURATION_MS, **dict.fromkeys(counts, COUNT)})
