"""What becomes of records on their way, by the acknowledgements of a producer that answers as librdkafka's does."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headstone.cluster import records
from headstone.cluster.connection import Connection
from headstone.cluster.librdkafka import Clients, rdkafka
from headstone.cluster.records import send
from headstone.errors import Spoilt, Unfinished
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
        self.death: Exception | None = None
        self._answers, self._waiting, self._takes = answers, list[Delivery](), takes

    def __len__(self) -> int:
        return len(self._waiting)

    def produce(self, topic: str, *, key: bytes, on_delivery: Delivery, **rest: object) -> None:
        if len(self.taken) == self._takes:
            raise death("_FATAL", "dead")
        self.taken.append(key)
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
    with pytest.raises(Spoilt, match=why):
        sent(Producer(answers), monkeypatch)


def test_a_producer_that_dies_has_spoilt_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever it was asked last: to take a record, or for what has become of those before, where the reason is told."""
    for producer in (Producer([7, 8]), Producer([7, 8], takes=3), Producer([7, 8, "refused"], takes=3)):
        producer.death = death("_GAPLESS_GUARANTEE", "gap")
        with pytest.raises(Spoilt, match=r"again-0: (gap|refused)"):
            sent(producer, monkeypatch)
    with pytest.raises(Spoilt, match="again-0: dead"):
        sent(Producer([7, 8], takes=3), monkeypatch)


def test_silence_spoils_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unfinished, match="3 records were not acknowledged, none of them for 2 s"):
        sent(Producer([7, 8]), monkeypatch)


@pytest.mark.parametrize("taken", range(6))
def test_whoever_is_given_up_sends_nothing_more_and_waits_for_nobody(
    taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if all of them were taken, and only their acknowledgements are missing."""
    producer = Producer([7])
    with pytest.raises(Unfinished, match=r"again-0: given up, [01] records were acknowledged"):
        sent(producer, monkeypatch, lambda: len(producer.taken) >= taken)
    assert producer.taken == [entry.key for entry in ENTRIES[:taken]]
