"""What reports prove together, and show operators: only what all replicas had reached at one moment, nothing on one's word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headstone.agent.authentication import CHALLENGE_AGE_MS_MAX, Refusal, Refused
from headstone.agent.messages import Answered, Hello, Question, Receipt
from headstone.guard.agents.exchange import attended
from headstone.guard.agents.partition_truth import PartitionTruth, Whereabouts
from headstone.guard.agents.summary import (
    agents_document,
    agents_lines,
    agents_metrics,
    agents_told,
    as_fact,
    ask_about,
    of_fact,
    questions_of,
)
from headstone.guard.agents.truth import CLOCK_MS_MAX, NOT_A_MEMBER, NOT_WATCHED, AgentTruth
from headstone.guard.ledger.journal import Journal
from headstone.guard.looks.clock_skew import ClockReading, largest_difference_ms
from headstone.guard.looks.look import Look
from headstone.log.topic_partition import TopicPartition
from tests.agent.broker_directory import CLUSTER
from tests.guard.reporting import (
    BROKERS,
    INTERVAL_MS,
    ORDERS,
    Beside,
    Clock,
    looked,
    partition_seen,
    replica_report,
    topic_seen,
)

Agents = dict[int, Beside]


@pytest.fixture
def clock() -> Clock:
    return Clock(now_ms=10 * CLOCK_MS_MAX)


@pytest.fixture
def truth(clock: Clock) -> AgentTruth:
    truth = AgentTruth(clock=clock)
    looked(truth)
    return truth


@pytest.fixture
def agents(truth: AgentTruth) -> Agents:
    return {broker: Beside(truth, broker) for broker in BROKERS}


def orders(truth: AgentTruth) -> PartitionTruth:
    found = truth.partition(ORDERS)
    assert found is not None
    return found


def marks(truth: AgentTruth) -> tuple[int, int]:
    return orders(truth).mtro, orders(truth).mxro


def rounds(agents: Agents, reached: dict[int, tuple[int, int]], count: int = 2) -> None:
    for _ in range(count):
        for broker, (mcco, mxfo) in reached.items():
            agents[broker].tells(replica_report(mcco, mxfo))


def test_the_minimum_of_all_once_they_told_of_one_moment(truth: AgentTruth, agents: Agents) -> None:
    reached = {1: (50, 70), 2: (40, 80), 3: (60, 30)}
    rounds(agents, reached, count=1)
    assert marks(truth) == (0, 0), "the first may have lost its disk before the last one spoke"
    rounds(agents, reached, count=1)
    assert marks(truth) == (40, 30)


def test_a_replica_that_copied_again_meanwhile_does_not_count_with_its_old_claim(
    truth: AgentTruth, agents: Agents
) -> None:
    """1 had cleaned up to 90, lost its disk and copied what 2 had not cleaned then; only after that 2 cleaned."""
    rounds(agents, {1: (90, 90), 2: (50, 50), 3: (90, 90)})
    agents[2].tells(replica_report(90, 90))
    agents[3].tells(replica_report(90, 90))
    assert marks(truth) == (50, 50)
    agents[1].tells(replica_report(0, 0, incarnation=2))
    rounds(agents, {2: (90, 90), 3: (90, 90)})
    assert marks(truth) == (50, 50), "what all had is never taken back, and nothing more is believed"
    for _ in range(2):
        agents[1].tells(replica_report(90, 90, incarnation=2))
        rounds(agents, {2: (90, 90), 3: (90, 90)}, count=1)
    assert marks(truth) == (90, 90)


def test_one_that_was_never_heard_of_holds_everything_and_is_named(truth: AgentTruth, agents: Agents) -> None:
    rounds(agents, {1: (50, 50), 2: (50, 50)}, count=3)
    assert marks(truth) == (0, 0)
    blockers = {(blocker.kind, blocker.broker, blocker.reason) for blocker in orders(truth).blockers}
    assert blockers == {(kind, 3, "no agent has told of it") for kind in ("tombstones", "markers")}


def test_the_slowest_is_named_with_how_far_and_since_when(truth: AgentTruth, agents: Agents) -> None:
    """A report that lies low only delays, and shows who."""
    rounds(agents, {1: (90, 90), 2: (90, 90), 3: (20, 90)})
    moved_ms = orders(truth).members[2].heard_ms
    assert moved_ms is not None
    rounds(agents, {1: (90, 90), 2: (90, 90), 3: (20, 90)})
    [blocker] = orders(truth).blockers
    assert (blocker.kind, blocker.broker, blocker.watermark, blocker.behind) == ("tombstones", 3, 20, 70)
    assert blocker.since_ms < moved_ms
    assert blocker.heard_ms == orders(truth).members[2].heard_ms
    assert marks(truth) == (20, 90)


def test_an_agent_that_falls_silent_is_named_and_stops_the_rise(
    truth: AgentTruth, agents: Agents, clock: Clock
) -> None:
    rounds(agents, {1: (50, 50), 2: (50, 50), 3: (50, 50)})
    clock.now_ms += 3 * INTERVAL_MS
    rounds(agents, {1: (90, 90), 2: (90, 90)}, count=3)
    assert marks(truth) == (50, 50)
    silent = [member.broker for member in orders(truth).members if member.problem == "its agent is silent"]
    assert silent == [3]
    assert {blocker.broker for blocker in orders(truth).blockers} == {3}
    assert [agent.broker for agent in truth.agents() if agent.silent] == [3]


def test_who_lies_high_is_bounded_by_what_the_cluster_has_committed(truth: AgentTruth, agents: Agents) -> None:
    rounds(agents, dict.fromkeys(BROKERS, (10**9, 10**12)))
    assert marks(truth) == (100, 100)
    looked(truth)
    looked(truth)
    member = orders(truth).members[0]
    assert member.problem == "its agent claims 1000000000000, the cluster has committed 100"
    assert {blocker.broker for blocker in orders(truth).blockers} == set(BROKERS)


def test_a_log_that_only_the_agent_knows_is_a_lie_once_the_broker_was_asked_later(
    truth: AgentTruth, agents: Agents
) -> None:
    rounds(agents, dict.fromkeys(BROKERS, (50, 50)))
    agents[1].tells(replica_report(50, 50, log_end=101))
    looked(truth)
    assert orders(truth).members[0].problem is None, (
        "the look began before the report came: the log may have grown since"
    )
    looked(truth)
    assert orders(truth).members[0].problem == "its agent tells of a log up to 101, its broker of one up to 100"
    agents[1].tells(replica_report(50, 50))
    assert orders(truth).members[0].problem is None


def test_claims_wait_until_the_cluster_tells_what_is_committed(clock: Clock) -> None:
    truth = AgentTruth(clock=clock)
    looked(truth, topic_seen(partition_seen(None)))
    agents = {broker: Beside(truth, broker) for broker in BROKERS}
    rounds(agents, dict.fromkeys(BROKERS, (50, 50)))
    assert marks(truth) == (0, 0)
    looked(truth)
    assert marks(truth) == (50, 50)


def test_a_topic_that_was_deleted_and_made_again_begins_at_zero(truth: AgentTruth, agents: Agents) -> None:
    rounds(agents, dict.fromkeys(BROKERS, (50, 50)))
    assert marks(truth) == (50, 50)
    for broker in (1, 2):
        agents[broker].tells(replica_report(0, 0, topic_id="topic-b", incarnation=2))
    agents[3].tells(replica_report(50, 50))
    assert marks(truth) == (0, 0)
    assert [member.problem for member in orders(truth).members] == [
        None, None, "its files are of another topic of this name",
    ]  # fmt: skip


def test_a_replica_that_is_added_counts_from_then_on_and_a_removed_one_no_more(
    truth: AgentTruth, agents: Agents
) -> None:
    rounds(agents, dict.fromkeys(BROKERS, (50, 50)))
    looked(truth, topic_seen(partition_seen(brokers=(1, 2, 4))), brokers=(1, 2, 4))
    rounds(agents, dict.fromkeys((1, 2), (80, 80)))
    assert marks(truth) == (50, 50)
    assert [member.broker for member in orders(truth).members] == [1, 2, 4]
    looked(truth, topic_seen(partition_seen(brokers=(1, 2))))
    rounds(agents, dict.fromkeys((1, 2), (80, 80)))
    assert marks(truth) == (80, 80)


def test_a_look_at_some_topics_leaves_the_others_as_they_are(truth: AgentTruth, agents: Agents) -> None:
    rounds(agents, dict.fromkeys(BROKERS, (50, 50)))
    truth.learn(CLUSTER, BROKERS, (topic_seen(topic="others"),), whole=False)
    assert [(str(found.partition), found.mtro) for found in truth.partitions()] == [("orders-0", 50), ("others-0", 0)]
    truth.learn(CLUSTER, BROKERS, (topic_seen(topic="others"),))
    assert [str(found.partition) for found in truth.partitions()] == ["others-0"]


def test_what_is_not_watched_or_not_its_own_is_left(truth: AgentTruth, agents: Agents) -> None:
    looked(truth, topic_seen(partition_seen(brokers=(1, 2))), topic_seen(topic="plain", compacted=False))
    unknown = [TopicPartition(topic, 0) for topic in ("ghost", "plain")]
    reports = [replica_report(partition=partition) for partition in unknown]
    left = tuple(f"{partition}: {NOT_WATCHED}" for partition in unknown)
    assert agents[3].tells(*reports, replica_report()) == Receipt(taken=0, left=(*left, f"{ORDERS}: {NOT_A_MEMBER}"))
    assert [found.partition for found in truth.partitions()] == [ORDERS]


def refusal(truth: AgentTruth, report: object) -> Refusal:
    with pytest.raises(Refused) as refused:
        truth.report(report)  # type: ignore[arg-type]
    return refused.value.kind


def test_a_report_counts_once(truth: AgentTruth, agents: Agents, clock: Clock) -> None:
    captured = agents[1].made(replica_report(50, 50))
    truth.report(captured)
    assert refusal(truth, captured) is Refusal.REPLAYED
    held_back = agents[1].made(replica_report(90, 90))
    agents[1].tells(replica_report(40, 40))
    assert refusal(truth, held_back) is Refusal.REPLAYED, "a newer one from this broker, was accepted"
    assert refusal(truth, replace(held_back, broker=2)) is Refusal.REPLAYED, "the challenge was another broker's"
    late = agents[2].made(replica_report())
    clock.now_ms += CHALLENGE_AGE_MS_MAX
    assert refusal(truth, late) is Refusal.REPLAYED
    assert orders(truth).members[0].mcco == 40


def test_a_report_to_an_earlier_life_of_the_guard_is_refused(agents: Agents, clock: Clock) -> None:
    captured = agents[1].made(replica_report(50, 50))
    later = AgentTruth(clock=clock)
    looked(later)
    assert refusal(later, captured) is Refusal.REPLAYED


def test_who_is_not_of_this_cluster_is_refused(truth: AgentTruth, agents: Agents) -> None:
    report = agents[1].made(replica_report())
    assert refusal(truth, replace(report, cluster_id="another")) is Refusal.OTHER_CLUSTER
    assert refusal(truth, replace(report, broker=9)) is Refusal.UNKNOWN_BROKER
    with pytest.raises(Refused, match="no broker 9"):
        Beside(truth, 9).made()
    assert truth.agents() == ()


def test_of_two_agents_beside_one_broker_the_later_one_counts(truth: AgentTruth) -> None:
    earlier, later = Beside(truth, 1, session_ms=5), Beside(truth, 1, session_ms=6)
    report = earlier.made(replica_report(90, 90))
    later.tells(replica_report(10, 10))
    assert refusal(truth, report) is Refusal.SECOND_AGENT


def test_nobody_is_heard_before_the_guard_knows_its_cluster(clock: Clock) -> None:
    with pytest.raises(Refused, match="not looked at its cluster"):
        Beside(AgentTruth(clock=clock), 1).made()


def test_how_far_the_brokers_clocks_differ(truth: AgentTruth, agents: Agents) -> None:
    truth.report(agents[1].made(ahead_ms=3_600_000))
    truth.report(agents[2].made())
    assert [agent.clock for agent in truth.agents()] == list(truth.clocks())
    for clock, ahead_ms in zip(truth.clocks(), (3_600_000, 0), strict=True):
        assert clock == ClockReading(earliest_ms=ahead_ms - 1, latest_ms=ahead_ms + 1)
    assert largest_difference_ms(truth.clocks()) == 3_599_999


def test_a_clock_that_was_set_right_counts_no_longer_once_its_agent_is_silent_or_began_anew(
    truth: AgentTruth, clock: Clock
) -> None:
    ahead_ms = 3_600_000
    dead = Beside(truth, 1, session_ms=clock.now_ms + ahead_ms)
    truth.report(dead.made(ahead_ms=ahead_ms))
    anew = Beside(truth, 1, session_ms=clock.now_ms + 1)
    with pytest.raises(Refused, match="another agent reports for broker 1"):
        anew.made()
    assert largest_difference_ms(truth.clocks()) == ahead_ms - 1
    clock.now_ms += 3 * INTERVAL_MS + 1
    assert truth.clocks() == ()
    truth.report(anew.made())
    assert [largest_difference_ms(truth.clocks()), len(truth.clocks())] == [0, 1]
    assert [(agent.session_ms < dead.session_ms, agent.silent) for agent in truth.agents()] == [(True, False)]


@pytest.mark.parametrize(
    ("before_ms", "after_ms"), [(0, CLOCK_MS_MAX + 10), (-CLOCK_MS_MAX - 10, 0), (CLOCK_MS_MAX // 2, 0)]
)
def test_a_clock_that_is_days_off_is_refused(truth: AgentTruth, agents: Agents, before_ms: int, after_ms: int) -> None:
    """Else anybody with the token could make the guard hold everything for ever."""
    report = agents[1].made()
    moved = replace(
        report,
        clock_before_ms=max(0, report.clock_before_ms + before_ms),
        clock_after_ms=report.clock_after_ms + after_ms,
    )
    assert refusal(truth, moved) is Refusal.WRONG_CLOCK
    assert truth.clocks() == ()


def whereabouts(truth: AgentTruth) -> Whereabouts:
    """Of the record at 7."""
    found = truth.whereabouts(ORDERS, 7)
    assert found is not None
    return found


def answer_all(agents: Agents, *, holder: int | None = None) -> None:
    for broker, agent in agents.items():
        answer = Answered(question=Question(partition=ORDERS, offset=7), holds=broker == holder)
        agent.tells(replica_report(50, 50), answers=(answer,))


def test_a_tombstone_is_gone_everywhere_only_by_everybodys_word_of_one_moment(
    truth: AgentTruth, agents: Agents
) -> None:
    truth.ask(ORDERS, 7)
    truth.ask(ORDERS, 7)
    hello = Hello(cluster_id=CLUSTER, broker=1, session_ms=1)
    assert truth.hello(hello).questions == (Question(partition=ORDERS, offset=7),)
    answer_all(agents, holder=2)
    found = whereabouts(truth)
    assert (found.holders, found.unknown, found.gone_everywhere) == ((2,), (1, 3), False)
    for _ in range(2):
        answer_all(agents)
    found = whereabouts(truth)
    assert (found.holders, found.unknown, found.gone_everywhere, found.below_mtro) == ((), (), True, True)
    agents[1].tells(replica_report(0, 0, incarnation=2))
    assert whereabouts(truth).unknown == (1,)
    assert truth.whereabouts(TopicPartition("ghost", 0), 7) is None


def test_a_tombstone_that_each_lacked_at_another_moment_may_be_somewhere(truth: AgentTruth, agents: Agents) -> None:
    """One that had it may have given it to one that had told already, and lost it then."""
    rounds(agents, dict.fromkeys(BROKERS, (50, 50)))
    truth.ask(ORDERS, 7)
    told = []
    for _ in range(2):
        answer_all(agents)
        found = whereabouts(truth)
        told.append((found.unknown, found.gone_everywhere))
    assert told == [(BROKERS, False), ((), True)]


def test_answers_that_nobody_asked_for_are_not_kept(truth: AgentTruth, agents: Agents) -> None:
    for _ in range(2):
        answer_all(agents)
    assert whereabouts(truth).unknown == BROKERS


@pytest.fixture
def blocked() -> AgentTruth:
    """Broker 3 is cleaned least, and holds a transaction."""
    blocked = AgentTruth(clock=Clock(now_ms=1_700_000_000_000))
    looked(blocked)
    for _ in range(2):
        for broker, (mcco, mxfo) in {1: (90, 100), 2: (90, 100), 3: (20, 30)}.items():
            Beside(blocked, broker).tells(replica_report(mcco, mxfo))
    blocked.refused(Refusal.WRONG_TOKEN)
    return blocked


def test_the_journal_gives_back_what_it_was_given(blocked: AgentTruth) -> None:
    told = agents_told(blocked)
    assert of_fact(as_fact(told)) == told


def test_words_name_who_blocks_and_since_when(blocked: AgentTruth) -> None:
    assert list(agents_lines(agents_told(blocked))) == [
        "agents beside brokers: 1, 2, 3 (at 2023-11-14 22:13:20 UTC)",
        "  orders-0: clean on all replicas below 20 (MTRO), plain below 30 (MXRO)",
        "    broker 3 holds tombstones, 70 behind since 2023-11-14 22:13:20 UTC: not cleanly compacted further",
        "    broker 3 holds markers, 70 behind since 2023-11-14 22:13:20 UTC: holds transactional data",
        "  1 message of agents refused: wrong token",
    ]


def test_many_blocked_partitions_are_counted(blocked: AgentTruth) -> None:
    told = agents_told(blocked)
    lines = list(agents_lines(replace(told, partitions=told.partitions * 12)))
    assert lines[-2] == "  and 2 partitions more; --output json has all"


def test_the_document_has_every_replica(blocked: AgentTruth) -> None:
    document = agents_document(agents_told(blocked))
    [orders] = document["partitions"]  # type: ignore[misc]
    assert (orders["partition"], orders["mtro"], orders["mxro"]) == ("orders-0", 20, 30)
    assert [(row["broker"], row["mcco"], row["mxfo"]) for row in orders["replicas"]] == [
        (1, 90, 100), (2, 90, 100), (3, 20, 30),
    ]  # fmt: skip
    assert [(row["kind"], row["broker"], row["behind"]) for row in orders["blockers"]] == [
        ("tombstones", 3, 70), ("markers", 3, 70),
    ]  # fmt: skip
    assert document["refused"] == {"wrong token": 1}


def test_the_metrics_of_agents(blocked: AgentTruth) -> None:
    text = agents_metrics(agents_told(blocked))
    assert [line.removeprefix("headstone_guard_") for line in text.splitlines() if not line.startswith("#")] == [
        'agent_silent{broker="1"} 0',
        'agent_silent{broker="2"} 0',
        'agent_silent{broker="3"} 0',
        'mtro{topic="orders",partition="0"} 20',
        'mxro{topic="orders",partition="0"} 30',
        'blocker_behind{topic="orders",partition="0",broker="3",kind="tombstones"} 70',
        'blocker_behind{topic="orders",partition="0",broker="3",kind="markers"} 70',
        'reports_refused_total{reason="wrong token"} 1',
    ]


def a_look(*topics: str) -> Look:
    seen = tuple(topic_seen(partition_seen(), topic=topic) for topic in topics)
    return Look(cluster_id=CLUSTER, asked_ms=0, brokers=BROKERS, topics=seen, problems=())


@pytest.mark.parametrize(
    ("watched", "asked", "left"),
    [
        ((), None, ["orders-0", "others-0"]),
        ((), ["orders"], ["orders-0", "others-0"]),
        (("orders",), ["orders"], ["orders-0"]),
    ],
)
def test_a_look_at_everything_that_is_watched_forgets_what_is_gone(
    blocked: AgentTruth, watched: tuple[str, ...], asked: list[str] | None, left: list[str]
) -> None:
    looked(blocked, topic_seen(), topic_seen(topic="others"))
    attended(lambda topics: a_look(*(topics or ("orders", "others"))), blocked, watched)(asked)
    assert [str(found.partition) for found in blocked.partitions()] == left


def test_clocks_that_agents_see_apart_count_in_every_look(blocked: AgentTruth) -> None:
    look = attended(lambda topics: a_look("orders"), blocked, ())
    [orders] = look(None).topics
    assert orders.skew_ms < 10
    blocked.report(Beside(blocked, 1).made(ahead_ms=3_600_000))
    [orders] = look(None).topics
    assert 3_599_990 < orders.skew_ms <= 3_600_000


def test_a_record_that_was_asked_about_is_told_of(blocked: AgentTruth, tmp_path: Path) -> None:
    question = Question(partition=ORDERS, offset=7)
    with Journal.open(tmp_path / "journal.sqlite", cluster_id=CLUSTER) as journal:
        for asked in (question, replace(question, offset=8), question):
            ask_about(journal, asked)
        assert questions_of(journal) == (replace(question, offset=8), question)
    blocked.ask(ORDERS, 7)
    assert list(agents_lines(agents_told(blocked)))[-2] == "  orders-0@7: not known of brokers 1, 2, 3"
    for holds in (True, False, False):
        for broker in BROKERS:
            answer = Answered(question=question, holds=holds and broker == 2)
            Beside(blocked, broker).tells(replica_report(90, 100), answers=(answer,))
        words = list(agents_lines(agents_told(blocked)))[-2]
        assert (words == "  orders-0@7: on brokers 2; not known of brokers 1, 3") == holds
    assert words == "  orders-0@7: gone everywhere; if it deleted something, that is gone everywhere too"
    told = agents_told(blocked)
    assert of_fact(as_fact(told)) == told
    assert agents_document(told)["records"] == [
        {
            "partition": "orders-0", "offset": 7, "brokers": [], "unknown": [], "gone_everywhere": True, "below_mtro": True
        },
    ]  # fmt: skip
