"""Random traffic that produces every shape of log: codecs, clients, headers, nulls, idempotence, transactions.

The traffic is deterministic by seed; batching and offsets depend on the real clients and brokers. Cleaning is held back until
`clean` lets the brokers' cleaners run once over everything.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headstone.brokers.client import READ_COMMITTED, JavaProducer, KafkaClient
from headstone.brokers.processes import Cluster, wait_until
from headstone.errors import Unfinished
from headstone.log.checkpoints import read_offsets

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NEVER_MS = 365 * 24 * 3600 * 1000
SEGMENT_BYTES = 8192
INDEX_INTERVAL_BYTES = 600
HEADER_NAMES = ("h", "trace-id", "é", "")
FLUSH_SECONDS_MAX = 120


def segment_bytes(release: tuple[int, ...], size: int = SEGMENT_BYTES) -> dict[str, object]:
    """4.x has a minimum of 1 MiB, and an internal setting for tests."""
    return {"segment.bytes" if release < (4,) else "internal.segment.bytes": size}


def second_client(bootstrap: str, **settings: object) -> Any:
    """A producer of librdkafka."""
    from confluent_kafka import Producer as RdKafkaProducer

    return RdKafkaProducer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0, **settings})


def _flush(producer: Any) -> None:
    """Raises if something is not acknowledged: librdkafka would wait for ever."""
    left = producer.flush(FLUSH_SECONDS_MAX)
    if left:
        raise Unfinished(f"{left} records were not acknowledged in {FLUSH_SECONDS_MAX} s")


class Workload:
    """Topics `plain` (one partition per codec, and one of another client), `appended`, `gone` and `txn`."""

    def __init__(self, cluster: Cluster, client: KafkaClient, *, seed: int, replicas: Sequence[int] = (1,)) -> None:
        self.cluster = cluster
        self.client = client
        self.chance = random.Random(seed)
        self.topics = {"plain": 6, "appended": 1, "gone": 1, "txn": 3}
        self._replicas = list(replicas)
        self._plain: list[JavaProducer] = []
        self._transactional: list[JavaProducer] = []
        self._rd_transactional: Any = None
        self._left_open: JavaProducer | None = None
        self._written = 0

    @property
    def partitions(self) -> list[str]:
        return [f"{topic}-{number}" for topic, count in self.topics.items() for number in range(count)]

    def create(self, settings: Mapping[str, object] | None = None) -> None:
        for topic, count in self.topics.items():
            given = {
                "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.001, "min.compaction.lag.ms": NEVER_MS,
                "index.interval.bytes": INDEX_INTERVAL_BYTES, **segment_bytes(self.cluster.distribution.release),
                **({"message.timestamp.type": "LogAppendTime"} if topic == "appended" else {}), **(settings or {}),
            }  # fmt: skip
            self.client.create_topic(topic, [self._replicas] * count, given)

    def write(self, *, records: int = 200) -> None:
        """One round of everything, with about `records` per partition. Producers are kept from round to round."""
        while len(self._plain) < len(CODECS):
            number = len(self._plain)
            idempotent = "true" if number % 2 == 0 else "false"
            self._plain.append(
                self.client.producer(
                    compression_type=CODECS[number], enable_idempotence=idempotent, batch_size=2000, linger_ms=5
                )
            )
        for number, producer in enumerate(self._plain):
            self._send(producer, "plain", number, records)
            self._send(producer, "plain", (number + 1) % len(CODECS), records // 8)
        self._send(self._plain[0], "appended", 0, records)
        self._supersede_all(self._plain[0], records)
        self._write_with_second_client(records)
        self._write_transactions(records)

    def close_open_transaction(self) -> None:
        """Aborts the open transaction."""
        if self._left_open is not None:
            self._left_open.abort()
            self._left_open.close()
            self._left_open = None
            wait_until(self._is_decided, "the marker of what was aborted")

    def _is_decided(self) -> bool:
        """A producer gets its answer as soon as the coordinator has decided; the marker comes a moment later."""
        return self.client.end("txn", 2) == self.client.end("txn", 2, isolation=READ_COMMITTED)

    def close(self) -> None:
        """Call while the brokers run: librdkafka's transactional producer may wait long for brokers that are gone."""
        self._rd_transactional = None

    def clean(self, *, delete_retention_ms: int = 1000) -> None:
        """One pass of every broker's own cleaner over every partition; then cleaning is held back again."""
        for topic in self.topics:
            self.client.alter_topic(topic, {"min.compaction.lag.ms": 0, "delete.retention.ms": delete_retention_ms})
        wait_until(self._is_clean, "the cleaners are done with everything")
        for topic in self.topics:
            self.client.alter_topic(topic, {"min.compaction.lag.ms": NEVER_MS})

    def _is_clean(self) -> bool:
        """On every broker each partition is clean up to the first segment that a cleaner may not touch: the active one, or that
        of the last stable offset. Then no cleaner has anything left to begin."""
        stable = {
            f"{topic}-{number}": self.client.end(topic, number, isolation=READ_COMMITTED)
            for topic, count in self.topics.items()
            for number in range(count)
        }
        return all(
            first_dirty_offsets(self.cluster, number).get(name, 0) >= _uncleanable(broker.log_dir / name, offset)
            for number, broker in self.cluster.brokers.items()
            for name, offset in stable.items()
        )

    def _send(self, producer: JavaProducer, topic: str, partition: int, records: int) -> None:
        for _ in range(records):
            key, value, headers = self._record()
            producer.send(topic, partition, key, value, headers=headers)
            if self.chance.random() < 0.15:
                producer.flush()
        producer.flush()

    def _supersede_all(self, producer: JavaProducer, records: int) -> None:
        """In the end every key of the partition is deleted."""
        for i in range(records):
            producer.send("gone", 0, b"k%d" % (i % 20), self._value())
            if i % 4 == 0:
                producer.flush()
        for i in range(20):
            producer.send("gone", 0, b"k%d" % i, None)
        producer.flush()

    def _write_with_second_client(self, records: int) -> None:
        for codec in self.chance.sample(CODECS, 2):
            producer = second_client(self.client.bootstrap, **{"compression.type": codec, "enable.idempotence": True})
            for _ in range(records // 2):
                key, value, headers = self._record()
                producer.produce("plain", partition=5, key=key, value=value, headers=list(headers))
                if self.chance.random() < 0.1:
                    _flush(producer)
            _flush(producer)

    def _write_transactions(self, records: int) -> None:
        """Three producers at the same time, over three partitions, with plain records between; one more stays open."""
        self.close_open_transaction()
        while len(self._transactional) < 3:
            number = len(self._transactional)
            self._transactional.append(
                self.client.producer(transactional_id=f"txn-{number}", compression_type=CODECS[number], batch_size=1500)
            )
        plain = self.client.producer(enable_idempotence="false", batch_size=1500)
        for _ in range(max(records // 20, 4)):
            for producer in self._transactional:
                producer.begin()
            for _ in range(self.chance.randint(2, 8)):
                for producer in self._transactional:
                    key, value, headers = self._record(keys=40)
                    producer.send("txn", self.chance.randrange(3), key, value, headers=headers)
                    if self.chance.random() < 0.3:
                        producer.flush()
                        plain.write("txn", self.chance.randrange(3), *self._record(keys=40)[:2])
            for producer in self._transactional:
                producer.flush()
                if self.chance.random() < 0.35:
                    producer.abort()
                else:
                    producer.commit()
        self._write_second_transactions()
        self._write_once()
        self._left_open = self.client.producer(transactional_id=f"open-{self._written}", transaction_timeout_ms=900_000)
        self._left_open.begin()
        for _ in range(5):
            self._left_open.send("txn", 2, *self._record(keys=40)[:2])
        self._left_open.flush()
        for i in range(records):
            plain.send("txn", i % 3, *self._record(keys=40)[:2])
        plain.close()

    def _write_second_transactions(self) -> None:
        if self._rd_transactional is None:
            self._rd_transactional = second_client(self.client.bootstrap, **{"transactional.id": "second"})
            self._rd_transactional.init_transactions(FLUSH_SECONDS_MAX)
        for _ in range(4):
            self._rd_transactional.begin_transaction()
            for _ in range(4):
                key, value, _ = self._record(keys=40)
                self._rd_transactional.produce("txn", partition=self.chance.randrange(2), key=key, value=value)
            _flush(self._rd_transactional)
            if self.chance.random() < 0.5:
                self._rd_transactional.abort_transaction(FLUSH_SECONDS_MAX)
            else:
                self._rd_transactional.commit_transaction(FLUSH_SECONDS_MAX)

    def _write_once(self) -> None:
        """Transactional producers that are never seen again."""
        for i in range(3):
            self._written += 1
            producer = self.client.producer(transactional_id=f"once-{self._written}")
            producer.begin()
            for _ in range(3):
                producer.send("txn", i, b"once-%d" % self._written, self._value())
            producer.flush()
            if i % 2:
                producer.abort()
            else:
                producer.commit()
            producer.close()

    def _record(self, keys: int = 60) -> tuple[bytes, bytes | None, tuple[tuple[str, bytes | None], ...]]:
        key = b"" if self.chance.random() < 0.02 else b"k%d" % self.chance.randrange(keys)
        value = None if self.chance.random() < 0.15 else b"" if self.chance.random() < 0.03 else self._value()
        headers: list[tuple[str, bytes | None]] = []
        while self.chance.random() < 0.2:
            content = None if self.chance.random() < 0.3 else b"c%d" % self.chance.randrange(99)
            headers.append((self.chance.choice(HEADER_NAMES), content))
        return key, value, tuple(headers)

    def _value(self) -> bytes:
        self._written += 1
        return b"v%d-" % self._written + bytes(self.chance.choices(b"abcdefgh \xff", k=self.chance.randint(10, 160)))


def _uncleanable(partition: Path, stable: int) -> int:
    """The base of the segment with the last stable offset; if that is after all of them, of the active one."""
    return max(base for path in partition.glob("*.log") if (base := int(path.stem)) <= stable)


def first_dirty_offsets(cluster: Cluster, number: int) -> dict[str, int]:
    """The first dirty offset of every partition that broker `number` has cleaned."""
    path = cluster.brokers[number].log_dir / "cleaner-offset-checkpoint"
    offsets = read_offsets(path) if path.exists() else {}
    return {f"{topic}-{partition}": offset for (topic, partition), offset in offsets.items()}
