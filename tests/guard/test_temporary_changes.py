"""Settings that a readmission changes for a while go back exactly; what others have set stays; one process at a time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from headstone.coordination.guard_values import HOLD, LAG_MIN
from headstone.coordination.readmission import Readmission
from headstone.errors import Unfinished
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.overrides import never
from headstone.guard.ledger.readmissions import Busy, alone, keep_readmission, open_readmissions
from headstone.guard.ledger.temporary_changes import (
    RATE,
    THROTTLED,
    hold_for_a_while,
    is_throttled,
    put_back,
    temporary_changes,
    throttle_copy,
    with_replica,
)
from headstone.log.topic_partition import TopicPartition
from tests.guard.world import ClusterTwin, Topic

OWN = {"min.cleanable.dirty.ratio": "0.1", "segment.ms": "400"}
PARTITION = TopicPartition("orders", 0)


def all_back(twin: ClusterTwin, journal: Journal) -> list[str]:
    return [
        remark
        for temporary in temporary_changes(journal)
        for remark in put_back(twin, journal, temporary, evidence="guard readmit", now_ms=9, void=never)
    ]  # type: ignore[arg-type]


def test_a_hold_that_was_set_twice_goes_back_to_what_was_found_first(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN)))
    for now_ms in (1, 2):
        hold_for_a_while(twin, journal, "orders", reason="re-replicates", evidence="guard readmit", now_ms=now_ms)  # type: ignore[arg-type]
    assert twin.topics["orders"].overrides == {**OWN, **dict(HOLD)}
    assert all_back(twin, journal) == []
    assert (twin.topics["orders"].overrides, temporary_changes(journal)) == (OWN, [])
    assert [(change.reason, change.outcome) for change in journal.changes()] == [
        ("re-replicates", "done"), ("re-replicates", "done"), ("the readmission is over: as it was found", "done"),
    ]  # fmt: skip


def test_who_dies_with_the_change_has_noted_what_goes_back(journal: Journal) -> None:
    class DiesOnceChanged(ClusterTwin):
        dies = True

        def _alter(self, what: str, configs: dict[str, str], changes: Mapping[str, str | None]) -> None:
            super()._alter(what, configs, changes)
            if self.dies:
                raise KeyboardInterrupt

    twin = DiesOnceChanged(orders=Topic(overrides=dict(OWN)))
    with pytest.raises(KeyboardInterrupt):
        hold_for_a_while(twin, journal, "orders", reason="re-replicates", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    twin.dies = False
    hold_for_a_while(twin, journal, "orders", reason="re-replicates", evidence="guard readmit", now_ms=2)  # type: ignore[arg-type]
    assert all_back(twin, journal) == []
    assert (twin.topics["orders"].overrides, temporary_changes(journal)) == (OWN, [])


def test_what_somebody_else_has_changed_meanwhile_stays_and_is_told(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN)))
    hold_for_a_while(twin, journal, "orders", reason="re-replicates", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    twin.topics["orders"].overrides[LAG_MIN] = "5"
    assert all_back(twin, journal) == [f"topic orders: {LAG_MIN} was changed by somebody else meanwhile and stays 5"]
    assert twin.topics["orders"].overrides == {**OWN, LAG_MIN: "5"}


def test_a_hold_that_stood_before_is_nobodys_to_undo(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides={name: value for name, value in HOLD if value is not None}))
    hold_for_a_while(twin, journal, "orders", reason="re-replicates", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    assert all_back(twin, journal) == []
    assert twin.topics["orders"].overrides == dict(HOLD)


def test_the_copys_rate_is_limited_and_a_limit_that_was_there_stays_as_it_is(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides={THROTTLED: "1:2"}))
    twin.broker_own[3] = {RATE: "7"}
    assert not is_throttled(twin, PARTITION, 3)  # type: ignore[arg-type]
    throttle_copy(twin, journal, PARTITION, 3, bytes_per_second=9, evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    assert is_throttled(twin, PARTITION, 3)  # type: ignore[arg-type]
    assert (twin.topics["orders"].overrides, twin.broker_own[3]) == ({THROTTLED: "1:2,0:3"}, {RATE: "7"})
    all_back(twin, journal)
    assert (twin.topics["orders"].overrides, twin.broker_own[3]) == ({THROTTLED: "1:2"}, {RATE: "7"})


def test_a_temporary_change_is_in_the_journal_before_it_is_made(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN)))
    twin.refuses = "no permission"
    with pytest.raises(Unfinished, match="no permission"):
        hold_for_a_while(twin, journal, "orders", reason="re-replicates", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    assert [temporary.topic for temporary in temporary_changes(journal)] == ["orders"]
    twin.refuses = None
    all_back(twin, journal)
    assert (twin.topics["orders"].overrides, temporary_changes(journal)) == (OWN, [])


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
