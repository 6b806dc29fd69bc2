"""A round's actions, what they do to a cluster and what the journal says of it: in order, put back, nothing overwritten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import (
    DEFAULT_HOLD,
    HOLD,
    LAG_MAX,
    LAG_MIN,
    RATIO,
    Allowed,
    AskBrokers,
    Decision,
    EndPasses,
    Hold,
    HoldByDefault,
    Memory,
    Release,
    ReleaseDefault,
    SetHold,
    State,
)
from headstone.coordination.readmission import Readmission
from headstone.errors import Unfinished
from headstone.guard.acting.actions import Actions
from headstone.guard.acting.changes import ENDING, carry_out, forget_old_changes, put_back
from headstone.guard.acting.outcomes import ActionOutcome
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Change
from headstone.guard.ledger.memory import Recollection
from headstone.guard.ledger.overrides import never
from headstone.guard.ledger.readmissions import Busy, alone, keep_readmission, open_readmissions
from headstone.guard.ledger.temporary_changes import (
    RATE,
    THROTTLED,
    hold_for_a_while,
    is_throttled,
    temporary_changes,
    throttle_copy,
    with_replica,
)
from headstone.guard.ledger.temporary_changes import (
    put_back as put_one_back,
)
from headstone.guard.loop.watcher import Watcher
from headstone.log.topic_partition import TopicPartition
from tests.guard.watching import ACTS, after, goes_away, holding, kinds, states, watcher
from tests.guard.world import DAY_MS, MARGINS, ClusterTwin, Topic

BACKOFF = "log.cleaner.backoff.ms"
END = EndPasses(topic="orders")


def test_cleaner_threads_are_restarted_by_a_change_that_every_broker_shows_and_that_goes_back(journal: Journal) -> None:
    twin = ClusterTwin()
    twin.broker_own[2] = {BACKOFF: "20000"}
    assert carry_out(END, twin, journal, now_ms=5) == ActionOutcome()  # type: ignore[arg-type]
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


def dying_twin(**topics: Topic) -> ClusterTwin:
    """It takes a change, and the guard is killed before it knows."""
    twin = ClusterTwin(**topics)
    twin.fails["altered"] = KeyboardInterrupt()
    return twin


def test_what_an_interrupted_guard_had_changed_for_a_moment_is_put_back_unless_somebody_changed_it(
    journal: Journal,
) -> None:
    twin = dying_twin()
    dies = dict(twin.fails)
    with pytest.raises(KeyboardInterrupt):
        carry_out(END, twin, journal, now_ms=5)  # type: ignore[arg-type]
    twin.fails.clear()
    assert (twin.default, len(journal.unfinished())) == ({BACKOFF: "15001"}, 1)
    assert put_back(twin, journal) == [f"cluster default: {BACKOFF} put back to no override"]  # type: ignore[arg-type]
    assert (twin.default, journal.unfinished()) == ({}, [])
    twin.fails |= dies
    with pytest.raises(KeyboardInterrupt):
        carry_out(END, twin, journal, now_ms=6)  # type: ignore[arg-type]
    twin.fails.clear()
    twin.default[BACKOFF] = "30000"
    assert (put_back(twin, journal), twin.default) == ([], {BACKOFF: "30000"})  # type: ignore[arg-type]


def begun(journal: Journal, resource: str, old: str | None, new: str) -> None:
    """As a guard leaves it that is killed while cleaner threads restart."""
    journal.begin(Change(
        resource=resource, topic="orders", old=((BACKOFF, old),), new=((BACKOFF, new),), reason=f"{ENDING}a guard died",
        evidence="", began_ms=5,
    ))  # fmt: skip


def test_a_broker_that_is_off_does_not_keep_the_others_from_being_put_back(journal: Journal) -> None:
    twin = ClusterTwin()
    twin.broker_own = {2: {BACKOFF: "7"}, 3: {BACKOFF: "7"}}
    for broker in (2, 3):
        begun(journal, f"broker {broker}", "5", "7")
    twin.fails["broker 2"] = Unfinished("broker 2: its address is unknown")
    (done, later) = put_back(twin, journal)  # type: ignore[arg-type]
    assert later.startswith(
        f"broker 2: {BACKOFF}, changed by an interrupted guard, is not put back yet: broker 2: its address is unknown"
    )
    assert done == f"broker 3: {BACKOFF} put back to 5"
    assert [entry.resource for entry in journal.unfinished()] == ["broker 2"]
    twin.fails.clear()
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
        begun(journal, "cluster default", old, new)
    twin.default[BACKOFF] = "15002"
    twin.left = failures
    for _ in range(1 + failures):
        put_back(twin, journal)  # type: ignore[arg-type]
    assert (twin.default, journal.unfinished()) == ({}, [])


def test_a_release_restores_only_where_the_hold_still_stands(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides={**dict(HOLD), RATIO: "0.9"}))
    release = Release(topic="orders", restore=((RATIO, "0.1"), (LAG_MIN, None)))
    assert carry_out(release, twin, journal, now_ms=5) == ActionOutcome()  # type: ignore[arg-type]
    assert twin.changes == [("topic orders", {LAG_MIN: None})]
    assert carry_out(release, twin, journal, now_ms=6) == ActionOutcome(needed=False)  # type: ignore[arg-type]
    assert len(twin.changes) == len(journal.changes()) == 1


def test_a_failure_is_an_outcome_and_is_in_the_journal(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides=dict(HOLD)))
    twin.refuses = "not allowed"
    release = Release(topic="orders", restore=((RATIO, None),))
    assert carry_out(release, twin, journal, now_ms=5) == ActionOutcome(why="not allowed")  # type: ignore[arg-type]
    assert [change.outcome for change in journal.changes()] == ["failed: not allowed"]
    with pytest.raises(Unfinished):
        twin.alter_topic("orders", {})


def test_a_guard_that_dies_with_the_change_has_written_down_what_it_changes_and_what_it_found(journal: Journal) -> None:
    """Somebody has set the ratio since the look: that goes back, and not what the look had shown."""
    twin = dying_twin(orders=Topic(overrides={RATIO: "0.9"}))
    looked = ((RATIO, "0.1"), (LAG_MIN, None), (LAG_MAX, None))
    journal.remember("orders", Memory(hold=Hold(asked_ms=twin.now_ms, found=looked)))
    with pytest.raises(KeyboardInterrupt):
        carry_out(SetHold(topic="orders", configs=HOLD, by_ms=1, reason="behind"), twin, journal, now_ms=5)  # type: ignore[arg-type]
    found = ((RATIO, "0.9"), (LAG_MIN, None), (LAG_MAX, None))
    assert journal.memory("orders").hold == Hold(asked_ms=twin.now_ms, found=found)
    assert [(entry.old, entry.new) for entry in journal.unfinished()] == [(found, HOLD)]
    twin.fails.clear()
    carry_out(Release(topic="orders", restore=found), twin, journal, now_ms=6)  # type: ignore[arg-type]
    assert twin.topics["orders"].overrides == {RATIO: "0.9"}


def test_a_guard_that_dies_when_the_default_holds_does_not_find_its_own_hold_later(journal: Journal) -> None:
    """The next one sees the hold in the default, and a topic's memory may know no other: a release would set it for ever."""
    twin = dying_twin(orders=Topic(), users=Topic())
    twin.default = {DEFAULT_HOLD[0][0]: "0.7"}
    hold = HoldByDefault(configs=DEFAULT_HOLD)
    with pytest.raises(KeyboardInterrupt):
        carry_out(hold, twin, journal, now_ms=5, topic="orders")  # type: ignore[arg-type]
    twin.fails.clear()
    assert carry_out(hold, twin, journal, now_ms=6, topic="users") == ActionOutcome(needed=False)  # type: ignore[arg-type]
    release = ReleaseDefault(restore=DEFAULT_HOLD)
    assert carry_out(release, twin, journal, now_ms=7, topic="users", other_topics=()) == ActionOutcome()  # type: ignore[arg-type]
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


THREE = ("orders", "payments", "users")


def test_holds_come_first_and_the_one_that_is_due_first_before_the_others(journal: Journal) -> None:
    twin = ClusterTwin()
    actions = Actions(
        "a", lease_ms=1_000, margins=Margins(), admin=twin, journal=journal, clock=twin.clock,
        recollection=Recollection(journal), readmissions=None,
    )  # type: ignore[arg-type]  # fmt: skip
    later, sooner = (SetHold(topic="t", configs=HOLD, by_ms=ms, reason="behind") for ms in (20, 10))
    ask, end = AskBrokers(topic="t", brokers=(1,)), EndPasses(topic="t")
    others = (Release(topic="t", restore=()), ReleaseDefault(restore=()), end, HoldByDefault(configs=()), ask)
    decided = {
        topic: (Memory(), Decision(memory=Memory(), actions=(*wanted,), statuses=()))
        for topic, wanted in (("a", others), ("b", (later,)), ("c", (sooner,)))
    }
    assert [action for _, action in actions.wanted(decided)] == [
        sooner, later, HoldByDefault(configs=()), ask, end, Release(topic="t", restore=()), ReleaseDefault(restore=()),
    ]  # fmt: skip


class SlowTwin(ClusterTwin):
    """Each change takes most of a lease."""

    def _alter(self, what: str, configs: dict[str, str], changes: Mapping[str, str | None]) -> None:
        super()._alter(what, configs, changes)
        self.now_ms += ACTS.lease_ms * 9 // 10


def test_a_round_that_outlasts_the_lease_is_finished_as_long_as_nobody_else_leads(journal: Journal) -> None:
    twin = SlowTwin(**{topic: Topic() for topic in THREE})
    guard = watcher(twin, journal)
    goes_away(twin, guard)
    result = after(twin, guard, DAY_MS // 2)
    assert (result.leads, [what for what, _ in twin.changes]) == (True, [f"topic {topic}" for topic in THREE])


def about_to_end_passes(twin: ClusterTwin, journal: Journal) -> Watcher:
    """All topics are held a minute before the moment of danger, and each broker has said so."""
    guard = watcher(twin, journal, verdict=None)
    goes_away(twin, guard)
    after(twin, guard, DAY_MS - 60_000)
    after(twin, guard, 1_000)
    return guard


def test_one_restart_of_cleaner_threads_serves_all_topics_of_a_round(journal: Journal) -> None:
    twin = ClusterTwin(**{topic: Topic() for topic in THREE})
    guard = about_to_end_passes(twin, journal)
    result = after(twin, guard, 1_000)
    wanted = [done for done in result.done if isinstance(done.action, EndPasses)]
    assert [(done.topic, done.outcome is not None and done.outcome.needed) for done in wanted] == [
        ("orders", True), ("payments", False), ("users", False),
    ]  # fmt: skip
    assert [changes for _, changes in twin.changes if BACKOFF in changes] == [{BACKOFF: "15001"}, {BACKOFF: None}]
    assert [states(result, topic) for topic in THREE] == [[State.HELD]] * 3


def test_a_broker_that_falls_silent_costs_one_question_a_round_and_is_told_of_each_topic(journal: Journal) -> None:
    twin = ClusterTwin(**{topic: Topic() for topic in THREE})
    guard = about_to_end_passes(twin, journal)
    twin.fails["broker 2"] = Unfinished("broker 2: no answer in time")
    for rounds in (1, 2):
        result = after(twin, guard, 1_000)
        assert (len(twin.failed), kinds(result)) == (rounds, ["a change was refused"] * 3)


def test_topics_that_wait_for_the_cluster_default_cost_no_reading_of_the_journal(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = ClusterTwin(**{topic: Topic() for topic in THREE})
    guard = holding(twin, journal, replace(ACTS, allowed=Allowed(cluster_default=True)))
    for topic in twin.topics.values():
        topic.overrides.clear()
    after(twin, guard, MARGINS.metadata_age_ms + 1, times=3)
    assert twin.default == dict(DEFAULT_HOLD)
    twin.start(3)
    twin.topics["users"].isr = (1, 2)
    after(twin, guard, MARGINS.effect_ms)
    monkeypatch.setattr(journal, "topics", lambda: pytest.fail("all memories are read from the disk"))
    result = after(twin, guard, MARGINS.effect_ms)
    released = [done for done in result.done if isinstance(done.action, ReleaseDefault)]
    assert [(done.topic, done.outcome is not None and done.outcome.needed) for done in released] == [
        ("orders", False), ("payments", False),
    ]  # fmt: skip
    assert twin.default == dict(DEFAULT_HOLD)
    twin.topics["users"].isr = (1, 2, 3)
    after(twin, guard, MARGINS.effect_ms, times=4)
    assert twin.default == {}
    assert [change.resource for change in journal.changes()].count("cluster default") == 2


def test_a_restart_that_a_round_has_not_reached_is_asked_for_in_the_next(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = ClusterTwin()
    guard = about_to_end_passes(twin, journal)

    def lost(*arguments: object, **how: object) -> None:
        raise Unfinished("the journal cannot be written: database is locked")

    with monkeypatch.context() as patched:
        patched.setattr("headstone.guard.acting.actions.carry_out", lost)
        with pytest.raises(Unfinished):
            after(twin, guard, 1_000)
    assert not any(BACKOFF in changes for _, changes in twin.changes)
    after(twin, guard, 1_000)
    assert [changes for _, changes in twin.changes if BACKOFF in changes] == [{BACKOFF: "15001"}, {BACKOFF: None}]


OWN = {"min.cleanable.dirty.ratio": "0.1", "segment.ms": "400"}
PARTITION = TopicPartition("orders", 0)


def all_back(twin: ClusterTwin, journal: Journal) -> list[str]:
    return [
        remark
        for temporary in temporary_changes(journal)
        for remark in put_one_back(twin, journal, temporary, evidence="guard readmit", now_ms=9, void=never)
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
    twin = dying_twin(orders=Topic(overrides=dict(OWN)))
    with pytest.raises(KeyboardInterrupt):
        hold_for_a_while(twin, journal, "orders", reason="re-replicates", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    twin.fails.clear()
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
