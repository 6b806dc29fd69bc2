"""What an operator is told: by the journal alone or with a look, as text and as a document, with hostile names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from headstone.cli.guard_watch import status_lines
from headstone.cli.output import Output
from headstone.cluster.admin import MayHaveArrived
from headstone.coordination.guard_values import HOLD, LAG_MAX, LAG_MIN, RATIO, AlarmKind, Allowed, State
from headstone.errors import UsageError
from headstone.guard.asking import journal_status
from headstone.guard.journal import Journal
from headstone.guard.loans import lend_brake, lend_hold, loans
from headstone.guard.readmission_records import keep_readmission
from headstone.guard.readmission_steps import Readmission
from headstone.guard.release import Undo, carry_out_release, plan_release
from headstone.guard.status import Waiting, status_document
from headstone.guard.telling import duration, news
from headstone.log.topic_partition import TopicPartition
from tests.guard.test_watching import ACTS, OWN, after, held_at_half_a_day, kinds, states, watcher
from tests.guard.world import CLUSTER_ID, DAY_MS, MARGINS, ClusterTwin, Topic

ROOT = Path(__file__).resolve().parent.parent.parent
HOSTILE = "orders$(reboot)\x1b[2J\n"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.sqlite", cluster_id=CLUSTER_ID) as opened:
        yield opened


def held_twin(journal: Journal, name: str = "orders") -> ClusterTwin:
    """Held for an hour, with 300 bytes more on each of two brokers."""
    twin = ClusterTwin(**{name: Topic(overrides=dict(OWN))})
    guard = watcher(twin, journal)
    guard.round()
    twin.stop(3)
    guard.round()
    for _ in range(13):
        after(twin, guard, DAY_MS // 24)
    after(twin, guard, 1_000)
    return twin


def test_the_journal_alone_tells_what_is_held_why_and_how_old_that_is(journal: Journal) -> None:
    twin = held_twin(journal)
    status = journal_status(journal, now_ms=twin.now_ms + 5_000, why="no broker answers")
    lines = list(status_lines(status, Output()))
    assert lines == [
        "cluster twin-cluster: by the journal of 2023-11-15T11:13:21Z, 5 s ago",
        "guard a acts",
        "1 topic; partitions: 1 held",
        "orders: held for 1 h 6 s, in effect since 2023-11-15T11:13:21Z; brokers that have it: 1, 2",
        "  why: behind: partition 0: broker 3",
        "  goes back to: min.cleanable.dirty.ratio back to 0.1, min.compaction.lag.ms deleted, max.compaction.lag.ms deleted",
        "  orders-0: held: broker 3 behind since 2023-11-14T22:13:20Z, held before 2023-11-15T22:12:30Z, when removals would "
        "become unsafe",
        "not known: no broker answers",
    ]
    document = status_document(status)
    assert (document["fresh"], document["countdown_ms"], document["partitions"]) == (False, None, {"held": 1})
    (topic,) = document["topics"]
    assert topic["held"]["found"] == {RATIO: "0.1", LAG_MIN: None, LAG_MAX: None}
    assert topic["partitions"] == [
        {
            "partition": 0, "state": "held", "blockers": [3], "since_ms": 1_700_000_000_000,
            "unsafe_ms": 1_700_086_350_000, "countdown_ms": 39_544_000,
        }
    ]  # fmt: skip


def test_what_nobody_has_looked_at_for_long_is_unknown_and_its_countdown_goes_on(journal: Journal) -> None:
    twin = held_twin(journal)
    status = journal_status(journal, now_ms=twin.now_ms + DAY_MS, why="no broker answers")
    assert {str(state): count for state, count in status.states.items()} == {"unknown": 1}
    assert status.countdown_ms is not None
    assert status.countdown_ms < 0
    assert "no guard is running" in list(status_lines(status, Output()))


def test_a_name_that_would_move_the_cursor_is_shown_and_not_obeyed(journal: Journal) -> None:
    twin = held_twin(journal, HOSTILE)
    status = journal_status(journal, now_ms=twin.now_ms, why="")
    guard = watcher(twin, journal)
    said = [*status_lines(status, Output()), *news(None, guard.round(), applies=True, poll_ms=MARGINS.poll_ms)]
    assert all(line.isprintable() for line in said)
    assert any(r"orders$(reboot)\x1b[2J" in line for line in said)


@pytest.mark.parametrize(
    ("span_ms", "words"),
    [
        (0, "0 s"),
        (200, "200 ms"),
        (59_999, "59 s"),
        (3_600_000, "1 h"),
        (90_061_000, "1 d 1 h"),
        (200_000, "3 min 20 s"),
    ],
)
def test_a_duration_is_told_in_its_two_largest_units(span_ms: int, words: str) -> None:
    assert duration(span_ms) == words


def test_a_release_is_planned_exactly_carried_out_and_not_fought_by_a_guard_that_runs(journal: Journal) -> None:
    twin = held_twin(journal)
    plan = plan_release(twin, journal, [])  # type: ignore[arg-type]
    restore = ((RATIO, "0.1"), (LAG_MIN, None), (LAG_MAX, None))
    assert plan == [Undo(topic="orders", restore=restore)]
    assert twin.topics["orders"].overrides == dict(HOLD)
    done = carry_out_release(twin, journal, plan, now_ms=twin.now_ms, evidence="by hand")  # type: ignore[arg-type]
    assert done == [Undo(topic="orders", restore=restore, outcome="done")]
    assert twin.topics["orders"].overrides == OWN
    assert (journal.changes()[-1].reason, journal.changes()[-1].evidence) == ("released by hand", "by hand")
    guard = watcher(twin, journal)
    for _ in range(3):
        result = after(twin, guard, 30_000)
    assert (twin.topics["orders"].overrides, kinds(result)) == (OWN, [AlarmKind.CHANGED_BY_PERSON])
    twin.start(3)
    for _ in range(3):
        result = after(twin, guard, MARGINS.effect_ms)
    assert (journal.memory("orders").hold, journal.released(), kinds(result)) == (None, {}, [])


def test_a_release_leaves_what_somebody_else_has_changed_and_goes_on_after_a_refusal(journal: Journal) -> None:
    twin = held_twin(journal)
    twin.topics["orders"].overrides[LAG_MIN] = "5"
    (undo,) = plan_release(twin, journal, ["orders"])  # type: ignore[arg-type]
    assert undo == Undo(topic="orders", restore=((RATIO, "0.1"), (LAG_MAX, None)), left=((LAG_MIN, "5"),))
    twin.refuses = "no permission"
    (refused,) = carry_out_release(twin, journal, [undo], now_ms=twin.now_ms, evidence="")  # type: ignore[arg-type]
    assert refused.outcome == "failed: no permission"


def test_a_release_that_is_refused_leaves_the_hold_to_the_guard(journal: Journal) -> None:
    twin = held_twin(journal)
    plan = plan_release(twin, journal, ["orders"])  # type: ignore[arg-type]
    twin.refuses = "no permission"
    (refused,) = carry_out_release(twin, journal, plan, now_ms=twin.now_ms, evidence="")  # type: ignore[arg-type]
    assert (refused.outcome, journal.released()) == ("failed: no permission", {})
    twin.refuses = None
    result = after(twin, watcher(twin, journal), 1_000)
    assert (states(result), kinds(result)) == ([State.HELD], [])
    journal.note_released("orders", now_ms=7)
    twin.refuses = "no permission"
    carry_out_release(twin, journal, plan, now_ms=twin.now_ms, evidence="")  # type: ignore[arg-type]
    assert journal.released() == {"orders": 7}


def test_a_release_whose_answer_is_lost_counts_as_one(journal: Journal) -> None:
    class Silent(ClusterTwin):
        def alter_topic(self, topic: str, changes: Mapping[str, str | None]) -> None:
            raise MayHaveArrived("no answer; the change may or may not have arrived")

    twin = held_twin(journal)
    plan = plan_release(twin, journal, ["orders"])  # type: ignore[arg-type]
    silent = Silent(**twin.topics)
    carry_out_release(silent, journal, plan, now_ms=twin.now_ms, evidence="")  # type: ignore[arg-type]
    assert journal.released() == {"orders": twin.now_ms}


def test_what_a_killed_readmission_left_is_shown_and_released(journal: Journal) -> None:
    """The hold that it had lent, the limit of its broker; and the replica that it had taken out."""
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN), replicas=(1, 2)))
    lend_hold(twin, journal, "orders", reason="copies afresh", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    lend_brake(twin, journal, TopicPartition("orders", 0), 3, bytes_per_second=9, evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    begun = Readmission(topic="orders", partition=0, broker=3, order=(3, 1, 2), expelled=True, began_ms=7)
    keep_readmission(journal, begun)
    (topic,) = journal_status(journal, now_ms=9, why="not asked").topics
    assert topic.waiting == (Waiting(partition=0, broker=3, since_ms=7, expelled_ms=7),)
    plan = plan_release(twin, journal, [])  # type: ignore[arg-type]
    rate, listed = "follower.replication.throttled.rate", "follower.replication.throttled.replicas"
    assert [(undo.topic, undo.broker, undo.restore) for undo in plan] == [
        ("orders", None, ((RATIO, "0.1"), (LAG_MIN, None), (LAG_MAX, None))),
        (None, 3, ((rate, None),)),
        ("orders", None, ((listed, None),)),
    ]
    done = carry_out_release(twin, journal, plan, now_ms=2, evidence="by hand")  # type: ignore[arg-type]
    assert [undo.outcome for undo in done] == ["done", "done", "done"]
    assert (twin.topics["orders"].overrides, twin.broker_own[3], loans(journal)) == (OWN, {}, [])


def test_only_what_the_journal_holds_can_be_released(journal: Journal) -> None:
    twin = held_twin(journal)
    with pytest.raises(UsageError, match="topic users: this journal does not hold it; it holds orders"):
        plan_release(twin, journal, ["users"])  # type: ignore[arg-type]


def test_a_hold_by_the_cluster_default_is_released_with_the_last_topic(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(), users=Topic())
    guard = watcher(twin, journal, replace(ACTS, allowed=Allowed(cluster_default=True)))
    held_at_half_a_day(twin, guard)
    after(twin, guard, 1_000)
    for topic in twin.topics.values():
        topic.overrides.clear()
    after(twin, guard, MARGINS.metadata_age_ms + 1)
    assert [undo.topic for undo in plan_release(twin, journal, ["orders"])] == ["orders"]  # type: ignore[arg-type]
    plan = plan_release(twin, journal, [])  # type: ignore[arg-type]
    assert [undo.topic for undo in plan] == ["orders", "users", None]
    carry_out_release(twin, journal, plan, now_ms=twin.now_ms, evidence="")  # type: ignore[arg-type]
    assert twin.default == {}
