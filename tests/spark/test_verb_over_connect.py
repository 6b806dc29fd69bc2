"""`headstone compact --spark-remote`: the same job, unchanged, on Spark Connect."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headstone.pipeline.compaction import CompactionRequest, compact
from headstone.pipeline.inprocess import InProcess
from headstone.retention.policy import Policy, kafka_rules
from tests.spark.test_compaction import NOW_MS, files


@pytest.mark.parametrize("split", ["whole", "shuffle"])
def test_on_spark_connect_the_output_is_that_of_one_process(split: str, sample: Path, tmp_path: Path) -> None:
    policy = kafka_rules(Policy(now_ms=NOW_MS))
    request = CompactionRequest(paths=(str(sample),), out=tmp_path / "expected", policy=policy, progress=False)
    compact(request, InProcess(), lambda text: None)
    words = ["compact", str(sample), "--out", str(tmp_path / "out"), "--rules", "kafka", "--now-ms", str(NOW_MS)]
    done = subprocess.run(
        [sys.executable, "-m", "headstone.cli.main", *words, "--split", split, "--spark-remote", "local[2]"],
        capture_output=True, text=True, check=False, env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert files(tmp_path / "out") == files(tmp_path / "expected")
