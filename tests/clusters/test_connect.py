"""The same over Spark Connect: its server is one more machine that shares nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headstone.lake.compaction import Compacted, compact_partitions
from headstone.lake.ingest import ingest
from headstone.lake.lake import create_lake, open_lake
from headstone.lake.reading import records
from headstone.log.directory import find_partitions
from headstone.pipeline.inprocess import InProcess
from headstone.storage.access import Access
from testbed.machines import environment
from testbed.spark_cluster import SPECULATION, SparkCluster
from tests.clusters.backups import NOW_MS, Backup, facts_here, new_url


@pytest.fixture(scope="module")
def outs() -> dict[str, str]:
    return {"whole": new_url(), "shuffle": new_url()}


@pytest.fixture(scope="module")
def lakes(sample: Path, access: Access, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """URLs of three, all alike; one of them for this process."""
    root = tmp_path_factory.mktemp("lakes")
    urls = {name: f"sqlite:///{root / name}.db" for name in ("whole", "shuffle", "here")}
    for url in urls.values():
        made = create_lake(url, new_url(), settings=dict(access.settings), now_ms=0)
        ingest(made, find_partitions([sample]), clock=lambda: NOW_MS, extent_bytes=50_000)
        made.close()
    return urls


@pytest.fixture(scope="module")
def answers(
    cluster: SparkCluster,
    backup: Backup,
    replicas: Mapping[str, str],
    outs: Mapping[str, str],
    lakes: Mapping[str, str],
) -> dict[str, Any]:
    task = {
        "source": backup.url, "store": dict(backup.access.settings), "replicas": dict(replicas), "outs": dict(outs),
        "lakes": {path: lakes[path] for path in outs},
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


@pytest.mark.parametrize("path", ["whole", "shuffle"])
def test_a_lake_is_compacted_as_in_one_process(
    path: str, answers: Mapping[str, Any], lakes: Mapping[str, str], access: Access
) -> None:
    there, here = (open_lake(lakes[name], settings=dict(access.settings)) for name in (path, "here"))
    names = here.metastore.partitions()
    outcomes = compact_partitions(here, names, InProcess(), now_ms=NOW_MS)
    assert all(isinstance(outcome, Compacted) for outcome in outcomes.values())
    left = {name: list(records(here, name)) for name in names}
    assert {name: list(records(there, name)) for name in names} == left
    assert answers["lakes"][path] == {str(name): len(some) for name, some in left.items()}
    assert there.metastore.check() == []
    there.close()
    here.close()


def test_inspect_counts_what_one_process_counts(answers: Mapping[str, Any], backup: Backup) -> None:
    assert answers["facts"] == facts_here(backup)


def test_audit_of_three_replicas_finds_the_one_that_differs(answers: Mapping[str, Any]) -> None:
    assert answers["findings"] == [str([("deleted-reappears", "two", b"k")])]


def test_kafka_log_reads_every_record(answers: Mapping[str, Any], backup: Backup) -> None:
    assert answers["rows"] == {fact["partition"]: fact["records"] for fact in facts_here(backup)}
