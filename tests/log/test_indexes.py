"""The three indexes of a segment: made as the oracle makes them, byte for byte, and good for look-ups."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from headstone.errors import CorruptLog
from headstone.log.indexes import (
    AbortedTxn,
    IndexBuilder,
    aborted_bytes,
    read_aborted,
    read_offset_index,
    read_time_index,
)
from tests.logs import batch_of
from tests.oracle import files
from tests.oracle.batches import Record, to_bytes
from tests.oracle.segments import AbortedTxn as OracleAborted
from tests.oracle.segments import Segment, make_segment

SEGMENT_START = 10**12


def segment(seed: int) -> Segment:
    """Batches of many sizes, offsets with holes, times that go up and down."""
    chance, offset, batches = random.Random(seed), SEGMENT_START, []
    for _ in range(chance.choice((0, 1, 40, 40, 40))):
        offset += chance.choice((0, 0, 3))
        stamp = chance.choice((-1, len(batches), 100 * len(batches)))
        value = chance.randbytes(chance.choice((10, 900, 5000)))
        record = Record(offset=offset, timestamp=stamp, key=b"k", value=value)
        batches.append(batch_of(record, last_offset_delta=2))
        offset += 3
    return make_segment(base=SEGMENT_START, batches=batches, mtime_ms=0)


def built(made: Segment, *, at_once: int) -> IndexBuilder:
    builder = IndexBuilder(made.base)
    for start in range(0, len(made.batches), at_once):
        some = made.batches[start : start + at_once]
        builder.append(
            np.array([len(to_bytes(batch)) for batch in some], dtype=np.int64),
            np.array([batch.last_offset for batch in some], dtype=np.int64),
            np.array([batch.max_timestamp for batch in some], dtype=np.int64),
        )
    return builder


@pytest.mark.parametrize("at_once", [1, 7, 100])
@pytest.mark.parametrize("seed", range(12))
def test_indexes_are_those_that_the_oracle_makes(seed: int, at_once: int) -> None:
    made = segment(seed)
    builder = built(made, at_once=at_once)
    assert builder.offset_index() == files.write_index(made.base, made.index)
    assert builder.time_index() == files.write_time_index(made.base, made.time_index)
    assert builder.largest_timestamp == max((batch.max_timestamp for batch in made.batches), default=-1)


def test_some_of_these_segments_have_several_entries() -> None:
    assert max(len(segment(seed).index) for seed in range(12)) > 10
    assert max(len(segment(seed).time_index) for seed in range(12)) > 3


@pytest.mark.parametrize("seed", range(12))
def test_a_look_up_starts_no_later_than_the_batch_it_looks_for(seed: int, tmp_path: Path) -> None:
    """As a broker reads: the last entry at or below the offset, then forward."""
    made = segment(seed)
    path = tmp_path / "x.index"
    path.write_bytes(built(made, at_once=100).offset_index())
    entries = read_offset_index(path)
    position = 0
    for batch in made.batches:
        for offset in (batch.base_offset, batch.last_offset):
            below = entries[entries["relative_offset"] <= offset - made.base]
            assert (below["position"][-1] if below.size else 0) <= position
        position += len(to_bytes(batch))
    assert (np.diff(entries["relative_offset"].astype(np.int64)) > 0).all()


@pytest.mark.parametrize("seed", range(12))
def test_the_time_index_finds_the_first_batch_of_a_running_maximum(seed: int, tmp_path: Path) -> None:
    made = segment(seed)
    path = tmp_path / "x.timeindex"
    path.write_bytes(built(made, at_once=100).time_index())
    entries = read_time_index(path)
    for stamp, relative in entries.tolist():
        first = next(batch for batch in made.batches if batch.max_timestamp >= stamp)
        assert (first.max_timestamp, first.last_offset) == (stamp, made.base + relative)
    assert (np.diff(entries["timestamp"].astype(np.int64)) > 0).all()


def test_an_entry_is_made_only_after_more_than_the_interval() -> None:
    sizes, lasts, stamps = (
        np.array(values, dtype=np.int64) for values in ([10, 10, 10, 10], [0, 1, 2, 3], [5, 4, 9, 9])
    )
    builder = IndexBuilder(0, interval_bytes=20)
    builder.append(sizes, lasts, stamps)
    assert builder.offset_index() == files.write_index(0, ((3, 30),))
    assert builder.time_index() == files.write_time_index(0, ((9, 2),))


ABORTED = [
    AbortedTxn(producer_id=1, first_offset=0, last_offset=29, lso=8),
    AbortedTxn(producer_id=2**40, first_offset=8, last_offset=74, lso=36),
]


def test_transaction_indexes_are_read_and_written_as_the_oracle_does(tmp_path: Path) -> None:
    path = tmp_path / "x.txnindex"
    path.write_bytes(aborted_bytes(list(reversed(ABORTED))))
    theirs = tuple(
        OracleAborted(producer_id=e.producer_id, first_offset=e.first_offset, last_offset=e.last_offset, lso=e.lso)
        for e in ABORTED
    )
    assert path.read_bytes() == files.write_txn_index(theirs)
    assert read_aborted(path) == ABORTED


def test_a_missing_transaction_index_has_no_entries(tmp_path: Path) -> None:
    assert read_aborted(tmp_path / "x.txnindex") == []


def test_a_transaction_index_cut_short_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.txnindex"
    path.write_bytes(aborted_bytes(ABORTED)[:-1])
    with pytest.raises(CorruptLog, match="67 bytes is not a whole number of 34-byte entries") as caught:
        read_aborted(path)
    assert (caught.value.file, caught.value.position) == (str(path), 34)


def test_a_transaction_index_of_another_version_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.txnindex"
    path.write_bytes(b"\0\1" + aborted_bytes(ABORTED)[2:])
    with pytest.raises(CorruptLog, match=r"unknown \.txnindex entry version"):
        read_aborted(path)
