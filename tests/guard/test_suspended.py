"""Whoever is suspended anywhere between a look and a call: what was decided is void, and what undoes something is not sent.

Every wait on the way is tried: each question to a broker, each transaction of the journal, the connection for the change.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from headstone.cluster.questions import ConfigValue
from headstone.cluster.wire import ClusterState
from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import DEFAULT_HOLD, HOLD, Allowed, State
from headstone.errors import Unfinished
from headstone.guard.acting.release import carry_out_release, plan_release
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Lease
from headstone.guard.ledger.readmissions import keep_readmission
from headstone.guard.ledger.temporary_changes import RATE, THROTTLED, hold_for_a_while
from headstone.guard.looks.look import Look
from headstone.guard.looks.look_age import LookAge
from headstone.guard.loop.watcher import VOID, Watcher
from headstone.guard.readmission.driver import put_back_changes, readmit
from headstone.guard.readmission.plan import ReadmissionPlan
from headstone.log.topic_partition import TopicPartition
from tests.guard.test_automatic_readmission import READMITS, looks
from tests.guard.test_readmission import BEGUN, ORDER, PLAN
from tests.guard.watching import ACTS, after, held_at_half_a_day, holding, kinds, means_of, states, watcher
from tests.guard.world import CLUSTER_ID, DAY_MS, MARGINS, ClusterTwin, Topic


class SleepyTwin(ClusterTwin):
    """Whoever asks for a topic by its name sleeps for a while, once, if it was told to; broker 3 leaves meanwhile."""

    sleeps_ms = 0

    def describe(self, topics: Sequence[str] | None = None) -> ClusterState:
        if topics is not None and self.sleeps_ms:
            self.now_ms, self.sleeps_ms = self.now_ms + self.sleeps_ms, 0
            self.stop(3)
        return super().describe(topics)


def about_to_let_go(twin: ClusterTwin, journal: Journal) -> Watcher:
    """Broker 3 is back and was read: the next look lets go."""
    guard = holding(twin, journal)
    twin.start(3)
    after(twin, guard, 1_000)
    assert twin.topics["orders"].overrides == dict(HOLD)
    return guard


def test_what_is_left_of_a_round_whose_lease_ran_out_is_void_and_the_guard_looks_again(journal: Journal) -> None:
    twin = SleepyTwin(orders=Topic(), users=Topic())
    guard = about_to_let_go(twin, journal)
    twin.sleeps_ms = ACTS.lease_ms + 1
    result = after(twin, guard, 1_000)
    assert (result.leads, result.done, result.problems) == (True, (), (VOID,))
    assert [twin.topics[topic].overrides for topic in ("orders", "users")] == [dict(HOLD)] * 2
    again = guard.round()
    assert (again.leads, again.problems, {*states(again), *states(again, "users")}) == (True, (), {State.WATCHED})


def test_what_another_guard_did_meanwhile_is_read_again_though_nobody_saw_it_lead(journal: Journal) -> None:
    twin = ClusterTwin()
    first, second = watcher(twin, journal), watcher(twin, journal, replace(ACTS, name="b"))
    first.round()
    twin.stop(3)
    after(twin, first, 1_000)
    for wait_ms in (DAY_MS // 2, 1_000, 1_000):
        after(twin, second, wait_ms)
    assert twin.topics["orders"].overrides == dict(HOLD)
    result = after(twin, first, ACTS.lease_ms + 1)
    assert (result.leads, kinds(result), states(result)) == (True, [], [State.HELD])
    assert journal.memory("orders").hold is not None


def test_no_wall_clock_that_stood_still_or_was_set_back_makes_a_look_young() -> None:
    wall, steady = [1_000_000], [50]
    age = LookAge(lambda: wall[0], lambda: steady[0])
    age.begin()
    wall[0], steady[0] = 1_000_500, 549
    assert age.now_ms() == 1_000_500
    steady[0] = 50 + DAY_MS
    assert age.now_ms() == 1_000_000 + DAY_MS
    wall[0] = 0
    assert age.now_ms() == 1_000_000 + DAY_MS
    age.begin()
    assert age.now_ms() == 0


@dataclass
class Waits:
    """Counts them, and sleeps at the one that it is told, for so long; broker 2 leaves meanwhile."""

    number: int = 0
    sleeps_at: int | None = None
    sleeps_ms: int = 3 * DAY_MS
    slept: bool = False
    sleep: Callable[[int], None] = field(default=lambda ms: None)

    def __call__(self) -> None:
        self.number += 1
        if self.number == self.sleeps_at:
            self.slept = True
            self.sleep(self.sleeps_ms)


class WaitingTwin(ClusterTwin):
    """Notes what was changed after the sleep, unless what it was decided by was had anew after it as well."""

    def __init__(self, waits: Waits, **topics: Topic) -> None:
        super().__init__(**topics)
        self.waits = waits
        self.late: list[object] = []
        self.by = "look"
        self.changed = 0
        self._anew = False
        waits.sleep = self._sleep

    def _sleep(self, ms: int) -> None:
        self.now_ms += ms
        self.stop(2)

    def have(self, what: str) -> None:
        self._anew = self._anew or (self.waits.slept and what == self.by)

    def _note(self, what: object) -> None:
        self.changed += 1
        if self.waits.slept and not self._anew:
            self.late.append(what)

    def look(self, topics: Sequence[str] | None) -> Look:
        self.have("look")
        return super().look(topics)

    def describe(self, topics: Sequence[str] | None = None) -> ClusterState:
        self.waits()
        self.have("describe")
        return super().describe(topics)

    def topic_configs(self, topics: Sequence[str], **how: object) -> dict[str, dict[str, ConfigValue]]:
        self.waits()
        return super().topic_configs(topics, **how)  # type: ignore[arg-type]

    def broker_configs(self, broker: int | None) -> dict[str, ConfigValue]:
        self.waits()
        return super().broker_configs(broker)

    def reached(self) -> None:
        self.waits()

    def _alter(self, what: str, configs: dict[str, str], changes: Mapping[str, str | None]) -> None:
        if not changes.keys() <= {RATE, THROTTLED} and dict(changes) != dict(HOLD):  # these do no harm however late
            self._note((what, dict(changes)))
        super()._alter(what, configs, changes)

    def reassign(self, wanted: Mapping[TopicPartition, Sequence[int] | None], **how: object) -> None:
        super().reassign(wanted, **how)  # type: ignore[arg-type]
        self._note(wanted)

    def elect_preferred(self, partitions: Sequence[TopicPartition], **how: object) -> None:
        super().elect_preferred(partitions, **how)  # type: ignore[arg-type]
        self._note(partitions)


class WaitingJournal(Journal):
    twin: WaitingTwin | None = None

    def __init__(self, path: Path, connection: sqlite3.Connection, cluster_id: str) -> None:
        super().__init__(path, connection, cluster_id)
        connection.execute("PRAGMA synchronous = OFF")  # the same waits, and none of them long

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Before it, for the lock; behind it, for the disk."""
        self._wait()
        with super().transaction() as connection:
            yield connection
        self._wait()

    def rows(self, question: str, *values: object) -> list[tuple[object, ...]]:
        self._wait()
        return super().rows(question, *values)

    def _wait(self) -> None:
        if self.twin is not None:
            self.twin.waits()

    def lead(self, holder: str, *, now_ms: int, **how: object) -> Lease:
        self._leads(now_ms)
        return super().lead(holder, now_ms=now_ms, **how)  # type: ignore[arg-type]

    def renew(self, holder: str, *, now_ms: int, **how: object) -> Lease:
        self._leads(now_ms)
        return super().renew(holder, now_ms=now_ms, **how)  # type: ignore[arg-type]

    def _leads(self, now_ms: int) -> None:
        if self.twin is not None and now_ms == self.twin.now_ms:
            self.twin.have("lease")


Act = Callable[[], object]
Scene = Callable[[WaitingTwin, WaitingJournal], Act]
"""Brings about what stands before the act, and gives that."""


def of_guard(guard: Watcher, twin: ClusterTwin) -> Act:
    return lambda: after(twin, guard, 1_000)


def release(twin: WaitingTwin, journal: WaitingJournal) -> Act:
    return of_guard(about_to_let_go(twin, journal), twin)


def release_of_the_default(twin: WaitingTwin, journal: WaitingJournal) -> Act:
    guard = holding(twin, journal, replace(ACTS, allowed=Allowed(cluster_default=True)))
    twin.topics["orders"].overrides.clear()
    after(twin, guard, MARGINS.metadata_age_ms + 1, times=3)
    assert twin.default == dict(DEFAULT_HOLD)
    twin.start(3)
    after(twin, guard, 1_000)
    return of_guard(guard, twin)


def release_of_a_default_that_nobody_needs(twin: WaitingTwin, journal: WaitingJournal) -> Act:
    release_of_the_default(twin, journal)
    guard = watcher(twin, journal)
    journal.forget("orders")
    return of_guard(guard, twin)


def too_late(twin: WaitingTwin, journal: WaitingJournal) -> Watcher:
    """Broker 3 may have missed something, and is to be taken out."""
    guard = watcher(twin, journal, READMITS, tell=lambda line: None)
    twin.refuses = "not now"
    held_at_half_a_day(twin, guard)
    after(twin, guard, DAY_MS // 8, times=4)
    twin.refuses = None
    looks(twin, guard, 2)
    return guard


def expulsion(twin: WaitingTwin, journal: WaitingJournal) -> Act:
    return of_guard(too_late(twin, journal), twin)


def copy_afresh(twin: WaitingTwin, journal: WaitingJournal) -> Act:
    guard = too_late(twin, journal)
    looks(twin, guard)
    twin.start(3)
    return of_guard(guard, twin)


def old_order(twin: WaitingTwin, journal: WaitingJournal) -> Act:
    guard = too_late(twin, journal)
    for _ in range(2):
        looks(twin, guard)
        twin.start(3)
    return of_guard(guard, twin)


def by_hand(twin: WaitingTwin, journal: WaitingJournal, plan: ReadmissionPlan) -> Act:
    means = means_of(twin, journal)

    def act() -> None:
        with suppress(KeyboardInterrupt):  # where it would wait
            readmit(means, [plan])

    return act


def expulsion_by_hand(twin: WaitingTwin, journal: WaitingJournal) -> Act:
    return by_hand(twin, journal, PLAN)


def election_by_hand(twin: WaitingTwin, journal: WaitingJournal) -> Act:
    twin.topics["orders"].isr = (1, 2, 3)
    readmission = replace(BEGUN, expelled=True, verified=True)
    keep_readmission(journal, readmission)
    return by_hand(twin, journal, replace(PLAN, readmission=readmission, resumed=True))


def release_by_hand(twin: WaitingTwin, journal: WaitingJournal) -> Act:
    holding(twin, journal)
    plan = plan_release(twin, journal, [])  # type: ignore[arg-type]
    return lambda: carry_out_release(twin, journal, plan, now_ms=twin.now_ms, evidence="", steady=twin.clock)  # type: ignore[arg-type]


def temporary_changes_of_a_readmission(twin: WaitingTwin, journal: WaitingJournal) -> Act:
    hold_for_a_while(twin, journal, "orders", reason="re-replicates", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    return lambda: put_back_changes(means_of(twin, journal), "orders")


SCENES: list[tuple[Scene, str]] = [
    (release, "look"),
    (release_of_the_default, "look"),
    (release_of_a_default_that_nobody_needs, "lease"),
    (expulsion, "look"),
    (copy_afresh, "lease"),
    (old_order, "lease"),
    (expulsion_by_hand, "describe"),
    (election_by_hand, "describe"),
    (release_by_hand, "look"),
    (temporary_changes_of_a_readmission, "look"),
]
"""And what it is decided by: whoever has that anew after the sleep may go on."""


def played(
    scene: Scene, by: str, path: Path, sleeps_at: int | None, sleeps_ms: int = 3 * DAY_MS
) -> WaitingTwin:  # fmt: skip
    twin = WaitingTwin(Waits(sleeps_ms=sleeps_ms), orders=Topic(replicas=ORDER, isr=ORDER))
    with WaitingJournal.open(path, cluster_id=CLUSTER_ID) as journal:
        assert isinstance(journal, WaitingJournal)
        act = scene(twin, journal)
        changed = twin.changed
        twin.waits.number, twin.waits.sleeps_at, twin.by = 0, sleeps_at, by
        journal.twin = twin
        with suppress(Unfinished):
            act()
        assert twin.waits.slept or twin.changed > changed
    return twin


@pytest.mark.parametrize(("scene", "by"), SCENES, ids=[scene.__name__ for scene, _ in SCENES])
def test_whoever_sleeps_anywhere_on_the_way_to_a_change_does_not_make_it(tmp_path: Path, scene: Scene, by: str) -> None:
    waits = played(scene, by, tmp_path / "whole", None).waits.number
    assert waits > 1
    late = {
        number: late
        for number in range(1, waits + 1)
        if (late := played(scene, by, tmp_path / str(number), number).late)
    }
    assert late == {}


def test_an_expulsion_does_not_outlive_its_look_even_if_the_lease_lasts(tmp_path: Path) -> None:
    """Who is in sync may be asked anew; who may have missed something was the look's to say."""
    sleeps_ms = MARGINS.effect_ms + MARGINS.poll_ms + 1
    assert sleeps_ms < ACTS.lease_ms
    waits = played(expulsion, "look", tmp_path / "whole", None).waits.number
    late = [played(expulsion, "look", tmp_path / str(at), at, sleeps_ms).late for at in range(1, waits + 1)]
    assert not any(late)


def test_a_release_does_not_outlive_the_lease_even_if_its_look_is_young(tmp_path: Path) -> None:
    """Another guard may have held anew."""
    settings = replace(ACTS, margins=Margins(effect_ms=20 * MARGINS.effect_ms))
    assert settings.margins.effect_ms > settings.lease_ms
    late = {}
    for number in range(1, 40):
        twin = WaitingTwin(Waits(sleeps_ms=settings.lease_ms + 1), orders=Topic())
        with WaitingJournal.open(tmp_path / str(number), cluster_id=CLUSTER_ID) as journal:
            assert isinstance(journal, WaitingJournal)
            guard = holding(twin, journal, settings)
            twin.start(3)
            after(twin, guard, 1_000)
            twin.waits.number, twin.waits.sleeps_at, twin.by, journal.twin = 0, number, "lease", twin
            after(twin, guard, 1_000)
            late[number] = twin.late
    assert not any(late.values())
    assert twin.changed


def test_a_release_by_hand_undoes_no_later_hold_than_the_one_that_it_showed(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal", cluster_id=CLUSTER_ID) as journal:
        twin = ClusterTwin()
        guard = holding(twin, journal)
        plan = plan_release(twin, journal, [])  # type: ignore[arg-type]
        twin.start(3)
        after(twin, guard, MARGINS.effect_ms, times=4)
        assert twin.topics["orders"].overrides == {}
        held_at_half_a_day(twin, guard, 2)
        after(twin, guard, 1_000)
        (undo,) = carry_out_release(twin, journal, plan, now_ms=twin.now_ms, evidence="")  # type: ignore[arg-type]
        assert str(undo.outcome).startswith("failed: topic orders: the planned hold has ended in the meantime")
        assert (twin.topics["orders"].overrides, journal.released()) == (dict(HOLD), {})
