"""Brokers on what `compact --in-place` left: they start, serve the same, take the same producers further, clean, replicate.

One broker lives through four stops, each followed by another compaction; the producers are the same objects throughout.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from headstone.brokers.client import READ_COMMITTED, READ_UNCOMMITTED, Consumed, JavaClient
from headstone.brokers.distribution import Distribution
from headstone.brokers.processes import Broker, Cluster, wait_until
from headstone.log.checkpoints import HIGH_WATERMARK, read_offsets
from headstone.log.directory import as_partition, list_segments
from headstone.log.listing import list_batches
from headstone.log.topic_partition import TopicPartition
from testbed.consuming import Table, consume, tables
from testbed.workloads import INDEX_INTERVAL_BYTES, SEGMENT_BYTES, Workload, segment_bytes
from tests.brokers.commands import headstone, headstone_on_spark

Served = dict[str, list[Consumed]]
COMPLAINTS = re.compile(
    r" (WARN|ERROR|FATAL) "
    r".*(log\.|LogLoader|ProducerState|LogManager|UnifiedLog|LocalLog|Cleaner|ReplicaFetcher|ReplicaManager)"
)
LAG = ("--min-compaction-lag-ms", "0")
"""Workloads hold the brokers' own cleaners back by a lag, and topics' settings are those of the metadata log."""
SERVED = ("table-0", "both-0", "both-1", "events-0")
RETENTION_MS = 1_234_567
RECOVERED = "Recovering unflushed segment"


def read(cluster: Cluster, partitions: Sequence[str]) -> dict[str, Served]:
    return {
        isolation: consume(cluster.bootstrap, partitions, isolation=isolation)
        for isolation in (READ_UNCOMMITTED, READ_COMMITTED)
    }


def compact(broker: Broker, partitions: Sequence[str], *options: str) -> int:
    """How many records went."""
    paths = [str(broker.log_dir / name) for name in partitions]
    settings = ["--segment-bytes", str(SEGMENT_BYTES), "--index-interval-bytes", str(INDEX_INTERVAL_BYTES)]
    done = headstone("compact", *paths, "--in-place", *settings, *LAG, *options, "--output", "json")
    assert done.code == 0, done.err
    report = json.loads(done.out)["partitions"]
    return sum(partition["records_before"] - partition["records_after"] for partition in report)


def on_disk(log_dir: Path, name: str) -> set[int]:
    """Offsets of the data records that are left."""
    partition = as_partition(log_dir / name)
    assert partition is not None
    batches = [batch for file in list_segments(partition) for batch in list_batches(file, with_records=True)]
    return {record.offset for batch in batches if batch.control is None for record in batch.records or ()}


def expected(before: Served, log_dir: Path) -> Served:
    """Exactly those of the records served before that are still on the disk: same offsets, same contents."""
    left = {name: on_disk(log_dir, name) for name in before}
    return {name: [record for record in records if record.offset in left[name]] for name, records in before.items()}


def recovered(broker: Broker) -> list[str]:
    """Kafka's own metadata log is recovered at every start."""
    return [line for line in broker.said().splitlines() if RECOVERED in line and "__cluster_metadata" not in line]


def complaints(broker: Broker) -> list[str]:
    return [line for line in broker.said().splitlines() if COMPLAINTS.search(line)]


@pytest.mark.parametrize("unclean", [False, True], ids=["clean stop", "kill -9"])
def test_a_broker_goes_on_where_compaction_left_it(
    distribution: Distribution, java: JavaClient, tmp_path: Path, unclean: bool
) -> None:
    with Cluster(distribution, tmp_path, settings={"replica.high.watermark.checkpoint.interval.ms": 200}) as cluster:
        broker = cluster.brokers[1]
        workload = Workload(cluster, java.connect(cluster.bootstrap), seed=21)
        workload.create({"delete.retention.ms": 1000})
        for rules in ("kafka", "coordinated"):
            workload.write()
            before = read(cluster, workload.partitions)
            if unclean:
                wait_until(lambda: high_watermarks_are_on_disk(workload), "high watermarks on the disk")
                broker.kill()
                refused = headstone("compact", str(broker.log_dir / "plain-0"), "--in-place", "--rules", rules)
                assert refused.code == 2
                assert "--force-offline" in refused.err
            else:
                broker.stop()
            options = ["--rules", rules, "--delete-retention-ms", "1000", *(["--force-offline"] if unclean else [])]
            assert compact(broker, workload.partitions, *options) > 500
            wanted = {isolation: expected(served, broker.log_dir) for isolation, served in before.items()}
            broker.start()
            if not unclean:
                assert recovered(broker) == []
            assert complaints(broker) == []
            assert read(cluster, workload.partitions) == wanted
            assert tables(wanted[READ_COMMITTED]) == tables(before[READ_COMMITTED])
            check_it_goes_on(workload)
            assert complaints(broker) == []
        cluster.stop()


def high_watermarks_are_on_disk(workload: Workload) -> bool:
    """Nothing above what a killed broker has written down is compacted."""
    known = read_offsets(workload.cluster.brokers[1].log_dir / HIGH_WATERMARK)
    ends = {
        TopicPartition(topic, int(number)): workload.client.end(topic, int(number))
        for topic, _, number in (name.rpartition("-") for name in workload.partitions)
    }
    return {partition: known.get(partition, 0) for partition in ends} == ends


def check_it_goes_on(workload: Workload) -> None:
    """The same producers write, open transactions end, the broker's cleaner runs: the tables are what they should be."""
    workload.write(records=100)
    workload.close_open_transaction()
    before = committed_tables(workload)
    workload.clean()
    assert committed_tables(workload) == before


def committed_tables(workload: Workload) -> dict[str, Table]:
    """Aborted records, which read_uncommitted consumers get too, may go at any time."""
    return tables(consume(workload.cluster.bootstrap, workload.partitions, isolation=READ_COMMITTED))


def test_deleted_records_stay_deleted_and_each_topic_has_its_own_settings(
    distribution: Distribution, java: JavaClient, tmp_path: Path
) -> None:
    """The whole log directory, no topic named: the metadata log tells which are compacted, and how."""
    with Cluster(distribution, tmp_path) as cluster:
        broker = cluster.brokers[1]
        client = java.connect(cluster.bootstrap)
        common = {"min.cleanable.dirty.ratio": 1, **segment_bytes(distribution.release)}
        client.create_topic(
            "table", [[1]], {"cleanup.policy": "compact", "delete.retention.ms": RETENTION_MS, **common}
        )
        client.create_topic("both", [[1], [1]], {"cleanup.policy": "compact,delete", "retention.ms": -1, **common})
        client.create_topic("events", [[1]], {"cleanup.policy": "delete", **common})
        producer = client.producer()
        for name in SERVED:
            topic, _, partition = name.rpartition("-")
            for number in range(30 if name != "both-1" else 3):
                value = None if number == 25 else bytes(1000)
                producer.write(topic, int(partition), f"key {number % 10}".encode(), value)
        client.delete_records("both", 0, 30)
        client.delete_records("both", 1, 2)
        before = read(cluster, SERVED)[READ_COMMITTED]
        assert ([record.offset for record in before["both-1"]], before["both-0"]) == ([2], [])
        broker.stop()
        now_ms = int(time.time() * 1000)
        done = headstone_on_spark("compact", str(broker.log_dir), "--in-place", "--now-ms", str(now_ms))
        assert done.code == 0, done.err
        assert "events is left as it is (1 partition): its cleanup.policy is 'delete'" in done.err
        broker.start()
        assert complaints(broker) == []
        after = read(cluster, SERVED)[READ_COMMITTED]
        left = on_disk(broker.log_dir, "table-0")
        assert len(left) < len(before["table-0"])
        assert after == {**before, "table-0": [record for record in before["table-0"] if record.offset in left]}
        assert horizons(broker.log_dir, "table-0") == {now_ms + RETENTION_MS}
        assert producer.write("both", 0, b"key 1", b"new") == 30
        assert [record.offset for record in read(cluster, SERVED)[READ_COMMITTED]["both-0"]] == [30]
        cluster.stop()


def horizons(log_dir: Path, name: str) -> set[int | None]:
    partition = as_partition(log_dir / name)
    assert partition is not None
    batches = [batch for file in list_segments(partition) for batch in list_batches(file, with_records=False)]
    return {batch.delete_horizon_ms for batch in batches} - {None}


def test_compacted_replicas_lead_follow_and_are_copied(
    distribution: Distribution, java: JavaClient, tmp_path: Path
) -> None:
    """Broker 1 by coordinated rules with its peers, broker 2 by Kafka's, broker 3 not at all, then broker 3 from nothing."""
    with Cluster(distribution, tmp_path, brokers=3) as cluster:
        client = java.connect(cluster.bootstrap)
        workload = Workload(cluster, client, seed=31, replicas=(1, 2, 3))
        workload.create({"min.insync.replicas": 1})
        workload.write()
        in_sync(workload)
        before = committed_tables(workload)
        cluster.stop()
        one, two, three = cluster.brokers.values()
        peers = ["--peer", str(two.log_dir), "--peer", str(three.log_dir)]
        compact(one, workload.partitions, "--rules", "coordinated", *peers)
        compact(two, workload.partitions, "--rules", "kafka")
        cluster.start()
        assert led_by_each(workload, (1, 2, 3)) == dict.fromkeys((1, 2, 3), before)
        three.stop()
        for name in workload.partitions:
            shutil.rmtree(three.log_dir / name)
        workload.write(records=60)
        workload.close_open_transaction()
        three.start()
        final = committed_tables(workload)
        assert led_by_each(workload, (3, 2, 1)) == dict.fromkeys((1, 2, 3), final)
        # At the level of warnings fetchers tell of every change of leaders.
        said = [line for broker in cluster.brokers.values() for line in broker.said().splitlines()]
        assert [line for line in said if " ERROR " in line and "ReplicaFetcher" in line] == []


def partitions_of(workload: Workload) -> list[tuple[str, int]]:
    return [(topic, number) for topic, count in workload.topics.items() for number in range(count)]


def in_sync(workload: Workload) -> None:
    for topic, number in partitions_of(workload):
        workload.client.wait_in_sync(topic, number, brokers=[1, 2, 3])


def led_by_each(workload: Workload, numbers: Sequence[int]) -> dict[int, dict[str, Table]]:
    """What consumers get while each broker leads everything."""
    found = {}
    for number in numbers:
        in_sync(workload)
        workload.client.lead_all(partitions_of(workload), number)
        served = consume(workload.client.address(number), workload.partitions, isolation=READ_COMMITTED)
        found[number] = tables(served)
    return found
