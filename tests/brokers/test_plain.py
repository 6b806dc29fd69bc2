"""Which committed data may become plain, asked of brokers whose own cleaner knows no watermark."""

from __future__ import annotations

import json
from pathlib import Path

from headstone.brokers.client import READ_COMMITTED, Consumption, JavaClient, JavaProducer, KafkaClient
from headstone.brokers.distribution import Distribution
from headstone.brokers.outages import BROKER_SETTINGS, SHORT_MS, TOPIC_SETTINGS, read_running_log
from headstone.brokers.processes import Broker, Cluster, wait_until
from headstone.log.checkpoints import HIGH_WATERMARK, RECOVERY_POINT, read_offsets, write_offsets
from tests.brokers.commands import headstone

DAY_MS = 86_400_000
TOPIC = "plain"
PASSES = 8
"""Of the broker's cleaner, a third of a second apart at least: more than twice delete.retention.ms."""


def compacted(broker: Broker, *options: str) -> dict[str, int]:
    """Why records stayed."""
    retention = ["--delete-retention-ms", str(SHORT_MS), "--producer-id-expiration-ms", str(SHORT_MS)]
    log = str(broker.log_dir / f"{TOPIC}-0")
    command = ["compact", log, "--topic", TOPIC, "--in-place", "--dirty-from", "0", "--output", "json"]
    done = headstone(*command, *options, *retention)
    assert done.code == 0, done.err
    reasons: dict[str, int] = json.loads(done.out)["partitions"][0]["reasons"]
    return reasons


def passes(broker: Broker) -> int:
    return broker.said().count(f"Beginning cleaning of log {TOPIC}-0 ")


def fill(client: KafkaClient, until: object, what: str) -> None:
    """Other traffic, which rolls segments and wakes the cleaners."""
    assert callable(until)
    filler = client.producer(linger_ms=0)

    def look() -> bool:
        filler.write(TOPIC, 0, b"z", b"v")
        return bool(until())

    wait_until(look, what, every=0.45)


def ended(client: KafkaClient, decide: object) -> None:
    """Returns when the marker is there: before 4.0 a producer is told as soon as the coordinator has decided."""
    assert callable(decide)
    decide()
    wait_until(lambda: client.end(TOPIC) == client.end(TOPIC, isolation=READ_COMMITTED), "a marker")


def served_by(client: KafkaClient, number: int) -> Consumption:
    client.wait_in_sync(TOPIC, brokers=[1, 2, 3])
    client.lead(TOPIC, 0, number)
    return client.read(TOPIC, isolation=READ_COMMITTED, broker=number)


def abort_one(client: KafkaClient, producer: JavaProducer) -> None:
    producer.begin()
    producer.write(TOPIC, 0, b"junk", b"x")
    ended(client, producer.abort)


def test_a_follower_that_stopped_inside_a_transaction_gets_its_marker_however_late(
    distribution: Distribution, java: JavaClient, tmp_path: Path
) -> None:
    """By Kafka's rules the COMMIT stays as long as its data. A coordinated compaction of the other two must not change
    that: it would not be Headstone that drops the marker, but the brokers' own cleaners, a second later."""
    with Cluster(distribution, tmp_path, brokers=3, settings=BROKER_SETTINGS) as cluster:
        one, two, away = cluster.brokers.values()
        client = java.connect(cluster.bootstrap)
        client.create_topic(TOPIC, [[1, 2, 3]], TOPIC_SETTINGS)
        producer = client.producer(linger_ms=0, transactional_id=TOPIC, transaction_timeout_ms=600_000)
        producer.begin()
        producer.write(TOPIC, 0, b"k", b"committed")
        wait_until(lambda: len(read_running_log(away.log_dir / f"{TOPIC}-0")) == 1, "a copy")
        away.stop()
        ended(client, producer.commit)
        fill(client, lambda: len(list((two.log_dir / f"{TOPIC}-0").glob("*.log"))) > 2, "segments")
        cluster.stop()
        for broker, other in ((one, two), (two, one)):
            peers = ("--peer", str(other.log_dir), "--peer", str(away.log_dir))
            assert compacted(broker, *peers)["marker: data not gone"] == 1
        one.start(wait=False)
        two.start()
        one.wait_started()
        fill(client, lambda: min(passes(one), passes(two)) >= PASSES, "days of cleaning")
        away.start()
        first = served_by(client, 3)
        assert (first.stuck, first.table()) == (False, {b"k": b"committed", b"z": b"v"})
        abort_one(client, producer)
        for number in (3, 2, 1):
            later = served_by(client, number)
            assert (later.stuck, later.table()) == (False, {b"k": b"committed", b"z": b"v"})
        client.close()


def test_a_broker_recovers_behind_a_snapshot_from_inside_a_transaction_that_became_plain(
    distribution: Distribution, java: JavaClient, tmp_path: Path
) -> None:
    """It stopped inside the transaction once, in mid-segment; later it is killed, with its recovery point some segments on.
    Left there, the snapshot would be the newest below the recovery point, and the broker would not start."""
    settings = {**BROKER_SETTINGS, "replica.high.watermark.checkpoint.interval.ms": 200}
    with Cluster(distribution, tmp_path, settings=settings) as cluster:
        broker = cluster.brokers[1]
        folder = broker.log_dir / f"{TOPIC}-0"
        client = java.connect(cluster.bootstrap)
        client.create_topic(TOPIC, [[1]], {**TOPIC_SETTINGS, "segment.ms": DAY_MS, "min.compaction.lag.ms": DAY_MS})
        producer = client.producer(linger_ms=0, transactional_id=TOPIC, transaction_timeout_ms=600_000)
        producer.begin()
        producer.write(TOPIC, 0, b"k", b"first half")
        broker.stop()
        broker.start()
        producer.write(TOPIC, 0, b"l", b"second half")
        ended(client, producer.commit)
        client.alter_topic(TOPIC, {"segment.ms": TOPIC_SETTINGS["segment.ms"]})

        def bases() -> list[int]:
            return sorted(int(path.name[:20]) for path in folder.glob("*.log"))

        def replicated() -> int:
            return read_offsets(broker.log_dir / HIGH_WATERMARK).get((TOPIC, 0), 0)

        fill(client, lambda: len(bases()) > 3 and replicated() > bases()[3], "segments")
        table = client.read(TOPIC).table()
        broker.kill()
        recovery = read_offsets(broker.log_dir / RECOVERY_POINT)
        write_offsets(broker.log_dir / RECOVERY_POINT, {**recovery, (TOPIC, 0): bases()[2]})
        assert (folder / f"{1:020d}.snapshot").exists()
        unmerged = ("--force-offline", "--plain-below", "3", "--segment-bytes", "14", "--min-compaction-lag-ms", "0")
        assert compacted(broker, *unmerged)["made plain"] == 2
        broker.start()
        after = client.read(TOPIC)
        assert (after.stuck, after.table()) == (False, table)
        client.close()
