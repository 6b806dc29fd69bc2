"""Sends records to a partition of a running cluster, and reads them from it.

All or an error: what is sent is acknowledged by all in-sync replicas at the expected offsets; reading goes up to the end. Knows
nothing of what the records are for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from headstone import units
from headstone.cluster.connection import SECONDS_MAX
from headstone.cluster.librdkafka import Clients
from headstone.errors import NotResumable, Unfinished
from headstone.interruption import check
from headstone.log.listing import RecordEntry
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Stop, never

SILENCE_SECONDS_MAX = 30.0
"""In the middle of a transfer: by then a restarted broker is back, or another one leads. After that the transfer gives up."""
POLL_SECONDS = 0.5


class _Deliveries:
    """Deliveries of records that get consecutive offsets, unless somebody else writes too."""

    def __init__(self, offset: int, given_up: Stop) -> None:
        self.acknowledged = 0
        self.failure: str | None = None
        self._offset, self._given_up = offset, given_up

    def __call__(self, error: Any, message: Any) -> None:
        if error is not None:
            self.fail(error.str())
            return
        if message.offset() not in (None, self._offset):  # None: it was sent twice, and the broker forgot where it is
            self.fail(
                f"a record was to get offset {self._offset} and got {message.offset()}: somebody else writes there"
            )
        self.acknowledged += 1
        self._offset += 1

    def fail(self, why: str) -> None:
        self.failure = self.failure or why

    def expect_to_go_on(self, partition: TopicPartition) -> None:
        if self._given_up():
            raise Unfinished(f"{partition}: cancelled, {units.count(self.acknowledged, 'record')} acknowledged")


def send(
    clients: Clients, partition: TopicPartition, records: Iterable[RecordEntry], *, offset: int, given_up: Stop = never
) -> None:  # fmt: skip
    """Sends in this order, starting at `offset`, which is the log's end; returns when all are acknowledged.

    After Unfinished, a prefix of the records is in the log. NotResumable: one was refused for good, or got another offset.
    `given_up`: ends with Unfinished, and sends nothing more."""
    producer = clients.producer()
    deliveries = _Deliveries(offset, given_up)
    try:
        with clients.telling(producer, f"{partition}: "), _death_told(clients, producer, deliveries):
            for record in records:
                deliveries.expect_to_go_on(partition)
                while not _produced(producer, partition, record, deliveries):
                    _wait(clients, producer, partition, deliveries)
                producer.poll(0)
                if deliveries.failure is not None:
                    break
            while len(producer) and deliveries.failure is None:
                _wait(clients, producer, partition, deliveries)
    finally:
        producer.purge()  # else its thread keeps sending them in the background while anything references the error
    if deliveries.failure is not None:
        raise NotResumable(f"{clients.connection.address}: {partition}: {clients.connection.hide(deliveries.failure)}")


@contextmanager
def _death_told(clients: Clients, producer: Any, deliveries: _Deliveries) -> Iterator[None]:
    """A producer becomes unusable when a batch is refused for good. A later call would only report that it is unusable."""
    try:
        yield
    except clients.module.KafkaException as error:
        why = error.args[0]
        if not why.fatal() and why.code() != clients.module.KafkaError._FATAL:
            raise
        try:
            producer.poll(0)
        except clients.module.KafkaException as cause:
            why = cause.args[0]
        deliveries.fail(why.str())


def _produced(producer: Any, partition: TopicPartition, record: RecordEntry, deliveries: _Deliveries) -> bool:
    """False if librdkafka's buffer is full."""
    try:
        producer.produce(
            partition.topic, partition=partition.number, key=record.key, value=record.value,
            headers=list(record.headers), timestamp=max(record.timestamp_ms, 0), on_delivery=deliveries,
        )  # fmt: skip
    except BufferError:
        return False
    return True


def _wait(clients: Clients, producer: Any, partition: TopicPartition, deliveries: _Deliveries) -> None:
    """Waits until something is acknowledged."""
    before, waited = deliveries.acknowledged, 0.0
    while deliveries.acknowledged == before and deliveries.failure is None and len(producer):
        if waited >= SILENCE_SECONDS_MAX:
            raise Unfinished(
                f"{clients.connection.address}: {partition}: {units.count(len(producer), 'record')} not acknowledged; no "
                f"progress for {SILENCE_SECONDS_MAX:g} s"
            )
        deliveries.expect_to_go_on(partition)
        producer.poll(POLL_SECONDS)
        waited += POLL_SECONDS


def consume(clients: Clients, partition: TopicPartition) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Key and value of each committed record, up to the present end."""
    module = clients.module
    with clients.consumer() as consumer, clients.telling(consumer, f"{partition}: "):
        where = module.TopicPartition(partition.topic, partition.number)
        _, end = consumer.get_watermark_offsets(where, timeout=SECONDS_MAX)
        consumer.assign([module.TopicPartition(partition.topic, partition.number, 0)])
        position, silent_since = 0, time.monotonic()
        while position < end:
            check()
            message = consumer.poll(POLL_SECONDS)
            if time.monotonic() - silent_since > SILENCE_SECONDS_MAX:
                raise Unfinished(
                    f"{clients.connection.address}: {partition}: no records after offset {position} for "
                    f"{SILENCE_SECONDS_MAX:g} s, but the log ends at {end}"
                )
            error = message.error() if message is not None else None
            if message is None or (error is not None and error.code() == module.KafkaError.GROUP_AUTHORIZATION_FAILED):
                continue  # librdkafka asks for a group coordinator, which is not needed here
            if error is None:
                yield message.key(), message.value()
                position, silent_since = message.offset() + 1, time.monotonic()
            elif error.code() == module.KafkaError._PARTITION_EOF:
                return
            else:
                raise module.KafkaException(error)
