"""The same over Spark Connect: its server is one more machine that shares nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import headstone as hs
from headstone.lake.jobs.compaction import Compacted, compact_partitions
from headstone.lake.lake import create_lake, open_lake
from headstone.lake.transfer.ingest import LogIngestSettings, ingest
from headstone.lake.transfer.reading import records
from headstone.log.directory import find_partitions
from headstone.pipeline.inprocess import InProcess
from headstone.storage.access import Access
from testbed.machines import ROOT, environment
from testbed.spark_cluster import SPECULATION, SparkCluster
from tests.clusters.backups import NOW_MS, Backup, facts_here, new_url


@pytest.fixture(scope="module")
def outs() -> dict[str, str]:
    return {"whole": new_url(), "shuffle": new_url()}


@pytest.fixture(scope="module")
def library_out() -> str:
    return new_url()


@pytest.fixture(scope="module")
def lakes(sample: Path, access: Access, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """URLs of three, all alike; one of them for this process."""
    root = tmp_path_factory.mktemp("lakes")
    urls = {name: f"sqlite:///{root / name}.db" for name in ("whole", "shuffle", "here")}
    for url in urls.values():
        made = create_lake(url, new_url(), settings=dict(access.settings), now_ms=0)
        ingest(made, find_partitions([sample]), clock=lambda: NOW_MS, settings=LogIngestSettings(extent_bytes=50_000))
        made.close()
    return urls


@pytest.fixture(scope="module")
def library_lake() -> Iterator[str]:
    """Its metastore is a file that the server sees too: of this repository, which all machines have."""
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lake-over-connect-", dir=ROOT / "build") as directory:
        yield f"sqlite:///{directory}/metastore.db"


@pytest.fixture(scope="module")
def answers(
    cluster: SparkCluster,
    backup: Backup,
    replicas: Mapping[str, str],
    outs: Mapping[str, str],
    lakes: Mapping[str, str],
    library_out: str,
    library_lake: str,
) -> dict[str, Any]:
    task = {
        "source": backup.url, "store": dict(backup.access.settings), "replicas": dict(replicas), "outs": dict(outs),
        "lakes": {path: lakes[path] for path in outs}, "library_out": library_out,
        "library_lake": library_lake, "library_objects": new_url(),
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


def test_the_library_compacts_on_a_session_of_spark_connect(
    answers: Mapping[str, Any], backup: Backup, library_out: str, expected: dict[str, bytes]
) -> None:
    assert answers["library"]["compacted"].keys() == {fact["partition"] for fact in facts_here(backup)}
    assert backup.files(library_out) == expected


def test_threads_of_ours_have_the_callers_tags(answers: Mapping[str, Any]) -> None:
    assert answers["library"]["tags"] == [["callers"], [], []]


def test_the_library_takes_a_session_of_spark_connect(answers: Mapping[str, Any], backup: Backup) -> None:
    library = answers["library"]
    assert library["records"] == {fact["partition"]: fact["records"] for fact in facts_here(backup)}
    assert (library["verdict"], library["findings"]) == ("diverged", ["deleted-reappears"])


def test_the_librarys_lake_lives_on_a_session_of_spark_connect(
    answers: Mapping[str, Any], library_lake: str, backup: Backup, access: Access
) -> None:
    there = answers["library_lake"]
    with hs.Lake(library_lake, store=dict(access.settings)) as lake:
        topics = [lake.topic(row.topic) for row in lake.topics()]
        tables = {topic.name: offsets_in(topic.table()) for topic in topics}
        records = {topic.name: offsets_in(topic.records()) for topic in topics}
    partitions = {fact["partition"] for fact in facts_here(backup)}
    assert there["ingested"].keys() == partitions
    assert there["compacted"] == len(partitions)
    assert (there["tables"], there["records"]) == (tables, records)
    assert all(tables.values())


def offsets_in(rows: pd.DataFrame) -> list[list[int]]:
    return sorted(rows[["partition", "offset"]].astype(int).values.tolist())
