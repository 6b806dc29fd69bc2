"""A topic of the lake back into Kafka, tombstones included, and the proof that it arrived.

Into an empty topic only, partition by partition in offset order: keys, values, headers and timestamps are kept, offsets are
new. A record without a timestamp, or with 0, gets that of the restore: clients have no way to say so. Verification reads the
topic back as a read_committed consumer and compares its table with the lake's. An interrupted restore leaves a topic that is
not empty: the next one refuses it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from headstone.errors import Unfinished, UsageError
from headstone.lake.lake import Lake
from headstone.lake.live import LiveCluster
from headstone.lake.reading import records
from headstone.lake.scheduling import POLICY, POLICY_UNKNOWN, not_compacted
from headstone.log.listing import RecordEntry
from headstone.log.topic_partition import TopicPartition
from headstone.retention.settings import BY_NAME

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
    partition: TopicPartition
    records: int
    tombstones: int
    keys: int
    """That have a value."""
    verified: bool


def restore(
    lake: Lake, topic: str, to_topic: str, cluster: LiveCluster, *, as_of_ms: int | None = None, verify: bool = True,
    copies: int = 1, tell: Tell = lambda text: None,
) -> list[Restored]:  # fmt: skip
    """A topic that is not there is made, with the lake's number of partitions."""
    partitions = [partition for partition in lake.metastore.partitions() if partition.topic == topic]
    if not partitions:
        raise UsageError(f"the lake has no topic {topic}")
    settings = lake.metastore.topics()[topic]
    whole = not_compacted(settings) is not None
    _make_or_check(cluster, to_topic, len(partitions), settings, copies)
    done = []
    for partition in partitions:
        target, sent = TopicPartition(to_topic, partition.number), Contents()
        cluster.send(target, _noted(records(lake, partition, as_of_ms=as_of_ms), sent, partition, tell))
        if verify:
            tell(f"{partition}: verifying {sent.records:,} records")
            _verify(cluster, target, sent, whole=whole)
        done.append(
            Restored(
                partition=partition,
                records=sent.records,
                tombstones=sent.tombstones,
                keys=len(sent.table),
                verified=verify,
            )
        )
    return done


def _make_or_check(
    cluster: LiveCluster, topic: str, partitions: int, settings: Mapping[str, object], copies: int
) -> None:
    live = cluster.describe([topic]).get(topic)
    if live is None:
        own = {name for name, setting in BY_NAME.items() if not setting.of_kafka}
        config = {POLICY: "compact"} | {name: str(value) for name, value in settings.items() if name not in own}
        if config[POLICY] == POLICY_UNKNOWN:
            raise UsageError(f"{not_compacted(settings)}; or make the topic {topic} yourself, then restore into it")
        cluster.create_topic(topic, partitions=partitions, copies=copies, settings=config)
        return
    if len(live.starts) != partitions:
        raise UsageError(f"topic {topic} has {len(live.starts)} partitions, the lake's has {partitions}")
    for number, (start, end) in enumerate(zip(live.starts, live.ends, strict=True)):
        if start != end:
            target = TopicPartition(topic, number)
            raise UsageError(f"{target} is not empty ([{start}, {end})): restore into a new topic")


def _noted(
    entries: Iterable[RecordEntry], sent: Contents, partition: TopicPartition, tell: Tell
) -> Iterator[RecordEntry]:
    for entry in entries:
        yield entry
        sent.put(entry.key, entry.value)
        if sent.records % TOLD_EVERY == 0:
            tell(f"{partition}: {sent.records:,} records sent")


def _verify(cluster: LiveCluster, target: TopicPartition, expected: Contents, *, whole: bool) -> None:
    """The table that a consumer of the restored partition sees is the lake's, whatever the cluster has cleaned meanwhile.

    `whole`: a topic that is not compacted has every record, one after the other."""
    consumed = Contents()
    for key, value in cluster.consume(target):
        consumed.put(key, value)
    ours, theirs = expected.table, consumed.table
    if theirs != ours:
        wrong = sum(theirs.get(key) != value for key, value in ours.items()) + len(theirs.keys() - ours.keys())
        raise Unfinished(f"{target}: {wrong} keys are not as in the lake; do not use this topic")
    if whole and consumed.order != expected.order:
        raise Unfinished(
            f"{target}: {consumed.records} records are there, {expected.records} were sent, and they are not the same; "
            "if retention.ms has taken some already, restore into a topic that keeps them"
        )
