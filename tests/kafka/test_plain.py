"""Which committed data may become plain, asked of brokers whose own cleaner knows no watermark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from headstone.kafka.brokers import Broker, Cluster, wait_until
from headstone.kafka.client import READ_COMMITTED, JavaClient, KafkaClient, Producer, Reading
from headstone.kafka.distribution import Distribution
from headstone.kafka.outages import BROKER_SETTINGS, SHORT_MS, TOPIC_SETTINGS, read_running_log

TOPIC = "plain"
PASSES = 8
"""Of the broker's cleaner, a third of a second apart at least: more than twice delete.retention.ms."""


def compacted(broker: Broker, peers: list[Broker]) -> dict[str, int]:
    """In a process of its own: Spark changes how Py4J, which drives our producers, tells errors. Why records stayed."""
    named = [option for peer in peers for option in ("--peer", str(peer.log_dir))]
    retention = ["--delete-retention-ms", str(SHORT_MS), "--producer-id-expiration-ms", str(SHORT_MS)]
    command = ["compact", str(broker.log_dir / f"{TOPIC}-0"), "--in-place", "--dirty-from", "0", "--output", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "headstone.cli.main", *command, *named, *retention],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reasons: dict[str, int] = json.loads(done.stdout)["partitions"][0]["reasons"]
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

    wait_until(look, what, seconds_max=90, every=0.45)


def ended(client: KafkaClient, decide: object) -> None:
    """Returns when the marker is there: before 4.0 a producer is told as soon as the coordinator has decided."""
    assert callable(decide)
    decide()
    wait_until(lambda: client.end(TOPIC) == client.end(TOPIC, isolation=READ_COMMITTED), "a marker", seconds_max=30)


def served_by(client: KafkaClient, number: int) -> Reading:
    client.wait_in_sync(TOPIC, brokers=[1, 2, 3])
    client.lead(TOPIC, 0, number)
    return client.read(TOPIC, isolation=READ_COMMITTED, broker=number)


def abort_one(client: KafkaClient, producer: Producer) -> None:
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
        producer = client.producer(linger_ms=0, transactional_id=TOPIC)
        producer.begin()
        producer.write(TOPIC, 0, b"k", b"committed")
        wait_until(lambda: len(read_running_log(away.log_dir / f"{TOPIC}-0")) == 1, "a copy", seconds_max=30)
        away.stop()
        ended(client, producer.commit)
        fill(client, lambda: len(list((two.log_dir / f"{TOPIC}-0").glob("*.log"))) > 2, "segments")
        cluster.stop()
        for broker, other in ((one, two), (two, one)):
            assert compacted(broker, [other, away])["marker: data not gone"] == 1
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
