"""The bytes of questions that change a cluster, field by field, in both of Kafka's encodings; answers that do not fit them."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from headstone.cluster import questions
from headstone.cluster.connection import Host
from headstone.cluster.encoding import AnswerReader, Writer
from headstone.cluster.questions import BROKER, EVERY_BROKER, TOPIC, Source
from headstone.cluster.wire import Api, BrokerConnection
from headstone.errors import Unfinished
from headstone.log.topic_partition import TopicPartition

T0, T2, U1 = TopicPartition("t", 0), TopicPartition("t", 2), TopicPartition("u", 1)


class Heard(BrokerConnection):
    """Keeps what it is asked, and gives this answer."""

    def __init__(self, answer: bytes) -> None:
        self.host = Host("kafka", 9092)
        self.asked: list[tuple[int, int, bytes]] = []
        self._answer = answer

    def ask(self, api: Api, question: Writer) -> AnswerReader:
        self.asked.append((api.key, api.version, question.data))
        return AnswerReader(self._answer, flexible=api.flexible)


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def number(value: int) -> bytes:
    return struct.pack(">i", value)


NOTHING_REFUSED = number(0) + number(0)


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, "t"), (BROKER, "3"), (BROKER, EVERY_BROKER)])
@pytest.mark.parametrize("validate_only", [False, True])
def test_a_change_of_configs_sets_and_deletes_and_is_meant(kind: int, name: str, validate_only: bool) -> None:
    broker = Heard(NOTHING_REFUSED)
    questions.alter_configs(broker, kind, name, {"a": "1", "b": None}, validate_only=validate_only)
    set_a = string("a") + b"\0" + string("1")
    delete_b = string("b") + b"\1" + b"\xff\xff"
    resource = bytes([kind]) + string(name) + number(2) + set_a + delete_b
    assert broker.asked == [(44, 0, number(1) + resource + bytes([validate_only]))]


@pytest.mark.parametrize(
    ("kind", "name", "own"),
    [(TOPIC, "t", Source.TOPIC), (BROKER, "3", Source.BROKER), (BROKER, EVERY_BROKER, Source.EVERY_BROKER)],
)
def test_an_override_is_of_the_resource_itself_and_nothing_that_it_inherits(kind: int, name: str, own: Source) -> None:
    """What is taken for one is put back as one, and stays when the default is changed."""
    told = [string(source.name) + string("1") + bytes([0, source, 0]) + number(0) for source in Source]
    resource = b"\0\0" + string("") + bytes([kind]) + string(name) + number(len(told)) + b"".join(told)
    answers = questions.describe_configs(Heard(number(0) + number(1) + resource), kind, [name], None)
    assert [key for key, config in answers[name].configs.items() if config.own] == [own.name]


def test_leaders_are_elected_by_preference_and_never_uncleanly() -> None:
    broker = Heard(number(0) + b"\0\0" + number(0))
    questions.elect_leaders(broker, [T2, T0], timeout_ms=7)
    preferred = b"\0"
    partitions = string("t") + number(2) + number(0) + number(2)
    assert broker.asked == [(43, 1, preferred + number(1) + partitions + number(7))]


def test_a_reassignment_names_the_replicas_in_their_order_and_none_cancels() -> None:
    broker = Heard(b"\0" + number(0) + b"\0\0" + b"\0" + b"\1" + b"\0")
    questions.alter_reassignments(broker, {T0: [3, 1, 2], T2: None}, timeout_ms=7)
    moved = number(0) + b"\4" + number(3) + number(1) + number(2) + b"\0"
    cancelled = number(2) + b"\0" + b"\0"
    assert broker.asked == [(45, 0, number(7) + b"\2" + b"\2t" + b"\3" + moved + cancelled + b"\0" + b"\0")]


@pytest.mark.parametrize(
    ("with_ids", "asked"),
    [
        (False, (3, 7, number(1) + string("t") + b"\0")),
        (True, (3, 10, b"\2" + bytes(16) + b"\2t" + b"\0" + b"\0" + b"\0\0" + b"\0")),
    ],
)
def test_to_ask_for_a_topic_does_not_make_it(with_ids: bool, asked: tuple[int, int, bytes]) -> None:
    broker = Heard(b"")
    with pytest.raises(Unfinished, match="truncated response"):
        broker.metadata(["t"], with_ids=with_ids)
    assert broker.asked == [asked]


REFUSED_CONFIGS = number(0) + number(1) + struct.pack(">h", 44) + string("policy") + b"\2" + string("t")
REFUSED_ELECTION = (
    number(0) + b"\0\0" + number(1) + string("t") + number(1) + number(0) + struct.pack(">h", 80) + string("no")
)
REFUSED_MOVE = (
    number(0)
    + b"\0\0"
    + b"\0"
    + b"\2"
    + b"\2t"
    + b"\2"
    + number(0)
    + struct.pack(">h", 39)
    + b"\3no"
    + b"\0"
    + b"\0"
    + b"\0"
)


@pytest.mark.parametrize(
    ("answer", "ask", "why"),
    [
        (REFUSED_CONFIGS, lambda b: questions.alter_configs(b, TOPIC, "t", {}, validate_only=False), "POLICY_VIOLATION"),
        (REFUSED_ELECTION, lambda b: questions.elect_leaders(b, [T0], timeout_ms=7), "PREFERRED_LEADER_NOT_AVAILABLE"),
        (REFUSED_MOVE, lambda b: questions.alter_reassignments(b, {T0: [1]}, timeout_ms=7), "INVALID_REPLICA_ASSIGNMENT"),
    ],
    ids=["configs", "election", "reassignment"],
)  # fmt: skip
def test_what_is_refused_in_an_answer_is_no_success(answer: bytes, ask: Callable[[Heard], None], why: str) -> None:
    with pytest.raises(Unfinished, match=why):
        ask(Heard(answer))


def test_a_reassignment_that_runs_says_who_comes_and_who_goes() -> None:
    def numbers(*values: int) -> bytes:
        return bytes([len(values) + 1]) + b"".join(map(number, values))

    of_t = b"\2t" + b"\2" + number(2) + numbers(1, 2, 3) + numbers(3) + numbers(1) + b"\0" + b"\0"
    of_u = b"\2u" + b"\2" + number(1) + numbers(2, 1) + numbers() + numbers(2) + b"\0" + b"\0"
    answer = number(0) + b"\0\0" + b"\0" + b"\3" + of_t + of_u + b"\0"
    assert questions.list_reassignments(Heard(answer), timeout_ms=7) == {
        T2: questions.Reassignment(replicas=(1, 2, 3), adding=(3,), removing=(1,)),
        U1: questions.Reassignment(replicas=(2, 1), adding=(), removing=(2,)),
    }


def test_records_of_several_topics_come_in_one_answer() -> None:
    def topic(name: str, index: int, records: bytes) -> bytes:
        ends = struct.pack(">ihqqq", index, 0, 9, 8, 7) + number(0) + number(-1)
        return string(name) + number(1) + ends + number(len(records)) + records

    answer = number(0) + b"\0\0" + number(0) + number(2) + topic("t", 2, b"abc") + topic("u", 1, b"de")
    fetched = questions.fetch_many(Heard(answer), {T2: 5, U1: 9}, bytes_max=100, partition_bytes_max=10)
    assert {partition: one.records for partition, one in fetched.items()} == {T2: b"abc", U1: b"de"}


def test_epochs_and_producers_of_several_topics_come_in_one_answer() -> None:
    def ends(name: str, index: int, end: int) -> bytes:
        return string(name) + number(1) + struct.pack(">hiiq", 0, index, 3, end)

    told = questions.leader_epoch_ends(Heard(number(0) + number(2) + ends("t", 2, 5) + ends("u", 1, 9)), {T2: 3, U1: 3})
    assert {partition: (one.epoch, one.end) for partition, one in told.items()} == {T2: (3, 5), U1: (3, 9)}

    def nobody(name: bytes, index: int) -> bytes:
        return b"\2" + name + b"\2" + number(index) + b"\0\0" + b"\0" + b"\1" + b"\0" + b"\0"

    producers = Heard(number(0) + b"\3" + nobody(b"t", 2) + nobody(b"u", 1) + b"\0")
    assert questions.describe_producers(producers, [T2, U1]) == {T2: (), U1: ()}


def test_records_of_several_topics_are_asked_for_from_where_each_partition_has_come_to() -> None:
    broker = Heard(number(0) + b"\0\0" + number(0) + number(0))
    questions.fetch_many(broker, {T2: 5, U1: 9, T0: 7}, bytes_max=100, partition_bytes_max=10)
    whole = struct.pack(">iiiibii", -1, 0, 0, 100, 0, 0, -1)

    def partition(index: int, offset: int) -> bytes:
        return struct.pack(">iiqqi", index, -1, offset, -1, 10)

    t = string("t") + number(2) + partition(2, 5) + partition(0, 7)
    u = string("u") + number(1) + partition(1, 9)
    assert broker.asked == [(1, 11, whole + number(2) + t + u + number(0) + string(""))]


def test_changes_of_several_topics_name_each_with_its_partitions() -> None:
    electing = Heard(number(0) + b"\0\0" + number(0))
    questions.elect_leaders(electing, [U1, T2, T0], timeout_ms=7)
    t, u = string("t") + number(2) + number(0) + number(2), string("u") + number(1) + number(1)
    assert electing.asked == [(43, 1, b"\0" + number(2) + t + u + number(7))]
    moving = Heard(b"\0" + number(0) + b"\0\0" + b"\0" + b"\1" + b"\0")
    questions.alter_reassignments(moving, {U1: [2], T2: [3]}, timeout_ms=7)
    t = b"\2t" + b"\2" + number(2) + b"\2" + number(3) + b"\0" + b"\0"
    u = b"\2u" + b"\2" + number(1) + b"\2" + number(2) + b"\0" + b"\0"
    assert moving.asked == [(45, 0, number(7) + b"\3" + t + u + b"\0")]


LONG = "x" * 300


def written(*, flexible: bool) -> bytes:
    question = Writer(flexible=flexible).put("hi", 7, -1).text("né").text(None).text(LONG).blob(b"\0\1")
    return question.array(2).numbers([1, -1]).numbers([]).tags().array(None).numbers(None).tags().data


def test_old_versions_have_plain_sizes_and_flexible_ones_compact_sizes_and_tags() -> None:
    fields = b"\0\7\xff\xff\xff\xff"
    assert written(flexible=False) == (
        fields + b"\0\3n\xc3\xa9" + b"\xff\xff" + b"\1\x2c" + LONG.encode() + b"\0\0\0\2\0\1" + b"\0\0\0\2"
        + b"\0\0\0\2\0\0\0\1\xff\xff\xff\xff" + b"\0\0\0\0" + b"\xff\xff\xff\xff" + b"\xff\xff\xff\xff"
    )  # fmt: skip
    assert written(flexible=True) == (
        fields + b"\4n\xc3\xa9" + b"\0" + b"\xad\2" + LONG.encode() + b"\3\0\1" + b"\3"
        + b"\3\0\0\0\1\xff\xff\xff\xff" + b"\1" + b"\0" + b"\0" + b"\0" + b"\0"
    )  # fmt: skip


@pytest.mark.parametrize("flexible", [False, True])
def test_what_was_written_is_read(flexible: bool) -> None:
    answer = AnswerReader(written(flexible=flexible), flexible=flexible)
    assert answer.take("hi") == (7, -1)
    assert [answer.text(), answer.text(), answer.name()] == ["né", None, LONG]
    assert answer.blob() == b"\0\1"
    assert len(answer.array()) == 2
    assert [answer.numbers(), answer.numbers()] == [(1, -1), ()]
    assert answer.tags() == {}
    assert [len(answer.array()), answer.numbers()] == [0, ()]
    assert answer.tags() == {}
    with pytest.raises(Unfinished, match="truncated response"):
        answer.one("b")


def test_tagged_fields_are_kept_by_their_number() -> None:
    answer = AnswerReader(b"\2\0\3abc\x85\1\0rest", flexible=True)
    assert answer.tags() == {0: b"abc", 133: b""}
    assert answer.take("4b") == tuple(b"rest")


@pytest.mark.parametrize(
    ("data", "flexible", "ask", "why"),
    [
        (b"\0\5abc", False, AnswerReader.text, "truncated response"),
        (b"\6abc", True, AnswerReader.text, "truncated response"),
        (b"\0\2\xff\xfe", False, AnswerReader.text, "not UTF-8"),
        (b"\x7f\xff\xff\xff", False, AnswerReader.array, "cannot hold 2147483647 elements"),
        (b"\xff\xff\xff\xff\7", True, AnswerReader.array, "cannot hold 2147483646 elements"),
        (b"\xff\xff\xff\xff\xff\1", True, AnswerReader.array, "does not end"),
        (b"\1\0\x7f", True, AnswerReader.tags, "truncated response"),
        (b"\0\0", False, AnswerReader.numbers, "truncated response"),
    ],
)
def test_an_answer_that_does_not_fit_is_not_believed(data: bytes, flexible: bool, ask: object, why: str) -> None:
    assert callable(ask)
    with pytest.raises(Unfinished, match=why):
        ask(AnswerReader(data, flexible=flexible))
