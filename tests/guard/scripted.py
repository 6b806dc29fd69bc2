"""Three brokers on sockets that answer what a look asks, from a model: for clusters that no test can start, and for failures.

What real brokers answer is tests/brokers/test_admin.py's; here the same encoding is written the other way round.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from headstone.cluster.admin import Admin
from headstone.cluster.connection import Connection
from headstone.cluster.encoding import AnswerReader, Writer
from tests.cluster.fake_brokers import FETCH, LIST_OFFSETS, METADATA, SAY_NOTHING, Request, listening

API_VERSIONS, DESCRIBE_CONFIGS, LIST_REASSIGNMENTS, DESCRIBE_QUORUM = 18, 32, 46, 55
BROKERS = (1, 2, 3)
OUT_OF_RANGE, NOT_LEADER, DENIED, CLUSTER_DENIED, UNKNOWN_TOPIC, TIMED_OUT = 1, 6, 29, 31, 3, 7
TOPIC_OVERRIDE, DEFAULT = 1, 5
TOPIC = 2
DEBUGGER, MAX_TIMESTAMP, ANY_TIMESTAMP = -2, -3, 0


@dataclass(slots=True)
class Model:
    """Partition n of any topic is led by broker 1 + n % 3 and has a replica on each, which ends at 10 times the broker."""

    topics: dict[str, int]
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    """Overrides by topic."""
    broker_configs: dict[str, str] = field(default_factory=dict)
    """Of each."""
    broker_configs_error: int = 0
    retention_ms: dict[int, str] = field(default_factory=dict)
    """By broker, of topics without an override."""
    silent: set[int] = field(default_factory=set)
    cut_off: set[int] = field(default_factory=set)
    """Brokers that do not reach the controllers, and answer from metadata of when every replica was in sync."""
    isr: tuple[int, ...] = BROKERS
    refused: dict[int, int] = field(default_factory=dict)
    """Errors by the request's key."""
    unknown_error: int = UNKNOWN_TOPIC
    """Of a topic that is not there."""
    unreadable: set[str] = field(default_factory=set)
    """Topics that this user may not read."""
    records: bytes = b""
    """From any offset of any partition, but for those before log_start."""
    log_start: int = 0
    uncommitted: int = 0
    """Records at the end of each leader that consumers are not told of."""
    deleted: set[str] = field(default_factory=set)
    """Topics that metadata still shows."""
    topic_ids: dict[str, int] = field(default_factory=dict)
    newest_ms: int = -1
    first: tuple[int, int] = (-1, -1)
    """Offset and timestamp of the first record of each partition."""
    controller_ms: int = -1
    asked: Counter[tuple[int, int]] = field(default_factory=Counter)
    first_asked: dict[int, float] = field(default_factory=dict)
    """By broker: when, on the clock of this process."""
    """Requests by broker and key."""
    ports: dict[int, int] = field(default_factory=dict)

    def leader(self, number: int) -> int:
        return BROKERS[number % len(BROKERS)]


@contextmanager
def running(model: Model) -> Iterator[str]:
    """The address of broker 1."""
    with listening(BROKERS, partial(answered, model)) as model.ports:
        yield f"127.0.0.1:{model.ports[1]}"


@contextmanager
def asking(model: Model, *, seconds_max: float = 60, client: type[Admin] = Admin) -> Iterator[Admin]:
    with running(model) as bootstrap, client(Connection.parse(bootstrap, {}), seconds_max=seconds_max) as admin:
        yield admin


def answered(model: Model, asked: Request) -> Writer | bytes:
    broker, key = asked.broker, asked.key
    flexible = key in (METADATA, API_VERSIONS, LIST_REASSIGNMENTS, DESCRIBE_QUORUM) or (key, asked.version) == (
        LIST_OFFSETS,
        7,
    )
    model.asked[broker, key] += 1
    model.first_asked.setdefault(broker, time.monotonic())
    if broker in model.silent:
        return SAY_NOTHING
    answer = Writer(flexible=flexible)
    if flexible and key != API_VERSIONS:
        answer.tags()
    ANSWERS[key](model, broker, asked.fields(flexible=flexible), answer)
    return answer


def metadata(model: Model, broker: int, question: AnswerReader, answer: Writer) -> None:
    count = question.unsigned()
    names = sorted(model.topics) if count == 0 else [named(question) for _ in range(count - 1)]
    answer.put("i", 0).array(len(BROKERS))
    for number in BROKERS:
        answer.put("i", number).text("127.0.0.1").put("i", model.ports[number]).text(None).tags()
    answer.text("scripted").put("i", 1).array(len(names))
    for name in names:
        known = name in model.topics and METADATA not in model.refused
        error = 0 if known else model.refused.get(METADATA, model.unknown_error)
        answer.put("h", error).text(name).put("qq", 0, model.topic_ids.get(name, 0)).put("b", 0)
        answer.array(model.topics[name] if known else 0)
        for number in range(model.topics[name] if known else 0):
            answer.put("hiii", 0, number, model.leader(number), 5)
            answer.numbers(BROKERS).numbers(BROKERS if broker in model.cut_off else model.isr).numbers(()).tags()
        answer.put("i", 0).tags()
    answer.put("i", 0).tags()


def named(question: AnswerReader) -> str:
    question.uuid()
    name = question.name()
    question.tags()
    return name


def configs(model: Model, broker: int, question: AnswerReader, answer: Writer) -> None:
    resources = []
    for _ in question.array():
        kind, name = question.one("b"), question.name()
        resources.append((kind, name, [question.name() for _ in question.array()]))
    answer.put("i", 0).array(len(resources))
    for kind, name, keys in resources:
        error = UNKNOWN_TOPIC if name in model.deleted else model.refused.get(DESCRIBE_CONFIGS, 0)
        error = error if kind == TOPIC else error or model.broker_configs_error
        defaults = {
            "cleanup.policy": "delete", "delete.retention.ms": model.retention_ms.get(broker, "86400000"),
            "min.insync.replicas": "1", "min.cleanable.dirty.ratio": "0.5", "min.compaction.lag.ms": "0",
            "max.compaction.lag.ms": str(2**63 - 1),
        }  # fmt: skip
        own = model.configs.get(name, {}) if kind == TOPIC else model.broker_configs
        values = {**defaults, **own} if kind == TOPIC else own
        # No keys: all of them are asked for. What a topic inherits it has in any case; a broker has only what the model says.
        shown = {} if error else {key: values[key] for key in keys or values if key in values}
        answer.put("h", error).text(None).put("b", kind).text(name).array(len(shown))
        for key, value in shown.items():
            answer.text(key).text(value).put("bbb", 0, TOPIC_OVERRIDE if key in own else DEFAULT, 0).array(0)


def offsets(model: Model, broker: int, question: AnswerReader, answer: Writer) -> None:
    replica, _ = question.take("ib")
    topics = []
    for _ in question.array():
        name, asked = question.name(), []
        for _ in question.array():
            asked.append(question.take("iiq"))
            question.tags()
        question.tags()
        topics.append((name, asked))
    answer.put("i", 0).array(len(topics))
    for name, asked in topics:
        answer.text(name).array(len(asked))
        for number, _, timestamp in asked:
            led = replica == DEBUGGER or model.leader(number) == broker
            error = model.refused.get(LIST_OFFSETS, 0 if led else NOT_LEADER)
            time_ms = model.newest_ms if timestamp == MAX_TIMESTAMP else -1
            offset = 10 * broker - (0 if replica == DEBUGGER else model.uncommitted) if led else -1
            if timestamp == ANY_TIMESTAMP and led:
                offset, time_ms = model.first
            answer.put("ihqqi", number, error, time_ms, offset, 5).tags()
        answer.tags()
    answer.tags()


def fetched(model: Model, broker: int, question: AnswerReader, answer: Writer) -> None:
    question.take("iiiibii")
    topics = [(question.name(), [question.take("iiqqi") for _ in question.array()]) for _ in question.array()]
    answer.put("ihi", 0, 0, 0).array(len(topics))
    for name, places in topics:
        answer.text(name).array(len(places))
        for number, _, offset, _, _ in places:
            error = DENIED if name in model.unreadable else OUT_OF_RANGE if offset < model.log_start else 0
            answer.put("ihqqq", number, error, 0, 0, model.log_start).array(0).put("i", -1)
            answer.blob(b"" if error else model.records)


def reassignments(model: Model, broker: int, question: AnswerReader, answer: Writer) -> None:
    error = TIMED_OUT if broker in model.cut_off else model.refused.get(LIST_REASSIGNMENTS, 0)
    answer.put("ih", 0, error).text(None).array(0).tags()


def features(model: Model, broker: int, question: AnswerReader, answer: Writer) -> None:
    answer.put("h", 0).array(0).put("i", 0).tags()


def quorum(model: Model, broker: int, question: AnswerReader, answer: Writer) -> None:
    answer.put("h", 0).array(1).text("__cluster_metadata").array(1).put("ihiiq", 0, 0, 2, 1, 0)
    answer.array(1).put("iqqq", 2, 0, model.controller_ms, model.controller_ms).tags()
    answer.array(0).tags().tags().tags()


ANSWERS = {
    METADATA: metadata, DESCRIBE_CONFIGS: configs, LIST_OFFSETS: offsets, LIST_REASSIGNMENTS: reassignments,
    API_VERSIONS: features, DESCRIBE_QUORUM: quorum, FETCH: fetched,
}  # fmt: skip
