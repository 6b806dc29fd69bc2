"""All brokers are lost and the lake is there: new brokers start from an export, with the offsets that everybody remembers."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from headstone.brokers.client import BYTES_DESERIALIZER, READ_COMMITTED, Consumed, JavaClient
from headstone.brokers.distribution import Distribution
from headstone.brokers.processes import Cluster, wait_until
from headstone.cli.main import main
from headstone.log.directory import find_partitions
from testbed.consuming import consume, tables
from testbed.workloads import second_client, segment_bytes
from tests.brokers.test_boot import complaints, recovered

TOPIC = "orders"
NAMES = [f"{TOPIC}-{number}" for number in range(3)]
GROUPS = "__consumer_offsets"
EMPTY = 2
"""The partition that nobody writes to."""
COPIES = {0: (1, 2), 1: (2, 3), 2: (3, 1)}
"""Of each partition of the topic, in an export to three brokers: each has two of them."""


def test_new_brokers_start_from_an_export_and_everybody_goes_on(
    distribution: Distribution, java: JavaClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = str(tmp_path / "lake")
    with Cluster(distribution, tmp_path / "lost") as lost:
        client = java.connect(lost.bootstrap)
        settings = {
            "cleanup.policy": "compact,delete",
            "retention.ms": -1,
            "min.cleanable.dirty.ratio": 1,
            **segment_bytes(distribution.release),
        }
        client.create_topic(TOPIC, [[1], [1], [1]], settings)
        write(lost, range(300))
        client.delete_records(TOPIC, 1, 20)
        assert len(group_reads(java, lost, 100)) >= 100
        lost.stop()
        lost.start()  # another leader epoch
        write(lost, range(300, 330))
        before, remembered = read(lost), committed(java, lost)
        client.close()
        lost.stop()
        assert main(["lake", "init", lake]) == 0
        log_dir = str(lost.brokers[1].log_dir)
        for topic, policy in ((TOPIC, "compact,delete"), (GROUPS, "compact")):
            command = ["lake", "ingest", lake, log_dir, "--topic", topic, "--cleanup-policy", policy]
            assert main([*command, "--topic-conf", f"{topic}:retention.ms=-1"]) == 0
        ids = {directory.topic: (directory.path / "partition.metadata").read_text() for directory in
               find_partitions([log_dir])}  # fmt: skip
    shutil.rmtree(tmp_path / "lost")
    assert main(["lake", "compact", lake, "--all"]) == 0
    capsys.readouterr()
    new = Cluster(distribution, tmp_path / "new")
    with ExitStack() as ending:
        ending.callback(new.kill)
        broker = new.brokers[1]
        new.format()
        assert main(["lake", "export", lake, TOPIC, GROUPS, "--log-dirs", str(broker.log_dir), "--output", "json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert [Path(file).parent for file in told["metadata_snapshots"]] == [broker.log_dir / "__cluster_metadata-0"]
        new.start()
        assert (recovered(broker), complaints(broker)) == ([], [])
        for topic in (TOPIC, GROUPS):
            assert (broker.log_dir / f"{topic}-0" / "partition.metadata").read_text() == ids[topic]
        assert tables(read(new)) == tables(before)
        for name, records in read(new).items():
            assert set(records) <= set(before[name])
        assert {row["partition"]: client_range(java, new, row["partition"]) for row in told["partitions"]} == {
            row["partition"]: (row["start_offset"], row["next_offset"]) for row in told["partitions"]
        }
        assert committed(java, new) == remembered
        offsets = [(record.partition(), record.offset()) for record in group_reads(java, new, 10)]
        assert all(offset >= remembered.get(f"{TOPIC}-{number}", 0) for number, offset in offsets)
        check_restore(java, new, lake, tmp_path / "map.json", capsys)
        ends = {row["partition"]: row["next_offset"] for row in told["partitions"]}
        assert write(new, range(1)) == [(0, ends[NAMES[0]])]
        assert complaints(broker) == []


def test_three_new_brokers_start_from_an_export_with_their_replicas_in_sync(
    distribution: Distribution, java: JavaClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = str(tmp_path / "lake")
    with Cluster(distribution, tmp_path / "lost") as lost:
        with closing(java.connect(lost.bootstrap)) as client:
            client.create_topic(TOPIC, [[1], [1], [1]], {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 1})
        write(lost, range(300))
        assert len(group_reads(java, lost, 100)) >= 100
        before, remembered = read(lost), committed(java, lost)
        lost.stop()
        assert main(["lake", "init", lake]) == 0
        log_dir = str(lost.brokers[1].log_dir)
        for topic in (TOPIC, GROUPS):
            assert main(["lake", "ingest", lake, log_dir, "--topic", topic, "--cleanup-policy", "compact"]) == 0
    capsys.readouterr()
    new = Cluster(distribution, tmp_path / "new", brokers=3)
    with ExitStack() as ending:
        ending.callback(new.kill)
        new.format()
        places = [word for broker in new.brokers.values() for word in ("--log-dirs", str(broker.log_dir))]
        command = ["lake", "export", lake, TOPIC, GROUPS, *places, "--replication-factor", "2", "--output", "json"]
        assert main(command) == 0
        told = json.loads(capsys.readouterr().out)
        assert len(told["metadata_snapshots"]) == 3
        new.start()
        client = ending.enter_context(closing(java.connect(new.bootstrap)))
        for number, brokers in COPIES.items():
            client.wait_in_sync(TOPIC, number, brokers=brokers)
        for broker in new.brokers.values():
            assert (recovered(broker), complaints(broker)) == ([], [])
        assert read(new) == before
        ends = {row["partition"]: row["next_offset"] for row in told["partitions"]}
        assert {name: client_range(java, new, name)[1] for name in NAMES} == {name: ends[name] for name in NAMES}
        assert committed(java, new) == remembered
        offsets = [(record.partition(), record.offset()) for record in group_reads(java, new, 10)]
        assert {number: min(offset for one, offset in offsets if one == number) for number, _ in offsets} == {
            number: remembered[f"{TOPIC}-{number}"] for number, _ in offsets
        }
        assert write(new, range(2)) == [(0, ends[NAMES[0]]), (1, ends[NAMES[1]])]
        for number, brokers in COPIES.items():
            client.wait_in_sync(TOPIC, number, brokers=brokers)


def check_restore(
    java: JavaClient, cluster: Cluster, lake: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Into another topic, with new offsets; the group goes on there at the record that it would have got next."""
    before = committed(java, cluster)
    command = ["lake", "restore", lake, TOPIC, "--bootstrap", cluster.bootstrap, "--to-topic", "again"]
    assert main([*command, "--offset-map", str(file), "--translate-group", "readers", "--output", "json"]) == 0
    moved = json.loads(capsys.readouterr().out)["groups"]["readers"]
    assert main([*command, "--offset-map", str(file), "--translate-group", "readers", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"partitions": [], "groups": {"readers": moved}}
    old, new = (consume(cluster.bootstrap, [f"{topic}-0"], isolation=READ_COMMITTED) for topic in (TOPIC, "again"))
    left = [(one.key, one.value) for one in old[NAMES[0]] if one.offset >= before[NAMES[0]]]
    assert [(one.key, one.value) for one in new["again-0"] if one.offset >= moved["0"][1]] == left
    assert committed(java, cluster)["again-0"] == moved["0"][1]


def write(cluster: Cluster, numbers: range) -> list[tuple[int, int]]:
    """Partition and offset of each record, sorted: brokers answer in any order."""
    done: list[tuple[int, int]] = []
    producer = second_client(cluster.bootstrap, **{"enable.idempotence": True, "batch.num.messages": 20})
    for number in numbers:
        value = None if number % 7 == 3 else b"%d" % number * 20
        producer.produce(
            TOPIC, partition=number % EMPTY, key=b"k%d" % (number % 40), value=value,
            on_delivery=lambda error, message: done.append(error or (message.partition(), message.offset())),
        )  # fmt: skip
    assert producer.flush(60) == 0
    assert all(isinstance(place, tuple) for place in done), done
    return sorted(done)


def read(cluster: Cluster) -> dict[str, list[Consumed]]:
    return consume(cluster.bootstrap, NAMES, isolation=READ_COMMITTED)


def group_reads(java: JavaClient, cluster: Cluster, count: int) -> list[Any]:
    """As a member of the group, with Kafka's own client, from where the group was; commits what it got."""
    settings = {
        "bootstrap.servers": cluster.bootstrap, "group.id": "readers", "enable.auto.commit": "false",
        "key.deserializer": BYTES_DESERIALIZER, "value.deserializer": BYTES_DESERIALIZER, "auto.offset.reset": "none"
        if count < 100 else "earliest", "max.poll.records": 60,
    }  # fmt: skip
    consumer = java.kafka.clients.consumer.KafkaConsumer(java.properties(settings))
    consumer.subscribe(java.list([TOPIC]))
    partitions = [java.kafka.common.TopicPartition(TOPIC, number) for number in range(len(NAMES))]
    records: list[Any] = []

    def has_enough() -> bool:
        polled = consumer.poll(java.java.time.Duration.ofMillis(200))
        records.extend(record for partition in partitions for record in polled.records(partition))
        return len(records) >= count

    wait_until(has_enough, f"{count} records")
    consumer.commitSync()
    consumer.close()
    return records


def committed(java: JavaClient, cluster: Cluster) -> dict[str, int]:
    admin = java.kafka.clients.admin.Admin.create(java.properties({"bootstrap.servers": cluster.bootstrap}))
    offsets = admin.listConsumerGroupOffsets("readers").partitionsToOffsetAndMetadata().get()
    admin.close()
    return {str(partition): int(offsets[partition].offset()) for partition in offsets}


def client_range(java: JavaClient, cluster: Cluster, name: str) -> tuple[int, int]:
    """Where the log begins and ends by the broker's word."""
    topic, _, number = name.rpartition("-")
    partition = java.kafka.common.TopicPartition(topic, int(number))
    settings = {"bootstrap.servers": cluster.bootstrap, "key.deserializer": BYTES_DESERIALIZER}
    consumer = java.kafka.clients.consumer.KafkaConsumer(
        java.properties({**settings, "value.deserializer": BYTES_DESERIALIZER})
    )
    only = java.list([partition])
    found = int(consumer.beginningOffsets(only)[partition]), int(consumer.endOffsets(only)[partition])
    consumer.close()
    return found
