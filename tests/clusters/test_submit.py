"""The job of docs/python.md as one submits it: the library on a session that the platform has started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark

from testbed.faulty_s3 import FaultyS3
from testbed.machines import ROOT, environment
from testbed.spark_cluster import APPLICATION_CONF, SparkCluster
from tests.clusters.backups import Backup, new_url

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


def test_a_submitted_job_compacts_a_backup(cluster: SparkCluster, proxy: FaultyS3, backup: Backup) -> None:
    conf = [word for name, value in APPLICATION_CONF.items() for word in ("--conf", f"{name}={value}")]
    store = [f"{name}={value}" for name, value in proxy.settings.items() if "secret" not in name]
    secret = next(name for name in proxy.settings if "secret" in name)
    done = subprocess.run(
        [str(SUBMIT), "--master", cluster.url, *conf, str(ROOT / "examples" / "compact_job.py"), backup.url, new_url(),
         *store, f"{secret}=env:S3_SECRET"],
        env={**environment(), "PYSPARK_PYTHON": sys.executable, "S3_SECRET": proxy.settings[secret]},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *partitions, summary = done.stdout.splitlines()
    assert summary.startswith("4 partitions compacted in ")
    assert len(partitions) == 4
    assert all(" live keys in " in line for line in partitions)
