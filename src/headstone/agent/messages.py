"""The messages between agents and the guard, as JSON: a hello and its answer, a report and its answer.

Owns the format, its version and its limits. All input is untrusted: it either becomes one of these values completely, or is
refused. `authentication.py` decides who may send a message, `guard/agents/truth.py` what it means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headstone.agent.defaults import REPORT_INTERVAL_MS
from headstone.agent.replica_deletions import DeletionsDigest
from headstone.coordination.guard_values import OffsetSpan
from headstone.log.topic_partition import TOPIC_NAME, TopicPartition
from headstone.units import count

VERSION = 2
BODY_BYTES_MAX = 4 << 20
"""A partition takes about 200 bytes: enough for 20,000 on one broker."""
PARTITIONS_MAX = 20_000
QUESTIONS_MAX = 20
"""Each costs an agent the headers of a segment, for every report."""
HELLO, REPORT = "/v1/hello", "/v1/report"
SIGNED = "Headstone-Signature"
GUARD = -1
"""The guard's number among the members of a partition: it leads the conversation and has no replica."""
SPANS_MAX = 4
"""Each costs an agent the bytes of its span, once."""
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1

_NAME = re.compile(r"[a-zA-Z0-9._=+/-]{1,128}")
_CHALLENGE = re.compile(r"[0-9]{1,19}\.[0-9a-f]{64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class UnreadableReport(ValueError):
    """Not a message of this version. Says what is wrong, without repeating text that may be hostile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Does your replica still hold a record with this offset?"""

    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanQuestion:
    """Which tombstones and markers does your replica have in this span?"""

    partition: TopicPartition
    span: OffsetSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Agent to guard, before it reads its files. `session_ms` is when the agent began, by its own clock."""

    cluster_id: str
    broker: int
    session_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Guard to agent. What the agent reads after `challenge` arrived was true at some moment after the challenge was given.

    `topics`: those that the guard wants reports on. `epoch`: the guard's leadership, as the protocol calls it.
    """

    epoch: int
    challenge: str
    topics: tuple[str, ...]
    questions: tuple[Question, ...] = ()
    spans: tuple[SpanQuestion, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """One replica: what its files say, and what it claims in the protocol. `high_watermark` is the last one written to its
    checkpoint."""

    partition: TopicPartition
    topic_id: str | None
    directory_id: str | None
    log_start: int
    log_end: int
    high_watermark: int | None
    incarnation: int
    mcco: int
    mxfo: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    question: Question
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanAnswered:
    """`deletions` is None until the whole span was read; `read_to` is how far that has come."""

    question: SpanQuestion
    read_to: int
    deletions: DeletionsDigest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReport:
    """Agent to guard: all replicas of one broker.

    The two clocks are the time of the broker's machine before the hello was sent and when its answer had arrived. The challenge
    was given in between, so the guard learns how far that clock is off.
    """

    cluster_id: str
    broker: int
    session_ms: int
    sequence: int
    epoch: int
    challenge: str
    clock_before_ms: int
    clock_after_ms: int
    interval_ms: int
    replicas: tuple[ReplicaReport, ...]
    answers: tuple[Answered, ...] = ()
    spans: tuple[SpanAnswered, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Guard to agent: how many replicas it took, and why it left out others."""

    taken: int
    left: tuple[str, ...] = ()


def encode_hello(hello: Hello) -> bytes:
    return _encoded(cluster=hello.cluster_id, broker=hello.broker, session_ms=hello.session_ms)


def decode_hello(body: bytes) -> Hello:
    fields = _Fields.of(body)
    return Hello(
        cluster_id=fields.text("cluster", _NAME),
        broker=fields.whole("broker", INT32_MAX),
        session_ms=fields.whole("session_ms"),
    )


def encode_welcome(welcome: Welcome) -> bytes:
    return _encoded(
        epoch=welcome.epoch,
        challenge=welcome.challenge,
        topics=list(welcome.topics),
        questions=[_question(question) for question in welcome.questions],
        spans=[_span(question) for question in welcome.spans],
    )


def decode_welcome(body: bytes) -> Welcome:
    fields = _Fields.of(body)
    return Welcome(
        epoch=fields.whole("epoch"),
        challenge=fields.text("challenge", _CHALLENGE),
        topics=tuple(_topic(name) for name in fields.items("topics", PARTITIONS_MAX)),
        questions=tuple(_asked(_Fields.within(item)) for item in fields.items("questions", QUESTIONS_MAX)),
        spans=tuple(_asked_span(_Fields.within(item)) for item in fields.items("spans", SPANS_MAX)),
    )


def document(report: BrokerReport) -> dict[str, object]:
    """As it is sent, and as it is shown."""
    return {
        "version": VERSION, "cluster": report.cluster_id, "broker": report.broker, "session_ms": report.session_ms,
        "sequence": report.sequence, "epoch": report.epoch, "challenge": report.challenge,
        "clock_before_ms": report.clock_before_ms, "clock_after_ms": report.clock_after_ms, "interval_ms": report.interval_ms,
        "replicas": [_replica(replica) for replica in report.replicas],
        "answers": [{**_question(answer.question), "holds": answer.holds} for answer in report.answers],
        "spans": [
            {**_span(answer.question), "read_to": answer.read_to, "deletions": answer.deletions and asdict(answer.deletions)}
            for answer in report.spans
        ],
    }  # fmt: skip


def report_lines(report: BrokerReport) -> Iterator[str]:
    yield f"broker {report.broker} of cluster {report.cluster_id}: {count(len(report.replicas), 'replica')} of compacted topics"
    for replica in report.replicas:
        yield (
            f"{replica.partition}: log {replica.log_start} to {replica.log_end}, "
            f"MCCO {replica.mcco} (clean below), MXFO {replica.mxfo} (no transactional data below)"
        )


def encode_report(report: BrokerReport) -> bytes:
    return json.dumps(document(report), separators=(",", ":")).encode()


def decode_report(body: bytes) -> BrokerReport:
    fields = _Fields.of(body)
    report = BrokerReport(
        cluster_id=fields.text("cluster", _NAME),
        broker=fields.whole("broker", INT32_MAX),
        session_ms=fields.whole("session_ms"),
        sequence=fields.whole("sequence"),
        epoch=fields.whole("epoch"),
        challenge=fields.text("challenge", _CHALLENGE),
        clock_before_ms=fields.whole("clock_before_ms"),
        clock_after_ms=fields.whole("clock_after_ms"),
        interval_ms=fields.whole("interval_ms", REPORT_INTERVAL_MS.high),
        replicas=tuple(_reported(_Fields.within(item)) for item in fields.items("replicas", PARTITIONS_MAX)),
        answers=tuple(_answered(_Fields.within(item)) for item in fields.items("answers", QUESTIONS_MAX)),
        spans=tuple(_answered_span(_Fields.within(item)) for item in fields.items("spans", SPANS_MAX)),
    )
    if len({replica.partition for replica in report.replicas}) < len(report.replicas):
        raise UnreadableReport("replicas: a partition is listed twice")
    return report


def encode_receipt(receipt: Receipt) -> bytes:
    return _encoded(taken=receipt.taken, left=list(receipt.left))


def decode_receipt(body: bytes) -> Receipt:
    fields = _Fields.of(body)
    left = fields.items("left", PARTITIONS_MAX)
    if not all(isinstance(reason, str) for reason in left):
        raise UnreadableReport("left: not a list of strings")
    return Receipt(taken=fields.whole("taken"), left=tuple(left))


def _encoded(**fields: object) -> bytes:
    return json.dumps({"version": VERSION, **fields}, separators=(",", ":")).encode()


def _question(question: Question) -> dict[str, object]:
    return {"topic": question.partition.topic, "partition": question.partition.number, "offset": question.offset}


def _replica(replica: ReplicaReport) -> dict[str, object]:
    return {
        "topic": replica.partition.topic, "partition": replica.partition.number, "topic_id": replica.topic_id,
        "directory_id": replica.directory_id, "log_start": replica.log_start, "log_end": replica.log_end,
        "high_watermark": replica.high_watermark, "incarnation": replica.incarnation, "mcco": replica.mcco,
        "mxfo": replica.mxfo,
    }  # fmt: skip


def _reported(fields: _Fields) -> ReplicaReport:
    return ReplicaReport(
        partition=_partition(fields),
        topic_id=fields.optional_text("topic_id", _NAME),
        directory_id=fields.optional_text("directory_id", _NAME),
        log_start=fields.whole("log_start"),
        log_end=fields.whole("log_end"),
        high_watermark=fields.optional_whole("high_watermark"),
        incarnation=fields.whole("incarnation"),
        mcco=fields.whole("mcco"),
        mxfo=fields.whole("mxfo"),
    )


def _answered(fields: _Fields) -> Answered:
    return Answered(question=_asked(fields), holds=fields.truth("holds"))


def _asked(fields: _Fields) -> Question:
    return Question(partition=_partition(fields), offset=fields.whole("offset"))


def _span(question: SpanQuestion) -> dict[str, object]:
    partition, span = question.partition, question.span
    return {"topic": partition.topic, "partition": partition.number, "start": span.start, "end": span.end}


def _asked_span(fields: _Fields) -> SpanQuestion:
    span = OffsetSpan(start=fields.whole("start"), end=fields.whole("end"))
    return SpanQuestion(partition=_partition(fields), span=span)


def _answered_span(fields: _Fields) -> SpanAnswered:
    deletions = None
    if fields.values.get("deletions") is not None:
        digest = _Fields.within(fields.values["deletions"])
        deletions = DeletionsDigest(
            count=digest.whole("count"), emptied=digest.whole("emptied"), digest=digest.text("digest", _DIGEST)
        )
    return SpanAnswered(question=_asked_span(fields), read_to=fields.whole("read_to"), deletions=deletions)


def _partition(fields: _Fields) -> TopicPartition:
    return TopicPartition(fields.text("topic", TOPIC_NAME), fields.whole("partition", INT32_MAX))


def _topic(name: object) -> str:
    if not isinstance(name, str) or not TOPIC_NAME.fullmatch(name):
        raise UnreadableReport("topics: not a topic name")
    return name


@dataclass(frozen=True, slots=True)
class _Fields:
    """An object of untrusted JSON. Unknown fields are ignored: a newer sender may have more."""

    values: Mapping[str, Any]

    @classmethod
    def of(cls, body: bytes) -> _Fields:
        try:
            fields = cls.within(json.loads(body))
        except (ValueError, RecursionError) as error:
            raise UnreadableReport("the body is not a JSON object") from error
        if fields.whole("version") != VERSION:
            raise UnreadableReport(f"version {fields.whole('version')}: this guard speaks version {VERSION}")
        return fields

    @classmethod
    def within(cls, item: object) -> _Fields:
        if not isinstance(item, dict):
            raise UnreadableReport("expected an object")
        return cls(item)

    def whole(self, name: str, high: int = INT64_MAX) -> int:
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= high:
            raise UnreadableReport(f"{name}: not a number from 0 to {high}")
        return value

    def text(self, name: str, pattern: re.Pattern[str]) -> str:
        value = self.values.get(name)
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise UnreadableReport(f"{name}: not a string of the form {pattern.pattern}")
        return value

    def truth(self, name: str) -> bool:
        value = self.values.get(name)
        if not isinstance(value, bool):
            raise UnreadableReport(f"{name}: neither true nor false")
        return value

    def optional_whole(self, name: str) -> int | None:
        return None if self.values.get(name) is None else self.whole(name)

    def optional_text(self, name: str, pattern: re.Pattern[str]) -> str | None:
        return None if self.values.get(name) is None else self.text(name, pattern)

    def items(self, name: str, count_max: int) -> Sequence[Any]:
        value = self.values.get(name)
        if not isinstance(value, list) or len(value) > count_max:
            raise UnreadableReport(f"{name}: not a list of at most {count_max} items")
        return value
