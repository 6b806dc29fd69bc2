"""What fails once is no alarm, what lasts is; a missing permission is one at once, and a lost answer is none of permissions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headstone.cluster.admin import MayHaveArrived
from headstone.coordination.guard_values import SetHold
from headstone.guard.ledger.journal import Journal
from headstone.guard.loop.alarms import CLUSTER_LOST, UNANSWERED
from headstone.guard.monitoring.log_lines import alarm_words
from tests.guard.watching import after, goes_away, kinds, watcher
from tests.guard.world import DAY_MS, ClusterTwin


def test_a_broker_that_does_not_answer_now_and_then_is_no_alarm_and_one_that_lasts_is(journal: Journal) -> None:
    """A refusal does not pass by itself: that is one at once. A guard of one look counts those of before."""
    twin = ClusterTwin()
    silent, refused = (
        "broker 3: broker a:9092 does not answer: the broker closed the connection",
        "topic t: this user lacks DESCRIBE",
    )
    kept = []
    for problem in (silent, "", silent, silent, "", silent, silent, silent, "", refused):
        guard = watcher(twin, journal)
        seen = replace(twin.look(None), problems=tuple(filter(None, [problem])))
        guard._look = lambda topics, seen=seen: seen
        result = after(twin, guard, 10_000)
        assert result.unseen == seen.problems
        kept.append([alarm.detail for alarm in result.alarms])
    assert kept == [[], [], [], [], [], [], [], [silent], [], [refused]]


def test_of_rare_looks_two_that_fail_are_an_alarm(journal: Journal) -> None:
    twin = ClusterTwin()
    twin.lost = "no broker answers"
    guard = watcher(twin, journal)
    assert [kinds(after(twin, guard, 300_000)) for _ in range(2)] == [[], [CLUSTER_LOST]]


def test_a_change_that_nobody_answers_is_no_matter_of_permissions(journal: Journal) -> None:
    class Deaf(ClusterTwin):
        answers = True

        def _alter(self, what: str, configs: dict[str, str], changes: Mapping[str, str | None]) -> None:
            if not self.answers:
                raise MayHaveArrived("broker a:9092 does not answer; the change may have been applied or not")
            super()._alter(what, configs, changes)

    twin = Deaf()
    guard = watcher(twin, journal)
    goes_away(twin, guard)
    twin.answers = False
    first = after(twin, guard, DAY_MS // 2)
    (done,) = [done for done in first.done if isinstance(done.action, SetHold)]
    assert done.outcome is not None
    assert (done.outcome.unanswered, kinds(first)) == (True, [])
    after(twin, guard, 30_000)
    (alarm,) = [alarm for alarm in after(twin, guard, 30_000).alarms if alarm.kind == UNANSWERED]
    assert "permission" not in alarm_words(alarm)
    twin.answers = True
    assert kinds(after(twin, guard, 30_000)) == []
