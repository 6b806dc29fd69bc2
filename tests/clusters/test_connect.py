"""The same over Spark Connect: its server is one more machine that shares nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from testbed.machines import environment
from testbed.spark_cluster import SPECULATION, SparkCluster
from tests.clusters.backups import Backup, facts_here, new_url


@pytest.fixture(scope="module")
def outs() -> dict[str, str]:
    return {"whole": new_url(), "shuffle": new_url()}


@pytest.fixture(scope="module")
def answers(
    cluster: SparkCluster, backup: Backup, replicas: Mapping[str, str], outs: Mapping[str, str]
) -> dict[str, Any]:
    task = {
        "source": backup.url, "store": dict(backup.access.settings), "replicas": dict(replicas), "outs": dict(outs),
    }  # fmt: skip
    with cluster.connect_server(SPECULATION) as remote:
        done = subprocess.run(
            [sys.executable, "-m", "tests.clusters.over_connect"], input=json.dumps({**task, "remote": remote}),
            capture_output=True, text=True, check=False, env=environment(),
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["session"] == "pyspark.sql.connect.session"
    return found


@pytest.mark.parametrize("path", ["whole", "shuffle"])
def test_a_backup_is_compacted_into_a_new_one(
    path: str, answers: Mapping[str, Any], outs: Mapping[str, str], backup: Backup, expected: dict[str, bytes]
) -> None:
    del answers
    assert backup.files(outs[path]) == expected


def test_inspect_counts_what_one_process_counts(answers: Mapping[str, Any], backup: Backup) -> None:
    assert answers["facts"] == facts_here(backup)


def test_audit_of_three_replicas_finds_the_one_that_differs(answers: Mapping[str, Any]) -> None:
    assert answers["findings"] == [str([("deleted-reappears", "two", b"k")])]


def test_kafka_log_reads_every_record(answers: Mapping[str, Any], backup: Backup) -> None:
    assert answers["rows"] == {fact["partition"]: fact["records"] for fact in facts_here(backup)}
