"""What a person is told, line by line: of each partition in words, and of an outage of many until all are fine again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from headstone.coordination.danger import NEVER_MS
from headstone.coordination.guard_values import (
    HOLD,
    Action,
    AlarmKind,
    Allowed,
    Configs,
    Release,
    SetHold,
    State,
    Status,
    Verdict,
    Verify,
)
from headstone.guard.acting.outcomes import ActionOutcome, Done
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import KeptAlarm, Lease
from headstone.guard.loop.rounds import Round
from headstone.guard.monitoring.grouping import Steps, ranges
from headstone.guard.monitoring.log_lines import action_words, alarm_words, in_short, news, not_looked, status_words
from tests.guard.watching import ACTS, OWN, after, goes_away, held_at_half_a_day, watcher
from tests.guard.world import DAY_MS, MARGINS, ClusterTwin, Topic

COUNT = 430
LEASE = Lease(holder="a", until_ms=9, applies=True)


def status(partition: int, state: State) -> Status:
    if state is State.FINE:
        return Status(partition=partition, state=state)
    return Status(
        partition=partition, state=state, blockers=(3,), since_ms=1_000 + partition, unsafe_ms=90_000 + partition
    )


def seen(now_ms: int, states: list[State], **fields: object) -> Round:
    statuses = {"orders": tuple(status(number, state) for number, state in enumerate(states))}
    return Round(
        began_ms=now_ms, ended_ms=now_ms, lease=LEASE, leads=True, cluster_id="c", memories={}, statuses=statuses,
        held_bytes={}, **fields,
    )  # type: ignore[arg-type]  # fmt: skip


def said(rounds: list[Round]) -> list[list[str]]:
    steps = Steps()
    return [list(news(*steps.shown(one), applies=True, poll_ms=30_000)) for one in rounds]


def late(numbers: range) -> tuple[KeptAlarm, ...]:
    return tuple(KeptAlarm(kind=AlarmKind.TOO_LATE, topic="orders", partition=number, broker=3) for number in numbers)


def readings(numbers: range) -> tuple[Done, ...]:
    return tuple(
        Done(topic="orders", action=Verify(topic="orders", partition=number, broker=3), outcome=ActionOutcome())
        for number in numbers
    )


def test_an_outage_of_many_partitions_is_a_line_for_each_thing_that_happens() -> None:
    lines = said([
        seen(0, [State.FINE] * COUNT),
        seen(2_000, [State.WATCHED] * COUNT),
        seen(3_000, [State.WATCHED] * COUNT),
        seen(4_000, [State.TOO_LATE] * COUNT, alarms=late(range(COUNT)), done=readings(range(COUNT))),
    ])  # fmt: skip
    behind = "broker 3 behind since 1970-01-01 00:00:01 UTC"
    assert [len(some) for some in lines] == [0, 1, 0, 3]
    assert lines[1] == [
        f"orders: 430 partitions (0-429) watched: {behind}, it is unknown what it has missed; 0 of 430 are fine"
    ]
    assert lines[3][1] == "wanted: read 430 partitions of orders on broker 3 and compare each with the others"
    assert lines[3][2].startswith("ALARM orders, 430 partitions (0-429), broker 3: away past the moment of danger; ")


def test_progress_is_told_in_steps_and_its_end_at_once() -> None:
    rounds = [seen(0, [State.UNREAD] * COUNT, alarms=late(range(COUNT)))]
    rounds += [
        seen(1_000 * done, [State.FINE] * done + [State.UNREAD] * (COUNT - done), alarms=late(range(done, COUNT)))
        for done in range(1, COUNT + 1)
    ]
    lines = said(rounds)[1:]
    told = [some for some in lines if some]
    assert len(told) <= 12
    assert told[0][0] == "orders: 43 partitions (0-42) fine; 43 of 430 are fine"
    assert told[0][1] == "over: orders, 43 partitions (0-42), broker 3: away past the moment of danger"
    assert lines[-1][0].endswith("; 430 of 430 are fine")
    over = sum(int(line.split(", ")[1].split()[0]) for some in lines for line in some if line.startswith("over: "))
    assert over == COUNT


def test_slow_progress_is_told_every_minute() -> None:
    rounds = [seen(0, [State.UNREAD] * 100)]
    rounds += [seen(50_000 * done, [State.FINE] * done + [State.UNREAD] * (100 - done)) for done in range(1, 5)]
    assert [len(some) for some in said(rounds)[1:]] == [0, 2, 0, 2]


@pytest.mark.parametrize("worse", [State.TOO_LATE, State.WATCHED, State.UNKNOWN])
def test_what_gets_worse_does_not_wait(worse: State) -> None:
    before = [State.UNREAD] * 100
    lines = said(
        [seen(0, before), seen(1_000, [State.FINE, *before[1:]]), seen(2_000, [State.FINE, worse, *before[2:]])]
    )
    assert lines[1] == []
    assert [line.split(": ")[0] for line in lines[2]] == ["orders-0", "orders-1"]


def test_few_partitions_are_told_one_by_one() -> None:
    lines = said([seen(0, [State.FINE] * 3), seen(1_000, [State.WATCHED] * 3), seen(2_000, [State.FINE] * 3)])
    assert [[line.split(":")[0] for line in some] for some in lines] == [
        [],
        *[["orders-0", "orders-1", "orders-2"]] * 2,
    ]


OWN_FOUND = (("min.cleanable.dirty.ratio", "0.1"), ("min.compaction.lag.ms", None), ("max.compaction.lag.ms", None))
UNSET = tuple((name, None) for name, _ in HOLD)


def of_topics(now_ms: int, state: State, **fields: object) -> Round:
    """One partition each."""
    return replace(seen(now_ms, [], **fields), statuses={f"t{number}": (status(0, state),) for number in range(COUNT)})


def actions_on_all(
    make: Callable[[str], Action], found: Callable[[int], Configs] = lambda number: ()
) -> tuple[Done, ...]:
    return tuple(
        Done(topic=f"t{number}", action=make(f"t{number}"), outcome=ActionOutcome(found=found(number)))
        for number in range(COUNT)
    )


def test_an_outage_over_many_topics_is_a_line_for_each_thing_that_happens() -> None:
    hold = partial(SetHold, configs=HOLD, by_ms=90_000, reason="behind: partition 0: broker 3")
    holds = actions_on_all(
        lambda topic: hold(topic=topic), lambda number: OWN_FOUND if number in range(7, 12) else UNSET
    )
    read = actions_on_all(lambda topic: Verify(topic=topic, partition=0, broker=3))
    release = actions_on_all(lambda topic: Release(topic=topic, restore=UNSET))
    alarms = tuple(KeptAlarm(kind=AlarmKind.TOO_LATE, topic=f"t{n}", partition=0, broker=3) for n in range(COUNT))
    lines = said([
        of_topics(0, State.FINE),
        of_topics(2_000, State.WATCHED),
        of_topics(3_000, State.HELD, done=holds),
        of_topics(4_000, State.UNREAD, done=read, alarms=alarms),
        of_topics(5_000, State.FINE, done=release),
    ])  # fmt: skip
    some = "t0, t1, t2, t3, t4, t5, t6, t7, ..."
    behind = "broker 3 behind since 1970-01-01 00:00:01 UTC"
    dirty, lags = "min.cleanable.dirty.ratio", "min.compaction.lag.ms=(not set), max.compaction.lag.ms=(not set)"
    by = "(behind: partition 0: broker 3), to be in effect by 1970-01-01 00:01:30 UTC"
    assert lines[:3] == [
        [],
        [
            f"430 topics ({some}), 430 partitions: watched: {behind}, it is unknown what it has missed; 0 of 430 are fine"
        ],
        [
            f"430 topics ({some}), 430 partitions: held: {behind}, it is unknown what it has missed; 0 of 430 are fine",
            f"done: hold 425 topics ({some.replace('t7', 't12')}) {by}; found {dirty}=(not set), {lags}",
            f"done: hold 5 topics (t7, t8, t9, t10, t11) {by}; found {dirty}=0.1, {lags}",
        ],
    ]
    assert [line.split(" (")[0] for line in lines[3]] == [
        "430 topics", "wanted: read 430 partitions of 430 topics", "ALARM 430 topics",
    ]  # fmt: skip
    assert (
        f"ALARM 430 topics ({some}), 430 partitions, broker 3: away past the moment of danger; it must not"
        in lines[3][2]
    )
    assert [line.split(" (")[0] for line in lines[4]] == ["430 topics", "done: release 430 topics", "over: 430 topics"]
    assert lines[4][1].endswith(f"({some}): {', '.join(f'{name} deleted' for name, _ in HOLD)}")


def test_all_topics_whose_own_values_were_found_are_named_and_what_tells_of_one_topic_is_told_of_each() -> None:
    hold = partial(SetHold, configs=HOLD, by_ms=90_000, reason="behind")
    holds = actions_on_all(lambda topic: hold(topic=topic), lambda number: OWN_FOUND)
    alarms = tuple(KeptAlarm(kind=AlarmKind.FOREIGN_HOLD, topic=f"t{number}") for number in range(COUNT))
    (line, *others) = said([of_topics(0, State.FINE, done=holds, alarms=alarms)])[0]
    assert line.startswith(f"done: hold 430 topics ({', '.join(f't{number}' for number in range(COUNT))}) ")
    assert [text.split(": ")[0] for text in others] == [f"ALARM t{number}" for number in range(COUNT)]


def test_partitions_are_named_by_ranges() -> None:
    assert ranges([5, 0, 1, 2, 9, 11, 12]) == "0-2, 5, 9, 11-12"
    assert ranges(range(0, 40, 2)) == "0, 2, 4, 6, 8, 10, ..."


BEHIND = "broker 3 behind since 1970-01-01 00:00:01 UTC"


@pytest.mark.parametrize(
    ("state", "unsafe_ms", "words"),
    [
        (State.WATCHED, 74_000, f"watched: {BEHIND}, first unsafe removal in 1 min 4 s"),
        (State.HELD, 70_000, f"held: {BEHIND}, held before 1970-01-01 00:01:10 UTC, when removals would become unsafe"),
        (State.WATCHED, NEVER_MS, f"watched: {BEHIND}, nothing it lacks is ever removed"),
        (State.TOO_LATE, 4_000, f"too late: needs readmission: {BEHIND}, unsafe for 6 s"),
        (State.TOO_LATE, None, f"too late: needs readmission: {BEHIND}, it is unknown what it has missed"),
        (State.TOO_LATE, 0, f"too late: needs readmission: {BEHIND}, it is unknown what it has missed"),
    ],
)  # fmt: skip
def test_of_a_replica_that_is_behind_it_is_said_how_near_the_danger_is(
    state: State, unsafe_ms: int | None, words: str
) -> None:
    countdown_ms = None if unsafe_ms is None else unsafe_ms - 10_000
    status = Status(
        partition=0, state=state, blockers=(3,), since_ms=1_000, unsafe_ms=unsafe_ms, countdown_ms=countdown_ms
    )
    assert status_words(status) == words


def test_a_hold_is_told_with_what_it_found(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN)))
    result = held_at_half_a_day(twin, watcher(twin, journal))
    (line,) = [
        line for line in news(None, result, applies=True, poll_ms=MARGINS.poll_ms) if line.startswith("done: hold")
    ]
    assert line == (
        "done: hold topic orders (behind: partition 0: broker 3), to be in effect by 2023-11-15 22:12:30 UTC; found "
        "min.cleanable.dirty.ratio=0.1, min.compaction.lag.ms=(not set), max.compaction.lag.ms=(not set)"
    )


@pytest.mark.parametrize(
    ("now_ms", "words"), [(4_999, "to be in effect by 1970-01-01 00:00:05 UTC"), (5_000, "at once: ")]
)
def test_a_time_that_is_over_is_no_deadline(now_ms: int, words: str) -> None:
    action = SetHold(topic="orders", configs=HOLD, by_ms=5_000, reason="behind")
    assert words in action_words(Done(topic="orders", action=action, outcome=None), now_ms)


@pytest.mark.parametrize("allowed", [False, True])
def test_the_alarm_of_a_wrong_replica_says_what_is_wrong_and_how_to_see_all_of_it(
    journal: Journal, allowed: bool
) -> None:
    twin = ClusterTwin(**{"my orders": Topic()})
    why = "deleted-reappears of key alice at offset 7 on broker 3: it lacks the tombstone at 9, which 1 has"
    settings = replace(ACTS, allowed=Allowed(readmission=allowed))
    guard = watcher(twin, journal, settings, verdict=Verdict.WRONG, why=why)
    goes_away(twin, guard)
    after(twin, guard, DAY_MS // 2)
    after(twin, guard, 1_000)
    twin.topics["my orders"].isr = (1, 2)  # nobody is taken out while the others are needed
    twin.start(3)
    after(twin, guard, 1_000)
    alarms = [a for _ in range(2) for a in after(twin, guard, 1_000).alarms if a.kind == AlarmKind.WRONG]
    words = alarm_words(alarms[0])
    assert why in words
    assert words.endswith(": all findings: headstone audit --bootstrap HOSTS --topic 'my orders'")
    assert ("headstone guard readmit" in words) is not allowed


def test_somebody_elses_hold_is_told_with_who_it_may_be_and_how_it_is_undone(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides={name: value for name, value in HOLD if value is not None}))
    (alarm,) = watcher(twin, journal).round().alarms
    words = alarm_words(alarm)
    assert words.startswith("orders: held by somebody else; probably by a guard with another journal, ")
    assert words.endswith(
        "undo it: kafka-configs.sh --bootstrap-server HOSTS --entity-type topics --entity-name orders --alter --delete-config "
        "min.cleanable.dirty.ratio,min.compaction.lag.ms,max.compaction.lag.ms"
    )


def test_a_guard_that_stands_by_says_that_it_did_not_look_and_what_the_journal_says(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(), users=Topic())
    second = watcher(twin, journal, replace(ACTS, name="b", applies=False))
    journal.lead("a", now_ms=twin.now_ms, lease_ms=60_000, applies=False)
    assert not_looked(second.round(), []) == "this guard did not look: a leads, in a dry run, and has not looked yet"
    watcher(twin, journal).round()
    assert not_looked(second.round(), []) == (
        "this guard did not look: a leads; its journal of 2023-11-14 22:13:20 UTC has 2 topics with 2 partitions (2 fine); "
        "nothing held"
    )
    held = not_looked(second.round(), [*"abcdefgh", "i\n"])
    assert held.endswith("(2 fine); 9 held: a, b, c, d, e, f, g, h, ...")


def test_a_look_in_short_is_well_only_if_it_is(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(), users=Topic())
    guard = watcher(twin, journal)
    assert in_short(guard.round()) == (
        "all is well: looked at 2 topics with 2 partitions (2 fine) on 3 brokers in 0.0 s; nothing held"
    )
    twin.stop(3)
    assert (
        in_short(guard.round())
        == "looked at 2 topics with 2 partitions (2 watched) on 2 brokers in 0.0 s; nothing held"
    )
    after(twin, guard, DAY_MS // 2)
    held = in_short(after(twin, guard, 1_000))
    assert held == "looked at 2 topics with 2 partitions (2 watched) on 2 brokers in 0.0 s; 2 held"
