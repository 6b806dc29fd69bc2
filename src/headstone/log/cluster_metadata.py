"""KRaft's metadata log, as far as it is about topics: which there are, their settings, and the brokers' dynamic ones.

Every broker keeps a copy: a snapshot of everything below some offset, and the records since. A record's value is Kafka's
generated format: frame version, type and version as varints, then the fields in compact encodings (KIP-482, KIP-630). Reads
only; settings in a broker's own `server.properties` are not in this log.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headstone.errors import CorruptLog
from headstone.log import checkpoints
from headstone.log.directory import PartitionDir, readable_segments
from headstone.log.listing import list_batches
from headstone.log.reading import SegmentFile
from headstone.storage.access import FROM_ENVIRONMENT
from headstone.storage.places import ObjectPlace, Place

FRAME_VERSION = 1
TOPIC, CONFIG, REMOVE_TOPIC = 2, 4, 9
BEGIN_TRANSACTION, END_TRANSACTION, ABORT_TRANSACTION = 23, 24, 25
KNOWN_VERSION = 0
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
ALL_BROKERS = ""
UUID_BYTES = 16

BROKER_NAMES = {
    "cleanup.policy": "log.cleanup.policy",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "index.interval.bytes": "log.index.interval.bytes",
    "retention.ms": "log.retention.ms",
    "retention.bytes": "log.retention.bytes",
    "producer.id.expiration.ms": "producer.id.expiration.ms",
}
"""The names of topic settings as defaults of a broker. The last one exists only for brokers."""

_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


@dataclass(slots=True)
class ClusterMetadata:
    """Grows record by record; then read only."""

    topic_ids: dict[str, str] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _settings: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)

    def topic_settings(self, topic: str, *, broker: str | None) -> dict[str, str]:
        """By the names of topic settings: the topic's own, else those of its broker, else those of all brokers."""
        brokers = [
            self._settings.get((BROKER_RESOURCE, name), {}) for name in (broker, ALL_BROKERS) if name is not None
        ]
        inherited = {}
        for name, broker_name in BROKER_NAMES.items():
            for settings in reversed(brokers):
                if broker_name in settings:
                    inherited[name] = settings[broker_name]
        return {**inherited, **self._settings.get((TOPIC_RESOURCE, topic), {})}

    def add_topic(self, name: str, topic_id: str) -> None:
        self.topic_ids[name] = topic_id
        self._names[topic_id] = name

    def remove_topic(self, topic_id: str) -> None:
        name = self._names.pop(topic_id, None)
        if name is not None:
            self.topic_ids.pop(name, None)
            self._settings.pop((TOPIC_RESOURCE, name), None)

    def configure(self, kind: int, resource: str, name: str, value: str | None) -> None:
        """None removes the setting."""
        settings = self._settings.setdefault((kind, resource), {})
        if value is None:
            settings.pop(name, None)
        else:
            settings[name] = value


def read_cluster_metadata(directory: PartitionDir) -> ClusterMetadata:
    """The newest snapshot and the records after it; CorruptLog or UsageError if they cannot be read completely."""
    metadata = ClusterMetadata()
    snapshot, start = _newest_snapshot(directory.path)
    if snapshot is not None:
        _apply(_values(snapshot, 0), metadata)
    segments = readable_segments(directory)
    if segments[0].base > start:
        raise CorruptLog(
            file=segments[0].path, position=0, offset=segments[0].base,
            problem=f"the records from {start} on are missing", advice="restore the snapshot that covers them",
        )  # fmt: skip
    ends = [segment.base for segment in segments[1:]] + [None]
    behind = [segment for segment, end in zip(segments, ends, strict=True) if end is None or end > start]
    _apply((value for segment in behind for value in _values(segment, start)), metadata)
    return metadata


def topic_ids_in(snapshot: Place) -> Mapping[str, str]:
    """By the topics' names, from this file alone."""
    metadata = ClusterMetadata()
    _apply(_values(_snapshot_file(snapshot), 0), metadata)
    return metadata.topic_ids


def node_id(log_dir: Place) -> str | None:
    """Of the broker whose directory it is."""
    return node_id_of(meta_properties(log_dir))


def node_id_of(properties: Mapping[str, str]) -> str | None:
    return properties.get("node.id", properties.get("broker.id"))


def meta_properties(log_dir: Place) -> Mapping[str, str]:
    """What a formatted directory says about its broker and cluster; empty if there is no such file, or if it is not text."""
    try:
        lines = (log_dir / checkpoints.META_PROPERTIES).read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, UnicodeDecodeError):
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def write_meta_properties(log_dir: Path, properties: Mapping[str, str]) -> None:
    text = "".join(f"{name}={value}\n" for name, value in properties.items())
    (log_dir / checkpoints.META_PROPERTIES).write_text(text, encoding="utf-8")


def rename_in_meta_properties(log_dir: Path, names: Mapping[str, str]) -> None:
    """Replaces existing values only: names that an older release does not know are not added."""
    properties = meta_properties(log_dir)
    write_meta_properties(log_dir, {name: names.get(name, value) for name, value in properties.items()})


def _newest_snapshot(path: Place) -> tuple[SegmentFile | None, int]:
    """With the offset up to which it is complete."""
    matches = [match for match in (_SNAPSHOT.fullmatch(child.name) for child in path.iterdir()) if match]
    if not matches:
        return None, 0
    newest = max(matches, key=lambda match: (int(match[1]), int(match[2])))
    file = path / newest[0]
    return _snapshot_file(file), int(newest[1])


def _snapshot_file(file: Place) -> SegmentFile:
    access = file.access if isinstance(file, ObjectPlace) else FROM_ENVIRONMENT
    size = file.stat().st_size
    return SegmentFile(base=0, path=str(file), size=size, mtime_ms=0, index_bytes=0, time_index_bytes=0, access=access)


def _values(file: SegmentFile, start: int) -> Iterator[_Value]:
    for batch in list_batches(file, with_records=True, offset_start=start):
        for record in batch.records or () if batch.control is None else ():
            if record.offset >= start and record.value is not None:
                yield _Value(data=record.value, file=batch.file, position=batch.position, offset=record.offset)


def _apply(values: Iterator[_Value], metadata: ClusterMetadata) -> None:
    """Records between begin and end of a transaction count together. They don't count if it was aborted or never ended."""
    waiting: list[_Value] | None = None
    for value in values:
        kind = value.kind()
        if kind == BEGIN_TRANSACTION:
            waiting = []
        elif kind in (END_TRANSACTION, ABORT_TRANSACTION):
            for held_back in waiting or () if kind == END_TRANSACTION else ():
                held_back.apply(metadata)
            waiting = None
        elif waiting is not None:
            waiting.append(value)
        else:
            value.apply(metadata)


@dataclass(slots=True, kw_only=True)
class _Value:
    """A record's value and where it was found; `_consumed` is how much of it was read so far."""

    data: bytes
    file: str
    position: int
    offset: int
    _consumed: int = 0

    def kind(self) -> int:
        self._consumed = 0
        frame = self._varint()
        if frame != FRAME_VERSION:
            raise self._unknown(f"frame version {frame}")
        return self._varint()

    def apply(self, metadata: ClusterMetadata) -> None:
        kind = self.kind()
        if kind not in (TOPIC, CONFIG, REMOVE_TOPIC):
            return
        version = self._varint()
        if version != KNOWN_VERSION:
            raise self._unknown(f"version {version} of record type {kind}")
        if kind == TOPIC:
            metadata.add_topic(self._text(), self._uuid())
        elif kind == REMOVE_TOPIC:
            metadata.remove_topic(self._uuid())
        else:
            resource_kind = self._take(1)[0]
            metadata.configure(resource_kind, self._text(), self._text(), self._nullable_text())

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def _nullable_text(self) -> str | None:
        size = self._varint()
        try:
            return self._take(size - 1).decode() if size else None
        except UnicodeDecodeError as error:
            raise self._unknown("a text that is not UTF-8") from error

    def _text(self) -> str:
        text = self._nullable_text()
        if text is None:
            raise self._unknown("a missing name")
        return text

    def _uuid(self) -> str:
        """As Kafka writes it in partition.metadata."""
        return base64.urlsafe_b64encode(self._take(UUID_BYTES)).decode().rstrip("=")

    def _take(self, size: int) -> bytes:
        taken = self.data[self._consumed : self._consumed + size]
        if len(taken) != size:
            raise self._unknown("a record that is too short")
        self._consumed += size
        return taken

    def _unknown(self, problem: str) -> CorruptLog:
        return CorruptLog(
            file=self.file, position=self.position, offset=self.offset, problem=f"{problem} in the metadata log"
        )
