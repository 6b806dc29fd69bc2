"""The same job, unchanged, on Spark Connect and on a standalone cluster of several worker processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headstone.pipeline.compaction import CompactionRequest, compact
from headstone.pipeline.inprocess import InProcess
from headstone.retention.policy import Policy, kafka_rules
from testbed.spark_cluster import SparkCluster
from tests.spark.test_compaction import NOW_MS, files


def compact_on(where: list[str], source: Path, out: Path, split: str) -> list[dict[str, object]]:
    command = [
        sys.executable,
        "-m",
        "headstone.cli.main",
        "compact",
        str(source),
        "--out",
        str(out),
        "--rules",
        "kafka",
    ]
    command += ["--now-ms", str(NOW_MS), "--split", split, "--output", "json", *where]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    partitions: list[dict[str, object]] = json.loads(done.stdout)["partitions"]
    return partitions


@pytest.fixture
def expected(sample: Path, tmp_path: Path) -> dict[str, bytes]:
    policy = kafka_rules(Policy(now_ms=NOW_MS))
    request = CompactionRequest(paths=(str(sample),), out=tmp_path / "expected", policy=policy, progress=False)
    compact(request, InProcess(), lambda text: None)
    return files(tmp_path / "expected")


@pytest.mark.parametrize("split", ["whole", "shuffle"])
def test_on_spark_connect(split: str, sample: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    compact_on(["--spark-remote", "local[2]"], sample, tmp_path / "out", split)
    assert files(tmp_path / "out") == expected


def test_on_a_standalone_cluster_of_two_workers(
    standalone: SparkCluster, sample: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    for split in ("whole", "shuffle"):
        compact_on(["--master", standalone.url], sample, tmp_path / split, split)
        assert files(tmp_path / split) == expected
