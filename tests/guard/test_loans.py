"""Settings that a readmission changes for a while go back exactly; what others have set stays; one process at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headstone.coordination.guard_values import HOLD, LAG_MIN
from headstone.errors import Unfinished
from headstone.guard.journal import Journal
from headstone.guard.loans import RATE, THROTTLED, is_braked, lend_brake, lend_hold, loans, put_back, with_replica
from headstone.guard.readmission_records import Busy, alone, keep_readmission, open_readmissions
from headstone.guard.readmission_steps import Readmission
from headstone.log.topic_partition import TopicPartition
from tests.guard.world import CLUSTER_ID, ClusterTwin, Topic

OWN = {"min.cleanable.dirty.ratio": "0.1", "segment.ms": "400"}
PARTITION = TopicPartition("orders", 0)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.sqlite", cluster_id=CLUSTER_ID) as opened:
        yield opened


def all_back(twin: ClusterTwin, journal: Journal) -> list[str]:
    return [
        remark
        for loan in loans(journal)
        for remark in put_back(twin, journal, loan, evidence="guard readmit", now_ms=9)
    ]  # type: ignore[arg-type]


def test_a_hold_that_was_lent_twice_goes_back_to_what_was_found_first(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN)))
    for now_ms in (1, 2):
        lend_hold(twin, journal, "orders", reason="copies afresh", evidence="guard readmit", now_ms=now_ms)  # type: ignore[arg-type]
    assert twin.topics["orders"].overrides == {**OWN, **dict(HOLD)}
    assert all_back(twin, journal) == []
    assert (twin.topics["orders"].overrides, loans(journal)) == (OWN, [])
    assert [(change.reason, change.outcome) for change in journal.changes()] == [
        ("copies afresh", "done"), ("copies afresh", "done"), ("the readmission is over: as it was found", "done"),
    ]  # fmt: skip


def test_what_somebody_else_has_changed_meanwhile_stays_and_is_told(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN)))
    lend_hold(twin, journal, "orders", reason="copies afresh", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    twin.topics["orders"].overrides[LAG_MIN] = "5"
    assert all_back(twin, journal) == [f"topic orders: {LAG_MIN} was changed by somebody else meanwhile and stays 5"]
    assert twin.topics["orders"].overrides == {**OWN, LAG_MIN: "5"}


def test_a_hold_that_stood_before_is_nobodys_to_undo(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides={name: value for name, value in HOLD if value is not None}))
    lend_hold(twin, journal, "orders", reason="copies afresh", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    assert all_back(twin, journal) == []
    assert twin.topics["orders"].overrides == dict(HOLD)


def test_the_copys_rate_is_limited_and_a_limit_that_was_there_stays_as_it_is(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides={THROTTLED: "1:2"}))
    twin.broker_own[3] = {RATE: "7"}
    assert not is_braked(twin, PARTITION, 3)  # type: ignore[arg-type]
    lend_brake(twin, journal, PARTITION, 3, bytes_per_second=9, evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    assert is_braked(twin, PARTITION, 3)  # type: ignore[arg-type]
    assert (twin.topics["orders"].overrides, twin.broker_own[3]) == ({THROTTLED: "1:2,0:3"}, {RATE: "7"})
    all_back(twin, journal)
    assert (twin.topics["orders"].overrides, twin.broker_own[3]) == ({THROTTLED: "1:2"}, {RATE: "7"})


def test_a_loan_is_in_the_journal_before_it_is_made(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN)))
    twin.refuses = "no permission"
    with pytest.raises(Unfinished, match="no permission"):
        lend_hold(twin, journal, "orders", reason="copies afresh", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    assert [loan.topic for loan in loans(journal)] == ["orders"]
    twin.refuses = None
    all_back(twin, journal)
    assert (twin.topics["orders"].overrides, loans(journal)) == (OWN, [])


@pytest.mark.parametrize(
    ("listed", "wanted"),
    [
        (None, "0:3"), ("", "0:3"), ("1:2", "1:2,0:3"), ("0:3", "0:3"), ("1:2,0:3", "1:2,0:3"), ("*", "*"),
        ("0:33", "0:33,0:3"),
    ],
)  # fmt: skip
def test_a_replica_is_limited_beside_those_that_are_already(listed: str | None, wanted: str) -> None:
    assert with_replica(listed, 0, 3) == wanted


def test_a_readmission_is_kept_until_it_is_over_and_one_process_carries_them_out(journal: Journal) -> None:
    first, second = (Readmission(topic="orders", partition=0, broker=broker, order=(1, 2, 3)) for broker in (2, 3))
    for begun in (first, second, first):
        keep_readmission(journal, begun)
    assert open_readmissions(journal) == [second, first]
    keep_readmission(journal, second, over=True)
    assert open_readmissions(journal) == [first]
    with (
        alone(journal),
        pytest.raises(Unfinished, match="another `headstone guard readmit --apply`, or a guard"),
        alone(journal),
    ):
        pass
    with alone(journal):
        pass


def test_a_person_waits_for_the_guards_own_step(journal: Journal) -> None:
    guards = alone(journal)
    guards.__enter__()
    with alone(journal, seconds_max=60, pause=lambda seconds: guards.__exit__(None, None, None)), pytest.raises(Busy):
        alone(journal).__enter__()
