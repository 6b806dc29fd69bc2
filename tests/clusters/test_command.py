"""`headstone compact` as one types it: from a backup in object storage to another, on a cluster that shares no disk."""

from __future__ import annotations

import json
import subprocess
import sys

from testbed.faulty_s3 import FaultyS3
from testbed.machines import environment
from testbed.spark_cluster import APPLICATION_CONF, SparkCluster
from tests.clusters.backups import NOW_MS, POLICY, Backup, new_url


def test_the_command_makes_of_a_backup_what_one_process_makes_of_local_logs(
    cluster: SparkCluster, proxy: FaultyS3, backup: Backup, expected: dict[str, bytes]
) -> None:
    out = new_url()
    command = [
        sys.executable, "-m", "headstone.cli.main", "compact", backup.url, "--out", out, "--master", cluster.url,
        "--dirty-from", "0", "--now-ms", str(NOW_MS), "--segment-bytes", str(POLICY.segment_bytes), "--output", "json",
    ]  # fmt: skip
    command += [word for name, value in proxy.settings.items() for word in ("--store-conf", f"{name}={value}")]
    command += [word for name, value in APPLICATION_CONF.items() for word in ("--spark-conf", f"{name}={value}")]
    variables = {**environment(), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["partitions"]) == 4
    assert backup.files(out) == expected
