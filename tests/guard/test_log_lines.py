"""Words for a person: what is told of a partition, and that nobody is reassured by what nobody knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstone.coordination.danger import NEVER_MS
from headstone.coordination.guard_values import HOLD, AlarmKind, Allowed, SetHold, State, Status, Verdict
from headstone.guard.acting.outcomes import Done
from headstone.guard.ledger.journal import Journal
from headstone.guard.monitoring.log_lines import action_words, alarm_words, in_short, news, not_looked, status_words
from tests.guard.watching import ACTS, OWN, after, goes_away, held_at_half_a_day, watcher
from tests.guard.world import DAY_MS, MARGINS, ClusterTwin, Topic

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
