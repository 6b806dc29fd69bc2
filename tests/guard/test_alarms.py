"""Every alarm says what to do, in the runbook's words, comes when a failure lasts, and stands for as long as it is so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headstone.cli.guard_watch import status_lines
from headstone.cli.output import Output
from headstone.cluster.admin import MayHaveArrived
from headstone.cluster.refusals import NoAnswer
from headstone.coordination.guard_values import DEFAULT_HOLD, RATIO, AlarmKind, Allowed, SetHold, State, Verdict, Verify
from headstone.errors import Unfinished
from headstone.guard.ledger.journal import Journal
from headstone.guard.loop.alarms import (
    ADVICE,
    BY_DEFAULT,
    CLUSTER_LOST,
    DEFAULT_ASKED,
    DEFAULT_CHANGED,
    JOURNAL_LOST,
    ONLY_COPY,
    OTHER_TOPICS,
    OUT_OF_REACH,
    REFUSED,
    UNANSWERED,
    UNREADABLE,
    UNSEEN,
)
from headstone.guard.loop.rounds import Round
from headstone.guard.monitoring.current_status import journal_status
from headstone.guard.monitoring.log_lines import alarm_words, news
from headstone.guard.monitoring.status import status_document
from headstone.guard.verification.background import Readings
from headstone.guard.verification.verdicts import JudgedReplica
from tests.guard.watching import ACTS, after, goes_away, held_at_half_a_day, holding, kinds, states, watcher
from tests.guard.world import CLUSTER_ID, DAY_MS, MARGINS, ClusterTwin, Topic

ROOT = Path(__file__).resolve().parent.parent.parent


def test_every_alarm_has_advice_a_heading_in_the_runbook_and_an_alert() -> None:
    page = (ROOT / "docs" / "guard.md").read_text()
    alarms = {*map(str, AlarmKind), CLUSTER_LOST, JOURNAL_LOST, OTHER_TOPICS, REFUSED, UNANSWERED, UNREADABLE, UNSEEN}
    assert alarms == {key for key in ADVICE if isinstance(key, str)}
    assert [kind for kind in alarms if f"### {kind}\n" not in page] == []
    assert [kind for kind in alarms if f'headstone_guard_alarm{{kind="{kind}"}}' not in page] == []
    sections = dict(section.split("\n", 1) for section in page.split("### ")[1:])
    told_apart = [key for key in ADVICE if not isinstance(key, str)]
    assert [(kind, detail) for kind, detail in told_apart if detail not in " ".join(sections[kind].split())] == []


def test_what_nobody_guards_and_what_agents_do_wrong_have_an_alert_with_words() -> None:
    alerts = (ROOT / "docs" / "guard.md").read_text().split("## Alerts\n")[1]
    metrics = {
        "PartitionUnknown": f'headstone_guard_partition_state{{state="{State.UNKNOWN}"}} == 1',
        "AgentSilent": "headstone_guard_agent_silent == 1",
        "ReportsRefused": "increase(headstone_guard_reports_refused_total[10m]) > 0",
    }
    rules = {name: line for line in alerts.splitlines() for name in metrics if f"alert: {name}," in line}
    assert {name for name, expression in metrics.items() if expression in rules[name]} == metrics.keys()
    assert [name for name in metrics if f"`{name}`: " not in alerts] == []


def undone(journal: Journal, allowed: Allowed, **topic: object) -> tuple[ClusterTwin, list[str]]:
    """What `status` advises once something has put the overrides back."""
    twin = ClusterTwin(orders=Topic(**topic))  # type: ignore[arg-type]
    found = dict(twin.topics["orders"].overrides)
    guard = holding(twin, journal, replace(ACTS, allowed=allowed))
    twin.topics["orders"].overrides = found
    after(twin, guard, MARGINS.metadata_age_ms + 1)
    result = after(twin, guard, 1_000)
    return twin, [alarm_words(alarm) for alarm in result.alarms]


UNDONE = "orders: a robot undid the hold"


def test_what_to_do_about_a_robot_depends_on_what_is_allowed_and_what_it_reaches(tmp_path: Path) -> None:
    cases: list[tuple[Allowed, dict[str, str]]] = [
        (Allowed(), {}), (Allowed(cluster_default=True), {}), (Allowed(cluster_default=True), {RATIO: "0.1"}),
    ]  # fmt: skip
    said = []
    for number, (allowed, overrides) in enumerate(cases):
        with Journal.open(tmp_path / f"{number}.sqlite", cluster_id=CLUSTER_ID) as journal:
            said.append(undone(journal, allowed, overrides=overrides)[1])
    leave = "configure the automation to leave the three settings alone"
    assert said == [
        [f"{UNDONE}; {leave}, or restart the guard with --allow cluster-default"],
        [f"{UNDONE}: {BY_DEFAULT}; {leave}: until then every topic without its own overrides is held too"],
        [f"{UNDONE}: {OUT_OF_REACH}; {leave}, or bring the replica back in time"],
    ]


def test_a_guard_that_is_restarted_with_leave_for_the_cluster_default_uses_it_at_once(journal: Journal) -> None:
    twin, _ = undone(journal, Allowed())
    assert twin.default == {}
    guard = watcher(twin, journal, replace(ACTS, allowed=Allowed(cluster_default=True)))
    alarms = [alarm for _ in range(2) for alarm in after(twin, guard, 1_000).alarms]
    assert twin.default == dict(DEFAULT_HOLD)
    assert [(alarm.kind, alarm.detail) for alarm in alarms] == [
        (AlarmKind.UNDONE_BY_ROBOT, DEFAULT_ASKED), (AlarmKind.UNDONE_BY_ROBOT, BY_DEFAULT),
    ]  # fmt: skip


def test_a_copy_that_is_left_alone_is_told_once_without_advice_to_wait_for_others(journal: Journal) -> None:
    """A partition with one replica moved from broker 2 to broker 1."""
    twin = ClusterTwin(orders=Topic(replicas=(2,), isr=(2,)))
    guard = watcher(twin, journal)
    after(twin, guard, 1_000)
    twin.topics["orders"].replicas = twin.topics["orders"].isr = (1,)
    (alarm,) = after(twin, guard, 1_000).alarms
    words = alarm_words(alarm)
    assert words.startswith(
        f"orders-0, broker 1: a replica cannot be judged: {ONLY_COPY}; no other copy is left to compare it with"
    )
    assert [text for text in ("bring the other", "headstone audit") if text in words] == []
    assert after(twin, guard, 1_000).alarms == ()


def test_a_cluster_default_that_is_refused_is_not_said_to_hold(journal: Journal) -> None:
    twin, _ = undone(journal, Allowed())
    guard = watcher(twin, journal, replace(ACTS, allowed=Allowed(cluster_default=True)))
    twin.refuses = "CLUSTER_AUTHORIZATION_FAILED"
    for _ in range(3):
        alarms = after(twin, guard, MARGINS.metadata_age_ms + 1).alarms
        assert {(alarm.kind, alarm.detail) for alarm in alarms} == {
            (AlarmKind.UNDONE_BY_ROBOT, DEFAULT_ASKED), (REFUSED, "CLUSTER_AUTHORIZATION_FAILED"),
        }  # fmt: skip


def test_a_cluster_default_that_is_undone_before_every_look_is_told_and_left_alone(journal: Journal) -> None:
    twin, _ = undone(journal, Allowed())
    guard = watcher(twin, journal, replace(ACTS, allowed=Allowed(cluster_default=True)))
    changes = []
    for _ in range(4):
        result = after(twin, guard, MARGINS.metadata_age_ms + 1)
        changes.append(bool(twin.default))
        twin.default = {}
    assert [(alarm.kind, alarm.detail) for alarm in result.alarms] == [(AlarmKind.CHANGED_BY_PERSON, DEFAULT_CHANGED)]
    assert changes == [True, False, False, False]


def test_leave_for_the_cluster_default_does_not_hold_again_what_a_person_released(journal: Journal) -> None:
    twin, _ = undone(journal, Allowed())
    journal.note_released("orders", now_ms=twin.now_ms)
    guard = watcher(twin, journal, replace(ACTS, allowed=Allowed(cluster_default=True)))
    assert (kinds(after(twin, guard, 1_000)), twin.default) == ([AlarmKind.CHANGED_BY_PERSON], {})


def test_a_cluster_default_that_a_person_changed_is_told_for_as_long_as_it_is_missed(journal: Journal) -> None:
    twin, _ = undone(journal, Allowed(cluster_default=True))
    guard = watcher(twin, journal, replace(ACTS, allowed=Allowed(cluster_default=True)))
    after(twin, guard, 1_000)
    twin.default = {}
    result = after(twin, guard, MARGINS.metadata_age_ms + 1, times=3)
    assert [(alarm.kind, alarm.detail) for alarm in result.alarms] == [(AlarmKind.CHANGED_BY_PERSON, DEFAULT_CHANGED)]


def test_overrides_that_the_cluster_default_does_not_reach_are_told_for_as_long_as_they_stand(journal: Journal) -> None:
    twin, _ = undone(journal, Allowed(cluster_default=True))
    guard = watcher(twin, journal, replace(ACTS, allowed=Allowed(cluster_default=True)))
    after(twin, guard, 1_000)
    said = []
    for overrides in ({RATIO: "0.1"}, {RATIO: "0.1"}, {}, {}):
        twin.topics["orders"].overrides = dict(overrides)
        result = after(twin, guard, MARGINS.metadata_age_ms + 1)
        said.append([(alarm.kind, alarm.detail) for alarm in result.alarms])
    out = [(AlarmKind.CHANGED_BY_PERSON, OUT_OF_REACH)]
    asked, held = ([(AlarmKind.UNDONE_BY_ROBOT, detail)] for detail in (DEFAULT_ASKED, BY_DEFAULT))
    assert said == [out, out, asked, held]


@pytest.mark.parametrize("allowed", [False, True])
def test_who_is_away_too_long_is_readmitted_by_the_guard_itself_only_where_that_is_allowed(
    journal: Journal, allowed: bool
) -> None:  # fmt: skip
    twin = ClusterTwin()
    guard = watcher(twin, journal, replace(ACTS, allowed=Allowed(readmission=allowed)))
    twin.refuses = "not now"
    held_at_half_a_day(twin, guard)
    result = after(twin, guard, 3_600_000, times=12)
    (words,) = [alarm_words(alarm) for alarm in result.alarms if alarm.kind == AlarmKind.TOO_LATE]
    assert ("headstone guard readmit" in words, "keep it running" in words) == (not allowed, allowed)


class Broker:
    """Whether the replica that came back lets itself be read."""

    def __init__(self, twin: ClusterTwin, journal: Journal) -> None:
        self.error: Exception | None = OSError(28, "No space left on device", "/tmp/replicas-7x2")
        self.guard = watcher(twin, journal, verdict=None)
        self.guard._readings = Readings(self.read, journal, clock=twin.clock, beside=False)

    def read(self, wanted: Verify) -> dict[int, JudgedReplica]:
        if self.error is not None:
            raise self.error
        return {wanted.broker: JudgedReplica(verdict=Verdict.RIGHT)}


def unreadable(twin: ClusterTwin, journal: Journal) -> tuple[Broker, Round]:
    """Broker 3 is back, and ten readings were refused."""
    broker = Broker(twin, journal)
    held_at_half_a_day(twin, broker.guard)
    after(twin, broker.guard, 1_000)
    twin.start(3)
    for _ in range(10):
        result = after(twin, broker.guard, 30_000)
    return broker, result


def test_a_replica_that_cannot_be_read_is_an_alarm_with_its_reason_until_a_reading_succeeds(journal: Journal) -> None:
    twin = ClusterTwin()
    broker, result = unreadable(twin, journal)
    assert [(alarm.kind, alarm.partition, alarm.broker, alarm.detail) for alarm in result.alarms] == [
        (UNREADABLE, 0, 3, "No space left on device")
    ]
    words = "orders-0, broker 3: a replica cannot be read: No space left on device; fix the named cause"
    status = journal_status(journal, now_ms=twin.now_ms, why="not asked")
    (line,) = [line for line in status_lines(status, Output()) if line.startswith("ALARM")]
    assert line.startswith(f"ALARM {words}")
    (document,) = status_document(status)["alarms"]  # type: ignore[misc]
    assert (document["kind"], document["detail"]) == (UNREADABLE, "No space left on device")
    broker.error = Unfinished("this user lacks READ on the topic")
    (alarm,) = after(twin, broker.guard, 30_000).alarms
    assert (alarm.detail, alarm.first_ms) == ("this user lacks READ on the topic", result.alarms[0].first_ms)
    broker.error = None
    assert (kinds(after(twin, broker.guard, 30_000)), states(after(twin, broker.guard, 30_000))) == ([], [State.FINE])


@pytest.mark.parametrize(
    ("error", "alarms"),
    [
        (NoAnswer("broker b:9092 does not answer: the broker closed the connection"), [[], [], [UNREADABLE], [UNREADABLE]]),
        (Unfinished("this user lacks READ on the topic"), [[UNREADABLE]] * 4),
    ],
    ids=["a packet that is lost", "a permission that is missing"],
)  # fmt: skip
def test_a_reading_that_fails_once_is_no_alarm(error: Exception, alarms: list[list[str]], journal: Journal) -> None:
    twin = ClusterTwin()
    broker = Broker(twin, journal)
    broker.error = error
    held_at_half_a_day(twin, broker.guard)
    after(twin, broker.guard, 1_000)
    twin.start(3)
    assert [kinds(after(twin, broker.guard, 1_000)) for _ in range(4)] == alarms


def test_a_guard_that_is_started_again_still_tells_of_a_replica_that_cannot_be_read(journal: Journal) -> None:
    twin = ClusterTwin()
    _, result = unreadable(twin, journal)
    again = watcher(twin, journal, verdict=None)
    assert after(twin, again, 30_000).alarms == result.alarms


def test_a_reading_that_failed_before_the_replica_was_away_again_says_nothing(journal: Journal) -> None:
    twin = ClusterTwin()
    unreadable(twin, journal)
    guard = watcher(twin, journal, verdict=None)
    twin.stop(3)
    assert kinds(after(twin, guard, 30_000)) == []
    twin.start(3)
    for _ in range(4):
        assert kinds(after(twin, guard, 30_000)) == []


def test_leaders_that_may_not_be_read_are_one_alarm_and_no_failed_calls(journal: Journal) -> None:
    """Nothing is unseen for that, and it is not told at each look."""
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    guard._look = lambda topics: replace(twin.look(topics), unread=("this user lacks READ on the topic",))
    rounds = [after(twin, guard, 30_000) for _ in range(3)]
    assert [[(alarm.kind, alarm.topic, alarm.detail) for alarm in result.alarms] for result in rounds] == [
        [(UNREADABLE, "", "this user lacks READ on the topic")]
    ] * 3
    assert (guard.calls_failed, [result.problems for result in rounds]) == (0, [()] * 3)
    said = [list(news(*pair, applies=True, poll_ms=30_000)) for pair in zip([None, *rounds], rounds, strict=False)]
    assert [len(lines) for lines in said] == [1, 0, 0]


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
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    goes_away(twin, guard)
    twin.fails["alter"] = MayHaveArrived("broker a:9092 does not answer; the change may have been applied or not")
    first = after(twin, guard, DAY_MS // 2)
    (done,) = [done for done in first.done if isinstance(done.action, SetHold)]
    assert done.outcome is not None
    assert (done.outcome.unanswered, kinds(first)) == (True, [])
    after(twin, guard, 30_000)
    (alarm,) = [alarm for alarm in after(twin, guard, 30_000).alarms if alarm.kind == UNANSWERED]
    assert "permission" not in alarm_words(alarm)
    twin.fails.clear()
    assert kinds(after(twin, guard, 30_000)) == []
