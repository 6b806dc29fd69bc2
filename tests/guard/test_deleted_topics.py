"""A topic that is deleted takes its hold with it; one that is made anew under the same name inherits nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from headstone.coordination.guard_values import DEFAULT_HOLD, HOLD, RATIO, Allowed, Memory, SetHold, State, Verdict
from headstone.coordination.readmission import Readmission
from headstone.guard.acting.changes import BACKOFF, ENDING, carry_out
from headstone.guard.acting.deleted_topics import GONE, PURGE_MS
from headstone.guard.acting.release import carry_out_release, plan_release
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Change, ReplicaReading
from headstone.guard.ledger.overrides import CLUSTER_DEFAULT, never
from headstone.guard.ledger.readmissions import keep_readmission, open_readmissions
from headstone.guard.ledger.temporary_changes import hold_for_a_while, put_back, temporary_changes
from headstone.guard.loop.missing_topics import Departures
from headstone.guard.loop.watcher import MADE_ANEW, Watcher
from headstone.guard.monitoring.current_status import ask_status
from tests.guard.test_watching import told
from tests.guard.watching import ACTS, OWN, after, held_at_half_a_day, holding, kinds, states, watcher
from tests.guard.world import MARGINS, ClusterTwin, Topic

ANEW = f"topic orders: {MADE_ANEW}: what was known of it is forgotten, its hold is gone with it"


def made_anew(twin: ClusterTwin, **how: object) -> Topic:
    """In sync on the brokers that are alive, with no overrides unless told otherwise."""
    alive = tuple(sorted(twin.alive))
    twin.topics["orders"] = topic = Topic(replicas=alive, isr=alive, topic_id="second", **how)  # type: ignore[arg-type]
    return topic


def test_a_topic_made_anew_inherits_neither_absences_nor_the_values_to_restore(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN)))
    guard = watcher(twin, journal)
    held_at_half_a_day(twin, guard)
    before = after(twin, guard, 1_000)
    journal.note_reading("orders", ReplicaReading(partition=0, broker=3, verdict=Verdict.WRONG, read_ms=twin.now_ms))
    made_anew(twin)
    result = after(twin, guard, 1_000)
    assert ANEW in told(before, result)
    memory = journal.memory("orders")
    assert (memory.topic_id, memory.hold, memory.away) == ("second", None, ())
    assert (states(result), kinds(result), journal.readings("orders"), journal.sizes()) == ([State.FINE], [], [], {})
    ended = journal.changes()[-1]
    assert (ended.resource, ended.new, ended.reason, ended.outcome) == (
        "topic orders", (*OWN.items(), *((name, None) for name, _ in HOLD if name != RATIO)), MADE_ANEW, GONE,
    )  # fmt: skip
    after(twin, guard, MARGINS.effect_ms)
    assert (twin.topics["orders"].overrides, len(twin.changes)) == ({}, 1)


def test_a_new_topic_with_the_old_ones_hold_copied_into_it_is_held_by_somebody_else(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN)))
    guard = holding(twin, journal)
    made_anew(twin, overrides=dict(HOLD))
    assert kinds(after(twin, guard, 1_000)) == ["held by somebody else"]
    assert twin.topics["orders"].overrides == dict(HOLD)


def test_an_old_answer_that_still_shows_the_former_topic_is_not_believed(journal: Journal) -> None:
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    former = replace(twin.topics["orders"])
    guard.round()
    made_anew(twin)
    after(twin, guard, 1_000)
    new, twin.topics["orders"] = twin.topics["orders"], former
    after(twin, guard, 1_000)
    assert journal.memory("orders").topic_id == "second"
    twin.topics["orders"] = new
    assert states(after(twin, guard, 1_000)) == [State.FINE]


def test_a_cluster_that_gives_no_ids_is_taken_at_its_word(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(topic_id=None))
    guard = watcher(twin, journal)
    held_at_half_a_day(twin, guard)
    assert states(after(twin, guard, 1_000)) == [State.WATCHED]
    assert states(after(twin, guard, 1_000)) == [State.HELD]


@pytest.mark.parametrize("watched", [(), ("orders",)])
def test_the_hold_of_a_topic_that_was_deleted_ends_with_it(journal: Journal, watched: tuple[str, ...]) -> None:
    twin = ClusterTwin(orders=Topic(), users=Topic(isr=(1, 2, 3)))
    guard = holding(twin, journal, replace(ACTS, topics=watched))
    del twin.topics["orders"]
    after(twin, guard, 1_000)
    gone = after(twin, guard, MARGINS.metadata_age_ms + 1)
    words = "topic orders: it was deleted: what was known of it is forgotten, its hold is gone with it"
    assert words in told(None, gone)
    assert ("orders" in journal.names(), "orders" in gone.statuses) == (False, False)
    outcomes = [change.outcome for change in journal.changes(topic="orders")]
    assert outcomes == ["done", GONE]


def test_one_answer_that_does_not_know_a_topic_forgets_nothing(journal: Journal) -> None:
    twin = ClusterTwin()
    guard = holding(twin, journal)
    topic = twin.topics.pop("orders")
    for _ in range(2):
        assert states(after(twin, guard, MARGINS.metadata_age_ms // 2)) == [State.UNKNOWN]
    twin.topics["orders"] = topic
    assert states(after(twin, guard, 1_000)) == [State.HELD]
    del twin.topics["orders"]
    assert states(after(twin, guard, MARGINS.metadata_age_ms)) == [State.UNKNOWN]


def test_a_topic_that_was_taken_for_gone_and_is_still_shown_later_is_watched_again(journal: Journal) -> None:
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    guard.round()
    topic = twin.topics.pop("orders")
    after(twin, guard, 1_000)
    after(twin, guard, MARGINS.metadata_age_ms + 1)
    twin.topics["orders"] = topic
    assert dict(after(twin, guard, MARGINS.metadata_age_ms).statuses) == {}
    assert states(after(twin, guard, 1)) == [State.FINE]


def test_the_cluster_default_goes_back_when_the_topic_that_it_was_held_for_is_deleted(journal: Journal) -> None:
    twin = ClusterTwin()
    twin.default = {"log.cleaner.min.cleanable.ratio": "0.7"}
    guard = holding(twin, journal, replace(ACTS, allowed=Allowed(cluster_default=True)))
    twin.topics["orders"].overrides.clear()
    after(twin, guard, MARGINS.metadata_age_ms + 1)
    assert twin.default == dict(DEFAULT_HOLD)
    del twin.topics["orders"]
    after(twin, guard, 1_000)
    after(twin, guard, MARGINS.metadata_age_ms + 1)
    assert twin.default == {"log.cleaner.min.cleanable.ratio": "0.7"}
    assert journal.changes()[-1].outcome == "done"


def test_nothing_that_was_decided_for_the_old_topic_is_done_to_the_new_one(journal: Journal) -> None:
    twin = ClusterTwin()
    watcher(twin, journal).round()
    made_anew(twin)
    action = SetHold(topic="orders", configs=HOLD, by_ms=1, reason="behind")
    outcome = carry_out(action, twin, journal, now_ms=twin.now_ms)  # type: ignore[arg-type]
    assert outcome.why == "topic orders was deleted or recreated meanwhile: nothing was changed"
    assert (twin.changes, journal.changes()) == ([], [])


def test_the_status_of_a_topic_made_anew_does_not_count_with_the_old_ones_memory(journal: Journal) -> None:
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    held_at_half_a_day(twin, guard)
    made_anew(twin)
    status = ask_status(journal, twin, twin.clock, look_at=lambda: twin.look(None))  # type: ignore[arg-type]
    assert (status.states, status.topics[0].held) == ({State.FINE: 1}, None)


@pytest.mark.parametrize("deleted", [True, False])
def test_a_release_by_hand_of_a_topic_that_is_gone_changes_nothing_and_forgets_it(
    journal: Journal, deleted: bool
) -> None:  # fmt: skip
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    held_at_half_a_day(twin, guard)
    made_anew(twin, overrides=dict(HOLD))
    if deleted:
        del twin.topics["orders"]
    plan = plan_release(twin, journal, ["orders"])  # type: ignore[arg-type]
    assert [(undo.topic, undo.restore, undo.gone) for undo in plan] == [("orders", (), True)]
    (done,) = carry_out_release(twin, journal, plan, now_ms=twin.now_ms, evidence="by hand")  # type: ignore[arg-type]
    assert (done.outcome, journal.memory("orders"), len(twin.changes)) == ("done", Memory(), 1)


def test_what_a_readmission_changed_of_the_old_topic_is_not_put_back_into_the_new_one(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN)))
    hold_for_a_while(twin, journal, "orders", reason="re-replicates", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    made_anew(twin, overrides=dict(HOLD))
    (temporary,) = temporary_changes(journal)
    assert put_back(twin, journal, temporary, evidence="guard readmit", now_ms=2, void=never) == [  # type: ignore[arg-type]
        "topic orders was deleted meanwhile: there is nothing to put back"
    ]
    assert (twin.topics["orders"].overrides, temporary_changes(journal)) == (dict(HOLD), [])


def test_readmissions_and_temporary_changes_of_a_topic_that_is_gone_are_over(journal: Journal) -> None:
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    guard.round()
    hold_for_a_while(twin, journal, "orders", reason="re-replicates", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    keep_readmission(journal, Readmission(topic="orders", partition=0, broker=3, order=(1, 2, 3), topic_id="first"))
    made_anew(twin)
    after(twin, guard, 1_000)
    assert (open_readmissions(journal), temporary_changes(journal)) == ([], [])


def no_longer_compacted(twin: ClusterTwin, guard: Watcher, *, before_the_end: Callable[[], object] = list) -> None:
    """The topic and its id stay; more looks go by than a purge takes."""
    twin.topics["orders"].policy = "delete"
    after(twin, guard, 60_000)
    after(twin, guard, PURGE_MS // 4, times=3)
    before_the_end()
    after(twin, guard, PURGE_MS // 4, times=2)


def test_a_change_of_policy_ends_neither_the_readmission_nor_the_temporary_change_that_a_killed_one_left(
    journal: Journal,
) -> None:
    """As `guard readmit --apply` leaves them when it is killed: the next run of it ends both."""
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN)))
    guard = watcher(twin, journal)
    guard.round()
    begun = Readmission(
        topic="orders", partition=0, broker=3, order=(1, 2, 3), expelled=True, added_ms=twin.now_ms, topic_id="first"
    )
    keep_readmission(journal, begun)
    hold_for_a_while(twin, journal, "orders", reason="re-replicates", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    left = temporary_changes(journal)
    no_longer_compacted(twin, guard)
    assert (open_readmissions(journal), temporary_changes(journal), journal.names()) == ([begun], left, ["orders"])
    keep_readmission(journal, begun, over=True)
    twin.refuses = "not permitted"
    after(twin, guard, 60_000)
    assert (temporary_changes(journal), journal.names()) == (left, ["orders"])
    twin.refuses = None
    after(twin, guard, 60_000)
    assert (twin.topics["orders"].overrides, temporary_changes(journal)) == (OWN, [])
    after(twin, guard, PURGE_MS)
    assert journal.names() == []


def test_a_change_of_policy_does_not_end_a_readmission_that_waits_for_its_broker(journal: Journal) -> None:
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    guard.round()
    waiting = Readmission(topic="orders", partition=0, broker=3, order=(1, 2, 3), expelled=True, was_away=True)
    keep_readmission(journal, waiting)
    no_longer_compacted(twin, guard)
    assert (open_readmissions(journal), journal.names()) == ([waiting], ["orders"])


def test_changes_of_a_topic_that_is_no_longer_compacted_are_not_called_gone(journal: Journal) -> None:
    """Nor are those that end at the same look, at which it is forgotten."""
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    guard.round()
    begun = Change(
        resource="topic orders", topic="orders", old=(), new=HOLD, reason="behind", evidence="", began_ms=twin.now_ms
    )
    no_longer_compacted(twin, guard, before_the_end=lambda: journal.begin(begun))
    (change,) = journal.changes()
    assert (change.outcome, journal.names()) == ("interrupted: the next look says what became of it", [])


def test_what_an_interrupted_guard_changed_of_brokers_is_put_back_though_its_topic_is_gone(journal: Journal) -> None:
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    guard.round()
    twin.default[BACKOFF] = "15001"
    journal.begin(Change(
        resource=str(CLUSTER_DEFAULT), topic="orders", old=((BACKOFF, None),), new=((BACKOFF, "15001"),), reason=ENDING,
        evidence="", began_ms=1,
    ))  # fmt: skip
    made_anew(twin)
    after(twin, guard, 1_000)
    assert (twin.default, journal.unfinished()) == ({}, [])


def test_ids_that_no_answer_can_show_any_more_are_not_kept(journal: Journal) -> None:
    departures = Departures(journal, 1_000)
    for topic_id, ended_ms in (("a", 0), ("b", 600), ("c", 1_001)):
        departures.note(topic_id, ended_ms)
    assert departures.former_ids == {"b": 600, "c": 1_001}
