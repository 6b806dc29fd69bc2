"""Real brokers on what a power loss leaves of `compact --in-place`: they start and serve the old records or the new ones, and
Headstone goes on where a broker has recovered. And on what it leaves of `--out`, as soon as a broker would start on it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from headstone.brokers.client import READ_COMMITTED, JavaClient
from headstone.brokers.distribution import Distribution
from headstone.brokers.processes import Cluster
from headstone.log.checkpoints import CLEAN_SHUTDOWN, META_PROPERTIES
from testbed.consuming import consume, tables
from testbed.workloads import Workload
from tests.brokers.commands import headstone
from tests.brokers.test_boot import complaints
from tests.demanded import demanded
from tests.power.disks import Crash, sampled
from tests.power.recording import NoTracing, record

STATES = 400
STARTS = 2
"""Each takes a broker some seconds."""


def test_a_broker_starts_on_what_a_power_loss_leaves(
    distribution: Distribution, java: JavaClient, tmp_path: Path
) -> None:
    with Cluster(distribution, tmp_path / "cluster") as cluster:
        broker = cluster.brokers[1]
        workload = Workload(cluster, java.connect(cluster.bootstrap), seed=41)
        workload.create({"delete.retention.ms": 1000})
        workload.write()
        before = consume(cluster.bootstrap, workload.partitions, isolation=READ_COMMITTED)
        broker.stop()
        partition = broker.log_dir / "txn-0"
        command = ["compact", str(partition), "--in-place", "--rules", "kafka", "--min-compaction-lag-ms", "0"]
        program = [sys.executable, "-m", "headstone.cli.main", *command, "--engine", "process"]
        with demanded(NoTracing):
            recording = record(program, broker.log_dir, tmp_path / "marks", tmp_path / "strace.log")
        for crash in interrupted(sampled(recording, seed=0, limit=STATES))[:STARTS]:
            shutil.rmtree(broker.log_dir)
            crash.write(broker.log_dir)
            broker.start()
            after = consume(cluster.bootstrap, workload.partitions, isolation=READ_COMMITTED)
            assert complaints(broker) == [], crash.how
            assert tables(after) == tables(before), crash.how
            for name, records in after.items():
                assert [record for record in before[name] if record in records] == records, crash.how
            broker.stop()
            assert headstone(*command).code == 0, crash.how


def test_a_broker_that_starts_on_what_a_power_loss_leaves_of_a_new_directory_finds_all_of_it(
    distribution: Distribution, java: JavaClient, tmp_path: Path
) -> None:
    with Cluster(distribution, tmp_path / "cluster") as cluster:
        broker = cluster.brokers[1]
        workload = Workload(cluster, java.connect(cluster.bootstrap), seed=43)
        workload.create({"delete.retention.ms": 1000})
        workload.write()
        before = consume(cluster.bootstrap, workload.partitions, isolation=READ_COMMITTED)
        broker.stop()
        root = tmp_path / "made"
        root.mkdir()
        command = ["compact", str(broker.log_dir), "--out", str(root / "out"), "--rules", "kafka", "--all-topics"]
        program = [sys.executable, "-m", "headstone.cli.main", *command, "--engine", "process"]
        with demanded(NoTracing):
            recording = record(program, root, tmp_path / "marks", tmp_path / "strace.log")
        left = [crash for crash in sampled(recording, seed=0, limit=STATES) if f"out/{META_PROPERTIES}" in crash.tree]
        for crash in sorted(left, key=lambda crash: (crash.ended, f"out/{CLEAN_SHUTDOWN}" in crash.tree))[:STARTS]:
            shutil.rmtree(root)
            shutil.rmtree(broker.log_dir)
            shutil.copytree(crash.write(root) / "out", broker.log_dir)
            broker.start()
            after = consume(cluster.bootstrap, workload.partitions, isolation=READ_COMMITTED)
            assert complaints(broker) == [], crash.how
            assert tables(after) == tables(before), crash.how
            broker.stop()


def interrupted(crashes: list[Crash]) -> list[Crash]:
    """In the middle of the swap: with most files that have not got their names yet, and with old ones that are still there."""

    def staged(suffix: str, crash: Crash) -> int:
        return sum(path.endswith(suffix) for path in crash.tree)

    return sorted(crashes, key=lambda crash: staged(".swap", crash) * staged(".deleted", crash), reverse=True)
