"""What becomes of records on their way, and what is read back, by clients that answer as librdkafka's do, or find nobody."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from headstone.cluster import records
from headstone.cluster.connection import Connection
from headstone.cluster.librdkafka import Clients, rdkafka
from headstone.cluster.live import LiveCluster
from headstone.cluster.records import consume, send
from headstone.errors import NotResumable, Unfinished, UsageError
from headstone.log.listing import RecordEntry
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Stop, never

PARTITION = TopicPartition("again", 0)
ENTRIES = [
    RecordEntry(offset=offset, sequence=-1, timestamp_ms=1, key=b"k%d" % offset, value=b"v", headers=())
    for offset in range(5)
]

Delivery = Callable[[Any, Any], None]
Answer = int | str | None
"""The offset that a record got, why it was refused, or that its offset was forgotten."""


def death(name: str, why: str) -> Exception:
    module = rdkafka()
    error: Exception = module.KafkaException(module.KafkaError(getattr(module.KafkaError, name), why, name != "_FATAL"))
    return error


class Producer:
    """Gives these answers, one per poll, then none, or its `death`. `takes`: so many records, then it has died."""

    def __init__(self, answers: list[Answer], *, takes: int = 100) -> None:
        self.taken: list[bytes] = []
        self.fields: list[dict[str, object]] = []
        """All that each record was given with."""
        self.death: Exception | None = None
        self._answers, self._waiting, self._takes = answers, list[Delivery](), takes

    def __len__(self) -> int:
        return len(self._waiting)

    def produce(self, topic: str, *, key: bytes, on_delivery: Delivery, **rest: object) -> None:
        if len(self.taken) == self._takes:
            raise death("_FATAL", "dead")
        self.taken.append(key)
        self.fields.append({"topic": topic, "key": key, **rest})
        self._waiting.append(on_delivery)

    def poll(self, seconds: float) -> None:
        if self.death is not None and not self._answers:
            raise self.death
        if self._waiting and self._answers:
            answer = self._answers.pop(0)
            error = SimpleNamespace(str=lambda: answer) if isinstance(answer, str) else None
            self._waiting.pop(0)(error, SimpleNamespace(offset=lambda: answer))

    def purge(self) -> None:
        del self._waiting[:]


def sent(producer: Producer, monkeypatch: pytest.MonkeyPatch, given_up: Stop = never) -> None:
    clients = Clients(Connection.parse("kafka:9092", {}))
    monkeypatch.setattr(clients, "producer", lambda: producer)
    monkeypatch.setattr(records, "SILENCE_SECONDS_MAX", 2.0)
    try:
        send(clients, PARTITION, ENTRIES, offset=7, given_up=given_up)
    finally:
        assert len(producer) == 0, "something would be sent behind our back"


@pytest.mark.parametrize("answers", [[7, 8, 9, 10, 11], [7, None, None, 10, 11]])
def test_what_arrives_in_its_place_is_sent(answers: list[Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(answers)
    sent(producer, monkeypatch)
    assert producer.taken == [entry.key for entry in ENTRIES]


def test_a_record_is_sent_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tombstone is no empty value, a record without a key has no empty one; headers keep their order and nulls."""
    entries = [
        RecordEntry(offset=7, sequence=-1, timestamp_ms=86_400_000, key=b"k", value=None, headers=()),
        RecordEntry(
            offset=8, sequence=-1, timestamp_ms=5, key=b"", value=b"", headers=(("h", None), ("g", b""), ("h", b"2"))
        ),
        RecordEntry(offset=9, sequence=-1, timestamp_ms=6, key=None, value=b"v", headers=()),
    ]
    monkeypatch.setattr("tests.cluster.test_records.ENTRIES", entries)
    producer = Producer([7, 8, 9])
    sent(producer, monkeypatch)
    assert producer.fields == [
        {
            "topic": "again", "partition": 0, "key": entry.key, "value": entry.value, "headers": list(entry.headers),
            "timestamp": entry.timestamp_ms,
        }
        for entry in entries
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([7, 8, "Broker: Invalid timestamp", 9, 10], "again-0: Broker: Invalid timestamp"),
        ([8, 9, 10, 11, 12], "a record was to get offset 7 and got 8: somebody else writes there"),
        ([7, 8, 9, 12, 13], "a record was to get offset 10 and got 12: somebody else writes there"),
        ([7, None, 8, 9, 10], "a record was to get offset 9 and got 8"),
    ],
)
def test_what_is_refused_or_gets_another_offset_is_the_end_of_the_topic(
    answers: list[Answer], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotResumable, match=why):
        sent(Producer(answers), monkeypatch)


def test_a_producer_that_dies_makes_the_restore_not_resumable(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever it was asked last: to take a record, or for what has become of those before, where the reason is told."""
    for producer in (Producer([7, 8]), Producer([7, 8], takes=3), Producer([7, 8, "refused"], takes=3)):
        producer.death = death("_GAPLESS_GUARANTEE", "gap")
        with pytest.raises(NotResumable, match=r"again-0: (gap|refused)"):
            sent(producer, monkeypatch)
    with pytest.raises(NotResumable, match="again-0: dead"):
        sent(Producer([7, 8], takes=3), monkeypatch)


def test_silence_spoils_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unfinished, match="3 records not acknowledged; no progress for 2 s"):
        sent(Producer([7, 8]), monkeypatch)


@pytest.mark.parametrize("taken", range(6))
def test_whoever_is_given_up_sends_nothing_more_and_waits_for_nobody(
    taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if all of them were taken, and only their acknowledgements are missing."""
    producer = Producer([7])
    with pytest.raises(Unfinished, match=r"again-0: cancelled, (0 records|1 record) acknowledged"):
        sent(producer, monkeypatch, lambda: len(producer.taken) >= taken)
    assert producer.taken == [entry.key for entry in ENTRIES[:taken]]


class Consumer:
    """Gives these answers, one per poll, then none; the log ends at `end`."""

    def __init__(self, answers: list[Any], *, end: int) -> None:
        self.waited_s = 0.0
        self._answers, self._end = answers, end

    def get_watermark_offsets(self, partition: object, timeout: float) -> tuple[int, int]:
        return 0, self._end

    def assign(self, partitions: object) -> None:
        pass

    def poll(self, seconds: float) -> Any:
        answer = self._answers.pop(0) if self._answers else None
        self.waited_s += seconds if answer is None else 0
        return answer


def message(offset: int) -> Any:
    return SimpleNamespace(error=lambda: None, offset=lambda: offset, key=lambda: b"k%d" % offset, value=lambda: None)


def event(name: str) -> Any:
    module = rdkafka()
    return SimpleNamespace(error=lambda: module.KafkaError(getattr(module.KafkaError, name)))


def consumed(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> list[bytes | None]:
    clients = Clients(Connection.parse("kafka:9092", {}))
    monkeypatch.setattr(clients, "consumer", lambda: nullcontext(consumer))
    monkeypatch.setattr(records, "SILENCE_SECONDS_MAX", 2.0)
    monkeypatch.setattr(records, "time", SimpleNamespace(monotonic=lambda: consumer.waited_s))
    return [key for key, _ in consume(clients, PARTITION)]


@pytest.mark.parametrize(
    ("answers", "end"),
    [
        ([message(0), message(3), message(4)], 5),
        ([None, message(0), None, event("GROUP_AUTHORIZATION_FAILED"), message(3), None, None, message(4)], 5),
        ([message(0), message(3), message(4), event("_PARTITION_EOF")], 6),
    ],
    ids=["at once", "in parts", "behind the last a marker"],
)
def test_what_comes_late_or_in_parts_is_read_up_to_the_end(
    answers: list[Any], end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cleaners leave gaps between offsets, and at the last one there may be a marker."""
    assert consumed(Consumer(answers, end=end), monkeypatch) == [b"k0", b"k3", b"k4"]


@pytest.mark.parametrize(
    ("last", "why"),
    [(None, "no records after offset 4 for 2 s, but the log ends at 6"), (event("_FAIL"), "again-0: Local: ")],
)
def test_what_was_not_read_up_to_the_end_was_not_read(last: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unfinished, match=why):
        consumed(Consumer([message(0), message(3), last], end=6), monkeypatch)


def cluster(**settings: str) -> LiveCluster:
    """Where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        bootstrap = f"127.0.0.1:{server.getsockname()[1]}"
    return LiveCluster(Connection.parse(bootstrap, {name.replace("_", "."): value for name, value in settings.items()}))


def test_who_is_not_there_is_told_at_once() -> None:
    live = cluster(socket_timeout_ms="5000")
    for question in (
        lambda: live.describe(["t"]),
        lambda: live.topic_ids(["t"]),
        lambda: live.create_topic("t", partitions=1, copies=1, settings={}),
        lambda: live.log_end(PARTITION),
        lambda: live.send(PARTITION, [], offset=0),
        lambda: live.consume(PARTITION),
    ):
        with pytest.raises(Unfinished, match="can't be reached: nothing listens there"):
            question()


def test_settings_that_librdkafka_does_not_know_are_told_without_secrets() -> None:
    given = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    live = cluster(**given, sasl_oauthbearer_client_secret="hidden", no_such_setting="hidden")
    with pytest.raises(UsageError, match=r"Kafka settings: .*no\.such\.setting") as caught:
        live.describe(["t"])
    assert "hidden" not in str(caught.value)


def test_settings_that_would_change_what_is_read_or_written_are_refused() -> None:
    """These connections are not looked at first: only librdkafka knows how."""
    given = {"security_protocol": "SSL", "enable_ssl_certificate_verification": "false"}
    with pytest.raises(UsageError, match=r"isolation\.level: read_committed is needed here; leave it out"):
        next(cluster(**given, isolation_level="read_uncommitted").consume(PARTITION))
    for setting, value, needed in (
        ("enable.idempotence", "false", "true"),
        ("enable.gapless.guarantee", "false", "true"),
        ("message.timeout.ms", "300000", "0"),
        ("max.in.flight.requests.per.connection", "5", "1"),
    ):
        with pytest.raises(UsageError, match=f"{setting}: {needed} is needed here; leave it out"):
            cluster(**given, **{setting: value}).send(PARTITION, [], offset=0)
