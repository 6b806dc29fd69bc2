"""Records into a partition of a running cluster, and out of it.

All or an error: what is sent is acknowledged by all in-sync replicas, and what is consumed reaches up to the end. Knows nothing
of what the records are for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from headstone.cluster.connection import SECONDS_MAX
from headstone.cluster.librdkafka import Clients
from headstone.errors import Unfinished
from headstone.log.listing import RecordEntry
from headstone.log.topic_partition import TopicPartition

SILENCE_SECONDS_MAX = 30.0
"""In the middle of a transfer: a broker that restarts is back by then, or another one leads. Then whoever waits gives up."""
POLL_SECONDS = 0.5


class _Deliveries:
    def __init__(self) -> None:
        self.acknowledged = 0
        self.failure: str | None = None

    def __call__(self, error: Any, message: Any) -> None:
        del message
        if error is None:
            self.acknowledged += 1
        else:
            self.failure = self.failure or error.str()


def send(clients: Clients, partition: TopicPartition, records: Iterable[RecordEntry]) -> None:
    """In this order; returns when all are acknowledged. After an error nobody knows which of them are there."""
    producer = clients.producer()
    deliveries = _Deliveries()
    with clients.telling(producer, f"{partition}: "):
        for record in records:
            while not _produced(producer, partition, record, deliveries):
                _wait(clients, producer, partition, deliveries)
            producer.poll(0)
            if deliveries.failure is not None:
                break
        while len(producer) and deliveries.failure is None:
            _wait(clients, producer, partition, deliveries)
    if deliveries.failure is not None:
        why = clients.connection.hide(deliveries.failure)
        raise Unfinished(f"{clients.connection.address}: {partition}: {why}; use a new topic")


def _produced(producer: Any, partition: TopicPartition, record: RecordEntry, deliveries: _Deliveries) -> bool:
    """False: librdkafka's buffer is full."""
    try:
        producer.produce(
            partition.topic, partition=partition.number, key=record.key, value=record.value,
            headers=list(record.headers), timestamp=max(record.timestamp_ms, 0), on_delivery=deliveries,
        )  # fmt: skip
    except BufferError:
        return False
    return True


def _wait(clients: Clients, producer: Any, partition: TopicPartition, deliveries: _Deliveries) -> None:
    """Until something is acknowledged."""
    before, waited = deliveries.acknowledged, 0.0
    while deliveries.acknowledged == before and deliveries.failure is None and len(producer):
        if waited >= SILENCE_SECONDS_MAX:
            raise Unfinished(
                f"{clients.connection.address}: {partition}: {len(producer)} records were not acknowledged, none of them for "
                f"{SILENCE_SECONDS_MAX:g} s; use a new topic"
            )
        producer.poll(POLL_SECONDS)
        waited += POLL_SECONDS


def consume(clients: Clients, partition: TopicPartition) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Key and value of each committed record up to what is the end now."""
    module = clients.module
    with clients.consumer() as consumer, clients.telling(consumer, f"{partition}: "):
        where = module.TopicPartition(partition.topic, partition.number)
        _, end = consumer.get_watermark_offsets(where, timeout=SECONDS_MAX)
        consumer.assign([module.TopicPartition(partition.topic, partition.number, 0)])
        position, silent_since = 0, time.monotonic()
        while position < end:
            message = consumer.poll(POLL_SECONDS)
            if time.monotonic() - silent_since > SILENCE_SECONDS_MAX:
                raise Unfinished(
                    f"{clients.connection.address}: {partition}: nothing came behind offset {position} for "
                    f"{SILENCE_SECONDS_MAX:g} s, the log ends at {end}"
                )
            error = message.error() if message is not None else None
            if message is None or (error is not None and error.code() == module.KafkaError.GROUP_AUTHORIZATION_FAILED):
                continue  # librdkafka asks for a coordinator that nobody here needs
            if error is None:
                yield message.key(), message.value()
                position, silent_since = message.offset() + 1, time.monotonic()
            elif error.code() == module.KafkaError._PARTITION_EOF:
                return
            else:
                raise module.KafkaException(error)
