"""How the guard stands, as text, document and metrics: by the journal alone or with a look, with hostile names."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from headstone.cli.guard_watch import status_lines
from headstone.cli.output import Output
from headstone.cluster.admin import MayHaveArrived
from headstone.coordination.danger import NEVER_MS
from headstone.coordination.guard_values import HOLD, LAG_MAX, LAG_MIN, RATIO, AlarmKind, Allowed, State, Status
from headstone.coordination.readmission import Readmission
from headstone.errors import UsageError
from headstone.guard.acting.release import Undo, carry_out_release, plan_release
from headstone.guard.agents.listener import Agents
from headstone.guard.agents.summary import FACT, agents_told, as_fact
from headstone.guard.agents.truth import AgentTruth
from headstone.guard.answers import Answer, last_answer
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import KeptAlarm, Lease
from headstone.guard.ledger.lock import present
from headstone.guard.ledger.readmissions import keep_readmission
from headstone.guard.ledger.temporary_changes import hold_for_a_while, temporary_changes, throttle_copy
from headstone.guard.loop.rounds import Round
from headstone.guard.monitoring.current_status import ask_status, journal_status
from headstone.guard.monitoring.log_lines import news
from headstone.guard.monitoring.metrics import Counters, MetricsServer, metrics_text
from headstone.guard.monitoring.status import GuardedTopicStatus, GuardStatus, Held, Waiting, status_document
from headstone.guard.prometheus import escaped, metric
from headstone.log.topic_partition import TopicPartition
from tests.guard.reporting import Beside, Clock, looked, replica_report
from tests.guard.watching import ACTS, OWN, after, goes_away, holding, kinds, states, watcher
from tests.guard.world import DAY_MS, MARGINS, ClusterTwin, Topic

ROOT = Path(__file__).resolve().parent.parent.parent
HOSTILE = "orders$(reboot)\x1b[2J\n"


def held_twin(journal: Journal, name: str = "orders") -> ClusterTwin:
    """Held for an hour, with 300 bytes more on each of two brokers."""
    twin = ClusterTwin(**{name: Topic(overrides=dict(OWN))})
    guard = watcher(twin, journal)
    goes_away(twin, guard)
    after(twin, guard, DAY_MS // 24, times=13)
    after(twin, guard, 1_000)
    return twin


def test_the_journal_alone_tells_what_is_held_why_and_how_old_that_is(journal: Journal) -> None:
    twin = held_twin(journal)
    status = journal_status(journal, now_ms=twin.now_ms + 5_000, why="no broker answers")
    lines = list(status_lines(status, Output()))
    assert lines == [
        "cluster twin-cluster: by the journal of 2023-11-15 11:13:21 UTC, 5 s ago",
        "guard a acts",
        "1 topic; partitions: 1 held",
        "orders: held for 1 h 6 s, in effect since 2023-11-15 11:13:21 UTC; brokers that have it: 1, 2",
        "  why: behind: partition 0: broker 3",
        "  goes back to: min.cleanable.dirty.ratio back to 0.1, min.compaction.lag.ms deleted, max.compaction.lag.ms deleted",
        "  orders-0: held: broker 3 behind since 2023-11-14 22:13:20 UTC, held before 2023-11-15 22:12:30 UTC, "
        "when removals would "
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


@pytest.mark.parametrize("runs", [True, False])
def test_topics_that_no_guard_watches_are_unknown_and_not_too_late(journal: Journal, runs: bool) -> None:
    """A look just now cannot tell what their replicas had when nobody looked."""
    twin = ClusterTwin(orders=Topic(), users=Topic(), __transaction_state=Topic())
    guard = watcher(twin, journal, replace(ACTS, topics=("orders",)))
    goes_away(twin, guard)
    if not runs:
        journal.stand_down("a")
    twin.now_ms += 1_000
    status = ask_status(journal, twin, twin.clock, look_at=lambda: twin.look(None))  # type: ignore[arg-type]
    shown = {topic.topic: [partition.state for partition in topic.partitions] for topic in status.topics}
    assert shown == {"orders": [State.WATCHED], "users": [State.UNKNOWN], "__transaction_state": [State.UNKNOWN]}
    lines = list(status_lines(status, Output()))
    assert lines[1:] == [
        "guard a acts" if runs else "no guard is running",
        "1 topic; partitions: 1 watched",
        "first unsafe removal in 23 h 59 min",
        "  orders-0: watched: broker 3 behind since 2023-11-14 22:13:20 UTC, first unsafe removal in 23 h 59 min",
        "not watched by this guard, so unknown: 2 of the compacted topics: __transaction_state, users",
    ]
    document = status_document(status)
    assert (document["partitions"], document["not_watched"]) == ({"watched": 1}, ["__transaction_state", "users"])
    assert [topic["topic"] for topic in document["topics"]] == ["orders"]


def test_an_outage_of_many_partitions_is_a_few_lines_and_all_of_it_in_the_document() -> None:
    late = [
        Status(
            partition=n, state=State.TOO_LATE, blockers=(3,), since_ms=1_000 + n, unsafe_ms=90_000, countdown_ms=-10_000
        )
        for n in range(430)
    ]
    waits = tuple(
        Waiting(partition=n, broker=3, since_ms=1_000, expelled_ms=None if n < 400 else 5) for n in range(430)
    )
    alarms = tuple(
        KeptAlarm(kind=AlarmKind.TOO_LATE, topic="orders", partition=n, broker=3, first_ms=70_000 - n)
        for n in range(430)
    )
    topic = GuardedTopicStatus(
        topic="orders", partitions=(Status(partition=430, state=State.FINE), *late), waiting=waits
    )
    status = GuardStatus(
        cluster_id="c", now_ms=100_000, looked_ms=100_000, fresh=True, lease=None, topics=(topic,), alarms=alarms
    )  # fmt: skip
    assert list(status_lines(status, Output()))[4:] == [
        "  orders, 430 partitions (0-429): too late: needs readmission: broker 3 behind since 1970-01-01 00:00:01 UTC, "
        "unsafe for 10 s",
        "  orders, 400 partitions (0-399) on broker 3 wait for readmission: assigned, and must not lead",
        "  orders, 30 partitions (400-429) on broker 3 wait for readmission: out of the assignment",
        "ALARM orders, 430 partitions (0-429), broker 3: away past the moment of danger; it must not lead: headstone guard "
        "readmit (for 30 s)",
    ]
    (document,) = status_document(status)["topics"]  # type: ignore[misc]
    assert [len(document[name]) for name in ("partitions", "waiting_for_readmission")] == [430, 430]


def test_what_an_earlier_run_left_held_is_shown_by_a_guard_of_other_topics(journal: Journal) -> None:
    twin = held_twin(journal)
    twin.topics["users"] = Topic()
    journal.stand_down("a")
    guard = watcher(twin, journal, replace(ACTS, name="b", topics=("users",)))
    guard.round()
    status = ask_status(journal, twin, twin.clock, look_at=lambda: twin.look(None))  # type: ignore[arg-type]
    shown = {topic.topic: (topic.watched, topic.held is not None, topic.worrying != ()) for topic in status.topics}
    assert shown == {"orders": (True, True, True), "users": (True, False, False)}


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


def test_a_release_is_planned_exactly_carried_out_and_not_fought_by_a_guard_that_runs(journal: Journal) -> None:
    twin = held_twin(journal)
    plan = plan_release(twin, journal, [])  # type: ignore[arg-type]
    restore = ((RATIO, "0.1"), (LAG_MIN, None), (LAG_MAX, None))
    (asked_ms,) = [change.began_ms for change in journal.changes()]
    assert plan == [Undo(topic="orders", restore=restore, asked_ms=asked_ms)]
    assert twin.topics["orders"].overrides == dict(HOLD)
    done = carry_out_release(twin, journal, plan, now_ms=twin.now_ms, evidence="by hand")  # type: ignore[arg-type]
    assert done == [Undo(topic="orders", restore=restore, asked_ms=asked_ms, outcome="done")]
    assert twin.topics["orders"].overrides == OWN
    assert (journal.changes()[-1].reason, journal.changes()[-1].evidence) == ("released by hand", "by hand")
    guard = watcher(twin, journal)
    result = after(twin, guard, 30_000, times=3)
    assert (twin.topics["orders"].overrides, kinds(result)) == (OWN, [AlarmKind.CHANGED_BY_PERSON])
    twin.start(3)
    result = after(twin, guard, MARGINS.effect_ms, times=3)
    assert (journal.memory("orders").hold, journal.released(), kinds(result)) == (None, {}, [])


def test_a_release_leaves_what_somebody_else_has_changed(journal: Journal) -> None:
    twin = held_twin(journal)
    twin.topics["orders"].overrides[LAG_MIN] = "5"
    (undo,) = plan_release(twin, journal, ["orders"])  # type: ignore[arg-type]
    (change,) = journal.changes()
    restore = ((RATIO, "0.1"), (LAG_MAX, None))
    assert undo == Undo(topic="orders", restore=restore, left=((LAG_MIN, "5"),), asked_ms=change.began_ms)


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
    twin = held_twin(journal)
    plan = plan_release(twin, journal, ["orders"])  # type: ignore[arg-type]
    twin.fails["alter"] = MayHaveArrived("no answer; the change may have been applied or not")
    carry_out_release(twin, journal, plan, now_ms=twin.now_ms, evidence="")  # type: ignore[arg-type]
    assert journal.released() == {"orders": twin.now_ms}


def test_what_a_killed_readmission_left_is_shown_and_released(journal: Journal) -> None:
    """Its temporary hold, the limit of its broker; and the replica that it had taken out."""
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN), replicas=(1, 2)))
    hold_for_a_while(twin, journal, "orders", reason="re-replicates", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    throttle_copy(twin, journal, TopicPartition("orders", 0), 3, bytes_per_second=9, evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
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
    assert (twin.topics["orders"].overrides, twin.broker_own[3], temporary_changes(journal)) == (OWN, {}, [])


def test_only_what_the_journal_holds_can_be_released(journal: Journal) -> None:
    twin = held_twin(journal)
    with pytest.raises(UsageError, match="topic users: not held by this journal, which holds orders"):
        plan_release(twin, journal, ["users"])  # type: ignore[arg-type]


def test_a_hold_by_the_cluster_default_is_released_with_the_last_topic(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(), users=Topic())
    guard = holding(twin, journal, replace(ACTS, allowed=Allowed(cluster_default=True)))
    for topic in twin.topics.values():
        topic.overrides.clear()
    after(twin, guard, MARGINS.metadata_age_ms + 1)
    assert [undo.topic for undo in plan_release(twin, journal, ["orders"])] == ["orders"]  # type: ignore[arg-type]
    plan = plan_release(twin, journal, [])  # type: ignore[arg-type]
    assert [undo.topic for undo in plan] == ["orders", "users", None]
    carry_out_release(twin, journal, plan, now_ms=twin.now_ms, evidence="")  # type: ignore[arg-type]
    assert twin.default == {}


HOUR_MS = 3_600_000


def heard(mcco: int) -> AgentTruth:
    truth = AgentTruth(clock=Clock(now_ms=1_700_000_000_000))
    looked(truth)
    for _ in range(2):
        for broker in (1, 2, 3):
            Beside(truth, broker).tells(replica_report(mcco, mcco))
    return truth


def answer(result: Round, journal: Journal, truth: AgentTruth | None, *, later_ms: int = 0) -> Answer:
    now_ms, poll_ms = result.ended_ms + later_ms, MARGINS.poll_ms
    return last_answer(result, journal, Agents(truth), now_ms=now_ms, poll_ms=poll_ms)


def watermark(answered: Answer) -> object:
    """Of the one partition of which agents have told."""
    agents = answered.document["agents"]
    return agents["partitions"][0]["mtro"] if isinstance(agents, dict) else agents


def test_a_guard_that_leads_answers_with_what_its_own_agents_told(journal: Journal) -> None:
    result = watcher(ClusterTwin(orders=Topic()), journal).round()
    journal.note_fact(FACT, as_fact(agents_told(heard(10))))
    assert watermark(answer(result, journal, heard(90))) == 90
    assert watermark(answer(result, journal, None)) is None


def test_a_guard_that_stands_by_answers_with_what_the_one_that_leads_was_told(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic())
    journal.lead("another", now_ms=twin.now_ms, lease_ms=HOUR_MS, applies=True)
    result = watcher(twin, journal).round()
    assert watermark(answer(result, journal, heard(90))) is None
    journal.note_fact(FACT, as_fact(agents_told(heard(10))))
    assert watermark(answer(result, journal, heard(90))) == 10


def test_a_guard_that_answers_runs_also_when_its_lease_is_over(journal: Journal) -> None:
    result = watcher(ClusterTwin(orders=Topic()), journal).round()
    with present(journal.path):
        answered = answer(result, journal, None, later_ms=HOUR_MS).document
        assert (answered["leader"], answered["runs"]) == (None, True)
    assert answer(result, journal, None, later_ms=HOUR_MS).document["runs"] is False


COUNTERS = Counters(looks=7, calls_failed=2, applies=True, leads=True)
AWAY = Status(partition=1, state=State.HELD, blockers=(3,), since_ms=0, unsafe_ms=70_000, countdown_ms=60_000)
HELD = Held(
    since_ms=4_000,
    confirmed=(1, 2),
    confirmed_ms=5_000,
    undone_ms=None,
    by_default=False,
    found=(),
    bytes_held_back=123,
)
STATUS = GuardStatus(
    cluster_id="c", now_ms=10_000, looked_ms=8_000, fresh=True, lease=Lease(holder="a", until_ms=11_000, applies=True),
    topics=(
        GuardedTopicStatus(
            topic='or"ders', partitions=(Status(partition=0, state=State.FINE), AWAY), held=HELD,
            waiting=(Waiting(partition=1, broker=3, since_ms=0, expelled_ms=None),),
        ),
    ),
    alarms=(KeptAlarm(kind=AlarmKind.WRONG, topic='or"ders', partition=1, broker=3),),
)  # fmt: skip


def samples(text: str) -> list[str]:
    return [line.removeprefix("headstone_guard_") for line in text.splitlines() if not line.startswith("#")]


def test_everything_an_alert_needs_is_there() -> None:
    assert samples(metrics_text(STATUS, COUNTERS)) == [
        "leads 1",
        "applies 1",
        "looks_total 7",
        "calls_failed_total 2",
        "last_look_age_seconds 2",
        'partition_state{topic="or\\"ders",partition="0",state="fine"} 1',
        'partition_state{topic="or\\"ders",partition="1",state="held"} 1',
        'countdown_seconds{topic="or\\"ders",partition="1"} 60',
        'held_seconds{topic="or\\"ders"} 6',
        'hold_in_effect{topic="or\\"ders"} 1',
        'held_back_bytes{topic="or\\"ders"} 123',
        'waiting_for_readmission{topic="or\\"ders",partition="1",broker="3"} 1',
        'alarm{kind="a replica is wrong",topic="or\\"ders",partition="1",broker="3"} 1',
    ]


def test_what_never_comes_has_no_countdown_and_who_never_looked_no_age() -> None:
    never = replace(AWAY, unsafe_ms=NEVER_MS, countdown_ms=NEVER_MS - 10)
    topic = replace(STATUS.topics[0], partitions=(never,), held=None, waiting=())
    text = metrics_text(replace(STATUS, topics=(topic,), looked_ms=None, alarms=()), COUNTERS)
    assert not any(name in text for name in ("countdown_seconds{", "last_look_age_seconds", "held_seconds{"))


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ('a"} 1\nfake{x="', r"a\"} 1\nfake{x=\""),
        ("back\\slash", r"back\\slash"),
        ("\x1b[31mred\r", r"\\x1b[31mred\\x0d"),
    ],
)
def test_a_name_stays_inside_its_label(text: str, label: str) -> None:
    assert escaped(text) == label


def test_every_metric_is_explained() -> None:
    lines = metrics_text(STATUS, COUNTERS).splitlines()
    helped = {line.split()[2] for line in lines if line.startswith("# HELP")}
    typed = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert helped == typed == {line.split()[0].partition("{")[0] for line in lines if not line.startswith("#")}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_server_hands_out_metrics_and_nothing_else(host: str) -> None:
    with MetricsServer(host, 0, lambda: metrics_text(STATUS, COUNTERS)) as server:
        with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=60) as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert answer.read().decode() == metrics_text(STATUS, COUNTERS)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{server.address}/", timeout=60)
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(UsageError, match=f"--metrics {host}:{port}: "):
            MetricsServer(host, port, str)


def test_whole_numbers_are_printed_to_the_last_digit() -> None:
    values = (123_456_789, 2**62 + 1, 123_456_789.0, 1_234_567.125, 0.5, True)
    lines = list(metric("mtro", "gauge", "", [({}, value) for value in values]))[2:]
    assert [line.split()[1] for line in lines] == [
        "123456789", "4611686018427387905", "123456789", "1234567.125", "0.5", "1",
    ]  # fmt: skip
