"""What is taken of a broker's answers: whole batches below the end, and transactions that were aborted."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.cluster.replicas import whole_batches, write_aborted_index
from headstone.errors import Unfinished
from headstone.log.indexes import AbortedTxn, read_aborted
from tests.oracle.batches import Batch, Record, encode
from tests.oracle.notation import History


def test_batches_that_are_cut_off_are_asked_for_again() -> None:
    def batch(offset: int) -> bytes:
        record = Record(offset=offset, timestamp=1, key=b"k", value=b"v")
        return encode(Batch(
            base_offset=offset, last_offset_delta=0, records=(record,), count=1, base_timestamp=1, horizon_ms=None,
            max_timestamp=1, leader_epoch=0, codec="none", transactional=False, producer_id=-1, producer_epoch=-1,
            base_sequence=-1,
        ))  # fmt: skip

    first, second, third = batch(4), batch(5), batch(9)
    answer = first + second + third
    assert whole_batches(answer, 4, 100) == (answer, 10)
    assert whole_batches(answer, 5, 100) == (second + third, 10)
    assert whole_batches(answer, 4, 9) == (first + second, 9)
    assert whole_batches(answer, 4, 8) == (first + second, 8)
    for cut in range(1, len(third)):
        assert whole_batches(answer[:-cut], 4, 100) == (first + second, 6)
    assert whole_batches(b"", 4, 100) == (b"", 4)
    for garbage in (bytes(100), b"\xff" * 100, first + bytes(100)):
        with pytest.raises(Unfinished, match="not a record batch"):
            whole_batches(garbage, 4, 100)


def test_aborted_transactions_end_at_their_own_marker(tmp_path: Path) -> None:
    """A broker tells producer and first offset; the end is the next ABORT of that producer, if it is in the copy."""
    history = History()
    history.append("P1[a] C1 P1[b] P2[c] A2 A1 P1[d] A1 P1[e]")
    log = history.write_partition(tmp_path, "t-0") / f"{0:020d}.log"
    log.with_suffix(".txnindex").unlink(missing_ok=True)
    write_aborted_index(log, 0, {(1, 2), (2, 3), (1, 6), (1, 8)})
    assert read_aborted(log.with_suffix(".txnindex")) == [
        AbortedTxn(producer_id=2, first_offset=3, last_offset=4, lso=3),
        AbortedTxn(producer_id=1, first_offset=2, last_offset=5, lso=2),
        AbortedTxn(producer_id=1, first_offset=6, last_offset=7, lso=6),
    ]
