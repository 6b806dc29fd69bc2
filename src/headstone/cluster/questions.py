"""The requests of Kafka's Admin API that the guard needs, each on an open connection: fields out, values in.

One function per request. Each field is named once, in the order of the version that is spoken. A refusal names the missing
permission. `admin.py` chooses the broker and handles lost connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from types import MappingProxyType

from headstone.cluster.encoding import AnswerReader, Writer
from headstone.cluster.refusals import ELECTION_NOT_NEEDED, error_name, refusal
from headstone.cluster.wire import (
    DESCRIBE_PRODUCERS,
    FETCH,
    LIST_OFFSETS,
    NOBODY,
    READ_UNCOMMITTED,
    Api,
    BrokerConnection,
    Fetched,
    read_fetched,
    read_producers,
)
from headstone.divergence.views import ProducerSaid
from headstone.log.topic_partition import TopicPartition

API_VERSIONS = Api(18, 3, flexible=True, tagged_answer=False)
DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS = Api(32, 2), Api(44, 0)
DESCRIBE_LOG_DIRS = Api(35, 3, flexible=True)
"""The first version that reports a missing permission, instead of an empty answer."""
OFFSET_FOR_LEADER_EPOCH = Api(23, 3)
"""The first version that says who asks: a consumer. Brokers since 2.3 know it."""
ELECT_LEADERS = Api(43, 1)
ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS = Api(45, 0, flexible=True), Api(46, 0, flexible=True)
DESCRIBE_QUORUM = Api(55, 1, flexible=True)

TOPIC, BROKER = 2, 4
EVERY_BROKER = ""
"""The name of the cluster's default among the brokers' configs."""
SET, DELETE = 0, 1
PREFERRED = 0
DEBUGGER = -2
"""A replica id with which any replica answers ListOffsets, with the end of its own log and not with what is committed."""
LATEST, MAX_TIMESTAMP, ANY_TIMESTAMP = -1, -3, 0
"""The last one selects the first record that has a timestamp at all."""
LIST_OFFSETS_BY_TIME = Api(2, 7, flexible=True)
"""The first version that knows the largest timestamp."""
QUORUM_TOPIC = "__cluster_metadata"
FINALIZED_FEATURES = 2

DESCRIBE_TOPIC, READ_TOPIC = "DESCRIBE on the topic", "READ on the topic"
DESCRIBE_CLUSTER, ALTER_CLUSTER = "DESCRIBE on the cluster", "ALTER on the cluster"
DESCRIBE_CONFIGS_OF = {TOPIC: "DESCRIBE_CONFIGS on the topic", BROKER: "DESCRIBE_CONFIGS on the cluster"}
ALTER_CONFIGS_OF = {TOPIC: "ALTER_CONFIGS on the topic", BROKER: "ALTER_CONFIGS on the cluster"}


class Source(IntEnum):
    """Where a config's value comes from."""

    UNKNOWN = 0
    TOPIC = 1
    BROKER = 2
    EVERY_BROKER = 3
    """The cluster's dynamic default."""
    STATIC = 4
    """The broker's file."""
    DEFAULT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """`own`: it is a dynamic override of the resource that was asked for. `value` is None if it is secret or not set."""

    value: str | None
    own: bool
    source: Source


Configs = Mapping[str, ConfigValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """`replicas` are all at the moment, including those being added and removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOnDisk:
    """Do not use `lag` for a follower: it relates to the broker's own high watermark."""

    log_dir: str
    size: int
    lag: int
    future: bool
    """A move to another log directory of the same broker is running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """One partition in an answer to ListOffsets."""

    error: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    """One partition in an answer to OffsetForLeaderEpoch: the newest epoch up to the one asked for, and where the next one
    begins."""

    error: int
    epoch: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigsAnswer:
    """The configs are valid if `error` is 0."""

    error: int
    text: str | None
    configs: Configs


def by_topic(partitions: Iterable[TopicPartition]) -> Iterator[tuple[str, list[int]]]:
    """In order, so that equal requests have equal bytes."""
    for topic, group in groupby(sorted(set(partitions)), key=lambda partition: partition.topic):
        yield topic, [partition.number for partition in group]


def describe_configs(
    broker: BrokerConnection, kind: int, names: Sequence[str], keys: Sequence[str] | None
) -> dict[str, ConfigsAnswer]:
    """`keys` None: all of them. One answer per resource, including refusals."""
    question = Writer().array(len(names))
    for name in names:
        question.put("b", kind).text(name).array(None if keys is None else len(keys))
        for key in keys or ():
            question.text(key)
    answer = broker.ask(DESCRIBE_CONFIGS, question.put("b", 0))
    answer.one("i")
    described = {}
    for _ in answer.array():
        error, text, _kind, name = answer.one("h"), answer.text(), answer.one("b"), answer.name()
        own = Source.TOPIC if kind == TOPIC else Source.EVERY_BROKER if name == EVERY_BROKER else Source.BROKER
        configs = MappingProxyType(dict(_config(answer, own) for _ in answer.array()))
        described[name] = ConfigsAnswer(error=error, text=text, configs=configs)
    return described


def _config(answer: AnswerReader, own: Source) -> tuple[str, ConfigValue]:
    name, value, _, number, _ = answer.name(), answer.text(), answer.one("b"), answer.one("b"), answer.one("b")
    for _ in answer.array():
        answer.text()
        answer.text()
        answer.one("b")
    source = Source(number) if number in tuple(Source) else Source.UNKNOWN
    return name, ConfigValue(value=value, own=source is own, source=source)


def alter_configs(
    broker: BrokerConnection, kind: int, name: str, changes: Mapping[str, str | None], *, validate_only: bool
) -> None:
    """Of one resource, all or nothing; None deletes the override."""
    question = Writer().array(1).put("b", kind).text(name).array(len(changes))
    for key, value in changes.items():
        question.text(key).put("b", DELETE if value is None else SET).text(value)
    answer = broker.ask(INCREMENTAL_ALTER_CONFIGS, question.put("b", validate_only))
    answer.one("i")
    for _ in answer.array():
        error, text = answer.one("h"), answer.text()
        answer.one("b")
        answer.text()
        if error:
            what = f"topic {name}" if kind == TOPIC else f"broker {name}" if name else "the brokers' default"
            raise refusal(
                broker.host, f"configs of {what}", error, permission=ALTER_CONFIGS_OF[kind], text=text
            )  # fmt: skip


def list_reassignments(broker: BrokerConnection, *, timeout_ms: int) -> dict[TopicPartition, Reassignment]:
    answer = broker.ask(LIST_REASSIGNMENTS, Writer(flexible=True).put("i", timeout_ms).array(None).tags())
    answer.one("i")
    error, text = answer.one("h"), answer.text()
    if error:
        raise refusal(broker.host, "reassignments", error, permission=DESCRIBE_CLUSTER, text=text)
    running = {}
    for _ in answer.array():
        topic = answer.name()
        for _ in answer.array():
            number = answer.one("i")
            replicas, adding, removing = answer.numbers(), answer.numbers(), answer.numbers()
            answer.tags()
            partition = TopicPartition(topic, number)
            running[partition] = Reassignment(replicas=replicas, adding=adding, removing=removing)
        answer.tags()
    return running


def alter_reassignments(
    broker: BrokerConnection, wanted: Mapping[TopicPartition, Sequence[int] | None], *, timeout_ms: int
) -> None:
    """Partition by partition: raises a refusal only after the others were accepted. None cancels."""
    topics = list(by_topic(wanted))
    question = Writer(flexible=True).put("i", timeout_ms).array(len(topics))
    for topic, numbers in topics:
        question.text(topic).array(len(numbers))
        for number in numbers:
            question.put("i", number).numbers(wanted[TopicPartition(topic, number)]).tags()
        question.tags()
    answer = broker.ask(ALTER_REASSIGNMENTS, question.tags())
    answer.one("i")
    error, text = answer.one("h"), answer.text()
    if error:
        raise refusal(broker.host, "reassignment", error, permission=ALTER_CLUSTER, text=text)
    refused = []
    for _ in answer.array():
        topic = answer.name()
        for _ in answer.array():
            number, code, why = answer.one("i"), answer.one("h"), answer.text()
            answer.tags()
            if code:
                refused.append((f"reassignment of {TopicPartition(topic, number)}", code, why))
        answer.tags()
    for what, code, why in refused:
        raise refusal(broker.host, what, code, permission=ALTER_CLUSTER, text=why)


def elect_leaders(broker: BrokerConnection, partitions: Sequence[TopicPartition], *, timeout_ms: int) -> None:
    """Makes the first replica lead if it is in sync; if it leads already, nothing happens."""
    topics = list(by_topic(partitions))
    question = Writer().put("b", PREFERRED).array(len(topics))
    for topic, numbers in topics:
        question.text(topic).numbers(numbers)
    answer = broker.ask(ELECT_LEADERS, question.put("i", timeout_ms))
    answer.one("i")
    error = answer.one("h")
    if error:
        raise refusal(broker.host, "election of leaders", error, permission=ALTER_CLUSTER)
    refused = []
    for _ in answer.array():
        topic = answer.name()
        for _ in answer.array():
            number, code, why = answer.one("i"), answer.one("h"), answer.text()
            if code not in (0, ELECTION_NOT_NEEDED):
                refused.append((f"election for {TopicPartition(topic, number)}", code, why))
    for what, code, why in refused:
        raise refusal(broker.host, what, code, permission=ALTER_CLUSTER, text=why)


def describe_log_dirs(broker: BrokerConnection) -> dict[TopicPartition, ReplicaOnDisk]:
    answer = broker.ask(DESCRIBE_LOG_DIRS, Writer(flexible=True).array(None).tags())
    answer.one("i")
    error = answer.one("h")
    if error:
        raise refusal(broker.host, "log directories", error, permission=DESCRIBE_CLUSTER)
    present: dict[TopicPartition, ReplicaOnDisk] = {}
    moving = set()
    for _ in answer.array():
        code, log_dir = answer.one("h"), answer.name()
        for _ in answer.array():
            topic = answer.name()
            for _ in answer.array():
                number, size, lag, future = answer.take("iqqb")
                answer.tags()
                partition = TopicPartition(topic, number)
                if future:
                    moving.add(partition)
                elif not code:
                    present[partition] = ReplicaOnDisk(log_dir=log_dir, size=size, lag=lag, future=False)
            answer.tags()
        answer.tags()
    return {
        partition: ReplicaOnDisk(
            log_dir=replica.log_dir, size=replica.size, lag=replica.lag, future=partition in moving
        )
        for partition, replica in present.items()
    }


def list_offsets(
    broker: BrokerConnection, partitions: Sequence[TopicPartition], *, replica: int = NOBODY, timestamp: int = LATEST
) -> dict[TopicPartition, Offset]:
    """Each partition has its own error. `replica` NOBODY asks as a consumer: only leaders answer, up to what is committed."""
    api = LIST_OFFSETS if timestamp != MAX_TIMESTAMP else LIST_OFFSETS_BY_TIME
    topics = list(by_topic(partitions))
    question = Writer(flexible=api.flexible).put("ib", replica, READ_UNCOMMITTED).array(len(topics))
    for topic, numbers in topics:
        question.text(topic).array(len(numbers))
        for number in numbers:
            question.put("iiq", number, -1, timestamp).tags()
        question.tags()
    answer = broker.ask(api, question.tags())
    answer.one("i")
    offsets = {}
    for _ in answer.array():
        topic = answer.name()
        for _ in answer.array():
            number, error, timestamp_ms, offset, _ = answer.take("ihqqi")
            answer.tags()
            offsets[TopicPartition(topic, number)] = Offset(error=error, offset=offset, timestamp_ms=timestamp_ms)
        answer.tags()
    return offsets


def leader_epoch_ends(broker: BrokerConnection, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
    """For partitions that this broker leads; each partition has its own error."""
    topics = list(by_topic(epochs))
    question = Writer().put("i", NOBODY).array(len(topics))
    for topic, numbers in topics:
        question.text(topic).array(len(numbers))
        for number in numbers:
            question.put("iii", number, -1, epochs[TopicPartition(topic, number)])
    answer = broker.ask(OFFSET_FOR_LEADER_EPOCH, question)
    answer.one("i")
    ends = {}
    for _ in answer.array():
        topic = answer.name()
        for _ in answer.array():
            error, number, epoch, end = answer.take("hiiq")
            ends[TopicPartition(topic, number)] = EpochEnd(error=error, epoch=epoch, end=end)
    return ends


def fetch_many(
    broker: BrokerConnection, offsets: Mapping[TopicPartition, int], *, bytes_max: int, partition_bytes_max: int
) -> dict[TopicPartition, Fetched]:
    """From this broker's own replicas, without waiting; each partition has its own error. Returns at least one batch.

    It fills its answer in the order in which topics are named first, and in that of their partitions."""
    topics: dict[str, list[int]] = {}
    for topic, number in offsets:
        topics.setdefault(topic, []).append(number)
    question = Writer().put("iiiibii", NOBODY, 0, 0, bytes_max, READ_UNCOMMITTED, 0, -1).array(len(topics))
    for topic, numbers in topics.items():
        question.text(topic).array(len(numbers))
        for number in numbers:
            question.put("iiqqi", number, -1, offsets[TopicPartition(topic, number)], -1, partition_bytes_max)
    answer = broker.ask(FETCH, question.array(0).text(""))
    _, error, _ = answer.take("ihi")
    if error:
        raise refusal(broker.host, "fetch", error, permission=READ_TOPIC)
    fetched = {}
    for _ in answer.array():
        topic = answer.name()
        for _ in answer.array():
            number, partition = read_fetched(answer)
            fetched[TopicPartition(topic, number)] = partition
    return fetched


def describe_producers(
    broker: BrokerConnection, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, tuple[ProducerSaid, ...]]:
    """For this broker's own replicas. Raises the first refusal."""
    topics = list(by_topic(partitions))
    question = Writer(flexible=True).array(len(topics))
    for topic, numbers in topics:
        question.text(topic).numbers(numbers).tags()
    answer = broker.ask(DESCRIBE_PRODUCERS, question.tags())
    answer.one("i")
    described = {}
    for _ in answer.array():
        topic = answer.name()
        for _ in answer.array():
            number, error, text, producers = read_producers(answer)
            if error:
                what = f"producers of {TopicPartition(topic, number)}"
                raise refusal(broker.host, what, error, permission=READ_TOPIC, text=text)
            described[TopicPartition(topic, number)] = producers
        answer.tags()
    return described


def controller_clock_ms(broker: BrokerConnection) -> tuple[int, int]:
    """The active controller and its clock: it reports the present time as that up to which it has caught up."""
    question = Writer(flexible=True).array(1).text(QUORUM_TOPIC).array(1).put("i", 0).tags().tags().tags()
    answer = broker.ask(DESCRIBE_QUORUM, question)
    error = answer.one("h")
    clock_ms, leader = -1, NOBODY
    for _ in answer.array() if not error else ():
        answer.text()
        for _ in answer.array():
            _, error, leader, _, _ = answer.take("ihiiq")
            for _ in range(2):
                for _ in answer.array():
                    replica, _, fetched_ms, _ = answer.take("iqqq")
                    answer.tags()
                    clock_ms = fetched_ms if replica == leader else clock_ms
            answer.tags()
        answer.tags()
    if error:
        raise refusal(broker.host, "the quorum of controllers", error, permission=DESCRIBE_CLUSTER)
    return leader, clock_ms


def finalized_features(broker: BrokerConnection) -> dict[str, int]:
    """Levels that the whole cluster has agreed on, such as transaction.version."""
    answer = broker.ask(API_VERSIONS, Writer(flexible=True).text("headstone").text("1").tags())
    error = answer.one("h")
    if error:
        raise refusal(broker.host, f"features: {error_name(error)}", error, permission="nothing")
    for _ in answer.array():
        answer.take("hhh")
        answer.tags()
    answer.one("i")
    tagged = answer.tags().get(FINALIZED_FEATURES)
    if tagged is None:
        return {}
    features, levels = AnswerReader(tagged, flexible=True), {}
    for _ in features.array():
        name, level, _ = features.name(), features.one("h"), features.one("h")
        features.tags()
        levels[name] = level
    return levels
