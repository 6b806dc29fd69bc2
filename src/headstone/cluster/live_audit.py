"""Audits replicas as their brokers serve them: copies them over the wire, compares the copies, and judges with what brokers
say.

The only way from a live cluster to judgements: `audit --bootstrap`, the library and the guard's verification use it. Brokers
move while they are read, so an answer from between two of their steps is asked for again before it counts as a problem.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headstone.cluster.connection import Connection, Host, wire_settings
from headstone.cluster.defaults import BYTES_PER_SECOND
from headstone.cluster.refusals import OUT_OF_RANGE
from headstone.cluster.replicas import CopiedReplicas, copy_partition, copy_replicas
from headstone.cluster.wire import READ_COMMITTED, BrokerConnection, ask_cluster
from headstone.divergence.views import ProducerSaid
from headstone.errors import Unfinished
from headstone.log.directory import find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.audit_outcome import Judgement, judgement_of
from headstone.pipeline.auditing import PartitionAudit, audit_by, replicas_of
from headstone.pipeline.runner import Runner

STABLE_SECONDS_MAX = 10.0
"""For brokers to serve what their own records say, over all partitions: they move the last stable offset right after the high
watermark."""
NOT_COPIED = "a replica that could not be copied"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveAudit:
    """By partition, also if no replica could be copied. The copies themselves may be gone."""

    copied: CopiedReplicas
    judgements: Mapping[str, Judgement]


def audit_topics(
    connection: Connection, topics: Sequence[str], runner: Runner, *, work: Path,
    bytes_per_second: int = BYTES_PER_SECOND, wanted: Sequence[bytes] = (),
) -> LiveAudit:  # fmt: skip
    """If `topics` is empty: every topic that is not internal. Copies go to `work`. `wanted`: keys to prove."""
    copied = copy_replicas(connection, topics, work, bytes_per_second=bytes_per_second, tell=runner.tell)
    return _audited(connection, copied, runner, wanted)


def audit_partition(
    connection: Connection, partition: TopicPartition, runner: Runner, *, last: int, work: Path,
    bytes_per_second: int = BYTES_PER_SECOND,
) -> LiveAudit:  # fmt: skip
    """Reads the replica of broker `last` at the end, when it has had time to learn what its leader has."""
    copied = copy_partition(connection, partition, work, last=last, bytes_per_second=bytes_per_second)
    return _audited(connection, copied, runner, ())


def _audited(connection: Connection, copied: CopiedReplicas, runner: Runner, wanted: Sequence[bytes]) -> LiveAudit:
    directories = [(str(broker), find_partitions([str(path)])) for broker, path in sorted(copied.directories.items())]
    groups = replicas_of(directories)
    audits = {audited.partition: audited for audited in (audit_by(runner, groups, wanted=wanted) if groups else ())}
    audits |= {
        name: PartitionAudit(partition=name) for name in (*copied.problems, *copied.leaders) if name not in audits
    }
    until_s = time.monotonic() + STABLE_SECONDS_MAX
    for audited in audits.values():
        copied = ask_stable_again(connection, audited, copied, until_s=until_s)
    judgements = {name: judgement_of(_with_brokers_word(connection, audits[name], copied)) for name in sorted(audits)}
    return LiveAudit(copied=copied, judgements=judgements)


def _with_brokers_word(connection: Connection, audited: PartitionAudit, copied: CopiedReplicas) -> PartitionAudit:
    """Adds the brokers' answers, and which replicas could not be copied."""
    missing = copied.problems.get(audited.partition, ())
    return replace(
        audited,
        producers=_producers(connection, audited),
        problems=(*audited.problems, *missing, *withheld(copied, audited).values()),
        # Commands for Kafka's tools would otherwise leave it out of the partition's replicas.
        brokers={**audited.brokers, **({NOT_COPIED: None} if missing else {})},
        unread=(*audited.unread, *([NOT_COPIED] if missing else ())),
    )


def withheld(copied: CopiedReplicas, audited: PartitionAudit) -> dict[str, str]:
    """By replica: why it serves read_committed consumers less than its own records say."""
    served = {
        facts.name: (copied.stable[audited.partition, int(facts.name)], facts.stable_end)
        for facts in (audited.results[0].facts if audited.results else ())
    }
    return {
        name: f"broker {name} serves read_committed consumers up to {stable} only; its records say {stable_end}"
        for name, (stable, stable_end) in served.items()
        if stable < stable_end
    }


def ask_stable_again(
    connection: Connection, audited: PartitionAudit, copied: CopiedReplicas, *, until_s: float
) -> CopiedReplicas:
    """For replicas that seem to serve less than their records say. A broker moves its high watermark first and its last stable
    offset a moment later, so an answer from in between is asked for once more before it is a problem, and at most until
    `until_s`."""
    silent = set[str]()
    while behind := withheld(copied, audited).keys() - silent:
        for name in sorted(behind):
            place = audited.partition, int(name)
            stable = _stable_now(connection, audited, int(name), copied.stable[place])
            if stable is None:
                silent.add(name)
                continue
            copied = replace(copied, stable={**copied.stable, place: max(stable, copied.stable[place])})
        if time.monotonic() >= until_s:
            break
    return copied


def _stable_now(connection: Connection, audited: PartitionAudit, broker: int, stable: int) -> int | None:
    """None if the broker does not say. An answer waits up to half a second for something above `stable`, its previous
    answer."""
    partition = audited.replicas[0].directory.topic_partition
    settings = wire_settings(connection)
    try:
        node = ask_cluster(connection, settings, [partition.topic], proved=True).brokers[broker]
        with BrokerConnection(Host(node.host, node.port), settings, proved=True) as reached:
            answer = reached.fetch(partition, stable, bytes_max=1, isolation=READ_COMMITTED)
    except (Unfinished, KeyError):
        return None
    if answer.error == OUT_OF_RANGE:
        return answer.log_start if answer.log_start > stable else None
    return None if answer.error else answer.last_stable_offset


def _producers(connection: Connection, audited: PartitionAudit) -> dict[str, tuple[ProducerSaid, ...]]:
    """For replicas with transactions that never end: what their own brokers say about the producers."""
    names = {frozen.replica for result in audited.results for frozen in result.frozen}
    asked = {
        name: ask_producers(connection, audited.replicas[0].directory.topic_partition, int(name))
        for name in sorted(names)
    }
    return {name: producers for name, producers in asked.items() if producers is not None}


def ask_producers(connection: Connection, partition: TopicPartition, broker: int) -> tuple[ProducerSaid, ...] | None:
    """What the broker says of producers on its replica; None if it does not: brokers before 2.8 do not know the request."""
    try:
        settings = wire_settings(connection)
        node = ask_cluster(connection, settings, [partition.topic], proved=True).brokers[broker]
        with BrokerConnection(Host(node.host, node.port), settings, proved=True) as reached:
            return reached.producers(partition)
    except (Unfinished, KeyError):
        return None
