"""A lake with its metastore in PostgreSQL, compacted by executors that share nothing with the driver and know no SQL."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from headstone.lake.jobs import compaction
from headstone.lake.jobs.compaction import Compacted, compact_partitions
from headstone.lake.jobs.job_plan import JobSettings
from headstone.lake.lake import Lake, create_lake
from headstone.lake.transfer.ingest import LogIngestSettings, ingest
from headstone.lake.transfer.reading import records, table
from headstone.log.directory import find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from headstone.spark.engine import OnSpark
from headstone.storage.access import Access
from testbed.faulty_s3 import FaultyS3
from testbed.spark_cluster import SparkCluster
from tests.clusters.backups import NOW_MS, new_url
from tests.clusters.moments import in_the_middle

READS_THAT_PASS = 6
"""Of lists of keys: what waits are tasks in the middle of their work."""


@pytest.fixture
def lake(postgres_url: str, sample: Path, access: Access) -> Iterator[Lake]:
    """The sample's partitions in extents of some hundred records. The database is emptied for the next test."""
    made = create_lake(postgres_url, new_url(), settings=dict(access.settings), now_ms=0)
    ingest(made, find_partitions([sample]), clock=lambda: NOW_MS, settings=LogIngestSettings(extent_bytes=50_000))
    yield made
    with made.metastore.transaction() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA public")
    made.close()


def tables(lake: Lake) -> dict[TopicPartition, str]:
    return {
        name: hashlib.sha256(
            repr(sorted((key, row.offset) for key, row in table(lake, name).items())).encode()
        ).hexdigest()
        for name in lake.metastore.partitions()
    }


@pytest.mark.parametrize("path", ["whole", "shuffle"])
def test_one_job_compacts_all_partitions_though_an_executor_is_killed(
    path: str, lake: Lake, engine: OnSpark, cluster: SparkCluster, proxy: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the buckets, answers come after every two runs, and are committed then."""
    monkeypatch.setattr(compaction, "PARTS_AT_ONCE", 2)
    before, names = tables(lake), lake.metastore.partitions()
    settings = JobSettings(path=path, commit_bytes=150_000)
    job = partial(compact_partitions, lake, names, engine, now_ms=NOW_MS, settings=settings)
    with in_the_middle(proxy, job, suffix="", passing=READS_THAT_PASS) as (gate, finish):
        gate.wait_for(1)
        assert cluster.kill_executors(0) == 1
        outcomes = finish()
    assert [type(outcome) for outcome in outcomes.values()] == [Compacted] * len(names)
    assert (tables(lake), lake.metastore.check()) == (before, [])
    left = {name: [record.key for record in records(lake, name)] for name in names}
    assert {name: len(keys) == len(set(keys)) for name, keys in left.items()} == dict.fromkeys(names, True)
    again = compact_partitions(lake, names, InProcess(), now_ms=NOW_MS)
    assert [isinstance(outcome, Compacted) and outcome.committed for outcome in again.values()] == [False] * len(names)
