"""Reads whole partitions with librdkafka's consumer, in either isolation level: the fast way to see what is served.

On purpose a consumer that was not written by the authors of Kafka's broker. Knows nothing of logs on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headstone.brokers.client import Consumed
from headstone.errors import Unfinished

WAIT_SECONDS = 60.0
WAIT_MS = 20
"""At the end of a log the broker would otherwise wait half a second for more records."""

Table = dict[bytes, bytes]


def consume(bootstrap: str, partitions: Iterable[str], *, isolation: str) -> dict[str, list[Consumed]]:
    """What a consumer gets of every partition, from the start to where there is no more for it now."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "headstone-testbed", "isolation.level": isolation,
        "enable.auto.commit": False, "auto.offset.reset": "earliest", "enable.partition.eof": True, "log_level": 0,
        "fetch.wait.max.ms": WAIT_MS,
    })  # fmt: skip
    records: dict[str, list[Consumed]] = {name: [] for name in partitions}
    waiting = set(records)
    consumer.assign([TopicPartition(*_split(name), 0) for name in records])
    try:
        while waiting:
            message = consumer.poll(WAIT_SECONDS)
            if message is None:
                raise Unfinished(f"a {isolation} consumer waits for ever: {sorted(waiting)}")
            name = f"{message.topic()}-{message.partition()}"
            error = message.error()
            if error is None:
                records[name].append(_consumed(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                waiting.discard(name)
            else:
                raise Unfinished(f"{name}: {error}")
    finally:
        consumer.close()
    return records


def table(records: Sequence[Consumed]) -> Table:
    newest = {record.key: record.value for record in records if record.key is not None}
    return {key: value for key, value in newest.items() if value is not None}


def tables(served: Mapping[str, Sequence[Consumed]]) -> dict[str, Table]:
    return {name: table(records) for name, records in served.items()}


def _split(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("-")
    return topic, int(number)


def _consumed(message: Any) -> Consumed:
    return Consumed(
        offset=message.offset(), key=message.key(), value=message.value(), timestamp_ms=message.timestamp()[1],
        headers=tuple((name, value) for name, value in message.headers() or ()),
    )  # fmt: skip
