"""Makes the captured logs in tests/captured: real producers, a real cleaner, a clean stop, and Kafka's own dump.

`python -m testbed.capture` writes them anew; offsets and times differ from run to run, the shapes do not.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from headstone.brokers.client import JavaClient
from headstone.brokers.processes import Cluster
from testbed.dumps import dump
from testbed.maven import VERSIONS, kafka
from testbed.workloads import Workload, segment_bytes

CAPTURED = Path(__file__).resolve().parent.parent / "tests" / "captured"
KEPT = ("*.log", "*.index", "*.timeindex", "*.txnindex", "*.snapshot", "leader-epoch-checkpoint", "partition.metadata")
SEED = 5
RECORDS = 40
SMALL_SEGMENT_BYTES = 6000
METADATA_TOPICS: dict[str, dict[str, object]] = {
    "table": {"cleanup.policy": "compact", "delete.retention.ms": 1234, "min.compaction.lag.ms": 5},
    "events": {"cleanup.policy": "delete", "retention.ms": 99},
    "both": {"cleanup.policy": "compact,delete"},
    "plain": {},
    "gone": {"cleanup.policy": "compact"},
}


def capture(version: str, to: Path) -> None:
    distribution = kafka(version)
    shutil.rmtree(to, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="headstone-") as temporary:
        root = Path(temporary)
        with Cluster(distribution, root / "cluster") as cluster, JavaClient(distribution, root / "client") as java:
            workload = Workload(cluster, java.connect(cluster.bootstrap), seed=SEED)
            workload.create(segment_bytes(distribution.release, SMALL_SEGMENT_BYTES))
            for _ in range(3):
                workload.write(records=RECORDS)
                workload.clean()
            workload.write(records=RECORDS // 2)
            cluster.stop()
            log_dir = cluster.brokers[1].log_dir
        for name in workload.partitions:
            (to / name).mkdir(parents=True)
            for pattern in KEPT:
                for file in (log_dir / name).glob(pattern):
                    shutil.copyfile(file, to / name / file.name)
        for name in ("cleaner-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint"):
            shutil.copyfile(log_dir / name, to / name)
        for name in workload.partitions:
            files = sorted((to / name).glob("*.log"))
            lines = [line for some in dump(distribution, files, root / "tools").values() for line in some]
            (to / name / "dump.txt").write_text("".join(f"{line}\n" for line in lines))


def capture_metadata(version: str, to: Path) -> None:
    """KRaft's metadata log with the first of its snapshots, the last, and one between; snapshots are taken all the time."""
    distribution = kafka(version)
    shutil.rmtree(to, ignore_errors=True)
    often = {"metadata.log.max.snapshot.interval.ms": 4000, "metadata.log.max.record.bytes.between.snapshots": 100}
    with tempfile.TemporaryDirectory(prefix="headstone-") as temporary:
        root = Path(temporary)
        with (
            JavaClient(distribution, root / "client") as java,
            Cluster(distribution, root / "cluster", settings=often) as cluster,
        ):
            client = java.connect(cluster.bootstrap)
            for topic, settings in METADATA_TOPICS.items():
                client.create_topic(topic, [[1]], settings)
            client.alter_brokers({"log.cleaner.delete.retention.ms": 777, "log.segment.bytes": 2_000_000})
            client.delete_topic("gone")
            client.create_topic("gone", [[1]], {"cleanup.policy": "delete"})
            client.alter_topic("table", {"min.compaction.lag.ms": 6})
            cluster.stop()
            log = cluster.brokers[1].log_dir / "__cluster_metadata-0"
        snapshots = sorted(log.glob("*.checkpoint"))
        kept = [file for pattern in KEPT[:3] for file in log.glob(pattern)]
        (to / log.name).mkdir(parents=True)
        for file in (*kept, snapshots[0], snapshots[len(snapshots) * 2 // 3], snapshots[-1]):
            shutil.copyfile(file, to / log.name / file.name)


if __name__ == "__main__":
    for release in sys.argv[1:] or VERSIONS:
        capture(release, CAPTURED / f"kafka-{release}")
        capture_metadata(release, CAPTURED / f"metadata-{release}")
