"""Makes the captured logs in tests/captured: real producers, a real cleaner, a clean stop, and Kafka's own dump.

`python -m testbed.capture` writes them anew; offsets and times differ from run to run, the shapes do not.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from headstone.kafka.brokers import Cluster
from headstone.kafka.client import JavaClient
from testbed.dumps import dump
from testbed.maven import VERSIONS, kafka
from testbed.workloads import Workload, segment_bytes

CAPTURED = Path(__file__).resolve().parent.parent / "tests" / "captured"
KEPT = ("*.log", "*.index", "*.timeindex", "*.txnindex", "*.snapshot", "leader-epoch-checkpoint", "partition.metadata")
SEED = 5
RECORDS = 40
SMALL_SEGMENT_BYTES = 6000


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


if __name__ == "__main__":
    for release in sys.argv[1:] or VERSIONS:
        capture(release, CAPTURED / f"kafka-{release}")
