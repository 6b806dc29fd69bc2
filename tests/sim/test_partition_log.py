"""The simulated log against what a broker does: truncation, restart, producer state, leader epochs.

Small histories with the outcome written out; the cleaner's rules have their own tests in tests/retention.
"""

from __future__ import annotations

import pytest

from headstone.sim.batches import ABORT, COMMIT, data_batch, decode, marker_batch
from headstone.sim.partition_log import PartitionLog, PlainInsideTransactionError
from headstone.sim.readers import read
from tests.oracle import batches as oracle


def plain(log: PartitionLog, *keys: bytes, epoch: int = 0) -> None:
    records = [(key, b"v") for key in keys]
    log.append(data_batch(records, base=log.log_end, leader_epoch=epoch, timestamp=1))


PRODUCER = {"leader_epoch": 0, "timestamp": 1, "producer_id": 7, "producer_epoch": 0}


def txn(log: PartitionLog, key: bytes, *, transactional: bool = True) -> None:
    log.append(data_batch([(key, b"t")], base=log.log_end, sequence=0, transactional=transactional, **PRODUCER))


def mark(log: PartitionLog, *, commit: bool) -> None:
    log.append(marker_batch(commit=commit, base=log.log_end, **PRODUCER))


def test_batches_are_what_an_independent_parser_reads() -> None:
    batch = data_batch(
        [(b"k", b"v"), (b"gone", None)], base=5, leader_epoch=3, timestamp=9, producer_id=7, producer_epoch=2,
        sequence=4, transactional=True,
    )  # fmt: skip
    (seen,) = oracle.parse_log(batch.raw)
    assert (seen.base_offset, seen.last_offset, seen.leader_epoch, seen.producer_id) == (5, 6, 3, 7)
    assert [(r.offset, r.key, r.value) for r in seen.records] == [tuple(r) for r in batch.records]
    assert decode(batch.raw).records == batch.records
    commit = marker_batch(commit=True, base=7, leader_epoch=3, timestamp=9, producer_id=7, producer_epoch=3)
    assert (commit.kind, commit.records) == (COMMIT, ())


def test_an_open_transaction_holds_the_last_stable_offset_until_its_marker_is_replicated() -> None:
    log = PartitionLog()
    plain(log, b"a")
    txn(log, b"b")
    log.high_watermark = 2
    assert log.last_stable_offset() == 1
    assert [record.key for record in read(log, 0, committed=True)[0]] == [b"a"]
    assert [record.key for record in read(log, 0, committed=False)[0]] == [b"a", b"b"]
    mark(log, commit=False)
    assert log.last_stable_offset() == 1
    log.high_watermark = 3
    assert log.last_stable_offset() == 3
    records, position = read(log, 0, committed=True)
    assert ([record.key for record in records], position) == ([b"a"], 3)
    assert [record.key for record in read(log, 0, committed=False)[0]] == [b"a", b"b"]


@pytest.mark.parametrize("rolled", [True, False])
def test_truncation_reopens_what_the_cut_off_marker_had_closed_and_takes_its_abort_entry_along(rolled: bool) -> None:
    log = PartitionLog()
    txn(log, b"a")
    if rolled:
        log.roll()
    mark(log, commit=False)
    assert (log.open, len(log.aborted(0, 9))) == ({}, 1)
    log.truncate(1)
    assert (log.open, log.aborted(0, 9), log.log_end) == ({7: 0}, [], 1)


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_rebuilds_open_transactions(clean: bool) -> None:
    log = PartitionLog()
    txn(log, b"a")
    mark(log, commit=True)
    log.roll()
    txn(log, b"b")
    log.reload(clean=clean, kept_to=log.log_end, high_watermark=2)
    assert (log.open, log.high_watermark) == ({7: 2}, 2)


def test_an_unclean_restart_loses_what_was_not_flushed() -> None:
    log = PartitionLog()
    plain(log, b"a")
    plain(log, b"b", b"c")
    log.reload(clean=False, kept_to=2, high_watermark=3)
    assert (log.log_end, log.high_watermark, [batch.base for batch in log.batches()]) == (1, 1, [0])


def test_plain_data_inside_an_open_transaction_is_refused() -> None:
    log = PartitionLog()
    txn(log, b"a")
    with pytest.raises(PlainInsideTransactionError) as caught:
        txn(log, b"b", transactional=False)
    assert caught.value.first_offset == 0
    assert log.log_end == 1


def test_epochs_say_where_two_logs_part() -> None:
    log = PartitionLog()
    plain(log, b"a", b"b", epoch=1)
    plain(log, b"c", epoch=4)
    assert [log.end_of_epoch(epoch) for epoch in (0, 1, 3, 4, 9)] == [(-1, 0), (1, 2), (1, 2), (4, 3), (4, 3)]
    log.truncate(2)
    assert log.end_of_epoch(9) == (1, 2)


def test_what_a_log_proves_stops_at_transactional_data_and_the_high_watermark() -> None:
    log = PartitionLog()
    plain(log, b"a")
    log.high_watermark = 0
    assert log.watermarks().mxfo == 0
    log.high_watermark = 1
    assert log.watermarks().mxfo == 1
    txn(log, b"b")
    mark(log, commit=True)
    plain(log, b"c")
    assert log.watermarks().mxfo == 1
    log.high_watermark = 4
    assert log.watermarks().mxfo == 1
    log.advance_start(3)
    assert (log.watermarks().mcco, log.watermarks().mxfo) == (3, 4)
    assert ABORT != COMMIT
