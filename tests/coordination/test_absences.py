"""Who is away since when, and who may have been: gaps between looks, new copies, what is seen for the first time."""

from __future__ import annotations

from headstone.coordination.guard_values import AlarmKind, State, Verify
from tests.coordination.guard_watch import DAY_MS, HOUR_MS, MARGINS, SECOND_MS, START_MS, Watch, alarm, partition

VERIFY_ALL = tuple(Verify(topic="orders", partition=0, broker=broker) for broker in (1, 2, 3))


def test_a_clock_that_is_said_to_differ_by_the_retention_excuses_nobody_whom_a_dead_guard_did_not_watch() -> None:
    watch = Watch()
    short = watch.sees(at_ms=START_MS + MARGINS.poll_ms, skew_ms=DAY_MS - 60 * SECOND_MS)
    assert short.actions == (alarm(AlarmKind.RETENTION_TOO_SHORT),)
    back = watch.sees(at_ms=START_MS + 30 * HOUR_MS, skew_ms=0)
    assert (back.actions[1:], back.statuses[0].state) == (VERIFY_ALL, State.UNREAD)


def test_one_look_that_was_missed_makes_nobody_be_read_for_a_retention_that_is_too_short() -> None:
    watch = Watch()
    last_ms = 0
    for polls, late_ms in ((1, 0), (3, MARGINS.effect_ms)):
        last_ms = START_MS + polls * MARGINS.poll_ms + late_ms
        decision = watch.sees(at_ms=last_ms, delete_retention_ms=1_000)
        assert decision.actions == (alarm(AlarmKind.RETENTION_TOO_SHORT),)
    gap_ms = 2 * MARGINS.poll_ms + MARGINS.effect_ms + 1
    assert watch.sees(partition(), at_ms=last_ms + gap_ms).actions[1:] == VERIFY_ALL
