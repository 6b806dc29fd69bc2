"""A topic of the lake back into Kafka, tombstones included, and the proof that it arrived.

Into an empty topic only, partition by partition in offset order: keys, values, headers and timestamps are kept, offsets are
new. A record without a timestamp, or with 0, gets that of the restore: clients have no way to say so. Verification reads the
topic back as a read_committed consumer and compares its table with the lake's. An interrupted restore leaves a topic that is
not empty: the next one refuses it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headstone.errors import Unfinished, UsageError
from headstone.lake.cluster import SECONDS_MAX, client_settings, rdkafka
from headstone.lake.lake import Lake
from headstone.lake.reading import records
from headstone.lake.scheduling import POLICY, POLICY_UNKNOWN, not_compacted
from headstone.log.listing import RecordEntry
from headstone.log.topic_partition import TopicPartition

FLUSH_SECONDS_MAX = 120.0
QUIET_SECONDS = 30.0
"""A consumer that gets nothing for so long, with more to come, is stuck."""
TOLD_EVERY = 500_000

Tell = Callable[[str], None]


class Contents:
    """What was sent or read of a partition. `table`: digest of the key to that of its newest value; deleted keys are absent."""

    def __init__(self) -> None:
        self.table: dict[bytes, bytes] = {}
        self.records = self.tombstones = 0
        self._order = hashlib.blake2b(digest_size=16)

    def put(self, key: bytes | None, value: bytes | None) -> None:
        self.records += 1
        self.tombstones += value is None
        for part in (key, value):
            self._order.update(b"-" if part is None else b"+%d:" % len(part) + part)
        if key is None:
            return
        digest = hashlib.blake2b(key, digest_size=16).digest()
        if value is None:
            self.table.pop(digest, None)
        else:
            self.table[digest] = hashlib.blake2b(value, digest_size=16).digest()

    @property
    def order(self) -> bytes:
        """Of all keys and values, one after the other."""
        return self._order.digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    at: TopicPartition
    records: int
    tombstones: int
    keys: int
    """That have a value."""
    verified: bool


def restore(
    lake: Lake, topic: str, to_topic: str, settings: Mapping[str, str], *, as_of_ms: int | None = None,
    verify: bool = True, copies: int = 1, tell: Tell = lambda text: None,
) -> list[Restored]:  # fmt: skip
    """`settings` are librdkafka's. A topic that is not there is made, with the lake's number of partitions."""
    rd = rdkafka()
    given = {**client_settings(settings), "log_level": 0}
    partitions = [at for at in lake.metastore.partitions() if at.topic == topic]
    if not partitions:
        raise UsageError(f"the lake has no topic {topic}")
    try:
        topic_settings = lake.metastore.topics()[topic]
        whole = not_compacted(topic_settings) is not None
        _make_or_check(rd, given, to_topic, len(partitions), topic_settings, copies)
        done = []
        for at in partitions:
            sent = _send(rd, given, to_topic, at, records(lake, at, as_of_ms=as_of_ms), tell)
            if verify:
                tell(f"{at}: verifying {sent.records:,} records")
                _verify(rd, given, to_topic, at, sent, whole=whole)
            done.append(
                Restored(
                    at=at, records=sent.records, tombstones=sent.tombstones, keys=len(sent.table), verified=verify
                )
            )  # fmt: skip
        return done
    except rd.KafkaException as error:
        raise Unfinished(f"{settings.get('bootstrap.servers')}: {error.args[0].str()}") from error


def _make_or_check(
    rd: Any, given: Mapping[str, object], topic: str, partitions: int, settings: Mapping[str, object], copies: int
) -> None:
    admin = rd.admin.AdminClient(given)
    known = admin.list_topics(timeout=SECONDS_MAX).topics.get(topic)
    if known is None:
        config = {POLICY: "compact"} | {name: str(value) for name, value in settings.items()}
        if config[POLICY] == POLICY_UNKNOWN:
            raise UsageError(f"{not_compacted(settings)}; or make the topic {topic} yourself, then restore into it")
        made = rd.admin.NewTopic(topic, num_partitions=partitions, replication_factor=copies, config=config)
        admin.create_topics([made])[topic].result(SECONDS_MAX)
        return
    if len(known.partitions) != partitions:
        raise UsageError(f"topic {topic} has {len(known.partitions)} partitions, the lake's has {partitions}")
    consumer = _consumer(rd, given)
    try:
        for number in range(partitions):
            low, high = consumer.get_watermark_offsets(rd.TopicPartition(topic, number), timeout=SECONDS_MAX)
            if low != high:
                raise UsageError(f"{topic}-{number} is not empty ([{low}, {high})): restore into a new topic")
    finally:
        consumer.close()


def _send(
    rd: Any, given: Mapping[str, object], topic: str, at: TopicPartition, entries: Iterable[RecordEntry], tell: Tell
) -> Contents:
    producer = rd.Producer({**given, "enable.idempotence": True, "linger.ms": 20, "compression.type": "lz4"})
    failures: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(error.str())

    sent = Contents()
    for entry in entries:
        while True:
            try:
                producer.produce(
                    topic, partition=at.number, key=entry.key, value=entry.value, headers=list(entry.headers),
                    timestamp=max(entry.timestamp_ms, 0), on_delivery=delivered,
                )  # fmt: skip
                break
            except BufferError:
                producer.poll(0.5)
        producer.poll(0)
        sent.put(entry.key, entry.value)
        if failures:
            break
        if sent.records % TOLD_EVERY == 0:
            tell(f"{at}: {sent.records:,} records sent")
    left = producer.flush(FLUSH_SECONDS_MAX)
    if failures or left:
        raise Unfinished(
            f"{at}: {failures[0] if failures else f'{left} records were not acknowledged'}; use a new topic"
        )
    return sent


def _verify(
    rd: Any, given: Mapping[str, object], topic: str, at: TopicPartition, expected: Contents, *, whole: bool
) -> None:
    """The table that a consumer of the restored partition sees is the lake's, whatever the cluster has cleaned meanwhile.

    `whole`: a topic that is not compacted has every record, one after the other."""
    consumer = _consumer(rd, given)
    try:
        where = rd.TopicPartition(topic, at.number)
        _, end = consumer.get_watermark_offsets(where, timeout=SECONDS_MAX)
        consumer.assign([rd.TopicPartition(topic, at.number, 0)])
        found = Contents()
        position = 0
        while position < end:
            message = consumer.poll(QUIET_SECONDS)
            if message is None:
                raise Unfinished(f"{topic}-{at.number}: nothing came behind offset {position}, the log ends at {end}")
            error = message.error()
            if error is None:
                found.put(message.key(), message.value())
                position = message.offset() + 1
            elif error.code() == rd.KafkaError._PARTITION_EOF:
                break
            else:
                raise rd.KafkaException(error)
    finally:
        consumer.close()
    ours, theirs = expected.table, found.table
    if theirs != ours:
        wrong = sum(theirs.get(key) != value for key, value in ours.items()) + len(theirs.keys() - ours.keys())
        raise Unfinished(f"{topic}-{at.number}: {wrong} keys are not as in the lake; do not use this topic")
    if whole and found.order != expected.order:
        raise Unfinished(
            f"{topic}-{at.number}: {found.records} records are there, {expected.records} were sent, and they are not the same; "
            "if retention.ms has taken some already, restore into a topic that keeps them"
        )


def _consumer(rd: Any, given: Mapping[str, object]) -> Any:
    return rd.Consumer({
        **given, "group.id": "headstone-lake", "enable.auto.commit": False, "auto.offset.reset": "earliest",
        "isolation.level": "read_committed", "enable.partition.eof": True,
    })  # fmt: skip
