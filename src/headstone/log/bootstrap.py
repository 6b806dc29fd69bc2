"""The metadata that a new KRaft cluster begins with, and topics added to it, as a snapshot of its metadata log.

`kafka-storage format` writes a bootstrap file with the feature levels, which the first controller appends to an empty metadata
log. Topics must not come that way: a broker that sees the empty log first takes all its partitions for strays and moves them
away (docs/kafka-facts.md). So the log begins with a snapshot that has them: topics with given ids, leader epochs and settings
exist before the first broker has started, which no Kafka command offers. The bootstrap file is a snapshot like any other
(KIP-630): a header, batches of records, a footer. Does not know where topics come from.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from headstone.errors import UsageError
from headstone.log import checkpoints
from headstone.log.cluster_metadata import CONFIG, FRAME_VERSION, TOPIC, TOPIC_RESOURCE, UUID_BYTES
from headstone.log.directory import LOG, METADATA_TOPIC
from headstone.log.encoding import NO_HEADERS, BatchHead, Columns, batch_bytes, encode_section, pool
from headstone.log.layout import CONTROL
from headstone.log.ownership import take_after
from headstone.log.reading import chunk_of
from headstone.storage.durable import make_directories
from headstone.storage.places import Place

PARTITION, PRODUCER_IDS = 3, 15
PARTITION_VERSION = 1
NOBODY = -1
UNASSIGNED = bytes(UUID_BYTES)
"""Directory of a replica whose broker has not said where it keeps it."""
RECORDS_PER_BATCH = 500
METADATA_FOLDER = f"{METADATA_TOPIC}-0"
SNAPSHOT = ".checkpoint"
SNAPSHOT_EPOCH = 1
"""Epoch of a log newer than an empty one: that is cut off and begins after the snapshot."""
FIRST_SNAPSHOT = "00000000000000000000-0000000000.checkpoint"
"""Where newer releases keep the bootstrap file: a snapshot of nothing, in the metadata log itself."""
NO_TAGS = b"\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    name: str
    topic_id: str
    settings: Mapping[str, str] = field(default_factory=dict)
    replicas: tuple[tuple[int, ...], ...]
    """Node ids of the brokers of each partition."""
    leader_epochs: tuple[int, ...]
    """The last one of each partition; the first leader here gets the next."""


def bootstrap_file(log_dir: Place) -> Place | None:
    """What a new cluster would begin with. None if the directory is not formatted, is not a controller's, or if its broker has
    run: its metadata is its own."""
    folder = log_dir / METADATA_FOLDER
    children = [child.name for child in folder.iterdir()] if folder.is_dir() else []
    if any(name.endswith(LOG) for name in children):
        return None
    snapshots = sorted(name for name in children if name.endswith(SNAPSHOT))
    simple = log_dir / checkpoints.BOOTSTRAP
    if snapshots == [FIRST_SNAPSHOT] and simple.exists():
        raise UsageError(
            f"{folder / FIRST_SNAPSHOT}: a quorum whose voters are in its metadata can't be given topics; format with "
            "controller.quorum.voters instead"
        )
    if snapshots:
        return folder / snapshots[-1]
    return simple if simple.exists() else None


def snapshot_place(log_dir: Place, content: bytes) -> Place:
    """Where a metadata log looks for this snapshot: after everything that it holds."""
    footer = chunk_of("a snapshot", content).batches[-1]
    folder = log_dir / METADATA_FOLDER
    if isinstance(folder, Path) and not folder.exists():
        make_directories(folder)
        take_after(folder, folder.parent)
    return folder / f"{int(footer['last_offset']) + 1:020d}-{SNAPSHOT_EPOCH:010d}{SNAPSHOT}"


def with_topics(content: bytes, topics: Sequence[NewTopic], *, next_producer_id: int, name: str) -> bytes:
    """The content of a bootstrap file or snapshot plus these topics, none of which it has."""
    batches = chunk_of(name, content).batches
    if not batches.size or not batches[-1]["attributes"] & CONTROL:
        raise UsageError(f"{name}: no bootstrap file of KRaft; format the directory with kafka-storage first")
    values = [value for topic in topics for value in _topic_values(topic)]
    if next_producer_id > 0:
        values.append(_framed(PRODUCER_IDS, 0, struct.pack(">iqq", NOBODY, NOBODY, next_producer_id) + NO_TAGS))
    footer = int(batches[-1]["position"])
    offset, added = int(batches[-1]["base_offset"]), b""
    stamp = int(batches[-1]["max_timestamp"])
    for first in range(0, len(values), RECORDS_PER_BATCH):
        some = values[first : first + RECORDS_PER_BATCH]
        added += _batch(some, offset, stamp, int(batches[-1]["leader_epoch"]))
        offset += len(some)
    # The base offset is the only field before the checksummed part that has to change.
    return content[:footer] + added + struct.pack(">q", offset) + content[footer + 8 :]


def _topic_values(topic: NewTopic) -> list[bytes]:
    topic_id = base64.urlsafe_b64decode(topic.topic_id + "==")
    values = [_framed(TOPIC, 0, _text(topic.name) + topic_id + NO_TAGS)]
    for number, (replicas, epoch) in enumerate(zip(topic.replicas, topic.leader_epochs, strict=True)):
        nodes = _array([struct.pack(">i", node) for node in replicas])
        body = struct.pack(">i", number) + topic_id + nodes + nodes + _array([]) + _array([])
        body += struct.pack(">iii", NOBODY, epoch, 0) + _array([UNASSIGNED] * len(replicas)) + NO_TAGS
        values.append(_framed(PARTITION, PARTITION_VERSION, body))
    for name, value in sorted(topic.settings.items()):
        body = bytes([TOPIC_RESOURCE]) + _text(topic.name) + _text(name) + _text(value) + NO_TAGS
        values.append(_framed(CONFIG, 0, body))
    return values


def _framed(kind: int, version: int, body: bytes) -> bytes:
    return _varint(FRAME_VERSION) + _varint(kind) + _varint(version) + body


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _text(text: str) -> bytes:
    return _varint(len(text.encode()) + 1) + text.encode()


def _array(items: Sequence[bytes]) -> bytes:
    return _varint(len(items) + 1) + b"".join(items)


def _batch(values: Sequence[bytes], offset: int, timestamp: int, leader_epoch: int) -> bytes:
    keys, key_starts, key_sizes = pool([None] * len(values))
    data, starts, sizes = pool(values)
    zeros = np.zeros(len(values), dtype=np.int64)
    columns = Columns(
        timestamp_deltas=zeros, offset_deltas=np.arange(len(values)), key_pool=keys, key_starts=key_starts,
        key_sizes=key_sizes, value_pool=data, value_starts=starts, value_sizes=sizes, header_pool=NO_HEADERS,
        header_starts=zeros, header_sizes=np.ones(len(values), dtype=np.int64),
    )  # fmt: skip
    head = BatchHead(
        base_offset=offset, last_offset_delta=len(values) - 1, base_timestamp=timestamp, max_timestamp=timestamp,
        leader_epoch=leader_epoch,
    )  # fmt: skip
    return batch_bytes(head, encode_section(columns), len(values)).tobytes()
