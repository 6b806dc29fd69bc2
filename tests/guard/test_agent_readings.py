"""Replicas that came back, read by agents: what they read of the files, what they answer, and when the wire is asked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headstone.agent import replica_deletions
from headstone.agent.agent import Agent
from headstone.agent.messages import (
    SPANS_MAX,
    Hello,
    SpanAnswered,
    SpanQuestion,
    decode_report,
    encode_report,
)
from headstone.agent.replica_deletions import DeletionsDigest, DeletionsScan
from headstone.coordination.guard_values import OffsetSpan, Verdict, Verify
from headstone.errors import UsageError
from headstone.guard.agents.truth import AgentTruth
from headstone.guard.agents.verification import STALLED_S_MAX, ByAgents
from headstone.guard.verification.verdicts import JudgedReplica
from headstone.log.layout import HEADER_BYTES
from tests.agent.broker_directory import CLUSTER, BrokerDirectory
from tests.guard.reporting import BROKERS, ORDERS, Beside, Clock, looked, partition_seen, replica_report, topic_seen

NAME = "orders-0"
ALL_BYTES = 1 << 30
WANTED = Verify(topic="orders", partition=0, broker=3, missed=OffsetSpan(start=2, end=9))
QUESTION = SpanQuestion(partition=ORDERS, span=OffsetSpan(start=2, end=9))


def digest(root: Path, terms: str, start: int, end: int, *, bytes_max: int = ALL_BYTES) -> DeletionsDigest | None:
    directory = BrokerDirectory(root).append(NAME, terms)
    scan = DeletionsScan(directory, OffsetSpan(start=start, end=end))
    for _ in range(100):
        told = scan.go_on(bytes_max)
        if told is not None:
            return told
    return None


LOG = "N[a,b] T[a] | P1[c] C1 | N[d,~e] N[f] | A1 N[g]"
"""Tombstones at 2 and 6, markers at 4 and 8."""


def test_tombstones_and_markers_of_a_span_are_counted_whatever_else_is_there(tmp_path: Path) -> None:
    whole = digest(tmp_path / "1", LOG, 0, 10)
    assert whole is not None
    assert whole.count == 4
    assert digest(tmp_path / "2", LOG, 2, 9) == whole
    assert digest(tmp_path / "3", "+2 T[a] +1 C1 +1 N[~e] | +1 A1 N[g]", 0, 10) == whole, "values are nobody's concern"
    assert digest(tmp_path / "4", LOG, 0, 10, bytes_max=1) == whole, "a segment at a time"
    counts = [digest(tmp_path / f"{start}-{end}", LOG, start, end) for start, end in ((3, 9), (2, 8), (3, 4), (9, 9))]
    assert [None if told is None else told.count for told in counts] == [3, 3, 0, 0]


@pytest.mark.parametrize("window_bytes", [HEADER_BYTES, 100, 200])
@pytest.mark.parametrize("bytes_max", [1, ALL_BYTES])
def test_segments_that_are_read_in_several_windows_tell_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window_bytes: int, bytes_max: int
) -> None:
    """With room for a header alone, for a batch, for two."""
    whole = [digest(tmp_path / f"whole-{start}", LOG, start, end) for start, end in ((0, 10), (3, 9))]
    monkeypatch.setattr(replica_deletions, "WINDOW_BYTES", window_bytes)
    some = [digest(tmp_path / f"{start}", LOG, start, end, bytes_max=bytes_max) for start, end in ((0, 10), (3, 9))]
    assert some == whole


@pytest.mark.parametrize("terms", [
    "N[a,b] N[a] | P1[c] C1 | N[d,~e] N[f] | A1 N[g]", "N[a,b] T[a] | P1[c] C1 | N[d,e] N[~f] | A1 N[g]",
    "N[a,b] T[a] | P1[c] N[x] | N[d,~e] N[f] | A1 N[g]", "N[a,b] T[a] | P1[c] T[x] | N[d,~e] N[f] | A1 N[g]",
], ids=["a tombstone less", "another one", "a marker less", "a tombstone for a marker"])  # fmt: skip
def test_who_has_others_has_another_digest(tmp_path: Path, terms: str) -> None:
    assert digest(tmp_path / "1", LOG, 0, 10) != digest(tmp_path / "2", terms, 0, 10) is not None


def test_a_log_that_does_not_reach_the_end_yet_is_read_on_later(tmp_path: Path) -> None:
    broker = BrokerDirectory(tmp_path / "1")
    directory = broker.append(NAME, "N[a,b] T[a] | P1[c]")
    scan = DeletionsScan(directory, OffsetSpan(start=2, end=9))
    assert scan.go_on(ALL_BYTES) is None
    broker.append(NAME, "C1 | N[d,~e] N[f] | A1 N[g]")
    assert scan.go_on(ALL_BYTES) == digest(tmp_path / "2", LOG, 2, 9)


def test_segments_that_are_swapped_meanwhile_are_read_anew(tmp_path: Path) -> None:
    broker = BrokerDirectory(tmp_path / "1")
    directory = broker.append(NAME, LOG)
    scan = DeletionsScan(directory, OffsetSpan(start=0, end=10))
    assert scan.go_on(1) is None
    first = broker.segment(NAME, 0)
    shutil.copy(first, tmp_path / "copy")
    os.replace(tmp_path / "copy", first)
    assert scan.go_on(ALL_BYTES) is None
    os.rename(first, broker.segment(NAME, 0, ".log.swap"))
    assert scan.go_on(ALL_BYTES) is None
    os.rename(broker.segment(NAME, 0, ".log.swap"), first)
    assert scan.go_on(ALL_BYTES) == digest(tmp_path / "2", LOG, 0, 10)


def test_bytes_that_are_no_batch_in_the_middle_are_no_answer(tmp_path: Path) -> None:
    broker = BrokerDirectory(tmp_path)
    directory = broker.append(NAME, LOG)
    segment = broker.segment(NAME, 0)
    segment.write_bytes(segment.read_bytes()[:-1])
    assert DeletionsScan(directory, OffsetSpan(start=0, end=10)).go_on(ALL_BYTES) is None


class Cluster:
    """Three agents beside real files, a guard that has looked, and a wire that remembers who was read over it."""

    def __init__(self, root: Path, *terms: str) -> None:
        self.truth = AgentTruth(clock=Clock())
        looked(self.truth, topic_seen(partition_seen(10, log_end=10)))
        self.agents: dict[int, Agent] = {}
        for broker, log in zip(BROKERS, terms, strict=True):
            root_of_broker = root / str(broker)
            BrokerDirectory(root_of_broker, broker=broker).append(NAME, log)
            self.agents[broker] = Agent(
                [root_of_broker], clock=self.truth.clock, remark=lambda text: None, interval_ms=10_000
            )
        self.read_over_the_wire: list[Verify] = []
        self.waited_s = 0.0
        self.by_agents: ByAgents | None = None

    def report(self, *brokers: int) -> None:
        for broker in brokers or BROKERS:
            agent = self.agents[broker]
            before_ms = self.truth.clock()
            welcome = self.truth.hello(Hello(cluster_id=CLUSTER, broker=broker, session_ms=agent.session_ms))
            report = agent.report(welcome, clock_before_ms=before_ms)
            self.truth.report(decode_report(encode_report(report)))

    def read(self, wanted: Verify = WANTED, *, meanwhile: Callable[[], None] | None = None) -> Verdict:
        def wire(asked: Verify) -> dict[int, JudgedReplica]:
            self.read_over_the_wire.append(asked)
            return {asked.broker: JudgedReplica(verdict=Verdict.UNJUDGED)}

        def sleep(seconds: float) -> None:
            self.waited_s += seconds
            (meanwhile or self.report)()

        self.by_agents = self.by_agents or ByAgents(wire, self.truth, clock_s=lambda: self.waited_s, sleep=sleep)
        return self.by_agents(wanted)[wanted.broker].verdict


def test_a_replica_that_has_what_its_leader_has_is_right_and_is_not_copied(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, LOG, "N[x,y] T[a] | P1[c] C1 | N[d,~e] N[f] | A1 N[g]", LOG)
    cluster.report()
    assert cluster.read() == Verdict.RIGHT
    assert (cluster.read_over_the_wire, cluster.truth.hello(hello(1)).spans) == ([], ())


def test_what_agents_cannot_tell_is_read_over_the_wire(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, LOG, LOG, LOG)
    cluster.report()
    everything = Verify(topic="orders", partition=0, broker=3)
    assert (cluster.read(everything), cluster.read_over_the_wire) == (Verdict.UNJUDGED, [everything])


LESS = "N[a,b] N[a] | P1[c] C1 | N[d,~e] N[f] | A1 N[g]"


@pytest.mark.parametrize("logs", [(LOG, LOG, LESS), (LESS, LOG, LESS), (LESS, LOG, LOG)])
def test_where_one_has_others_than_another_the_replica_is_read_over_the_wire(
    tmp_path: Path, logs: tuple[str, ...]
) -> None:
    """Also if it is the leader, from which the replica has copied: both may lack what the third one has."""
    cluster = Cluster(tmp_path, *logs)
    cluster.report()
    assert (cluster.read(), cluster.read_over_the_wire) == (Verdict.UNJUDGED, [WANTED])
    waited_s = cluster.waited_s
    cluster.read()
    assert (cluster.waited_s, len(cluster.read_over_the_wire)) == (waited_s, 2), "agents are not asked again"


def test_a_marker_that_a_cleaner_has_removed_already_is_a_reason_to_read(tmp_path: Path) -> None:
    """Everywhere: by the sums it cannot be gone."""
    cluster = Cluster(tmp_path, LOG, LOG, LOG)
    cluster.report()
    emptied = DeletionsDigest(count=4, emptied=1, digest="0" * 64)

    def tell() -> None:
        for broker in BROKERS:
            report = Beside(cluster.truth, broker, session_ms=2**62).made(replica_report(log_end=10))
            cluster.truth.report(
                replace(report, spans=(SpanAnswered(question=QUESTION, read_to=9, deletions=emptied),))
            )

    assert cluster.read(meanwhile=tell) == Verdict.UNJUDGED


def test_one_agent_less_and_the_wire_is_asked_at_once(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, LOG, LOG, LOG)
    cluster.report(1, 3)
    assert (cluster.read(), cluster.waited_s) == (Verdict.UNJUDGED, 0.0)


def test_an_agent_that_falls_silent_and_one_that_never_ends_are_not_waited_for(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, LOG, LOG, LOG)
    cluster.report()

    def time_passes() -> None:
        cluster.truth.clock.now_ms += 5_000  # type: ignore[attr-defined]

    assert cluster.read(meanwhile=time_passes) == Verdict.UNJUDGED
    assert cluster.waited_s < 10
    short = Cluster(tmp_path / "short", LOG, LOG, "N[a,b] T[a]")
    short.report()
    assert short.read() == Verdict.UNJUDGED
    assert short.waited_s <= STALLED_S_MAX + 1


def hello(broker: int) -> Hello:
    return Hello(cluster_id=CLUSTER, broker=broker, session_ms=2**62)


def test_nobody_answers_what_was_not_asked_and_nobody_asks_too_much() -> None:
    truth = AgentTruth(clock=Clock())
    looked(truth)
    answer = SpanAnswered(question=QUESTION, read_to=9, deletions=DeletionsDigest(count=1, emptied=0, digest="0" * 64))

    def tell(broker: int) -> None:
        report = Beside(truth, broker).made(replica_report())
        truth.report(replace(report, spans=(answer,)))

    tell(2)
    with truth.asking(QUESTION):
        assert truth.hello(hello(1)).spans == (QUESTION,)
        assert truth.answers(QUESTION) == {}
        tell(2)
        assert truth.answers(QUESTION) == {}, "the leader's agent has not told of the topic yet"
        tell(1)
        assert truth.answers(QUESTION) == {1: answer, 2: answer}
    assert truth.answers(QUESTION) == {}
    others = [SpanQuestion(partition=ORDERS, span=OffsetSpan(start=0, end=end)) for end in range(SPANS_MAX)]
    asked = [truth.asking(question) for question in others]
    for asking in asked:
        asking.__enter__()
    with pytest.raises(UsageError, match="already working on"), truth.asking(QUESTION):
        pass
