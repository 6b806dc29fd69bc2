"""What was read in Kafka's sources, seen on a broker (docs/kafka-facts.md names each of these tests)."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from headstone.brokers.client import READ_COMMITTED, READ_UNCOMMITTED, JavaClient, JavaProducer, KafkaClient
from headstone.brokers.distribution import Distribution
from headstone.brokers.outages import BROKER_SETTINGS, TOPIC_SETTINGS, read_running_log
from headstone.brokers.processes import Cluster, wait_until
from headstone.log.listing import BatchEntry
from testbed.side_by_side import TINY_MAP, TINY_MAP_KEYS
from testbed.workloads import second_client, segment_bytes
from tests.oracle.batches import Batch, Record, encode

DAY_MS = 86_400_000
LONG_MAX = (1 << 63) - 1
FILLER = b"z"


class Lab:
    """One broker whose segments roll and whose cleaner runs within a second."""

    def __init__(self, cluster: Cluster, java: JavaClient) -> None:
        self.cluster = cluster
        self.broker = cluster.brokers[1]
        self.client: KafkaClient = java.connect(cluster.bootstrap)
        self.plain: JavaProducer = self.client.producer(linger_ms=0)

    def topic(self, name: str, settings: Mapping[str, object] | None = None) -> str:
        self.client.create_topic(name, [[1]], {**TOPIC_SETTINGS, **(settings or {})})
        return name

    def put(self, topic: str, key: bytes, value: bytes | None) -> int:
        return self.plain.write(topic, 0, key, value)

    def log(self, topic: str) -> list[BatchEntry]:
        return read_running_log(self.broker.log_dir / f"{topic}-0")

    def fill_until(self, topic: str, what: str, true: object) -> None:
        """Other traffic, which rolls segments and wakes the cleaner, until it is true of the log."""
        assert callable(true)

        def look() -> bool:
            self.put(topic, FILLER, b"%d" % time.monotonic_ns())
            return bool(true(self.log(topic)))

        wait_until(look, what, every=0.45)

    def wait_decided(self, topic: str) -> None:
        """A producer may be told before the marker is written."""
        wait_until(lambda: self.client.end(topic, isolation=READ_COMMITTED) == self.client.end(topic), "a marker")

    def restart(self, before: object = None) -> None:
        self.broker.stop()
        assert self.broker.stopped_cleanly
        if callable(before):
            before()
        self.broker.start()

    def folder(self, topic: str) -> Path:
        return self.broker.log_dir / f"{topic}-0"


@pytest.fixture(scope="module")
def lab(distribution: Distribution, java: JavaClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    settings = {**BROKER_SETTINGS, "producer.id.expiration.ms": DAY_MS}
    with Cluster(distribution, tmp_path_factory.mktemp("lab"), settings=settings) as cluster:
        yield Lab(cluster, java)


def has_key(log: list[BatchEntry], key: bytes) -> bool:
    return any(record.key == key for batch in log for record in batch.records or ())


def markers(log: list[BatchEntry]) -> int:
    return sum(batch.control is not None and batch.count > 0 for batch in log)


def passes_of(lab: Lab, topic: str) -> int:
    return lab.broker.said().count(f"Beginning cleaning of log {topic}-0 ")


def test_a_horizon_from_a_client_is_not_refused(lab: Lab) -> None:
    """`LogValidator` does not stop a client from writing the bit. The tombstone then has no time of grace at all."""
    topic = lab.topic("horizon-from-client", {"delete.retention.ms": DAY_MS})
    lab.put(topic, b"k", b"v")
    now = int(time.time() * 1000)
    put_due_tombstone(lab, topic, now_ms=now)
    stored = lab.log(topic)[-1]
    assert stored.delete_horizon_ms == now - 5000
    assert [(r.key, r.value, r.timestamp_ms) for r in lab.client.read(topic).records][-1] == (b"k", None, now)
    lab.fill_until(topic, "the tombstone is gone before its day is over", lambda log: not has_key(log, b"k"))


def put_due_tombstone(lab: Lab, topic: str, *, now_ms: int) -> None:
    """Of b"k", with a horizon that has passed: the next pass removes it."""
    record = Record(offset=0, timestamp=now_ms, key=b"k", value=None)
    stamped = Batch(
        base_offset=0, last_offset_delta=0, records=(record,), count=1, base_timestamp=now_ms - 5000,
        horizon_ms=now_ms - 5000, max_timestamp=now_ms, leader_epoch=0, codec="none", transactional=False, producer_id=-1,
        producer_epoch=-1, base_sequence=-1,
    )  # fmt: skip
    assert produce_raw(lab.cluster.ports[1], topic, encode(stamped)) == 0


def produce_raw(port: int, topic: str, batch: bytes) -> int:
    """One Produce request (version 8) as it is on the wire; the error code of the answer."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    header = struct.pack(">hhi", 0, 8, 1) + text("raw")
    body = struct.pack(">hhi", -1, -1, 10_000) + struct.pack(">i", 1) + text(topic)
    body += struct.pack(">iii", 1, 0, len(batch)) + batch
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(struct.pack(">i", len(header + body)) + header + body)
        (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        answer = connection.recv(size, socket.MSG_WAITALL)
    at = 4 + 4 + 2 + len(topic) + 4 + 4
    return int(struct.unpack_from(">h", answer, at)[0])


def test_retention_for_ever_is_never_stamped(lab: Lab) -> None:
    """`MemoryRecords.filterTo`: now + delete.retention.ms overflows, the bit is not set, pass after pass."""
    topic = lab.topic("for-ever", {"delete.retention.ms": LONG_MAX})
    lab.put(topic, b"k", b"v")
    lab.put(topic, b"k", None)
    lab.fill_until(topic, "two passes", lambda log: passes_of(lab, topic) >= 3)
    tombstone = next(batch for batch in lab.log(topic) if any(r.key == b"k" for r in batch.records or ()))
    assert tombstone.delete_horizon_ms is None
    assert [record.value for record in tombstone.records or ()] == [None]


def test_deleted_snapshots_forget_open_transactions(lab: Lab) -> None:
    """`UnifiedLog.rebuildProducerState` without a snapshot: undecided data is served, and the abort behind it hides nothing."""
    topic = lab.topic("no-snapshots", {"segment.ms": DAY_MS})
    producer = lab.client.producer(transactional_id="no-snapshots", linger_ms=0, transaction_timeout_ms=600_000)
    producer.begin()
    producer.write(topic, 0, b"poison", b"x")
    lab.put(topic, b"k", b"v")
    assert lab.client.end(topic, isolation=READ_COMMITTED) == 0
    lab.restart(lambda: [file.unlink() for file in lab.folder(topic).glob("*.snapshot")])
    assert lab.client.end(topic, isolation=READ_COMMITTED) == lab.client.end(topic) == 2
    producer.abort()
    wait_until(lambda: markers(lab.log(topic)) == 1, "the ABORT marker")
    assert lab.client.read(topic).table() == {b"poison": b"x", b"k": b"v"}


def test_a_deleted_abort_index_serves_what_was_aborted(lab: Lab) -> None:
    """`LocalLog.collectAbortedTransactions` asks the index alone."""
    topic = lab.topic("no-txnindex", {"segment.ms": DAY_MS})
    producer = lab.client.producer(transactional_id="no-txnindex", linger_ms=0)
    producer.begin()
    producer.write(topic, 0, b"poison", b"x")
    producer.abort()
    lab.put(topic, b"k", b"v")
    wait_until(lambda: markers(lab.log(topic)) == 1, "the ABORT marker")
    lab.restart()
    assert lab.client.read(topic).table() == {b"k": b"v"}
    lab.restart(lambda: [file.unlink() for file in lab.folder(topic).glob("*.txnindex")])
    assert lab.client.read(topic).table() == {b"poison": b"x", b"k": b"v"}


def test_an_old_snapshot_freezes_readers_once_the_marker_is_gone(distribution: Distribution, lab: Lab) -> None:
    """`ProducerStateManager.truncateAndReload`: state is reloaded from a snapshot that was taken inside a transaction."""
    if distribution.release < (4,):
        lab.client.alter_brokers({"producer.id.expiration.ms": 1000})
    topic = lab.topic("old-snapshot", {**segment_bytes(distribution.release, 400), "segment.ms": DAY_MS})
    producer = lab.client.producer(transactional_id="old-snapshot", linger_ms=0)
    producer.begin()
    producer.write(topic, 0, b"k", b"v1")
    for number in range(3):  # segments that are too large to be merged, so that their snapshots stay
        lab.put(topic, b"large-%d" % number, b"x" * 300)
    inside = sorted(lab.folder(topic).glob("*.snapshot"))[1]
    kept = inside.read_bytes()
    producer.commit()
    lab.wait_decided(topic)
    lab.put(topic, b"k", b"v2")
    lab.client.alter_topic(topic, {"segment.ms": 400})
    lab.fill_until(topic, "the marker is gone", lambda log: log[0].base_offset > 0 and markers(log) == 0)

    def only_the_old_one() -> None:
        for file in lab.folder(topic).glob("*.snapshot"):
            file.unlink()
        inside.write_bytes(kept)

    before = lab.client.read(topic)
    assert (before.stuck, before.table()[b"k"]) == (False, b"v2")
    lab.restart(only_the_old_one)
    after = lab.client.read(topic)
    assert after.stuck
    assert after.limit <= 1  # 4.3 says 1, the next offset that is left
    lab.client.alter_brokers({"producer.id.expiration.ms": DAY_MS})


PAUSES = {
    "dirty-ratio": {"min.cleanable.dirty.ratio": 1.0},
    "min-lag": {"min.compaction.lag.ms": LONG_MAX},
    "all-three": {
        "min.cleanable.dirty.ratio": 1.0, "min.compaction.lag.ms": LONG_MAX, "max.compaction.lag.ms": LONG_MAX,
    },
}  # fmt: skip


@pytest.mark.parametrize("pause", PAUSES)
def test_topic_settings_pause_the_cleaner(lab: Lab, pause: str) -> None:
    """`LogCleanerManager.grabFilthiestCompactedLog`: nothing is removed, not even what is due; it goes on when taken back."""
    topic = lab.topic(f"pause-{pause}")
    lab.fill_until(topic, "a pass", lambda log: passes_of(lab, topic) > 0)
    lab.client.alter_topic(topic, PAUSES[pause])
    wait_until(lambda: lab.broker.said().count(f"Updating topic {topic} with new conf") >= 1, "the pause")
    lab.fill_until(topic, "one more", lambda log: True)
    settled = passes_of(lab, topic)
    put_due_tombstone(lab, topic, now_ms=int(time.time() * 1000))
    rounds = iter(range(8))
    lab.fill_until(topic, "eight rolls", lambda log: next(rounds) == 7)
    assert passes_of(lab, topic) - settled <= 1  # one that was already chosen may still end
    assert has_key(lab.log(topic), b"k")
    lab.client.alter_topic(topic, {"min.compaction.lag.ms": 0, "min.cleanable.dirty.ratio": 0.001})
    lab.fill_until(topic, "the tombstone is gone", lambda log: not has_key(log, b"k"))


def test_what_keeps_a_marker_depends_on_its_epoch(distribution: Distribution, lab: Lab) -> None:
    """`Cleaner.cleanInto`: with the data's epoch, the producer's last batch keeps it for producer.id.expiration.ms, here a day;
    with the next epoch (transactions v2) delete.retention.ms alone decides."""
    topic = lab.topic("marker-epoch")
    producer = lab.client.producer(transactional_id="marker-epoch", linger_ms=0)
    producer.begin()
    producer.write(topic, 0, b"k", b"v1")
    producer.commit()
    lab.wait_decided(topic)
    lab.put(topic, b"k", b"v2")
    if distribution.release >= (4,):
        lab.fill_until(topic, "the marker is gone", lambda log: markers(log) == 0)
        assert [batch.control for batch in lab.log(topic) if batch.producer_id >= 0][:1] == ["EMPTIED"]
    else:
        lab.fill_until(topic, "data emptied", lambda log: log[0].base_offset == 0 and log[0].count == 0)
        started = passes_of(lab, topic)
        lab.fill_until(topic, "five more passes", lambda log: passes_of(lab, topic) >= started + 5)
        assert [(batch.control, batch.count) for batch in lab.log(topic)][:2] == [(None, 0), ("COMMIT", 1)]


def test_old_clients_keep_their_markers_on_new_brokers(lab: Lab) -> None:
    """On 4.x too, with a client that does not know transactions v2: decided request by request."""
    topic = lab.topic("old-client")
    producer = second_client(lab.client.bootstrap, **{"transactional.id": "old-client"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, partition=0, key=b"k", value=b"v1")
    producer.commit_transaction(60)
    lab.wait_decided(topic)
    lab.put(topic, b"k", b"v2")
    lab.fill_until(topic, "data emptied", lambda log: log[0].base_offset == 0 and log[0].count == 0)
    started = passes_of(lab, topic)
    lab.fill_until(topic, "five more passes", lambda log: passes_of(lab, topic) >= started + 5)
    assert [(batch.control, batch.count) for batch in lab.log(topic)][:2] == [(None, 0), ("COMMIT", 1)]


def test_a_full_map_between_transactions_brings_a_deleted_key_back(
    distribution: Distribution, java: JavaClient, tmp_path: Path
) -> None:
    """docs/rules.md (a), on one broker, with no outage: the second pass begins behind an ABORT marker, takes the producer's
    next transaction for aborted too, and its committed tombstone supersedes nothing."""
    settings = {**BROKER_SETTINGS, **TINY_MAP, "producer.id.expiration.ms": DAY_MS}
    with Cluster(distribution, tmp_path, settings=settings) as cluster:
        lab = Lab(cluster, java)
        topic = lab.topic("full-map", {"segment.ms": DAY_MS, "index.interval.bytes": 1})
        lab.put(topic, b"victim", b"v")
        producer = lab.client.producer(transactional_id="full-map", linger_ms=0)
        producer.begin()
        producer.write(topic, 0, b"junk", b"x")
        producer.abort()
        for number in range(2 * TINY_MAP_KEYS - 5):
            lab.put(topic, b"key-%d" % number, b"v")
        producer.begin()
        producer.write(topic, 0, b"victim", None)
        producer.commit()
        wait_until(lambda: markers(lab.log(topic)) == 2, "both markers")
        assert b"victim" not in lab.client.read(topic).table()
        lab.client.alter_topic(topic, {"segment.ms": 400})
        lab.fill_until(
            topic, "the tombstone is gone",
            lambda log: not any(r.key == b"victim" and r.value is None for batch in log for r in batch.records or ()),
        )  # fmt: skip
        assert lab.client.read(topic).table()[b"victim"] == b"v"
        assert lab.client.read(topic, isolation=READ_UNCOMMITTED).table()[b"victim"] == b"v"
