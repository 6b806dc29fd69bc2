"""The guard's loop on a cluster in memory: what it does at each look, and what survives failures, deaths and other guards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from headstone.coordination.guard_values import (
    HOLD,
    LAG_MAX,
    LAG_MIN,
    RATIO,
    AlarmKind,
    Allowed,
    AskBrokers,
    Away,
    EndPasses,
    Memory,
    SetHold,
    State,
    Verdict,
    Verify,
)
from headstone.errors import Unfinished, UsageError
from headstone.guard.acting.deleted_topics import PURGE_MS
from headstone.guard.check.facts import learnt_outage_ms
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Lease, ReplicaReading
from headstone.guard.ledger.outages import ReplicaOutage, ended, longest_noted
from headstone.guard.looks.look import Look
from headstone.guard.loop.alarms import CLUSTER_LOST, JOURNAL_LOST, OTHER_TOPICS, REFUSED, UNSEEN
from headstone.guard.loop.rounds import Round
from headstone.guard.loop.watcher import Watcher
from headstone.guard.monitoring.current_status import ask_status, journal_status
from headstone.guard.monitoring.log_lines import alarm_words, news
from tests.guard.watching import ACTS, DRY, OWN, after, goes_away, held_at_half_a_day, holding, kinds, states, watcher
from tests.guard.world import CLUSTER_ID, DAY_MS, MARGINS, START_MS, ClusterTwin, Topic


def test_a_topic_is_held_in_time_confirmed_by_each_broker_read_and_released_as_it_was(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN)))
    guard = watcher(twin, journal)
    held_at_half_a_day(twin, guard)
    assert twin.topics["orders"].overrides == dict(HOLD)
    assert twin.changes == [("topic orders", dict(HOLD))]
    after(twin, guard, 1_000)
    assert states(after(twin, guard, 1_000)) == [State.HELD]
    assert journal.memory("orders").hold.confirmed == (1, 2)
    twin.size += 500
    assert after(twin, guard, 1_000).held_bytes == {"orders": 1_000}
    twin.start(3)
    assert [done.action for done in after(twin, guard, 1_000).done] == [
        AskBrokers(topic="orders", brokers=(3,)), Verify(topic="orders", partition=0, broker=3),
    ]  # fmt: skip
    assert states(after(twin, guard, 1_000)) == [State.FINE]
    assert twin.topics["orders"].overrides == OWN
    assert twin.changes[1:] == [("topic orders", {RATIO: "0.1", LAG_MIN: None, LAG_MAX: None})]
    after(twin, guard, MARGINS.effect_ms + MARGINS.metadata_age_ms)
    assert journal.memory("orders").hold is None
    assert (journal.sizes(), journal.alarms()) == ({}, [])
    held, released = journal.changes()
    assert (held.old, held.new) == (((RATIO, "0.1"), (LAG_MIN, None), (LAG_MAX, None)), HOLD)
    assert (held.reason, held.outcome) == ("behind: partition 0: broker 3", "done")
    assert "partition 0 watched: leader 1, in sync 1,2, log ends 1:100 2:100 3:?" in held.evidence
    assert (dict(released.old), released.outcome) == (dict(HOLD), "done")


def test_a_dry_run_says_and_changes_nothing_and_leaves_no_hold_in_the_memory(journal: Journal) -> None:
    twin = ClusterTwin()
    guard = watcher(twin, journal, DRY)
    result = held_at_half_a_day(twin, guard)
    assert [type(done.action) for done in result.done] == [SetHold]
    assert [done.outcome for done in result.done] == [None]
    assert "would hold topic orders (behind: partition 0: broker 3)" in "\n".join(told(None, result, applies=False))
    assert (twin.changes, journal.changes()) == ([], [])
    memory = journal.memory("orders")
    assert (memory.hold, [away.broker for away in memory.away]) == (None, [3])
    acting = watcher(twin, journal, replace(ACTS, name="b"))
    after(twin, acting, 1_000)
    assert twin.topics["orders"].overrides == dict(HOLD)


def told(before: Round | None, now: Round, *, applies: bool = True) -> list[str]:
    return list(news(before, now, applies=applies, poll_ms=MARGINS.poll_ms))


def test_a_guard_that_died_in_the_middle_goes_on_from_the_journal(tmp_path: Path) -> None:
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN)))
    file = tmp_path / "journal.sqlite"
    with Journal.open(file, cluster_id=CLUSTER_ID) as journal:
        held_at_half_a_day(twin, watcher(twin, journal))
    with Journal.open(file, cluster_id=CLUSTER_ID) as journal:
        second = watcher(twin, journal, replace(ACTS, name="b"))
        result = after(twin, second, 1_000)
        assert (result.leads, result.lease.holder) == (False, "a")
        twin.start(3)
        after(twin, second, ACTS.lease_ms)
        result = after(twin, second, 1_000, times=4)
        assert result.leads
        assert twin.topics["orders"].overrides == OWN


class SlowTwin(ClusterTwin):
    """A look takes as long as a lease lasts, and at its end another guard may look too."""

    rival: Watcher | None = None

    def look(self, topics: Sequence[str] | None) -> Look:
        answer = super().look(topics)
        self.now_ms += ACTS.lease_ms
        if self.rival is not None:
            assert self.rival.round().leads
        return answer


def test_a_look_that_outlasts_the_lease_counts_unless_another_guard_has_led_since(journal: Journal) -> None:
    twin, other = SlowTwin(), ClusterTwin()
    guard = watcher(twin, journal)
    result = guard.round()
    assert (result.leads, states(result), journal.looked_ms()) == (True, [State.FINE], START_MS)
    other.now_ms = twin.now_ms + ACTS.lease_ms
    twin.rival = watcher(other, journal, replace(ACTS, name="b"))
    result = guard.round()
    assert (result.leads, result.lease.holder, journal.looked_ms()) == (False, "b", other.now_ms)


def test_a_second_guard_stands_by_says_who_leads_and_takes_over(journal: Journal) -> None:
    twin = ClusterTwin()
    first, second = watcher(twin, journal), watcher(twin, journal, replace(ACTS, name="b"))
    first.round()
    before = second.round()
    assert (before.leads, before.lease.holder) == (False, "a")
    assert told(None, before)[0].startswith(
        "standing by: a leads; this guard takes over if that one does not renew its lease by 2023-"
    )
    twin.stop(3)
    waits = held_at_half_a_day_of(twin, first, second)
    assert twin.changes == [("topic orders", dict(HOLD))]
    assert [done.outcome for done in waits.done if isinstance(done.action, SetHold)] in ([], [None])
    twin.now_ms += ACTS.lease_ms
    now = second.round()
    assert now.leads
    assert "leading now" in told(waits, now)
    assert not first.round().leads


AT_LEASE_END = "after 2023-11-14 22:15:20 UTC, when its lease expires.* --journal file only as a last resort"


def test_a_guard_of_other_topics_is_refused_and_told_what_to_do(journal: Journal) -> None:
    twin = ClusterTwin(a=Topic(), b=Topic())
    first = watcher(twin, journal, replace(ACTS, topics=("a",)))
    second = watcher(twin, journal, replace(ACTS, name="b", topics=("b",)))
    first.round()
    for wanted, words in ((second, "b"), (watcher(twin, journal, replace(ACTS, name="c")), "every compacted topic")):
        with pytest.raises(
            UsageError, match=f"guard a leads .* watches a; this one is configured to watch {words}, .* {AT_LEASE_END}"
        ):
            wanted.round()
    assert watcher(twin, journal, replace(ACTS, name="d", topics=("a", "a"))).round().leads is False
    for status in (
        journal_status(journal, now_ms=twin.now_ms, why=""),
        ask_status(journal, twin, twin.clock, look_at=lambda: twin.look(None)),  # type: ignore[arg-type]
    ):
        shown = {topic.topic: [partition.state for partition in topic.partitions] for topic in status.topics}
        assert shown["a"] == [State.FINE]
        assert shown.get("b", [State.UNKNOWN]) == [State.UNKNOWN]
    journal.stand_down("a")
    assert second.round().leads


def test_a_guard_that_runs_stands_by_for_one_of_other_topics_and_tells_it(journal: Journal) -> None:
    """One that led for a moment must not end it; a dry run gives way."""
    twin = ClusterTwin(a=Topic(), b=Topic())
    cron = watcher(twin, journal, replace(ACTS, name="cron", topics=("a",)))
    for settings, alarms in ((replace(ACTS, name="main"), [OTHER_TOPICS]), (replace(DRY, name="dry"), [])):
        guard = watcher(twin, journal, settings)
        assert guard.round().leads
        twin.now_ms += ACTS.lease_ms
        assert cron.round().leads
        first, second = guard.round(), guard.round()
        why = (
            "guard cron leads with this journal and watches a; this one is configured to watch every compacted topic, which "
            "no guard would watch"
        )
        assert (second.leads, second.problems, kinds(second)) == (False, (why,), alarms)
        assert (why in told(None, first), told(first, second)) == (True, [])
        journal.stand_down("cron")
        last = guard.round()
        assert (last.leads, last.problems, kinds(last)) == (True, (), [])
        journal.stand_down(settings.name)
    assert cron.round().leads
    assert not watcher(twin, journal, replace(DRY, name="dry")).round().leads


def held_at_half_a_day_of(twin: ClusterTwin, first: Watcher, second: Watcher) -> Round:
    for _ in range(13):
        after(twin, first, DAY_MS // 24)
        result = second.round()
    return result


def test_a_change_that_is_refused_becomes_an_alarm_with_the_reason_and_is_asked_for_again(journal: Journal) -> None:
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    guard.round()
    twin.refuses = "broker 1: alter topic orders: TOPIC_AUTHORIZATION_FAILED (needs ALTER_CONFIGS)"
    result = held_at_half_a_day(twin, guard)
    (alarm,) = result.alarms
    assert (alarm.kind, alarm.topic, alarm.detail) == (REFUSED, "orders", twin.refuses)
    assert journal.changes()[-1].outcome == f"failed: {twin.refuses}"
    assert guard.calls_failed == 1
    twin.refuses = None
    result = after(twin, guard, 1_000)
    assert twin.topics["orders"].overrides == dict(HOLD)
    assert result.alarms == ()


def test_a_lost_cluster_is_told_once_and_looked_for_again(journal: Journal) -> None:
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    first = guard.round()
    twin.lost = "localhost:9001: connection refused"
    lost = after(twin, guard, 30_000)
    again = after(twin, guard, 30_000)
    assert (kinds(lost), kinds(again), lost.lost, lost.looked_ms) == ([], [], twin.lost, START_MS)
    assert told(first, lost) == [
        "cannot look at the cluster: localhost:9001: connection refused; what is held stays held; retrying"
    ]
    assert told(lost, again) == []
    third = after(twin, guard, 30_000)
    assert (kinds(third), told(again, third)) == ([CLUSTER_LOST], [f"ALARM {alarm_words(third.alarms[0])}"])
    twin.lost = None
    back = after(twin, guard, 30_000)
    assert told(third, back)[0] == "the cluster answers again"
    assert (kinds(back), back.looked_ms) == ([], START_MS + 120_000)


def test_a_journal_that_is_locked_costs_rounds_and_not_the_guard(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    rounds: list[Round] = []
    lead, locked = journal.lead, f"{journal.path}: the journal cannot be written: database is locked"

    def unless_locked(*arguments: object, **how: object) -> Lease:
        if len(rounds) in (1, 2):
            raise Unfinished(locked)
        return lead(*arguments, **how)  # type: ignore[arg-type]

    def pause(seconds: float) -> None:
        twin.now_ms += 30_000

    monkeypatch.setattr(journal, "lead", unless_locked)
    monkeypatch.setattr("headstone.guard.loop.watcher.until_asked", pause)
    guard.run(lambda: len(rounds) == 4, rounds.append)
    first, lost, again, back = rounds
    assert [(kinds(result), result.lost, result.looked_ms) for result in rounds[1:]] == [
        ([JOURNAL_LOST], locked, START_MS), ([JOURNAL_LOST], locked, START_MS), ([], None, START_MS + 90_000),
    ]  # fmt: skip
    assert told(first, lost) == [f"{locked}: nothing but holds is done, and what is held stays held, until it can"]
    assert told(lost, again) == []
    assert told(again, back) == ["the journal can be written again", f"over: {JOURNAL_LOST}: {locked}"]


def test_a_guard_that_cannot_write_its_journal_at_the_start_says_so_and_ends(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*arguments: object, **how: object) -> None:
        raise Unfinished("the journal cannot be written")

    monkeypatch.setattr(journal, "lead", locked)
    with pytest.raises(Unfinished, match="the journal cannot be written"):
        watcher(ClusterTwin(), journal).run(lambda: False, print)


def test_a_broker_that_does_not_take_the_hold_is_asked_until_it_does_and_told(journal: Journal) -> None:
    twin = ClusterTwin()
    twin.deaf = {2}
    guard = watcher(twin, journal)
    held_at_half_a_day(twin, guard)
    result = after(twin, guard, 1_000, times=3)
    assert (states(result), journal.memory("orders").hold.confirmed) == ([State.WATCHED], (1,))
    result = after(twin, guard, 11 * DAY_MS // 24 + 3_540_000)
    assert (AlarmKind.NOT_CONFIRMED, 2) in [(alarm.kind, alarm.broker) for alarm in result.alarms]
    result = after(twin, guard, 3_600_000)
    assert (states(result), AlarmKind.TOO_LATE in kinds(result)) == ([State.TOO_LATE], True)


def test_a_person_who_undoes_a_hold_is_told_and_not_fought(journal: Journal) -> None:
    twin = ClusterTwin()
    guard = holding(twin, journal)
    twin.topics["orders"].overrides[RATIO] = "0.3"
    result = after(twin, guard, 30_000)
    for _ in range(3):
        assert kinds(result) == [AlarmKind.CHANGED_BY_PERSON]
        result = after(twin, guard, 30_000)
    assert twin.topics["orders"].overrides[RATIO] == "0.3"
    twin.start(3)
    result = after(twin, guard, MARGINS.effect_ms, times=3)
    assert twin.topics["orders"].overrides == {RATIO: "0.3"}
    assert (kinds(result), journal.memory("orders").hold) == ([], None)


def test_where_a_robot_undoes_holds_two_topics_share_the_cluster_default_and_the_last_one_lets_it_go(
    journal: Journal,
) -> None:
    twin = ClusterTwin(orders=Topic(), users=Topic())
    twin.default = {"log.cleaner.min.cleanable.ratio": "0.7"}
    guard = holding(twin, journal, replace(ACTS, allowed=Allowed(cluster_default=True)))
    for topic in ("orders", "users"):
        twin.topics[topic].overrides.clear()
        result = after(twin, guard, MARGINS.metadata_age_ms + 1)
    assert twin.default["log.cleaner.min.cleanable.ratio"] == "1.0"
    assert sorted(kinds(result)) == [AlarmKind.UNDONE_BY_ROBOT] * 2
    after(twin, guard, 1_000)
    assert [states(after(twin, guard, 1_000), topic) for topic in ("orders", "users")] == [[State.HELD]] * 2
    twin.start(3)
    after(twin, guard, MARGINS.effect_ms, times=4)
    assert twin.default == {"log.cleaner.min.cleanable.ratio": "0.7"}
    assert {topic: journal.memory(topic).hold for topic in twin.topics} == {"orders": None, "users": None}


def test_a_replica_that_cannot_be_judged_is_read_again_after_a_while(journal: Journal) -> None:
    twin = ClusterTwin()
    guard = holding(twin, journal, verdict=None)
    twin.start(3)
    after(twin, guard, 1_000)
    journal.note_reading("orders", ReplicaReading(partition=0, broker=3, verdict=Verdict.UNJUDGED, read_ms=twin.now_ms))
    result = after(twin, guard, 1_000)
    assert (kinds(result), states(result), result.done) == ([AlarmKind.UNJUDGED], [State.UNJUDGED], ())
    result = after(twin, guard, 600_000)
    assert [type(done.action) for done in result.done] == [Verify]


def test_a_topic_that_is_no_longer_compacted_is_held_until_everybody_is_back_and_one_that_is_gone_is_forgotten(
    journal: Journal,
) -> None:
    twin = ClusterTwin(orders=Topic(), users=Topic())
    guard = holding(twin, journal)
    twin.topics["orders"].policy = "delete"
    del twin.topics["users"]
    result = after(twin, guard, 1_000)
    assert (result.done, twin.topics["orders"].overrides) == ((), dict(HOLD))
    after(twin, guard, MARGINS.metadata_age_ms + 1)
    assert list(journal.topics()) == ["orders"]
    twin.start(3)
    result = after(twin, guard, MARGINS.effect_ms, times=4)
    assert twin.topics["orders"].overrides == dict(Topic().overrides)
    result = after(twin, guard, PURGE_MS)
    words = "topic orders: it is not compacted any more: what was known of it is forgotten"
    assert (journal.names(), dict(result.statuses), result.problems) == ([], {}, (words,))


def test_a_topic_that_is_no_longer_compacted_while_somebody_is_away_is_not_forgotten(journal: Journal) -> None:
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    guard.round()
    twin.stop(3)
    after(twin, guard, 1_000)
    twin.topics["orders"].policy = "delete"
    assert states(after(twin, guard, 1_000)) == [State.WATCHED]
    twin.start(3)
    assert states(after(twin, guard, 1_000)) == [State.FINE]
    twin.stop(3)
    assert states(after(twin, guard, 1_000)) == [State.WATCHED]
    twin.start(3)
    assert states(after(twin, guard, 1_000)) == [State.FINE]
    assert dict(after(twin, guard, PURGE_MS).statuses) == {}
    twin.topics["orders"].policy = "compact"
    assert states(after(twin, guard, 1_000)) == [State.FINE]


def test_who_is_away_for_longer_than_a_purge_is_not_forgotten_with_the_policy(journal: Journal) -> None:
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    guard.round()
    twin.stop(3)
    after(twin, guard, 1_000)
    twin.topics["orders"].policy = "delete"
    after(twin, guard, 1_000)
    assert "orders" in after(twin, guard, PURGE_MS).statuses
    assert "orders" in after(twin, guard, 1_000).statuses


class EditedTwin(ClusterTwin):
    """Somebody sets an override just after a look at which a hold is due."""

    edits_after_ms: int | None = None

    def look(self, topics: Sequence[str] | None) -> Look:
        answer = super().look(topics)
        if self.edits_after_ms is not None and self.now_ms >= self.edits_after_ms:
            self.topics["orders"].overrides, self.edits_after_ms = dict(OWN), None
        return answer


@pytest.mark.parametrize("restarted", [False, True])
def test_an_override_that_came_between_the_look_and_the_hold_is_what_goes_back(
    journal: Journal, restarted: bool
) -> None:
    twin = EditedTwin()
    twin.edits_after_ms = START_MS + DAY_MS // 2
    guard = watcher(twin, journal)
    held_at_half_a_day(twin, guard)
    assert twin.topics["orders"].overrides == dict(HOLD)
    twin.start(3)
    guard = watcher(twin, journal) if restarted else guard
    after(twin, guard, 1_000, times=4)
    assert twin.topics["orders"].overrides == OWN


def test_the_loop_follows_a_change_at_a_quicker_pace_and_ends_when_it_is_told(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    goes_away(twin, guard)
    twin.now_ms += DAY_MS // 2
    rounds: list[Round] = []

    def pause(seconds: float) -> None:
        twin.now_ms += int(seconds * 1000)
        waits.append(seconds)

    waits: list[float] = []
    monkeypatch.setattr("headstone.guard.loop.watcher.until_asked", pause)
    guard.run(lambda: len(rounds) == 5, rounds.append)
    assert waits == [1.0, 1.0, 28.0, 30.0, 30.0]
    assert [result.whole for result in rounds] == [True, False, False, True, True]
    assert states(rounds[-1]) == [State.HELD]


def test_nothing_is_changed_by_a_guard_whose_lease_was_taken_while_it_looked(journal: Journal) -> None:
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    goes_away(twin, guard)
    twin.now_ms += DAY_MS // 2

    def slow_look(topics: object) -> object:
        twin.now_ms += ACTS.lease_ms
        journal.lead("b", now_ms=twin.now_ms, lease_ms=ACTS.lease_ms, applies=True)
        return twin.look(None)

    before = journal.memory("orders")
    slow = Watcher(
        ACTS,
        steady=twin.clock,
        admin=twin,
        look=slow_look,
        journal=journal,
        clock=twin.clock,
        readings=None,  # type: ignore[arg-type]
    )
    result = slow.round()
    assert (result.leads, result.lease.holder, result.done) == (False, "b", ())
    assert (twin.changes, journal.memory("orders")) == ([], before)


def test_cleaner_threads_are_restarted_when_a_hold_comes_late_and_asked_again_if_that_is_refused(
    journal: Journal,
) -> None:
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    twin.refuses = "not now"
    held_at_half_a_day(twin, guard)
    after(twin, guard, DAY_MS // 2 - 60_000)
    twin.refuses = None
    after(twin, guard, 1_000, times=2)
    twin.refuses = "no ALTER_CONFIGS on the cluster"
    result = after(twin, guard, 1_000)
    assert [type(done.action) for done in result.done] == [EndPasses]
    assert [(alarm.kind, alarm.detail) for alarm in result.alarms] == [(REFUSED, twin.refuses)]
    twin.refuses = None
    twin.changes.clear()
    result = after(twin, guard, 1_000)
    assert (states(result), result.alarms) == ([State.HELD], ())
    assert twin.changes == [
        ("default", {"log.cleaner.backoff.ms": "15001"}),
        ("default", {"log.cleaner.backoff.ms": None}),
    ]
    assert after(twin, guard, 1_000).done == ()


def test_what_was_found_is_on_the_disk_before_the_hold_is_asked_for(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN)))
    twin.fails["alter"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        held_at_half_a_day(twin, watcher(twin, journal))
    assert journal.memory("orders").hold.found == ((RATIO, "0.1"), (LAG_MIN, None), (LAG_MAX, None))
    assert [(change.new, change.outcome) for change in journal.unfinished()] == [(HOLD, None)]


def test_a_topic_that_may_not_be_described_any_more_is_unknown_and_told_and_not_fine(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(), users=Topic())
    guard = watcher(twin, journal)
    assert states(guard.round(), "users") == [State.FINE]
    twin.hidden = {"users"}
    result = after(twin, guard, 30_000)
    assert (states(result), states(result, "users")) == ([State.FINE], [State.UNKNOWN])
    assert [(alarm.kind, alarm.detail) for alarm in result.alarms] == [
        (UNSEEN, "topic users: this user lacks DESCRIBE")
    ]
    assert list(journal.topics()) == ["orders", "users"]


def test_what_only_moves_on_with_time_is_written_now_and_then_and_what_happens_at_once(journal: Journal) -> None:
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    guard.round()
    first = journal.remembered("orders")
    after(twin, guard, 30_000)
    assert (journal.remembered("orders"), journal.looked_ms()) == (first, START_MS + 30_000)
    after(twin, guard, 270_000)
    assert journal.remembered("orders").looked_ms == START_MS + 300_000
    twin.stop(3)
    after(twin, guard, 1_000)
    kept = journal.remembered("orders")
    assert ([away.broker for away in kept.memory.away], kept.looked_ms) == ([3], START_MS + 301_000)
    assert kept.memory.away[0].complete_ms == START_MS + 300_000 - MARGINS.metadata_age_ms


def test_a_guard_that_leads_again_takes_up_what_the_other_one_wrote(journal: Journal) -> None:
    twin = ClusterTwin()
    first, second = watcher(twin, journal), watcher(twin, journal, replace(ACTS, name="b"))
    first.round()
    after(twin, second, ACTS.lease_ms)
    twin.stop(3)
    after(twin, second, 1_000)
    assert not first.round().leads
    result = after(twin, first, ACTS.lease_ms)
    assert (result.leads, states(result)) == (True, [State.WATCHED])
    assert journal.memory("orders").away[0].since_ms == twin.now_ms - ACTS.lease_ms


HOUR_MS = 3_600_000


def outage(twin: ClusterTwin, journal: Journal, hours: int, broker: int = 3) -> None:
    """Looked at every hour; then back, and read where it must be."""
    guard = watcher(twin, journal)
    guard.round()
    twin.stop(broker)
    for _ in range(hours):
        after(twin, guard, HOUR_MS)
    twin.start(broker)
    after(twin, guard, MARGINS.effect_ms, times=4)


def test_an_outage_counts_from_the_departure_and_not_from_the_hold(journal: Journal) -> None:
    twin = ClusterTwin()
    outage(twin, journal, hours=30)
    assert journal.changes()[0].reason.startswith("behind")
    back_ms = START_MS + 30 * HOUR_MS + MARGINS.effect_ms
    longest = ReplicaOutage(topic="orders", broker=3, from_ms=START_MS - MARGINS.metadata_age_ms, until_ms=back_ms)
    assert longest_noted(journal) == longest
    assert learnt_outage_ms(journal, now_ms=twin.now_ms) == longest.span_ms


def test_an_outage_without_a_hold_counts_and_a_shorter_one_does_not_replace_it(journal: Journal) -> None:
    twin = ClusterTwin()
    spans = []
    for hours, broker in ((5, 3), (2, 2), (7, 1)):
        outage(twin, journal, hours=hours, broker=broker)
        longest = longest_noted(journal)
        assert longest is not None
        spans.append((longest.broker, longest.span_ms // HOUR_MS))
    assert (spans, journal.changes()) == ([(3, 5), (3, 5), (1, 7)], [])


def test_one_that_lasts_counts_up_to_now(journal: Journal) -> None:
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    guard.round()
    assert learnt_outage_ms(journal, now_ms=twin.now_ms) is None
    twin.stop(3)
    after(twin, guard, HOUR_MS)
    assert longest_noted(journal) is None
    assert learnt_outage_ms(journal, now_ms=START_MS + 9 * HOUR_MS) == 9 * HOUR_MS + MARGINS.metadata_age_ms


def test_a_guard_that_only_watches_learns_too_and_one_that_began_late_what_it_saw(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(isr=(1, 2)))
    guard = watcher(twin, journal, DRY)
    guard.round()
    after(twin, guard, 3 * HOUR_MS)
    twin.start(3)
    after(twin, guard, HOUR_MS)
    assert longest_noted(journal) == ReplicaOutage(topic="orders", broker=3, from_ms=START_MS, until_ms=twin.now_ms)


@pytest.mark.parametrize(
    "away",
    [
        Away(partition=0, broker=3, since_ms=5, complete_ms=None, unread=True),
        Away(partition=0, broker=3, since_ms=5, complete_ms=None),
        Away(partition=0, broker=3, since_ms=5, complete_ms=2, unread=True),
        Away(partition=0, broker=3, since_ms=5, complete_ms=2, returned_ms=7),
        Away(partition=0, broker=3, since_ms=5, complete_ms=2, too_late=True, order=(1, 2, 3)),
    ],
)
def test_a_new_copy_one_that_nobody_saw_away_and_one_that_is_back_or_taken_out_are_no_outages(away: Away) -> None:
    assert list(ended("orders", Memory(away=(away,)), Memory(), 90)) == []


def test_who_is_taken_out_of_the_assignment_was_away_until_then() -> None:
    away = Away(partition=0, broker=3, since_ms=5, complete_ms=2)
    expelled = Away(partition=0, broker=3, since_ms=5, complete_ms=2, order=(1, 2, 3))
    wanted = [ReplicaOutage(topic="orders", broker=3, from_ms=2, until_ms=90)]
    assert list(ended("orders", Memory(away=(away,)), Memory(away=(expelled,)), 90)) == wanted
    assert list(ended("orders", Memory(away=(away,)), Memory(), 90)) == wanted
    assert list(ended("orders", Memory(away=(away,)), Memory(away=(away,)), 90)) == []
