"""A summary of what agents reported, for people and Prometheus: the value that the journal keeps for `guard status`, as text,
as a document and as metrics.

Values in, words out. `truth.py` says what the reports prove.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from headstone import units
from headstone.agent.messages import QUESTIONS_MAX, Question
from headstone.guard.agents.partition_truth import PartitionTruth, Whereabouts
from headstone.guard.agents.truth import AgentSeen, AgentTruth
from headstone.guard.ledger.encoding import plain, value_of
from headstone.guard.ledger.journal import Journal
from headstone.guard.prometheus import metric

FACT = "agents"
QUESTIONS = "questions"
"""Facts of the journal: what agents reported, and the records that somebody asked about."""
LINES_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsTold:
    """`refusals`: refused messages by reason, since the guard began."""

    told_ms: int
    agents: tuple[AgentSeen, ...]
    partitions: tuple[PartitionTruth, ...]
    refusals: tuple[tuple[str, int], ...] = ()
    records: tuple[Whereabouts, ...] = ()
    """Records that somebody asked about."""

    @property
    def blocked(self) -> list[PartitionTruth]:
        """Longest blocked first."""
        blocked = [partition for partition in self.partitions if partition.blockers]
        return sorted(blocked, key=lambda partition: min(blocker.since_ms for blocker in partition.blockers))


def agents_told(truth: AgentTruth) -> AgentsTold:
    refusals = tuple((str(kind), count) for kind, count in sorted(truth.refusals().items()))
    return AgentsTold(
        told_ms=truth.clock(), agents=truth.agents(), partitions=truth.partitions(), refusals=refusals,
        records=truth.records(),
    )  # fmt: skip


def as_fact(summary: AgentsTold) -> str:
    return json.dumps(plain(summary), separators=(",", ":"))


def of_fact(text: str) -> AgentsTold:
    return value_of(AgentsTold, json.loads(text))


def agents_document(summary: AgentsTold) -> dict[str, object]:
    return {
        "told_ms": summary.told_ms,
        "agents": [
            {
                "broker": agent.broker, "heard_ms": agent.heard_ms, "silent": agent.silent, "replicas": agent.replicas,
                "clock_ahead_ms": [agent.clock.earliest_ms, agent.clock.latest_ms],
            }
            for agent in summary.agents
        ],
        "partitions": [_partition_document(partition) for partition in summary.partitions],
        "records": [
            {
                "partition": str(record.partition), "offset": record.offset, "brokers": list(record.holders),
                "unknown": list(record.unknown), "gone_everywhere": record.gone_everywhere, "below_mtro": record.below_mtro,
            }
            for record in summary.records
        ],
        "refused": dict(summary.refusals),
    }  # fmt: skip


def _partition_document(partition: PartitionTruth) -> dict[str, object]:
    return {
        "partition": str(partition.partition), "mtro": partition.mtro, "mxro": partition.mxro,
        "settled_ms": partition.settled_ms,
        "replicas": [
            {
                "broker": member.broker, "heard_ms": member.heard_ms, "log_start": member.log_start,
                "log_end": member.log_end, "mcco": member.mcco, "mxfo": member.mxfo, "problem": member.problem,
            }
            for member in partition.members
        ],
        "blockers": [
            {
                "kind": blocker.kind, "broker": blocker.broker, "watermark": blocker.watermark, "behind": blocker.behind,
                "since_ms": blocker.since_ms, "heard_ms": blocker.heard_ms, "reason": blocker.reason,
            }
            for blocker in partition.blockers
        ],
    }  # fmt: skip


def agents_lines(summary: AgentsTold) -> Iterator[str]:
    """Names of partitions were checked when they were reported, so they are safe to print on a terminal."""
    heard = [str(agent.broker) for agent in summary.agents if not agent.silent]
    silent = [str(agent.broker) for agent in summary.agents if agent.silent]
    who = f"{', '.join(heard) or 'none'}" + (f"; silent: {', '.join(silent)}" if silent else "")
    yield f"agents beside brokers: {who} (at {units.moment(summary.told_ms)})"
    blocked = summary.blocked
    for partition in blocked[:LINES_MAX]:
        marks = f"clean on all replicas below {partition.mtro} (MTRO), plain below {partition.mxro} (MXRO)"
        yield f"  {partition.partition}: {marks}"
        for blocker in partition.blockers:
            since = units.moment(blocker.since_ms)
            yield f"    broker {blocker.broker} holds {blocker.kind}, {blocker.behind} behind since {since}: {blocker.reason}"
    if len(blocked) > LINES_MAX:
        yield f"  and {units.count(len(blocked) - LINES_MAX, 'partition')} more; --output json has all"
    yield from (f"  {record_words(record)}" for record in summary.records)
    for kind, count in summary.refusals:
        yield f"  {units.count(count, 'message')} of agents refused: {kind}"


def record_words(record: Whereabouts) -> str:
    where = f"{record.partition}@{record.offset}"
    if record.gone_everywhere:
        more = "; if it deleted something, that is gone everywhere too" if record.below_mtro else ""
        return f"{where}: gone everywhere{more}"
    words = [f"on brokers {', '.join(map(str, record.holders))}"] if record.holders else []
    words += [f"not known of brokers {', '.join(map(str, record.unknown))}"] if record.unknown else []
    return f"{where}: {'; '.join(words)}"


def questions_of(journal: Journal) -> tuple[Question, ...]:
    text = journal.fact(QUESTIONS)
    return () if text is None else value_of(Asked, json.loads(text)).questions


def ask_about(journal: Journal, question: Question) -> None:
    """The leading guard passes the question on to agents. If there are too many, the oldest is dropped."""
    questions = [known for known in questions_of(journal) if known != question]
    asked = Asked(questions=(*questions, question)[-QUESTIONS_MAX:])
    journal.note_fact(QUESTIONS, json.dumps(plain(asked), separators=(",", ":")))


def agents_metrics(summary: AgentsTold) -> str:
    return "".join(f"{line}\n" for line in _metrics(summary))


def _metrics(summary: AgentsTold) -> Iterator[str]:
    yield from metric("agent_silent", "gauge", "1 for a broker whose agent has told nothing for three intervals", [
        ({"broker": agent.broker}, agent.silent) for agent in summary.agents
    ])  # fmt: skip
    for name, about in (
        ("mtro", "Below this offset every replica is clean: what a tombstone deleted is gone everywhere"),
        ("mxro", "Below this offset no replica holds transactional data"),
    ):
        yield from metric(name, "gauge", about, [
            (_labels(partition), getattr(partition, name)) for partition in summary.partitions
        ])  # fmt: skip
    blockers = [(partition, blocker) for partition in summary.partitions for blocker in partition.blockers]
    yield from metric("blocker_behind", "gauge", "Offsets that a replica holds a watermark back by", [
        ({**_labels(partition), "broker": blocker.broker, "kind": blocker.kind}, blocker.behind)
        for partition, blocker in blockers
    ])  # fmt: skip
    yield from metric("reports_refused_total", "counter", "Messages of agents that did not count", [
        ({"reason": kind}, count) for kind, count in summary.refusals
    ])  # fmt: skip


def _labels(partition: PartitionTruth) -> dict[str, object]:
    return {"topic": partition.partition.topic, "partition": partition.partition.number}
