"""Logs for the lake's benchmarks: one partition, written by our own encoder, with keys of 8 bytes.

Knows nothing of lakes. The same keys and the same start give the same bytes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from headstone.log.directory import LOG, PartitionDir, numbered
from headstone.log.encoding import NO_HEADERS, BatchHead, Columns, batch_bytes, encode_section
from headstone.log.topic_partition import TopicPartition

MB, GB = 1_000_000, 1_000_000_000
TOPIC = "bench"
PARTITION = TopicPartition(TOPIC, 0)
START_MS = 1_700_000_000_000
BATCH_BYTES = 16_384
SEGMENT_BYTES = 64 << 20
POOL_BYTES = 1 << 20
KEY_BYTES, RECORD_FIXED_BYTES = 8, 9
VALUE_BYTES = (60, 320)
KEYS_A_RECORD = 0.63
"""With this many keys per record, drawn evenly, one record in two is superseded."""

Ints = npt.NDArray[np.int64]


def write_log(place: Path, drawn: Ints, values: tuple[int, int], codec: int, *, start: int = 0) -> PartitionDir:
    """One record for each of these keys, in this order, in segments from offset `start` on; the active one is empty."""
    path = place / str(PARTITION)
    path.mkdir(parents=True)
    rng = np.random.default_rng(start)
    pool = rng.integers(97, 123, size=POOL_BYTES, dtype=np.uint8)
    count = max(1, BATCH_BYTES // (KEY_BYTES + RECORD_FIXED_BYTES + sum(values) // 2))
    parts: list[npt.NDArray[np.uint8]] = []
    base, size = start, 0
    for first in range(0, drawn.size, count):
        batch = _batch(drawn[first : first + count], start + first, pool, values, codec, rng)
        if size + batch.size > SEGMENT_BYTES:
            _write_segment(path, base, parts)
            parts, base, size = [], start + first, 0
        parts.append(batch)
        size += batch.size
    _write_segment(path, base, parts)
    _write_segment(path, start + drawn.size, [])
    return PartitionDir(path=path, topic=TOPIC, partition=0)


def _batch(
    keys: Ints, offset: int, pool: npt.NDArray[np.uint8], values: tuple[int, int], codec: int, rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    n = keys.size
    steps = np.arange(n, dtype=np.int64)
    columns = Columns(
        timestamp_deltas=steps, offset_deltas=steps, key_pool=keys.astype(">i8").view(np.uint8),
        key_starts=steps * KEY_BYTES, key_sizes=np.full(n, KEY_BYTES, dtype=np.int64), value_pool=pool,
        value_starts=rng.integers(0, POOL_BYTES - values[1], size=n),
        value_sizes=rng.integers(values[0], values[1] + 1, size=n),
        header_pool=NO_HEADERS, header_starts=np.zeros(n, dtype=np.int64), header_sizes=np.ones(n, dtype=np.int64),
    )  # fmt: skip
    head = BatchHead(
        base_offset=offset, last_offset_delta=n - 1, base_timestamp=START_MS + offset,
        max_timestamp=START_MS + offset + n - 1, codec=codec,
    )  # fmt: skip
    return batch_bytes(head, encode_section(columns), n)


def _write_segment(directory: Path, base: int, parts: list[npt.NDArray[np.uint8]]) -> None:
    with open(directory / numbered(base, LOG), "wb") as file:
        for part in parts:
            file.write(part.data)


def evenly(megabytes: float) -> Ints:
    """Keys of a log of about that size before compression, half of the records superseded."""
    records = int(megabytes * MB) // (KEY_BYTES + RECORD_FIXED_BYTES + sum(VALUE_BYTES) // 2)
    return np.random.default_rng(1).integers(0, int(records * KEYS_A_RECORD), size=records)


def log_bytes(log: PartitionDir) -> int:
    return sum(file.stat().st_size for file in log.path.glob("*" + LOG))
