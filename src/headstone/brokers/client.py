"""Kafka's own Java client, in exactly the version under test, driven from Python over Py4J.

One Java process serves any number of clusters. A call costs a fraction of a millisecond, so this is for stories and tests, not
for volume. It is on no data path.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from headstone.brokers.distribution import Distribution, java_path, write_logging
from headstone.brokers.processes import QUICK_JAVA, wait_until
from headstone.errors import not_installed

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"
BYTES_SERIALIZER = "org.apache.kafka.common.serialization.ByteArraySerializer"
BYTES_DESERIALIZER = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
JAVA_OPTIONS = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", *QUICK_JAVA]
"""Out of memory ends the process: otherwise a producer whose network thread died of it would wait for ever."""
POLL_MS = 200
QUIET_SECONDS = 6.0
"""A consumer that gets nothing for this long, with more to come, is stuck."""

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int = -1
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """What a consumer got from the start to `end`; `position` below `end` means that it waits there for ever.

    `limit` is the leader's high watermark, or its last stable offset for a read_committed consumer."""

    records: tuple[Consumed, ...]
    position: int
    limit: int
    end: int

    @property
    def stuck(self) -> bool:
        return self.position < self.end

    def table(self) -> dict[bytes, bytes]:
        newest = {record.key: record.value for record in self.records if record.key is not None}
        return {key: value for key, value in newest.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPartition:
    leader: int | None
    isr: tuple[int, ...]
    replicas: tuple[int, ...]


class JavaClient:
    """A Java process with Kafka's client classes; a context manager that ends it."""

    def __init__(self, distribution: Distribution, work: Path) -> None:
        try:
            from py4j.java_gateway import JavaGateway
        except ImportError as error:
            raise not_installed("py4j, which comes with pyspark, is", "spark") from error
        write_logging(work, level="ERROR", target="SYSTEM_ERR")
        self.gateway = JavaGateway.launch_gateway(
            classpath=distribution.class_path(work), javaopts=JAVA_OPTIONS,
            die_on_exit=True, java_path=java_path(), enable_auth=True,
        )  # fmt: skip
        self.java = self.gateway.jvm.java
        self.kafka = self.gateway.jvm.org.apache.kafka

    def connect(self, bootstrap: str) -> KafkaClient:
        return KafkaClient(self, bootstrap)

    def __enter__(self) -> JavaClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Does not close producers with an open transaction properly: it stays open, as after a crash."""
        self.gateway.shutdown()
        self.gateway.java_process.kill()
        self.gateway.java_process.wait()

    def map(self, entries: Mapping[Any, Any]) -> Any:
        made = self.java.util.HashMap()
        for key, value in entries.items():
            made.put(key, value)
        return made

    def list(self, items: Iterable[Any]) -> Any:
        made = self.java.util.ArrayList()
        for item in items:
            made.add(item)
        return made

    def properties(self, settings: Mapping[str, object]) -> Any:
        """Every value as text: Kafka parses it."""
        return self.map({name: str(value) for name, value in settings.items()})


class KafkaClient:
    """What one does with a cluster: topics, settings, leadership, producers, reading a partition."""

    def __init__(self, java: JavaClient, bootstrap: str) -> None:
        self._java = java
        self.bootstrap = bootstrap
        self._admin = java.kafka.clients.admin.Admin.create(java.properties({"bootstrap.servers": bootstrap}))

    def close(self) -> None:
        self._admin.close()

    def create_topic(self, name: str, assignment: Sequence[Sequence[int]], settings: Mapping[str, object]) -> None:
        """`assignment`: the brokers of each partition, the preferred leader first. Returns when every leader is known."""
        placed = self._java.map({number: self._java.list(brokers) for number, brokers in enumerate(assignment)})
        topic = self._java.kafka.clients.admin.NewTopic(name, placed).configs(self._java.properties(settings))
        self._admin.createTopics(self._java.list([topic])).all().get()
        wait_until(lambda: all(self._is_led(name, number) for number in range(len(assignment))), f"leaders of {name}")

    def delete_topic(self, name: str) -> None:
        """Returns when no broker shows it any more."""
        self._admin.deleteTopics(self._java.list([name])).all().get()
        wait_until(lambda: not self._is_led(name, 0), f"the end of {name}")

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Deletes records below the offset; log start is there afterwards."""
        topic_partition = self._partition(topic, partition)
        # By reflection: Py4J does not find a static method if there is also an instance method of that name.
        lang = self._java.java.lang
        types, values = self._java.gateway.new_array(lang.Class, 1), self._java.gateway.new_array(lang.Object, 1)
        types[0], values[0] = lang.Long.TYPE, lang.Long.valueOf(before)
        kind = lang.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete")
        below = kind.getMethod("beforeOffset", types).invoke(None, values)
        self._admin.deleteRecords(self._java.map({topic_partition: below})).all().get()

    def alter_topic(self, name: str, settings: Mapping[str, object]) -> None:
        self._alter("TOPIC", name, settings)

    def alter_brokers(self, settings: Mapping[str, object]) -> None:
        """Changes the dynamic default of all brokers."""
        self._alter("BROKER", "", settings)

    def _alter(self, kind: str, name: str, settings: Mapping[str, object]) -> None:
        admin = self._java.kafka.clients.admin
        resource_kind = getattr(self._java.gateway.jvm, "org.apache.kafka.common.config.ConfigResource$Type")
        resource = self._java.kafka.common.config.ConfigResource(getattr(resource_kind, kind), name)
        change = getattr(self._java.gateway.jvm, "org.apache.kafka.clients.admin.AlterConfigOp$OpType").SET
        changes = self._java.list(
            admin.AlterConfigOp(admin.ConfigEntry(key, str(value)), change) for key, value in settings.items()
        )
        self._admin.incrementalAlterConfigs(self._java.map({resource: changes})).all().get()

    def state(self, topic: str, partition: int = 0) -> ClientPartition:
        """According to whichever broker was asked: it may not have heard of the last change yet, although others have."""
        return self.states([(topic, partition)])[topic, partition]

    def states(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], ClientPartition]:
        topics = self._java.list(sorted({topic for topic, _ in partitions}))
        described = self._admin.describeTopics(topics).allTopicNames().get()
        return {
            (topic, number): _partition_state(described.get(topic).partitions().get(number))
            for topic, number in partitions
        }

    def _is_led(self, topic: str, partition: int) -> bool:
        from py4j.protocol import Py4JJavaError

        try:
            return self.state(topic, partition).leader is not None
        except Py4JJavaError:  # a broker that has not heard of the topic yet
            return False

    def wait_in_sync(self, topic: str, partition: int = 0, *, brokers: Sequence[int]) -> None:
        """Waits until each of these brokers itself shows it, so that any of them may be asked next."""
        wait_until(
            lambda: all(self._in_sync(topic, partition, broker) == sorted(brokers) for broker in brokers),
            f"brokers {list(brokers)} in sync for {topic}-{partition}",
        )

    def _in_sync(self, topic: str, partition: int, broker: int) -> list[int]:
        [info] = [info for info in self._told_by(broker, topic) if info.partition() == partition] or [None]
        return [] if info is None else sorted(node.id() for node in info.inSyncReplicas())

    def _told_by(self, broker: int, topic: str) -> list[Any]:
        """Uses a new consumer, which asks the broker that it was given first. Empty if that broker does not know the topic."""
        address = self._addresses().get(broker)
        if address is None:
            return []
        consumer = self._consumer(address, READ_UNCOMMITTED)
        try:
            return list(consumer.partitionsFor(topic) or ())
        finally:
            consumer.close()

    def lead(self, topic: str, partition: int, broker: int) -> None:
        self.lead_all([(topic, partition)], broker)

    def lead_all(self, partitions: Sequence[tuple[str, int]], broker: int) -> None:
        """Moves leadership to an in-sync replica: first in the list, then a preferred election.

        Returns when that broker itself says so; others may still name the previous leader for a moment."""
        orders = {
            partition: (broker, *(other for other in state.replicas if other != broker))
            for partition, state in self.states(partitions).items()
        }
        admin, optional = self._java.kafka.clients.admin, self._java.java.util.Optional
        wanted = {
            self._partition(*partition): optional.of(admin.NewPartitionReassignment(self._java.list(order)))
            for partition, order in orders.items()
        }
        self._admin.alterPartitionReassignments(self._java.map(wanted)).all().get()
        wait_until(
            lambda: {partition: state.replicas for partition, state in self.states(partitions).items()} == orders,
            "the order of replicas",
        )
        wait_until(lambda: self._elected(partitions, broker), f"broker {broker} leads {partitions}")

    def _elected(self, partitions: Sequence[tuple[str, int]], broker: int) -> bool:
        """Whether it leads them all; if not, requests it. Refusals are no errors: a replica may not be in sync yet, or it may
        lead already where some broker has not heard of it."""
        led_elsewhere = self._led_by_others(partitions, broker)
        if led_elsewhere:
            asked = self._java.java.util.HashSet()
            for partition in led_elsewhere:
                asked.add(self._partition(*partition))
            self._admin.electLeaders(self._java.kafka.common.ElectionType.PREFERRED, asked).partitions().get()
        return not led_elsewhere

    def _led_by_others(self, partitions: Sequence[tuple[str, int]], broker: int) -> list[tuple[str, int]]:
        """According to that broker itself."""
        leaders = {
            (topic, info.partition()): info.leader()
            for topic in sorted({topic for topic, _ in partitions})
            for info in self._told_by(broker, topic)
        }
        led = {partition for partition, leader in leaders.items() if leader is not None and leader.id() == broker}
        return [partition for partition in partitions if partition not in led]

    def _partition(self, topic: str, number: int) -> Any:
        return self._java.kafka.common.TopicPartition(topic, number)

    def producer(self, **settings: object) -> JavaProducer:
        """Settings by Kafka's names, with underscores for dots."""
        given = {name.replace("_", "."): value for name, value in settings.items()}
        return JavaProducer(self._java, {"bootstrap.servers": self.bootstrap, **given})

    def address(self, broker: int) -> str:
        return self._addresses()[broker]

    def _addresses(self) -> dict[int, str]:
        nodes = self._admin.describeCluster().nodes().get().toArray()
        return {node.id(): f"{node.host()}:{node.port()}" for node in nodes}

    def _consumer(self, bootstrap: str, isolation: str) -> Any:
        settings = {
            "bootstrap.servers": bootstrap, "isolation.level": isolation, "enable.auto.commit": "false",
            "key.deserializer": BYTES_DESERIALIZER, "value.deserializer": BYTES_DESERIALIZER,
            "auto.offset.reset": "earliest",
        }  # fmt: skip
        return self._java.kafka.clients.consumer.KafkaConsumer(self._java.properties(settings))

    def read(
        self, topic: str, partition: int = 0, *, isolation: str = READ_COMMITTED, broker: int | None = None
    ) -> Consumption:
        """Reads a whole partition from its leader, as Kafka's consumer gets it. `broker`, if given, is that leader."""
        consumer = self._consumer(self.bootstrap if broker is None else self.address(broker), isolation)
        try:
            return self._read(consumer, topic, partition)
        finally:
            consumer.close()

    def _read(self, consumer: Any, topic: str, partition: int) -> Consumption:
        topic_partition = self._partition(topic, partition)
        only = self._java.list([topic_partition])
        consumer.partitionsFor(topic)
        consumer.assign(only)
        consumer.seekToBeginning(only)
        end, limit = self.end(topic, partition), int(consumer.endOffsets(only).get(topic_partition))
        patience = self._java.java.time.Duration.ofMillis(POLL_MS)
        records: list[Consumed] = []
        position, moved = consumer.position(topic_partition), time.monotonic()
        while position < end and time.monotonic() - moved < QUIET_SECONDS:
            records += [_consumed(record) for record in consumer.poll(patience).records(topic_partition)]
            following = consumer.position(topic_partition)
            if following > position:
                position, moved = following, time.monotonic()
        return Consumption(records=tuple(records), position=position, limit=limit, end=end)

    def end(self, topic: str, partition: int = 0, *, isolation: str = READ_UNCOMMITTED) -> int:
        """The leader's high watermark; with READ_COMMITTED its last stable offset."""
        admin = self._java.kafka.clients.admin
        level = self._java.kafka.common.IsolationLevel
        options = admin.ListOffsetsOptions(
            level.READ_COMMITTED if isolation == READ_COMMITTED else level.READ_UNCOMMITTED
        )
        topic_partition = self._partition(topic, partition)
        asked = self._java.map({topic_partition: admin.OffsetSpec.latest()})
        return int(self._admin.listOffsets(asked, options).partitionResult(topic_partition).get().offset())


class JavaProducer:
    """One Java producer; transactional if it was given a `transactional_id`."""

    def __init__(self, java: JavaClient, settings: Mapping[str, object]) -> None:
        self._java = java
        # Every name in a package is a question to the Java process: these are asked once, not for each record.
        self._record = java.kafka.clients.producer.ProducerRecord
        self._header = java.kafka.common.header.internals.RecordHeader
        given = {"key.serializer": BYTES_SERIALIZER, "value.serializer": BYTES_SERIALIZER, **settings}
        self._producer = java.kafka.clients.producer.KafkaProducer(java.properties(given))
        if "transactional.id" in given:
            self._producer.initTransactions()

    def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, *,
        timestamp_ms: int | None = None, headers: Headers = (),
    ) -> None:  # fmt: skip
        """Does not wait; `flush` does."""
        made = None
        if headers:
            made = self._java.list(self._header(name, content) for name, content in headers)
        when = None if timestamp_ms is None else self._java.java.lang.Long.valueOf(timestamp_ms)
        self._producer.send(self._record(topic, partition, when, key, value, made))

    def flush(self) -> None:
        self._producer.flush()

    def write(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> int:
        """Writes one record and waits until it is acknowledged; returns its offset."""
        record = self._record(topic, partition, None, key, value, None)
        return int(self._producer.send(record).get().offset())

    def begin(self) -> None:
        self._producer.beginTransaction()

    def commit(self) -> None:
        self._producer.commitTransaction()

    def abort(self) -> None:
        self._producer.abortTransaction()

    def close(self) -> None:
        self._producer.close()


def _partition_state(info: Any) -> ClientPartition:
    leader = info.leader()
    return ClientPartition(
        leader=None if leader is None or leader.id() < 0 else leader.id(),
        isr=tuple(sorted(node.id() for node in info.isr())),
        replicas=tuple(node.id() for node in info.replicas()),
    )


def _consumed(record: Any) -> Consumed:
    headers = tuple((header.key(), header.value()) for header in record.headers().toArray())
    return Consumed(
        offset=record.offset(), key=record.key(), value=record.value(), timestamp_ms=record.timestamp(), headers=headers
    )
