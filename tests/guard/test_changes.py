"""What is done to a cluster and what the journal says of it: threads restarted, values put back, nothing overwritten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headstone.coordination.guard_values import (
    DEFAULT_HOLD,
    HOLD,
    LAG_MAX,
    LAG_MIN,
    RATIO,
    EndPasses,
    Hold,
    HoldByDefault,
    Memory,
    Release,
    ReleaseDefault,
    SetHold,
)
from headstone.errors import Unfinished
from headstone.guard.acting.changes import ENDING, carry_out, forget_old_changes, put_back
from headstone.guard.acting.outcomes import Outcome
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Change
from headstone.guard.ledger.temporary_changes import hold_for_a_while
from tests.guard.world import DAY_MS, ClusterTwin, Topic

BACKOFF = "log.cleaner.backoff.ms"
END = EndPasses(topic="orders")


def test_cleaner_threads_are_restarted_by_a_change_that_every_broker_shows_and_that_goes_back(journal: Journal) -> None:
    twin = ClusterTwin()
    twin.broker_own[2] = {BACKOFF: "20000"}
    assert carry_out(END, twin, journal, now_ms=5) == Outcome()  # type: ignore[arg-type]
    assert twin.changes == [
        ("default", {BACKOFF: "20001"}), ("broker 2", {BACKOFF: "20001"}),
        ("default", {BACKOFF: None}), ("broker 2", {BACKOFF: "20000"}),
    ]  # fmt: skip
    assert [(c.resource, c.old, c.new, c.outcome) for c in journal.changes()] == [
        ("cluster default", ((BACKOFF, None),), ((BACKOFF, "20001"),), "done, and put back"),
        ("broker 2", ((BACKOFF, "20000"),), ((BACKOFF, "20001"),), "done, and put back"),
    ]


def test_only_a_hold_may_be_told_to_another_broker_while_it_may_have_arrived(journal: Journal) -> None:
    """A hold that comes twice is a hold; a release that comes late ends the next one."""
    told: list[bool] = []

    class Told(ClusterTwin):
        def alter_topic(
            self, topic: str, changes: Mapping[str, str | None], *, repeatable: bool = False, **how: Any
        ) -> None:
            told.append(repeatable)
            super().alter_topic(topic, changes, **how)

    twin = Told()
    hold = SetHold(topic="orders", configs=HOLD, by_ms=9, reason="behind")
    release = Release(topic="orders", restore=tuple((name, None) for name, _ in HOLD))
    for action in (hold, release):
        assert carry_out(action, twin, journal, now_ms=5).why is None  # type: ignore[arg-type]
    assert told == [True, False]


def test_a_broker_that_does_not_take_the_restart_is_named(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headstone.guard.acting.changes.SEEN_SECONDS_MAX", 0.01)
    twin = ClusterTwin()
    twin.deaf = {3}
    outcome = carry_out(END, twin, journal, now_ms=5)  # type: ignore[arg-type]
    assert outcome.why == f"brokers [3] did not take the change of {BACKOFF}: passes may go on there"
    assert twin.default == {}


def test_what_an_interrupted_guard_had_changed_for_a_moment_is_put_back_unless_somebody_changed_it(
    journal: Journal,
) -> None:
    class Dies(ClusterTwin):
        def broker_configs(self, broker: int | None) -> Mapping:
            if self.changes and broker is not None:
                raise KeyboardInterrupt
            return super().broker_configs(broker)

    twin = Dies()
    with pytest.raises(KeyboardInterrupt):
        carry_out(END, twin, journal, now_ms=5)  # type: ignore[arg-type]
    assert (twin.default, len(journal.unfinished())) == ({BACKOFF: "15001"}, 1)
    assert put_back(twin, journal) == [f"cluster default: {BACKOFF} put back to no override"]  # type: ignore[arg-type]
    assert (twin.default, journal.unfinished()) == ({}, [])
    twin.changes.clear()
    with pytest.raises(KeyboardInterrupt):
        carry_out(END, twin, journal, now_ms=6)  # type: ignore[arg-type]
    twin.default[BACKOFF] = "30000"
    assert (put_back(twin, journal), twin.default) == ([], {BACKOFF: "30000"})  # type: ignore[arg-type]


def test_a_broker_that_is_off_does_not_keep_the_others_from_being_put_back(journal: Journal) -> None:
    class Off(ClusterTwin):
        off: int | None = None

        def broker_configs(self, broker: int | None) -> Mapping:
            if broker == self.off is not None:
                raise Unfinished(f"broker {broker}: its address is unknown")
            return super().broker_configs(broker)

    twin = Off()
    twin.broker_own = {2: {BACKOFF: "7"}, 3: {BACKOFF: "7"}}
    for broker in (2, 3):
        entry = Change(
            resource=f"broker {broker}", topic="orders", old=((BACKOFF, "5"),), new=((BACKOFF, "7"),),
            reason=f"{ENDING}a guard died", evidence="", began_ms=5,
        )  # fmt: skip
        journal.begin(entry)
    twin.off = 2
    (done, later) = put_back(twin, journal)  # type: ignore[arg-type]
    assert later.startswith(
        f"broker 2: {BACKOFF}, changed by an interrupted guard, is not put back yet: broker 2: its address is unknown"
    )
    assert done == f"broker 3: {BACKOFF} put back to 5"
    assert [entry.resource for entry in journal.unfinished()] == ["broker 2"]
    twin.off = None
    assert put_back(twin, journal) == [f"broker 2: {BACKOFF} put back to 5"]  # type: ignore[arg-type]
    assert twin.broker_own == {2: {BACKOFF: "5"}, 3: {BACKOFF: "5"}}


@pytest.mark.parametrize("failures", [0, 1])
def test_a_change_for_a_moment_that_began_on_top_of_another_goes_back_to_what_was_there_before_both(
    journal: Journal, failures: int
) -> None:
    """Also where the newer one cannot be put back at first: the older one waits for it."""

    class Fails(ClusterTwin):
        left = 0

        def _alter(self, what: str, configs: dict[str, str], changes: Mapping[str, str | None]) -> None:
            if self.left:
                self.left -= 1
                raise Unfinished("not now")
            super()._alter(what, configs, changes)

    twin = Fails()
    for old, new in ((None, "15001"), ("15001", "15002")):
        journal.begin(
            Change(
                resource="cluster default", topic="orders", old=((BACKOFF, old),), new=((BACKOFF, new),),
                reason=f"{ENDING}a guard died", evidence="", began_ms=5,
            )
        )  # fmt: skip
    twin.default[BACKOFF] = "15002"
    twin.left = failures
    for _ in range(1 + failures):
        put_back(twin, journal)  # type: ignore[arg-type]
    assert (twin.default, journal.unfinished()) == ({}, [])


def test_a_release_restores_only_where_the_hold_still_stands(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides={**dict(HOLD), RATIO: "0.9"}))
    release = Release(topic="orders", restore=((RATIO, "0.1"), (LAG_MIN, None)))
    assert carry_out(release, twin, journal, now_ms=5) == Outcome()  # type: ignore[arg-type]
    assert twin.changes == [("topic orders", {LAG_MIN: None})]
    assert carry_out(release, twin, journal, now_ms=6) == Outcome(needed=False)  # type: ignore[arg-type]
    assert len(twin.changes) == len(journal.changes()) == 1


def test_a_failure_is_an_outcome_and_is_in_the_journal(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides=dict(HOLD)))
    twin.refuses = "not allowed"
    release = Release(topic="orders", restore=((RATIO, None),))
    assert carry_out(release, twin, journal, now_ms=5) == Outcome(why="not allowed")  # type: ignore[arg-type]
    assert [change.outcome for change in journal.changes()] == ["failed: not allowed"]
    with pytest.raises(Unfinished):
        twin.alter_topic("orders", {})


class DiesOnceChanged(ClusterTwin):
    """The cluster takes a change, and the guard is killed before it knows."""

    dies = True

    def _alter(self, what: str, configs: dict[str, str], changes: Mapping[str, str | None]) -> None:
        super()._alter(what, configs, changes)
        if self.dies:
            raise KeyboardInterrupt


def test_a_guard_that_dies_with_the_change_has_written_down_what_it_changes_and_what_it_found(journal: Journal) -> None:
    """Somebody has set the ratio since the look: that goes back, and not what the look had shown."""
    twin = DiesOnceChanged(orders=Topic(overrides={RATIO: "0.9"}))
    looked = ((RATIO, "0.1"), (LAG_MIN, None), (LAG_MAX, None))
    journal.remember("orders", Memory(hold=Hold(asked_ms=twin.now_ms, found=looked)))
    with pytest.raises(KeyboardInterrupt):
        carry_out(SetHold(topic="orders", configs=HOLD, by_ms=1, reason="behind"), twin, journal, now_ms=5)  # type: ignore[arg-type]
    found = ((RATIO, "0.9"), (LAG_MIN, None), (LAG_MAX, None))
    assert journal.memory("orders").hold == Hold(asked_ms=twin.now_ms, found=found)
    assert [(entry.old, entry.new) for entry in journal.unfinished()] == [(found, HOLD)]
    twin.dies = False
    carry_out(Release(topic="orders", restore=found), twin, journal, now_ms=6)  # type: ignore[arg-type]
    assert twin.topics["orders"].overrides == {RATIO: "0.9"}


def test_a_guard_that_dies_when_the_default_holds_does_not_find_its_own_hold_later(journal: Journal) -> None:
    """The next one sees the hold in the default, and a topic's memory may know no other: a release would set it for ever."""
    twin = DiesOnceChanged(orders=Topic(), users=Topic())
    twin.default = {DEFAULT_HOLD[0][0]: "0.7"}
    hold = HoldByDefault(configs=DEFAULT_HOLD)
    with pytest.raises(KeyboardInterrupt):
        carry_out(hold, twin, journal, now_ms=5, topic="orders")  # type: ignore[arg-type]
    twin.dies = False
    assert carry_out(hold, twin, journal, now_ms=6, topic="users") == Outcome(needed=False)  # type: ignore[arg-type]
    release = ReleaseDefault(restore=DEFAULT_HOLD)
    assert carry_out(release, twin, journal, now_ms=7, topic="users", other_topics=()) == Outcome()  # type: ignore[arg-type]
    assert twin.default == {DEFAULT_HOLD[0][0]: "0.7"}


def test_old_changes_are_forgotten_but_for_those_of_what_is_still_in_force(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(), users=Topic(), gone=Topic())
    for topic in twin.topics:
        hold = SetHold(topic=topic, configs=HOLD, by_ms=1, reason="behind")
        carry_out(hold, twin, journal, now_ms=twin.now_ms)  # type: ignore[arg-type]
    carry_out(HoldByDefault(configs=DEFAULT_HOLD), twin, journal, now_ms=twin.now_ms, topic="gone")  # type: ignore[arg-type]
    journal.remember("orders", Memory(hold=Hold(asked_ms=twin.now_ms, found=())))
    hold_for_a_while(twin, journal, "users", reason="re-replicates", evidence="guard readmit", now_ms=twin.now_ms)  # type: ignore[arg-type]
    begun = Change(resource="topic gone", topic="gone", old=(), new=HOLD, reason="begun", evidence="", began_ms=1)
    journal.begin(begun)
    for days, kept in ((90, 6), (91, 5)):
        forget_old_changes(journal, now_ms=twin.now_ms + days * DAY_MS)
        assert len(journal.changes()) == kept
    assert [change.resource for change in journal.changes()] == [
        "topic orders", "topic users", "cluster default", "topic users", "topic gone",
    ]  # fmt: skip
