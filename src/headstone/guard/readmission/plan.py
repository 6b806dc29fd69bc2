"""Which replicas need readmission, why, and what would be done: a value for a person to read before anything happens.

Reads replicas over the wire and asks the cluster; changes nothing. `coordination/readmission.py` decides the next step at each
moment, `driver.py` carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headstone import units
from headstone.cluster.admin import Admin
from headstone.cluster.connection import Connection
from headstone.cluster.defaults import BYTES_PER_SECOND
from headstone.cluster.wire import ClusterState
from headstone.coordination.guard_values import HOLD, Verdict
from headstone.coordination.readmission import PartitionNow, Readmission, refusals
from headstone.errors import Unfinished, UsageError
from headstone.guard.defaults import PARTITIONS_AT_ONCE
from headstone.guard.ledger.commands import address_of
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.overrides import Resource, own_values
from headstone.guard.ledger.readmissions import open_readmissions
from headstone.guard.ledger.temporary_changes import RATE, THROTTLED, is_counted_on, temporary_changes, values_before
from headstone.guard.ledger.topic_identity import still_there
from headstone.guard.readmission.candidates import suspects
from headstone.guard.readmission.commands import Found, ReadmissionOverrides, readmission_commands
from headstone.guard.verification.verdicts import JudgedReplica, read_replicas
from headstone.log.shown import visible
from headstone.log.topic_partition import TopicPartition
from headstone.retention.settings import CLEANUP_POLICY, policies_of

IN_SYNC_MIN = "min.insync.replicas"
ENDED_MEANWHILE = "somebody else, or the guard, has ended its readmission meanwhile: run the same command again"
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The replicas to plan for. If none is named: those that the journal calls too late, or that were read and not found
    right."""

    topics: tuple[str, ...] = ()
    partition: int | None = None
    broker: int | None = None

    @property
    def named(self) -> bool:
        return bool(self.topics) or self.broker is not None

    def covers(self, partition: TopicPartition, broker: int) -> bool:
        return (
            (not self.topics or partition.topic in self.topics)
            and self.partition in (None, partition.number)
            and self.broker in (None, broker)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLimits:
    partitions_at_once: int = PARTITIONS_AT_ONCE
    copy_bytes_per_second: int = BYTES_PER_SECOND
    """Maximum re-replication rate of a broker, over all partitions."""
    read_bytes_per_second: int = BYTES_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadmissionPlan:
    """One replica. `readmission` is what would begin, or what has begun and continues."""

    readmission: Readmission
    judged: JudgedReplica
    away: bool
    resumed: bool = False
    refusals: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()

    @property
    def needed(self) -> bool:
        return self.resumed or self.judged.verdict is not Verdict.RIGHT

    @property
    def steps(self) -> tuple[str, ...]:
        """In words."""
        if not self.needed or self.refusals:
            return ()
        broker, order = self.readmission.broker, self.readmission.order
        remaining = [other for other in order if other != broker]
        leave = f"take broker {broker} out of the assignment: {remaining}; it cannot lead any more"
        steps = () if self.readmission.expelled else (leave,)
        old = f"wait until broker {broker} has deleted its copy"
        if self.away:
            old = f"wait for broker {broker}; when it is back it renames its folder to {self.stray}, which it never deletes"
        place = f"restore the order of replicas: {list(order)}"
        place += f", and let broker {broker} lead again" if order[0] == broker else ""
        copy = f"hold the topic, and add broker {broker} again: it re-replicates"
        return (
            *steps,
            old,
            copy,
            "read it and compare it with the others",
            place,
            "put settings back as they were found",
        )

    @property
    def stray(self) -> str:
        """The name that the broker gives to the folder of a replica that was removed while the broker was away."""
        return f"{visible(str(self.readmission.topic_partition))}.*-stray"

    @property
    def document(self) -> dict[str, object]:
        readmission = self.readmission
        return {
            "topic": readmission.topic, "partition": readmission.partition, "broker": readmission.broker,
            "verdict": str(self.judged.verdict), "why": self.judged.why, "needed": self.needed, "away": self.away,
            "resumed": self.resumed, "replicas": list(readmission.order), "refusals": list(self.refusals),
            "steps": list(self.steps), "commands": list(self.commands),
            "stray_folder": self.stray if readmission.was_away else None,
        }  # fmt: skip


def plan(
    admin: Admin, connection: Connection, journal: Journal, wanted: Wanted, *, work: Path, limits: CopyLimits, tell: Tell
) -> list[ReadmissionPlan]:  # fmt: skip
    """For each replica that is named, or in the journal, or found wrong: what is known and what would be done.

    Replicas of a named topic that are not themselves named are included only if they are wrong. One that is away cannot be
    read, which is no evidence against it."""
    state = admin.describe(None)
    begun = {
        (readmission.topic_partition, readmission.broker): readmission
        for readmission in open_readmissions(journal)
        if still_there(state, readmission.topic, readmission.topic_id)
    }
    late = _late(journal, state)
    _refuse_bad_names(admin, state, wanted, {broker for _, broker in (*begun, *late)})
    plans = []
    for partition, brokers in _candidates(admin, state, wanted, [*begun, *late]).items():
        now = partition_now(admin, state, partition)
        read: dict[int, JudgedReplica] | None = None
        for broker in brokers:
            if (partition, broker) in begun:
                judged = JudgedReplica(verdict=Verdict.UNJUDGED, why="its readmission was begun and is not over")
            elif broker not in state.brokers:
                judged = JudgedReplica(verdict=Verdict.UNJUDGED, why=f"broker {broker} is away", read=False)
            else:
                if read is None:
                    tell(f"{visible(str(partition))}: reading {units.count(len(now.replicas), 'replica')}")
                    read = read_replicas(
                        connection, partition, last=brokers[-1], work=work,
                        bytes_per_second=limits.read_bytes_per_second,
                    )  # fmt: skip
                judged = read.get(
                    broker, JudgedReplica(verdict=Verdict.UNJUDGED, why="it has no replica of it", read=False)
                )
            asked = wanted.broker is not None or (partition, broker) in (*begun, *late)
            if not asked and judged.verdict is Verdict.UNJUDGED:
                tell(not_judged(partition, broker, judged))
            if asked or judged.verdict is Verdict.WRONG:
                case = begun.get((partition, broker))
                plans.append(
                    _plan(
                        admin, connection, journal, state, now, partition, broker, judged, case, read or {}, limits
                    )
                )  # fmt: skip
    return plans


def not_judged(partition: TopicPartition, broker: int, judged: JudgedReplica) -> str:
    """Escaped, because it may quote what a broker or a record says."""
    return visible(f"{partition}: broker {broker} was not judged: {judged.why}; --broker {broker} names it")


def _plan(
    admin: Admin, connection: Connection, journal: Journal, state: ClusterState, now: PartitionNow,
    partition: TopicPartition, broker: int, judged: JudgedReplica, begun: Readmission | None, read: Mapping[int, JudgedReplica],
    limits: CopyLimits,
) -> ReadmissionPlan:  # fmt: skip
    away = broker not in state.brokers
    readmission = begun or Readmission(
        topic=partition.topic, partition=partition.number, broker=broker, order=now.replicas, was_away=away,
        topic_id=state.topic_ids.get(partition.topic),
    )  # fmt: skip
    reasons: list[str] = []
    if begun is None and judged.verdict is not Verdict.RIGHT:
        reasons = [*refusals(partition, broker, now), *no_source(partition, broker, now, read)]
    made = ReadmissionPlan(
        readmission=readmission, judged=judged, away=away, resumed=begun is not None, refusals=tuple(reasons)
    )
    if not made.needed or reasons:
        return made
    return ReadmissionPlan(
        readmission=readmission, judged=judged, away=away, resumed=made.resumed,
        commands=readmission_commands(
            readmission, now, _found(admin, journal, readmission, away=away), away=away,
            bytes_per_second=limits.copy_bytes_per_second, bootstrap=address_of(connection),
        ),
    )  # fmt: skip


def refreshed(plan: ReadmissionPlan, begun: Sequence[Readmission]) -> ReadmissionPlan:
    """The plan with the journal's newest record: since planning, the guard may have begun, continued or finished the
    readmission."""
    readmission = plan.readmission
    replica = (readmission.topic_partition, readmission.broker)
    for record in begun:
        if (record.topic_partition, record.broker) == replica:
            return replace(plan, readmission=record, resumed=True, refusals=())
    if not plan.resumed:
        return plan
    judged = JudgedReplica(verdict=Verdict.UNJUDGED, why=ENDED_MEANWHILE, read=False)
    return replace(plan, judged=judged, resumed=False, refusals=(ENDED_MEANWHILE,))


def no_source(
    partition: TopicPartition, broker: int, now: PartitionNow, read: Mapping[int, JudgedReplica]
) -> list[str]:
    """Refuses if the replica that would lead, and so be copied, is wrong itself."""
    in_sync = [other for other in now.replicas if other in now.isr and other != broker]
    leader = now.leader if now.leader in in_sync else next(iter(in_sync), None)
    judged = read.get(leader) if leader is not None else None
    if judged is None or judged.verdict is not Verdict.WRONG:
        return []
    return [
        f"broker {leader}, which would lead {partition} and be copied, is wrong itself ({judged.why}): readmit that one first"
    ]


def _found(admin: Admin, journal: Journal, readmission: Readmission, *, away: bool) -> Found:
    """For a temporary change, the old value in the journal is restored: the present one may have been set by a run that was
    killed."""
    topic, broker = Resource(topic=readmission.topic), Resource(broker=readmission.broker)
    own = own_values(admin, topic, [*(name for name, _ in HOLD), THROTTLED])
    temporary = {
        name: value for each in temporary_changes(journal) if each.resource == broker for name, value in each.new
    }
    rate = temporary.get(RATE) if away else dict(own_values(admin, broker, [RATE]))[RATE]
    before = dict(values_before(journal, topic, own, topic_id=readmission.topic_id))
    rate_before = dict(values_before(journal, broker, ((RATE, rate),)))[RATE]
    if any(
        temporary.resource == topic and is_counted_on(journal, temporary) for temporary in temporary_changes(journal)
    ):
        before |= dict(HOLD)
    return Found(
        present=_settings(dict(own), rate),
        before=_settings(before, rate_before),
        rate_known=not away or rate is not None,
    )


def _settings(configs: Mapping[str, str | None], rate: str | None) -> ReadmissionOverrides:
    hold = tuple((name, configs[name]) for name, _ in HOLD)
    return ReadmissionOverrides(hold=hold, listed=configs[THROTTLED], rate=rate)


def partition_now(admin: Admin, state: ClusterState, partition: TopicPartition) -> PartitionNow:
    """Without what only the broker itself can tell."""
    described = state.topics[partition.topic][partition.number]
    configs = admin.topic_configs([partition.topic], keys=[IN_SYNC_MIN])[partition.topic]
    moving = admin.reassignments().get(partition)
    return PartitionNow(
        replicas=described.replicas, isr=described.isr, leader=described.leader,
        in_sync_min=max(1, int(configs[IN_SYNC_MIN].value or 1)) if IN_SYNC_MIN in configs else 1,
        adding=moving.adding if moving else (), removing=moving.removing if moving else (),
    )  # fmt: skip


def _late(journal: Journal, state: ClusterState) -> list[tuple[TopicPartition, int]]:
    return [
        (TopicPartition(topic, away.partition), away.broker)
        for topic, remembered in journal.topics().items()
        for away in suspects(journal, topic, remembered.memory)
        if still_there(state, topic, remembered.memory.topic_id)
    ]


def _candidates(
    admin: Admin, state: ClusterState, wanted: Wanted, replicas: list[tuple[TopicPartition, int]]
) -> dict[TopicPartition, tuple[int, ...]]:
    """By partition, in order. Leaves out journal entries whose topic or partition is gone."""
    chosen: dict[TopicPartition, list[int]] = {}
    for partition, broker in replicas:
        if partition.number in state.topics.get(partition.topic, {}) and wanted.covers(partition, broker):
            chosen.setdefault(partition, []).append(broker)
    for topic in _compacted(admin, state, wanted) if wanted.named else ():
        for number, described in sorted(state.topics[topic].items()):
            brokers = [b for b in described.replicas if wanted.covers(TopicPartition(topic, number), b)]
            listed = chosen.setdefault(TopicPartition(topic, number), [])
            listed += [broker for broker in brokers if broker not in listed]
    return {partition: tuple(dict.fromkeys(brokers)) for partition, brokers in sorted(chosen.items()) if brokers}


def _compacted(admin: Admin, state: ClusterState, wanted: Wanted) -> list[str]:
    topics = sorted(wanted.topics or state.topics)
    answers = admin.try_topic_configs(topics, keys=[CLEANUP_POLICY])
    return [topic for topic in topics if _is_compacted(answers[topic], strict=bool(wanted.topics))]


def _is_compacted(answer: object, *, strict: bool) -> bool:
    if isinstance(answer, Unfinished):
        if strict:
            raise answer
        return False
    assert isinstance(answer, Mapping)
    return "compact" in policies_of(answer[CLEANUP_POLICY].value or "")


def _refuse_bad_names(admin: Admin, state: ClusterState, wanted: Wanted, brokers: set[int]) -> None:
    """Raises UsageError with a clear message before anything is changed."""
    if wanted.partition is not None and len(wanted.topics) != 1:
        raise UsageError("--partition needs exactly one --topic")
    for topic in wanted.topics:
        if topic not in state.topics:
            raise UsageError(f"topic {visible(topic)}: no such topic, or this user may not describe it")
        if wanted.partition is not None and wanted.partition not in state.topics[topic]:
            raise UsageError(f"topic {visible(topic)}: no partition {wanted.partition}")
    answers = admin.try_topic_configs(wanted.topics, keys=[CLEANUP_POLICY]) if wanted.topics else {}
    for topic in wanted.topics:
        if not _is_compacted(answers[topic], strict=True):
            raise UsageError(
                f"topic {visible(topic)} is not compacted: a replica cannot resurrect deleted records there"
            )
    on = brokers | {
        broker
        for topic in wanted.topics or state.topics
        for number, described in state.topics[topic].items()
        if wanted.partition in (None, number)
        for broker in described.replicas
    }
    if wanted.broker is not None and wanted.broker not in on:
        raise UsageError(f"broker {wanted.broker} has no replica of the named partitions")
