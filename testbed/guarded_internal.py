"""Kafka's own compacted topics as victims: a group that was deleted, a transactional id that expired, broker 3 away meanwhile.

`__consumer_offsets` and `__transaction_state` are compacted logs like any other: the deletion is a tombstone, and a broker that
missed it brings back what was deleted when it becomes the coordinator. Owns what is done to the two topics and how their
coordinators are asked; outages, the guard and the checks are those of the other stories.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from headstone.brokers.client import JavaClient, JavaProducer, KafkaClient
from headstone.brokers.distribution import Distribution
from headstone.brokers.outages import (
    AWAY,
    BROKER_SETTINGS,
    BROKERS,
    SHORT_MS,
    TOPIC_SETTINGS,
    BrokerServed,
    Moves,
    Outage,
    OutageScene,
    OutageStage,
    read_running_log,
)
from headstone.brokers.processes import Cluster, wait_until
from headstone.cluster.admin import Admin
from headstone.cluster.connection import Connection
from headstone.errors import Unfinished
from headstone.log.listing import BatchEntry
from testbed.guarded import RETENTION_MS, STEP_SECONDS_MAX, Guard, Guarded, Play
from testbed.guarded_troubles import Tell, late, undisturbed

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
TOPIC = "orders"
NAME = "billing"
"""The group that is deleted, and the transactional id that expires."""
OTHER = "others"
OFFSET = 42
EXPIRY_MS = 12_000
"""transactional.id.expiration.ms of brokers 1 and 2: longer than it takes to stop a broker. Broker 3 has Kafka's default of a
week, so what it brings back stays long enough to be seen."""
BROKER_SETTINGS_HERE = {
    **BROKER_SETTINGS,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "transactional.id.expiration.ms": EXPIRY_MS,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 500,
}
UNGUARDED = "internal-unguarded"


class Forgotten(Moves):
    """One topic's story: every record whose key contains the name, value or tombstone, is to be removed."""

    __slots__ = ()

    def left(self, batch: BatchEntry) -> bool:
        return any(NAME.encode() in (record.key or b"") for record in batch.records or ())


STORIES = (
    Forgotten(
        variant=OFFSETS, about="offsets of a deleted group reappear: a replica misses their tombstones", before=(),
        missed=(), gone=None, after=(), lesson="it still holds the offsets of the group", expected={},
    ),
    Forgotten(
        variant=TRANSACTIONS, about="an expired transactional id reappears: a replica misses its tombstone", before=(),
        missed=(), gone=None, after=(), lesson="it still holds the transactional id", expected={},
    ),
)  # fmt: skip


class Coordinators:
    """Asks and instructs the coordinators of groups and transactions, with Kafka's own admin client.

    It finds the coordinator anew for every question, and asks again while that one loads its log."""

    def __init__(self, java: JavaClient, client: KafkaClient) -> None:
        self._java = java
        self._client = client
        self._admin = java.kafka.clients.admin.Admin.create(java.properties({"bootstrap.servers": client.bootstrap}))
        self._producer: JavaProducer | None = None
        self._used = 0.0

    def close(self) -> None:
        self._admin.close()

    def commit(self, group: str, offset: int) -> None:
        partition = self._java.kafka.common.TopicPartition(TOPIC, 0)
        committed = self._java.kafka.clients.consumer.OffsetAndMetadata(offset)
        self._admin.alterConsumerGroupOffsets(group, self._java.map({partition: committed})).all().get()

    def delete_group(self, group: str) -> None:
        self._admin.deleteConsumerGroups(self._java.list([group])).all().get()

    def committed(self, group: str) -> int | None:
        offsets = self._admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
        committed = offsets.get(self._java.kafka.common.TopicPartition(TOPIC, 0))
        return None if committed is None else int(committed.offset())

    def transact(self, name: str) -> None:
        """One transaction of a producer that is never seen again; returns when its coordinator has finished it."""
        producer = self._client.producer(linger_ms=0, transactional_id=name)
        _transaction(producer)
        producer.close()
        wait_until(lambda: self.transaction(name) == "CompleteCommit", f"the transaction of {name}")

    def transaction(self, name: str) -> str | None:
        """The state of a transactional id; None if it is unknown."""
        from py4j.protocol import Py4JJavaError

        asked = self._admin.describeTransactions(self._java.list([name])).description(name)
        try:
            return str(asked.get().state().toString())
        except Py4JJavaError as error:
            if "TransactionalIdNotFoundException" in str(error.java_exception.toString()):
                return None
            raise

    def fill_offsets(self) -> None:
        self.commit(OTHER, time.monotonic_ns())

    def fill_transactions(self) -> None:
        """Writes with a producer that is created again when its id may have expired."""
        if self._producer is None or time.monotonic() - self._used > EXPIRY_MS / 2000:
            self._producer = self._client.producer(linger_ms=0, transactional_id=OTHER)
        _transaction(self._producer)
        self._used = time.monotonic()


def _transaction(producer: JavaProducer) -> None:
    producer.begin()
    producer.write(TOPIC, 0, b"order", b"%d" % time.monotonic_ns())
    producer.commit()


class InternalScene(OutageScene):
    def __init__(self, moves: Moves, client: KafkaClient, outage: Outage, traffic: Callable[[], None]) -> None:
        super().__init__(moves, client, outage)
        self._traffic = traffic

    def fill(self) -> None:
        self._traffic()


class InternalStage(OutageStage):
    """The same outage; what happens to the two topics happens through their coordinators."""

    def __init__(
        self,
        cluster: Cluster,
        client: KafkaClient,
        scenes: Sequence[OutageScene],
        tell: Tell,
        coordinators: Coordinators,
    ) -> None:
        super().__init__(cluster, client, scenes, tell)
        self.coordinators = coordinators

    def begin(self) -> None:
        self.coordinators.commit(NAME, OFFSET)
        self.coordinators.transact(NAME)
        self.wait_replicated()

    def switch_off(self) -> None:
        """With one more transaction before it, from which the time to expire counts."""
        self.coordinators.transact(NAME)
        self.wait_replicated()
        super().switch_off()
        for scene in self.scenes:
            keys = [text for text in _shown(self.cluster, AWAY, scene.topic) if NAME in text]
            if not keys or keys[-1].endswith("=null"):
                raise Unfinished(f"{scene.topic}: broker {AWAY} was too slow to be switched off; run it again")

    def miss(self) -> None:
        """The group is deleted now; the transactional id expires by itself."""
        self.coordinators.delete_group(NAME)

    def expired(self) -> bool:
        return self.coordinators.transaction(NAME) is None

    def read(self) -> list[Outage]:
        """What each broker answers while it is the coordinator of both."""
        for number in BROKERS:
            self._tell(f"broker {number} is the coordinator: asking it")
            self.client.lead_all([(scene.topic, 0) for scene in self.scenes], number)
            wait_until(partial(self._all_say, number), f"everybody knows that broker {number} leads")
            offset, state = self.coordinators.committed(NAME), self.coordinators.transaction(NAME)
            answers = {OFFSETS: "" if offset is None else str(offset), TRANSACTIONS: state or ""}
            for scene in self.scenes:
                scene.outage.replicas.append(self._served(scene, number, answers[scene.topic]))
        return [scene.outage for scene in self.scenes]

    def _all_say(self, leader: int) -> bool:
        """Whether every broker names this coordinator."""
        topics = [scene.topic for scene in self.scenes]
        leaders = set()
        for number in BROKERS:
            with Admin(Connection.parse(self.client.address(number), {})) as admin:
                described = admin.describe(topics).topics
            leaders |= {state.leader for partitions in described.values() for state in partitions.values()}
        return leaders == {leader}

    def _served(self, scene: OutageScene, number: int, answer: str) -> BrokerServed:
        end = self.client.end(scene.topic)
        shown = tuple(text for text in _shown(self.cluster, number, scene.topic) if NAME in text)
        table = {NAME: answer} if answer else {}
        return BrokerServed(broker=number, log=shown, log_end=end, lso=end, stuck=False, table=table)


def _shown(cluster: Cluster, number: int, topic: str) -> list[str]:
    """For example `3:billing orders=26 bytes`, `7:billing orders=null`: the printable part of what the coordinators wrote."""
    batches = read_running_log(cluster.brokers[number].log_dir / f"{topic}-0")
    return [
        f"{r.offset}:{_printable(r.key or b'')}={'null' if r.value is None else f'{len(r.value)} bytes'}"
        for batch in batches
        for r in batch.records or ()
    ]


def _printable(key: bytes) -> str:
    return " ".join(bytes(byte if 32 < byte < 127 else 32 for byte in key).decode().split())


class InternalPlay(Play):
    """The danger begins when the later of the two tombstones is written, not when broker 3 stops."""

    def wait_past_danger(self) -> None:
        stage = self.stage
        assert isinstance(stage, InternalStage)
        wait_until(stage.expired, f"{NAME} expires", seconds_max=STEP_SECONDS_MAX)
        self._began = time.monotonic()
        super().wait_past_danger()


def unguarded(play: Play) -> None:
    play.away()
    play.stage.wait_removed()
    play.back()


INTERNAL_TROUBLES: dict[str, tuple[Callable[[Play], None], tuple[str, ...], int]] = {
    UNGUARDED: (unguarded, (), SHORT_MS),
    "internal": (undisturbed, (), RETENTION_MS),
    "internal-late": (late, ("--allow", "readmission"), RETENTION_MS),
}
"""With what the guard is allowed, and delete.retention.ms. The first runs without a guard, and ends corrupt."""


@contextmanager
def internal_stage(distribution: Distribution, root: Path, *, tell: Tell, retention_ms: int) -> Iterator[InternalStage]:
    """Three brokers with the two topics as Kafka makes them, but rolled and cleaned within moments."""
    tell(f"starting three brokers of Kafka {distribution.version}")
    cluster = Cluster(distribution, root / "cluster", brokers=len(BROKERS), settings=BROKER_SETTINGS_HERE)
    del cluster.brokers[AWAY].settings["transactional.id.expiration.ms"]
    with cluster, JavaClient(distribution, root / "client") as java:
        client = java.connect(cluster.bootstrap)
        coordinators = Coordinators(java, client)
        fills = {OFFSETS: coordinators.fill_offsets, TRANSACTIONS: coordinators.fill_transactions}
        client.create_topic(TOPIC, [list(BROKERS)], {"min.insync.replicas": 1})
        scenes = []
        for moves in STORIES:
            client.create_topic(moves.variant, [list(BROKERS)], {**TOPIC_SETTINGS, "delete.retention.ms": retention_ms})
            outage = Outage(
                variant=moves.variant, about=moves.about, kafka=distribution.version, expected=moves.expected
            )
            scenes.append(InternalScene(moves, client, outage, fills[moves.variant]))
        yield InternalStage(cluster, client, scenes, tell, coordinators)
        coordinators.close()
        client.close()


def play_internal(distribution: Distribution, root: Path, trouble: str, *, tell: Tell) -> Guarded:
    act, words, retention_ms = INTERNAL_TROUBLES[trouble]
    result = Guarded(trouble=trouble, kafka=distribution.version)
    with internal_stage(distribution, root, tell=tell, retention_ms=retention_ms) as stage:
        stage.begin()
        guard = Guard(stage.cluster.bootstrap, root, *words)
        play = InternalPlay(stage, guard, result)
        try:
            act(play)
            play.finish()
        finally:
            guard.kill()
            play.admin.close()
    return result
