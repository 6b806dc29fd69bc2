"""Mutated log directories are refused with a message and nothing written, or read right: never a crash, never a guess.

`campaigns/fuzz.py` runs as many more as one likes.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from headstone.errors import CorruptLog
from headstone.log.directory import find_partitions
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.inspection import inspect
from headstone.retention.policy import Policy, kafka_rules
from tests.fuzz.workers import exit_code_of, run_seeds
from tests.logs import batch_of, compact_here
from tests.oracle.batches import ATTRIBUTES_AT, CRC_AT, LENGTH_BEFORE, Batch, Record, crc32c, encode
from tests.oracle.compression import CODECS, compress

INPUTS = 3_000
SHARES = 6
BOMBS = 24
BOMB_BYTES = 64 << 20
CLAIMED_RECORDS = 20_000_000
PATHS = pytest.mark.parametrize("path", ["whole", "shuffle"])


@pytest.mark.parametrize("share", range(SHARES))
def test_mutated_logs_are_refused_or_read_right(share: int) -> None:
    first = share * INPUTS // SHARES
    found = run_seeds(first, first + INPUTS // SHARES, 1, lambda so_far: None)
    replays = [
        f"python campaigns/fuzz.py --inputs 1 --seed {seed}   # {problem[:300]}" for seed, problem in found.problems
    ]
    assert found.inputs == INPUTS // SHARES
    assert not replays, "\n" + "\n".join(replays)
    assert found.outcomes["accepted"] > found.inputs // 10, found.outcomes
    assert found.outcomes["refused"] > found.inputs // 10, found.outcomes


@PATHS
def test_batches_that_expand_hugely_do_not_add_up(path: str, tmp_path: Path) -> None:
    """Each is allowed by itself; all of them lie in one chunk, and together they are more than a task may have."""
    _write_log(tmp_path / path, [_zstd_batch((b"a", BOMB_BYTES))] * BOMBS, offsets=1)
    assert exit_code_of(_compact, tmp_path / path) == 0


@PATHS
def test_batches_that_expand_hugely_do_not_add_up_when_they_are_rebuilt(path: str, tmp_path: Path) -> None:
    """Each loses its second record to a later one, and is compressed again with the first."""
    bombs = [_zstd_batch((b"%d" % number, BOMB_BYTES), (b"a", 1)) for number in range(BOMBS)]
    _write_log(tmp_path / path, bombs, offsets=2)
    assert exit_code_of(_compact, tmp_path / path) == 0


@PATHS
def test_records_that_are_only_claimed_take_no_memory(path: str, tmp_path: Path) -> None:
    """A payload of some kilobytes could hold as many under zstd; this one does not, which only a reader of it sees."""
    empty = Batch(
        base_offset=0, last_offset_delta=CLAIMED_RECORDS - 1, records=(), count=0, base_timestamp=1, max_timestamp=1
    )
    batch = bytearray(encode(empty) + compress("zstd", random.Random(0).randbytes(5_000)))
    batch[ATTRIBUTES_AT + 1] = CODECS.index("zstd")
    struct.pack_into(">i", batch, 57, CLAIMED_RECORDS)
    struct.pack_into(">i", batch, 8, len(batch) - LENGTH_BEFORE)
    struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[ATTRIBUTES_AT:])))
    _write_log(tmp_path / path, [bytes(batch)], offsets=CLAIMED_RECORDS)
    assert exit_code_of(_refuse, tmp_path / path) == 0


def _zstd_batch(*records: tuple[bytes, int]) -> bytes:
    """Of keys and the sizes of their values, at offset 0."""
    made = tuple(Record(offset=at, timestamp=1, key=key, value=bytes(size)) for at, (key, size) in enumerate(records))
    return encode(batch_of(*made, codec="zstd"))


def _write_log(logs: Path, batches: list[bytes], *, offsets: int) -> None:
    """Batches of so many offsets each, one after the other, and an empty active segment."""
    partition = logs / "t-0"
    partition.mkdir(parents=True)
    # The base offset is outside the checksum.
    placed = [(number * offsets).to_bytes(8, "big") + batch[8:] for number, batch in enumerate(batches)]
    (partition / f"{0:020d}.log").write_bytes(b"".join(placed))
    (partition / f"{len(batches) * offsets:020d}.log").write_bytes(b"")


def _refuse(logs: Path) -> None:
    with pytest.raises(CorruptLog, match="impossible record count"):
        inspect(find_partitions([str(logs)]), Policy(now_ms=0), InProcess(), None)
    with pytest.raises(CorruptLog, match="impossible record count"):
        _compact(logs)


def _compact(logs: Path) -> None:
    out = logs.with_name(logs.name + "-out")
    compact_here(logs / "t-0", out=out, policy=kafka_rules(Policy(now_ms=0)), path=logs.name)
