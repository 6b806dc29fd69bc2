"""The four corruptions on a real, unmodified cluster of three brokers, all within one outage of broker 3.

Retentions are a second instead of a day; nothing else about the brokers is special. The moves are those of the simulated
stories. What every broker holds is read from its disk; what it serves is read by a consumer while it leads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path

from headstone.brokers.client import READ_COMMITTED, JavaClient, JavaProducer, KafkaClient
from headstone.brokers.distribution import Distribution
from headstone.brokers.processes import Cluster, wait_until
from headstone.errors import CorruptLog, Unfinished, UsageError
from headstone.interruption import sleep
from headstone.log.directory import as_partition, list_segments
from headstone.log.listing import BatchEntry, list_batches
from headstone.retention.policy import KAFKA

BROKERS = (1, 2, 3)
AWAY = 3
SHORT_MS = 1000
"""delete.retention.ms, and producer.id.expiration.ms, which keeps markers before transactions v2."""
ROLL_MS = 400
FILLER = b"z"
CLEAN_SECONDS_MAX = 120
READ_ATTEMPTS = 50
TRANSACTION_MS_MAX = 600_000
"""Longer than brokers need to stop on a slow machine: only the story may end a transaction."""

BROKER_SETTINGS = {
    "log.cleaner.backoff.ms": 200,
    "producer.id.expiration.ms": SHORT_MS,
    "producer.id.expiration.check.interval.ms": 200,
    "replica.lag.time.max.ms": 5000,
}
TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.ms": ROLL_MS,
    "min.cleanable.dirty.ratio": 0.001,
    "delete.retention.ms": SHORT_MS,
    "min.insync.replicas": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerServed:
    """One broker at the end: what its log holds (without filler), and what a read_committed consumer gets while it leads."""

    broker: int
    log: tuple[str, ...]
    log_end: int
    lso: int
    stuck: bool
    table: dict[str, str]


@dataclass(slots=True, kw_only=True)
class Outage:
    """One story on one version; `expected` is the table that every broker should serve."""

    variant: str
    about: str
    kafka: str
    expected: dict[str, str]
    steps: list[str] = field(default_factory=list)
    replicas: list[BrokerServed] = field(default_factory=list)

    @property
    def wrong(self) -> list[BrokerServed]:
        return [served for served in self.replicas if served.stuck or served.table != self.expected]

    @property
    def corrupt(self) -> bool:
        return bool(self.wrong)

    def as_json(self) -> dict[str, object]:
        return {"variant": self.variant, "rules": KAFKA, "corrupt": self.corrupt, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Put:
    key: bytes
    value: bytes | None
    transactional: bool = False
    """Begins a transaction that stays open until its End."""


class OutageEnd(Enum):
    COMMIT = "commits"
    ABORT = "aborts"


Step = Put | OutageEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """One story: what all brokers get, what broker 3 misses, and what comes once the cleaners have removed that.

    They have removed it when no marker and no record of `gone` is left.
    """

    variant: str
    about: str
    before: tuple[Step, ...]
    missed: tuple[Step, ...]
    gone: bytes | None
    after: tuple[Step, ...]
    lesson: str
    expected: dict[str, str]

    def left(self, batch: BatchEntry) -> bool:
        if batch.control is not None:
            return batch.count > 0
        return any(record.key == self.gone for record in batch.records or ())


STORIES = (
    Moves(
        variant="tombstone-divergence", about="deleted data reappears: a replica misses the tombstone",
        before=(Put(b"k", b"v"),), missed=(Put(b"k", None),), gone=b"k", after=(),
        lesson="the tombstone is gone everywhere, and broker 3 still holds the value that it deleted", expected={},
    ),
    Moves(
        variant="aborted-to-committed", about="aborted data is served as committed: a replica misses the ABORT marker",
        before=(Put(b"poison", b"x", transactional=True),), missed=(OutageEnd.ABORT,), gone=b"poison",
        after=(Put(b"good", b"data", transactional=True), OutageEnd.COMMIT),
        lesson="the next marker that it sees for its open transaction is the COMMIT of another", expected={"good": "data"},
    ),
    Moves(
        variant="committed-to-aborted", about="committed data is hidden: a replica misses the COMMIT marker",
        before=(Put(b"k", b"v"), Put(b"k", None, transactional=True)), missed=(OutageEnd.COMMIT,), gone=b"k",
        after=(Put(b"junk", b"x", transactional=True), OutageEnd.ABORT),
        lesson="the next marker that it sees for its open transaction is the ABORT of another", expected={},
    ),
    Moves(
        variant="stuck-read-committed", about="read_committed consumers freeze: a replica misses the COMMIT marker",
        before=(Put(b"k", b"v1", transactional=True),), missed=(OutageEnd.COMMIT, Put(b"k", b"v2")), gone=None, after=(),
        lesson="its transaction never ends", expected={"k": "v2"},
    ),
)  # fmt: skip


class OutageScene:
    """One topic of the cluster and the producers that write to it."""

    def __init__(self, moves: Moves, client: KafkaClient, outage: Outage) -> None:
        self.moves = moves
        self.topic = moves.variant
        self.outage = outage
        self._client = client
        self._plain: JavaProducer = client.producer(linger_ms=0)
        self._transactional: JavaProducer | None = None

    def play(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, Put):
                self._put(step)
            else:
                self._end(step)

    def _put(self, put: Put) -> None:
        producer = self._plain
        if put.transactional:
            if self._transactional is None:
                self._transactional = self._client.producer(
                    linger_ms=0, transactional_id=self.topic, transaction_timeout_ms=TRANSACTION_MS_MAX
                )
            producer = self._transactional
            producer.begin()
        offset = producer.write(self.topic, 0, put.key, put.value)
        self.tell(f"offset {offset}: {_pair(put.key, put.value)}" + (", in a transaction" if put.transactional else ""))

    def _end(self, end: OutageEnd) -> None:
        """Returns when the marker is there: before 4.0 a producer gets its answer as soon as the coordinator has decided."""
        assert self._transactional is not None
        if end is OutageEnd.COMMIT:
            self._transactional.commit()
        else:
            self._transactional.abort()
        wait_until(
            lambda: self._client.end(self.topic) == self._client.end(self.topic, isolation=READ_COMMITTED),
            f"the marker in {self.topic}",
        )
        self.tell(f"the transaction {end.value}")

    def fill(self) -> None:
        """Writes other traffic, without which no segment rolls and no cleaner runs."""
        self._plain.write(self.topic, 0, FILLER, b"%d" % time.monotonic_ns())

    def tell(self, step: str) -> None:
        self.outage.steps.append(step)


def _pair(key: bytes, value: bytes | None) -> str:
    return f"{key.decode()}={'null' if value is None else value.decode()}"


class OutageStage:
    """A running cluster with the chosen stories, and the moves of broker 3 and of the stories."""

    def __init__(
        self, cluster: Cluster, client: KafkaClient, scenes: Sequence[OutageScene], tell: Callable[[str], None]
    ) -> None:
        self.cluster = cluster
        self.client = client
        self.scenes = scenes
        self._tell = tell

    def begin(self) -> None:
        for scene in self.scenes:
            scene.play(scene.moves.before)
            wait_replicated(self.cluster, self.client, scene.topic)

    def switch_off(self) -> None:
        self._tell(f"switching broker {AWAY} off")
        self.cluster.brokers[AWAY].stop()
        for scene in self.scenes:
            scene.tell(f"broker {AWAY} is switched off")

    def miss(self) -> None:
        for scene in self.scenes:
            scene.play(scene.moves.missed)

    def wait_removed(self) -> None:
        started = time.monotonic()
        self._tell("waiting for the cleaners")

        def tell(scene: OutageScene) -> None:
            scene.tell(f"{time.monotonic() - started:.0f} s later the cleaners have removed it")

        wait_removed(self.cluster, *self.scenes, then=tell)

    def go_on(self) -> None:
        for scene in self.scenes:
            scene.play(scene.moves.after)

    def switch_on(self) -> None:
        self._tell(f"switching broker {AWAY} on")
        self.cluster.brokers[AWAY].start()

    def wait_replicated(self) -> None:
        for scene in self.scenes:
            wait_replicated(self.cluster, self.client, scene.topic)

    def read(self) -> list[Outage]:
        """What each broker serves while it leads."""
        for number in BROKERS:
            self._tell(f"broker {number} leads: reading what it serves")
            self.client.lead_all([(scene.topic, 0) for scene in self.scenes], number)
            for scene in self.scenes:
                scene.outage.replicas.append(_served(self.cluster, self.client, scene.topic, number))
        return [scene.outage for scene in self.scenes]


@contextmanager
def staged(
    distribution: Distribution, root: Path, variants: Sequence[str], *, tell: Callable[[str], None],
    topic_settings: Mapping[str, object] = TOPIC_SETTINGS, broker_settings: Mapping[str, object] = BROKER_SETTINGS,
    prepare: Callable[[Cluster], None] = lambda cluster: None,
) -> Iterator[OutageStage]:  # fmt: skip
    """Starts three brokers and creates a topic for each chosen story. `prepare` is called before the brokers start."""
    tell(f"starting three brokers of Kafka {distribution.version}")
    cluster = Cluster(distribution, root / "cluster", brokers=len(BROKERS), settings=broker_settings)
    prepare(cluster)
    with cluster, JavaClient(distribution, root / "client") as java:
        client = java.connect(cluster.bootstrap)
        scenes = []
        for moves in (moves for moves in STORIES if moves.variant in variants):
            outage = Outage(
                variant=moves.variant, about=moves.about, kafka=distribution.version, expected=moves.expected
            )
            client.create_topic(moves.variant, [list(BROKERS)], topic_settings)
            scenes.append(OutageScene(moves, client, outage))
        yield OutageStage(cluster, client, scenes, tell)
        client.close()


def play(
    distribution: Distribution, root: Path, variants: Sequence[str], *, tell: Callable[[str], None], away: bool = True
) -> list[Outage]:
    """Plays all chosen stories in one outage. With `away` False broker 3 stays on, and nothing goes wrong."""
    with staged(distribution, root, variants, tell=tell) as stage:
        stage.begin()
        if away:
            stage.switch_off()
        stage.miss()
        stage.wait_removed()
        stage.go_on()
        if away:
            stage.switch_on()
        stage.wait_replicated()
        for scene in stage.scenes if away else ():
            scene.tell(f"broker {AWAY} is back and in sync: {scene.moves.lesson}")
        return stage.read()


def wait_replicated(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    """In sync, and on every broker's disk to the last byte: only then does an outage begin where the story says."""
    client.wait_in_sync(topic, brokers=BROKERS)
    end = client.end(topic)
    wait_until(
        lambda: all(_log_end(cluster, number, topic) >= end for number in BROKERS), f"{topic} is replicated to {end}"
    )


def wait_removed(
    cluster: Cluster, *scenes: OutageScene, then: Callable[[OutageScene], None] = lambda scene: None
) -> None:
    """Cleaners work on all scenes concurrently; `then` is called for each scene when its own are done."""
    deadline = time.monotonic() + CLEAN_SECONDS_MAX
    waiting = list(scenes)
    while waiting:
        for scene in [scene for scene in waiting if not brokers_with(cluster, scene)]:
            waiting.remove(scene)
            then(scene)
        for scene in waiting:
            if time.monotonic() > deadline:
                raise Unfinished(
                    f"{scene.topic}: the cleaners did not remove it within {CLEAN_SECONDS_MAX} s; "
                    f"run it again with --keep DIR and look at {cluster.root.name}/broker-*/broker.log"
                )
            scene.fill()
        if waiting:
            sleep(ROLL_MS / 1000)


def brokers_with(cluster: Cluster, scene: OutageScene) -> list[int]:
    """Running brokers that still have anything that the story's cleaners must remove."""
    running = [number for number, broker in cluster.brokers.items() if broker.running]
    return [number for number in running if any(map(scene.moves.left, _log(cluster, number, scene.topic)))]


def _log(cluster: Cluster, number: int, topic: str) -> list[BatchEntry]:
    return read_running_log(cluster.brokers[number].log_dir / f"{topic}-0")


def _log_end(cluster: Cluster, number: int, topic: str) -> int:
    batches = _log(cluster, number, topic)
    return batches[-1].last_offset + 1 if batches else 0


def read_running_log(path: Path) -> list[BatchEntry]:
    """All batches on a running broker's disk. Reads again if the broker swaps segments or appends meanwhile."""
    partition = as_partition(path)
    for _ in range(READ_ATTEMPTS):
        try:
            if partition is not None:
                return [batch for file in list_segments(partition) for batch in list_batches(file, with_records=True)]
        except (FileNotFoundError, UsageError, CorruptLog):
            pass
        sleep(0.1)
        partition = as_partition(path)
    raise Unfinished(f"{path}: cannot be read while the broker is writing it")


def _served(cluster: Cluster, client: KafkaClient, topic: str, number: int) -> BrokerServed:
    reading = client.read(topic, isolation=READ_COMMITTED, broker=number)
    shown = [text for batch in _log(cluster, number, topic) for text in show(batch)]
    table = {key.decode(): value.decode() for key, value in reading.table().items() if key != FILLER}
    return BrokerServed(
        broker=number, log=tuple(shown), log_end=reading.end, lso=reading.limit,
        stuck=reading.stuck, table=dict(sorted(table.items())),
    )  # fmt: skip


def show(batch: BatchEntry) -> list[str]:
    """For example `3:k=v`, `4:k=null txn`, `5:COMMIT`; nothing for filler and header-only batches."""
    if batch.control is not None:
        return [f"{batch.base_offset}:{batch.control}"] if batch.count else []
    suffix = " txn" if batch.transactional else ""
    return [f"{r.offset}:{_pair(r.key or b'', r.value)}{suffix}" for r in batch.records or () if r.key != FILLER]
