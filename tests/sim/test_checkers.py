"""What a replica serves against what happened: a record that is not decided, and an older one in the place of the newest."""

from __future__ import annotations

from headstone.sim.batches import Batch, data_batch
from headstone.sim.checkers import ABORTED_AS_COMMITTED, COMMITTED_HIDDEN, check_log
from headstone.sim.partition_log import PartitionLog
from headstone.sim.truth import Truth, Txn


def record(key: bytes, value: bytes, base: int, *, producer: int = -1) -> Batch:
    known = (
        {"producer_id": producer, "producer_epoch": 0, "sequence": 0, "transactional": True} if producer >= 0 else {}
    )
    return data_batch([(key, value)], base=base, leader_epoch=0, timestamp=1, **known)  # type: ignore[arg-type]


def log_of(*batches: Batch) -> PartitionLog:
    log = PartitionLog()
    for batch in batches:
        log.append(batch)
    log.high_watermark = log.log_end
    return log


def test_a_record_that_is_not_decided_may_not_be_served() -> None:
    truth = Truth()
    txn = Txn(producer_id=7)
    truth.txns.append(txn)
    truth.offered(record(b"k", b"v", 0, producer=7), txn, 1, by_leader=True)
    truth.offered(record(b"z", b"v", 1), None, 1, by_leader=True)
    made_plain = log_of(record(b"k", b"v", 0), record(b"z", b"v", 1))
    assert [(finding.kind, finding.text) for finding in check_log("broker 1", made_plain, truth)] == [
        (ABORTED_AS_COMMITTED, "serves k=v at offset 0, which is undecided")
    ]


def test_an_older_record_is_not_the_newest() -> None:
    truth = Truth()
    for base, (key, value) in enumerate([(b"k", b"old"), (b"k", b"new"), (b"z", b"v")]):
        truth.offered(record(key, value, base), None, 1, by_leader=True)
    whole = log_of(record(b"k", b"old", 0), record(b"k", b"new", 1), record(b"z", b"v", 2))
    lost = log_of(record(b"k", b"old", 0), record(b"z", b"v", 2))
    assert check_log("broker 1", whole, truth) == []
    assert [(finding.kind, finding.text) for finding in check_log("broker 1", lost, truth)] == [
        (COMMITTED_HIDDEN, "serves k=old at offset 0 and has lost k=new at offset 1")
    ]
