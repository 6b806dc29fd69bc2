"""Sample log directories in Kafka's own format: keys, sizes, codecs, transactions, tombstones, replicas.

The same settings and seed give the same bytes. The result is a log before any compaction.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headstone.interruption import check
from headstone.log import checkpoints
from headstone.log.directory import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX, PartitionDir, list_segments, numbered
from headstone.log.encoding import NO_HEADERS, BatchHead, Columns, batch_bytes, encode_section, marker_bytes
from headstone.log.indexes import IndexBuilder, aborted_bytes
from headstone.log.reading import Bytes, SegmentFile, walk_segment
from headstone.log.snapshots import write_snapshot
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.progress import Meter
from headstone.retention.producers import ProducerState
from headstone.sim.samples import SampleSettings

TOPIC_ID = "c3ludGgtaGVhZHN0b25lLQ"
POOL_BYTES = 1 << 20
KEY_DIGITS = 12
HEADERS = b"\x02" + b"\x0csource" + b"\x0asynth"
RECORD_FIXED_BYTES = 12


def write_sample(directory: Path, settings: SampleSettings, meter: Meter | None = None) -> list[Path]:
    """Returns the log directories: `directory` itself, or one folder per replica in it."""
    roots = (
        [directory] if settings.replicas == 1 else [directory / f"replica-{n + 1}" for n in range(settings.replicas)]
    )
    first = roots[0]
    first.mkdir(parents=True, exist_ok=True)
    ends = {}
    for number in range(settings.partitions):
        partition = TopicPartition(settings.topic, number)
        directory = first / str(partition)
        directory.mkdir()
        ends[partition] = _Writer(directory, settings, number).write(meter or Meter())
    for name in (checkpoints.HIGH_WATERMARK, checkpoints.RECOVERY_POINT):
        offsets = checkpoints.read_offsets(first / name)
        checkpoints.write_offsets(first / name, {**offsets, **ends})
    for replica in roots[1:]:
        shutil.copytree(first, replica, copy_function=_copy)
    return roots


def _copy(source: str, target: str) -> None:
    check()
    shutil.copy2(source, target)


def _text_pool(rng: np.random.Generator) -> Bytes:
    """Words with some entropy: compresses about as well as JSON does."""
    words = rng.integers(97, 123, size=(512, 8), dtype=np.uint8)
    words[:, 7] = 32
    noise = rng.integers(33, 127, size=POOL_BYTES, dtype=np.uint8)
    text = words[rng.integers(0, 512, size=POOL_BYTES // 8)].reshape(-1)
    mixed: Bytes = np.where(rng.random(POOL_BYTES) < 0.12, noise, text).astype(np.uint8)
    return mixed


class _Writer:
    """Writes one partition: draws records, cuts batches and segments, ends transactions, makes the indexes."""

    def __init__(self, directory: Path, settings: SampleSettings, number: int) -> None:
        self.directory = directory
        self.settings = settings
        self.rng = np.random.default_rng([settings.seed, number])
        self.values = _text_pool(self.rng)
        self.offset = 0
        self.sequences: dict[int, int] = {}
        self.open: dict[int, int] = {}
        self.parts: list[Bytes] = []
        self.size = 0
        self.base = 0

    def write(self, meter: Meter) -> int:
        left = self.settings.records
        while left:
            added = self._add_batch(left)
            meter.add(added, 0)
            left -= added
        for producer in sorted(self.open):
            self._end(producer)
        self._roll()
        self._roll(last=True)
        _write_indexes(self.directory)
        checkpoints.write_leader_epochs(self.directory / checkpoints.LEADER_EPOCHS, [(0, 0)])
        checkpoints.write_topic_id(self.directory / checkpoints.PARTITION_METADATA, TOPIC_ID)
        return self.offset

    def _add_batch(self, left: int) -> int:
        s = self.settings
        mean = (s.value_bytes_min + s.value_bytes_max) // 2 + KEY_DIGITS + 4 + RECORD_FIXED_BYTES
        count = min(left, max(1, s.batch_bytes // mean))
        producer = -1
        if s.transactions and self.rng.random() < s.transactions:
            producer = int(self.rng.integers(1, s.producers + 1))
        section = encode_section(self._columns(count))
        timestamp = s.start_ms + self.offset * s.step_ms
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        head = BatchHead(
            base_offset=self.offset, last_offset_delta=count - 1, base_timestamp=timestamp,
            max_timestamp=timestamp + (count - 1) * s.step_ms, codec=s.codec, transactional=producer >= 0,
            producer_id=producer, producer_epoch=0 if producer >= 0 else -1, base_sequence=sequence,
        )  # fmt: skip
        self._append(batch_bytes(head, section, count), count)
        if producer >= 0:
            self.sequences[producer] = sequence + count
            self.open[producer] = self.open.get(producer, 0) + 1
            if self.open[producer] >= s.txn_batches:
                self._end(producer)
        return count

    def _columns(self, count: int) -> Columns:
        s, rng = self.settings, self.rng
        drawn = rng.integers(0, s.keys, size=count) if s.keys else self.offset + np.arange(count)
        sizes = rng.integers(s.value_bytes_min, s.value_bytes_max + 1, size=count)
        starts = rng.integers(0, POOL_BYTES - s.value_bytes_max, size=count)
        sizes = np.where(rng.random(count) < s.tombstones, -1, sizes)
        headed = rng.random(count) < s.headers
        steps = np.arange(count, dtype=np.int64)
        return Columns(
            timestamp_deltas=steps * s.step_ms, offset_deltas=steps, key_pool=_key_pool(drawn),
            key_starts=steps * (KEY_DIGITS + 4), key_sizes=np.full(count, KEY_DIGITS + 4, dtype=np.int64),
            value_pool=self.values, value_starts=starts, value_sizes=sizes,
            header_pool=np.frombuffer(NO_HEADERS.tobytes() + HEADERS, dtype=np.uint8),
            header_starts=headed.astype(np.int64), header_sizes=np.where(headed, len(HEADERS), 1),
        )  # fmt: skip

    def _end(self, producer: int) -> None:
        commit = bool(self.rng.random() >= self.settings.aborts)
        timestamp = self.settings.start_ms + self.offset * self.settings.step_ms
        data = marker_bytes(
            commit=commit, offset=self.offset, timestamp=timestamp, producer_id=producer, producer_epoch=0
        )
        self._append(data, 1)
        del self.open[producer]

    def _append(self, data: Bytes, count: int) -> None:
        if self.size + data.size > self.settings.segment_bytes:
            self._roll()
        self.parts.append(data)
        self.size += data.size
        self.offset += count

    def _roll(self, *, last: bool = False) -> None:
        if not self.parts and not last:
            return
        with open(self.directory / numbered(self.base, LOG), "wb") as file:
            for part in self.parts:
                file.write(part.data)
        self.parts, self.size, self.base = [], 0, self.offset


def _key_pool(drawn: npt.NDArray[np.int64]) -> Bytes:
    digits = (drawn[:, None] // 10 ** np.arange(KEY_DIGITS - 1, -1, -1)) % 10 + 48
    keys = np.empty((drawn.size, KEY_DIGITS + 4), dtype=np.uint8)
    keys[:, :4] = np.frombuffer(b"key-", dtype=np.uint8)
    keys[:, 4:] = digits
    return keys.reshape(-1)


def _write_indexes(directory: Path) -> None:
    """Offset, time and transaction indexes and a producer snapshot at each roll, as a broker would have left them."""
    name, _, number = directory.name.rpartition("-")
    files = list_segments(PartitionDir(path=directory, topic=name, partition=int(number)))
    state = ProducerState(high_watermark=2**63 - 1)
    for file in files:
        if file.base and state.entries():
            write_snapshot(directory / numbered(file.base, SNAPSHOT), state.entries())
        state.completed.clear()
        _write_segment_indexes(file, state)
        aborted = state.aborted()
        if aborted:
            (directory / numbered(file.base, TXN_INDEX)).write_bytes(aborted_bytes(aborted))


def _write_segment_indexes(file: SegmentFile, state: ProducerState) -> None:
    index = IndexBuilder(file.base)
    for table in walk_segment(file.path, base=file.base):
        index.append(table["size"].copy(), table["last_offset"].copy(), table["max_timestamp"].copy())
        state.replay(table)
    Path(file.path).with_suffix(INDEX).write_bytes(index.offset_index())
    Path(file.path).with_suffix(TIME_INDEX).write_bytes(index.time_index())
