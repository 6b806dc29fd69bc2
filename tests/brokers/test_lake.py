"""A compacted topic with transactions into the lake and back, from a real cluster, under load, with kills."""

from __future__ import annotations

import json
import random
import subprocess
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headstone.brokers.client import READ_COMMITTED, Consumed
from headstone.brokers.distribution import Distribution
from headstone.brokers.processes import Cluster, wait_until
from headstone.cli.main import main
from headstone.lake.lake import Lake, metastore_url, open_lake
from headstone.lake.metastore.leader_epochs import Epochs, known_leader_epochs
from headstone.lake.transfer.reading import records, table
from headstone.log.checkpoints import LEADER_EPOCHS, read_leader_epochs
from headstone.log.topic_partition import TopicPartition
from testbed.consuming import consume, tables
from testbed.maven import VERSIONS
from testbed.workloads import second_client, segment_bytes
from tests.brokers.ingesting import ingesting

TOPIC = "orders"
PARTITIONS = 3
NAMES = [f"{TOPIC}-{number}" for number in range(PARTITIONS)]
KILLS = 2


class Load:
    """Two transactional producers and a plain one, until told to stop. Every third transaction is aborted."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.errors: list[str] = []
        self.transactions = 0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        chance = random.Random(7)
        patient = {"transaction.timeout.ms": 600_000}
        plain = second_client(self._bootstrap, **{"enable.idempotence": True, "compression.type": "lz4"})
        writers = [second_client(self._bootstrap, **{"transactional.id": f"writer-{n}", **patient}) for n in range(2)]
        for writer in writers:
            writer.init_transactions(60)
        while not self._stop.is_set():
            for writer in writers:
                writer.begin_transaction()
            for _ in range(20):
                self._send(chance.choice([plain, *writers]), chance)
            for writer in writers:
                writer.flush(60)
                self._end(writer, commit=chance.random() > 0.33)
            self.transactions += 2
            self._stop.wait(0.02)
        if plain.flush(60):
            self.errors.append("plain records were not acknowledged")

    def _end(self, writer: Any, *, commit: bool) -> None:
        """A broker that is killed in between is no reason to give up."""
        from confluent_kafka import KafkaException

        for _ in range(10):
            try:
                if commit:
                    writer.commit_transaction(60)
                else:
                    writer.abort_transaction(60)
                return
            except KafkaException as problem:
                error = problem.args[0]
                commit = commit and not error.txn_requires_abort()
                if not (error.retriable() or error.txn_requires_abort()):
                    self.errors.append(error.str())
                    raise
        self.errors.append("a transaction did not end")

    def _send(self, producer: Any, chance: random.Random) -> None:
        number = chance.randrange(200)
        value = None if chance.random() < 0.15 else b"v%d" % chance.randrange(1 << 40)
        headers = [("h", b"x" * chance.randrange(4)), ("none", None)] if chance.random() < 0.3 else []
        producer.produce(
            TOPIC, partition=number % PARTITIONS, key=b"k%d" % number, value=value, headers=headers,
            timestamp=1_700_000_000_000 + chance.randrange(10**9), on_delivery=self._delivered,
        )  # fmt: skip
        producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None and "Purged" not in error.str():
            self.errors.append(error.str())


def ingested(lake: Lake) -> int:
    return sum(lake.metastore.partition(TopicPartition(TOPIC, n)).next_offset for n in range(PARTITIONS))


def grown(lake: Lake, child: subprocess.Popen[str], size: int) -> bool:
    return child.poll() is not None or (TOPIC in lake.metastore.topics() and ingested(lake) > size)


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--output", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def newest(consumed: list[Consumed]) -> dict[bytes | None, tuple[Any, ...]]:
    return {one.key: (one.value, one.timestamp_ms, one.headers) for one in consumed}


@pytest.mark.parametrize("distribution", VERSIONS[-1:], indirect=True)
def test_a_topic_under_load_with_kills_into_the_lake_and_back(
    distribution: Distribution, connector: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake_dir = tmp_path / "lake"
    assert main(["lake", "init", str(lake_dir)]) == 0
    capsys.readouterr()
    with Cluster(distribution, tmp_path / "cluster") as cluster:
        _create_topic(cluster)
        lake = open_lake(metastore_url(str(lake_dir)))
        with Load(cluster.bootstrap) as load:
            for kill in range(KILLS):
                slow = ("--continuous", "--every-ms", "50", "--max-age-ms", "0", "--offsets-per-batch", "1500")
                with ingesting(lake_dir, cluster.bootstrap, TOPIC, connector, *slow) as child:
                    before = ingested(lake) if TOPIC in lake.metastore.topics() else 0
                    wait_until(partial(grown, lake, child, before + 800), "the lake grows")
                    assert child.poll() is None, child.communicate()
                if kill == 0:
                    cluster.brokers[1].kill()
                    cluster.brokers[1].start()
        assert (load.errors, load.transactions > 20) == ([], True)
        with ingesting(lake_dir, cluster.bootstrap, TOPIC, connector) as child:
            printed, said = child.communicate(timeout=300)
            assert child.returncode == 0, said
            assert sum(row["records"] for row in json.loads(printed)["partitions"]) > 0
        served = consume(cluster.bootstrap, NAMES, isolation=READ_COMMITTED)
        _same_records(lake, served)
        assert {len(epochs) > 1 for epochs in _same_epochs(cluster, lake, TOPIC).values()} == {True}
        assert lake.metastore.check() == []
        done = run_json(capsys, "lake", "compact", str(lake_dir), "--all")
        # However much of it the broker's own cleaner was faster with: one record per key is left.
        keys = sum(len(newest(served[name])) for name in NAMES)
        assert sum(one["records_after"] for one in done["partitions"]) == keys
        _same_tables(lake, served)
        assert lake.metastore.check() == []
        restore = ["lake", "restore", str(lake_dir), TOPIC, "--bootstrap", cluster.bootstrap, "--to-topic", "again"]
        restored = run_json(capsys, *restore)
        assert all(one["verified"] for one in restored["partitions"])
        again = consume(cluster.bootstrap, [f"again-{n}" for n in range(PARTITIONS)], isolation=READ_COMMITTED)
        for n, name in enumerate(NAMES):
            assert newest(again[f"again-{n}"]) == newest(served[name])
        assert main(restore) == 2
        assert "is not empty" in capsys.readouterr().err
        lake.close()


def _create_topic(cluster: Cluster) -> None:
    """Small segments and an eager cleaner: the log is compacted while it is read. Tombstones stay."""
    from confluent_kafka.admin import AdminClient, NewTopic

    settings = {
        "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": str(10**9),
        **{name: str(value) for name, value in segment_bytes(cluster.distribution.release, 64 << 10).items()},
    }  # fmt: skip
    made = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1, config=settings)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([made])[TOPIC].result(60)


def _same_epochs(cluster: Cluster, lake: Lake, topic: str) -> dict[TopicPartition, Epochs]:
    """What the lake knows is what the broker has in its log directories."""
    names = [name for name in lake.metastore.partitions() if name.topic == topic]
    epochs = {name: known_leader_epochs(lake.metastore, name) for name in names}
    log_dir = cluster.brokers[1].log_dir
    assert epochs == {name: tuple(read_leader_epochs(log_dir / str(name) / LEADER_EPOCHS)) for name in names}
    return epochs


def _same_records(lake: Lake, served: dict[str, list[Consumed]]) -> None:
    """Everything that Kafka still serves is in the lake as it is, nothing is there twice, and the tables are the same."""
    for n, name in enumerate(NAMES):
        held = list(records(lake, TopicPartition(TOPIC, n)))
        offsets = [one.offset for one in held]
        assert offsets == sorted(set(offsets))
        known = {one.offset: (one.key, one.value, one.timestamp_ms, one.headers) for one in held}
        for one in served[name]:
            assert known.get(one.offset) == (one.key, one.value, one.timestamp_ms, one.headers)
    _same_tables(lake, served)


def _same_tables(lake: Lake, served: dict[str, list[Consumed]]) -> None:
    expected = tables(served)
    for n, name in enumerate(NAMES):
        found = {key: entry.value for key, entry in table(lake, TopicPartition(TOPIC, n)).items()}
        assert found == expected[name]


EVENTS = "events"


def test_a_topic_that_is_not_compacted_grows_and_is_created_again(
    distribution: Distribution, connector: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its policy comes along and goes back; new partitions are followed; its successor of the same name is refused.

    Spark's default file system is none that there is: the checkpoint says where it lies."""
    from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

    lake_dir, elsewhere = tmp_path / "lake", ("--spark-conf", "spark.hadoop.fs.defaultFS=hdfs://nowhere.invalid:1")
    assert main(["lake", "init", str(lake_dir)]) == 0
    lake = open_lake(metastore_url(str(lake_dir)))
    with Cluster(distribution, tmp_path / "cluster") as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        settings = {"cleanup.policy": "delete", "retention.ms": "-1", "max.message.bytes": "2000000"}
        admin.create_topics([NewTopic(EVENTS, 1, 1, config=settings)])[EVENTS].result(60)
        produce(cluster.bootstrap, [(0, b"a", b"1"), (0, b"a", b"2"), (0, None, b"3")])
        with ingesting(
            lake_dir, cluster.bootstrap, EVENTS, connector, "--continuous", "--max-age-ms", "0", *elsewhere
        ) as child:
            wait_until(partial(landed, lake, child, 0, 3), "the lake has the first records", seconds_max=300)
            admin.create_partitions([NewPartitions(EVENTS, 2)])[EVENTS].result(60)
            produce(cluster.bootstrap, [(1, b"b", b"4")])
            wait_until(partial(landed, lake, child, 1, 1), "the lake has the new partition", seconds_max=300)
            assert child.poll() is None, child.communicate()
            child.terminate()
            printed, said = child.communicate(timeout=300)
            assert child.returncode == 0, said
        assert [row["partition"] for row in json.loads(printed)["partitions"]] == ["events-0", "events-1"]
        assert {epochs[0][1] for epochs in _same_epochs(cluster, lake, EVENTS).values()} == {0}
        kept = lake.metastore.topics()[EVENTS]
        assert {name: kept[name] for name in settings} == settings
        capsys.readouterr()
        done = run_json(capsys, "lake", "compact", str(lake_dir), "--all")
        assert [one["committed"] for one in done["partitions"]] in ([], [False, False])
        assert len(list(records(lake, TopicPartition(EVENTS, 0)))) == 3
        restore = ["lake", "restore", str(lake_dir), EVENTS, "--bootstrap", cluster.bootstrap, "--to-topic", "again"]
        assert [one["records"] for one in run_json(capsys, *restore)["partitions"]] == [3, 1]
        resource = ConfigResource(ConfigResource.Type.TOPIC, "again")
        made = admin.describe_configs([resource])[resource].result(60)
        assert {name: made[name].value for name in settings} == settings
        admin.delete_topics([EVENTS])[EVENTS].result(60)
        wait_until(lambda: EVENTS not in admin.list_topics(timeout=60).topics, "the topic is gone")
        admin.create_topics([NewTopic(EVENTS, 2, 1, config=settings)])[EVENTS].result(60)
        produce(cluster.bootstrap, [(0, b"x", b"%d" % number) for number in range(9)])
        command = ["lake", "ingest", str(lake_dir), "--bootstrap", cluster.bootstrap, "--topic", EVENTS]
        assert main(command) == 2
        assert "deleted and created again" in capsys.readouterr().err
        assert lake.metastore.partition(TopicPartition(EVENTS, 0)).next_offset == 3
    lake.close()


def produce(bootstrap: str, rows: list[tuple[int, bytes | None, bytes]]) -> None:
    producer = second_client(bootstrap, **{"enable.idempotence": True})
    for partition, key, value in rows:
        producer.produce(EVENTS, partition=partition, key=key, value=value)
    assert producer.flush(60) == 0


def landed(lake: Lake, child: subprocess.Popen[str], number: int, size: int) -> bool:
    at = TopicPartition(EVENTS, number)
    return child.poll() is not None or (
        at in lake.metastore.partitions() and lake.metastore.partition(at).next_offset >= size
    )
