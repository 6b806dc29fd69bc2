"""Logs in object storage, worked on by executors that share nothing: the same bytes and facts as in this process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pytest
from pyspark.sql import SparkSession

from headstone.log.directory import find_partitions
from headstone.pipeline.auditing import audit, replicas_of
from headstone.pipeline.inspection import inspect
from headstone.spark.engine import OnSpark
from headstone.storage.access import Access
from testbed.faulty_s3 import FaultyS3, SeededFaults
from testbed.spark_cluster import SparkCluster
from tests.clusters.backups import POLICY, Backup, compact_backup, facts_here, new_url, rows_by_partition
from tests.clusters.moments import in_the_middle
from tests.divergence.replicas import findings

READS_THAT_PASS = 40
"""Of sixty: planning makes twenty, the keys twenty, the rewriting twenty. What waits are tasks in the middle of their work."""


@pytest.mark.parametrize("path", ["whole", "shuffle"])
def test_a_backup_is_compacted_into_a_new_one(
    path: str, engine: OnSpark, backup: Backup, expected: dict[str, bytes]
) -> None:
    out = new_url()
    compact_backup(backup.url, out, backup.access, engine, path)
    assert backup.files(out) == expected


@pytest.mark.parametrize("path", ["whole", "shuffle"])
def test_an_executor_that_is_killed_changes_nothing(
    path: str, engine: OnSpark, cluster: SparkCluster, proxy: FaultyS3, backup: Backup, expected: dict[str, bytes]
) -> None:
    out = new_url()
    job = partial(compact_backup, backup.url, out, backup.access, engine, path)
    with in_the_middle(proxy, job, suffix=".log", passing=READS_THAT_PASS) as (gate, finish):
        gate.wait_for(1)  # the last read of a stage comes alone
        assert cluster.kill_executors(0) == 1
        finish()
    assert backup.files(out) == expected


def test_a_task_that_wakes_up_late_changes_nothing(
    engine: OnSpark, cluster: SparkCluster, proxy: FaultyS3, backup: Backup, expected: dict[str, bytes]
) -> None:
    """Its twin has written, the driver has committed; then it goes on with what it was doing."""
    out = new_url()
    job = partial(compact_backup, backup.url, out, backup.access, engine, "whole")
    with in_the_middle(proxy, job, suffix=".log", passing=READS_THAT_PASS) as (gate, finish):
        gate.wait_for(2)
        with cluster.halted(1):
            finish()
    assert backup.files(out) == expected
    found = [directory.name for directory in find_partitions([out], backup.access)]
    assert found == [directory.name for directory in find_partitions([backup.url], backup.access)]


def test_a_store_with_faults_changes_nothing(
    engine: OnSpark, proxy: FaultyS3, backup: Backup, expected: dict[str, bytes]
) -> None:
    out = new_url()
    proxy.decide = SeededFaults(7, slow_down=0.05, cut_off=0.05, delay=0.05)
    compact_backup(backup.url, out, backup.access, engine, "shuffle")
    proxy.decide = lambda request: None
    assert backup.files(out) == expected


def test_a_worker_that_is_added_changes_nothing(
    engine: OnSpark, cluster: SparkCluster, proxy: FaultyS3, backup: Backup, expected: dict[str, bytes]
) -> None:
    out = new_url()
    job = partial(compact_backup, backup.url, out, backup.access, engine, "whole")
    with in_the_middle(proxy, job, suffix=".log", passing=READS_THAT_PASS) as (gate, finish):
        gate.wait_for(2)
        cluster.wait_for_tasks(cluster.add_worker())
        finish()
    assert backup.files(out) == expected


def test_inspect_counts_what_one_process_counts(engine: OnSpark, backup: Backup) -> None:
    found = inspect(find_partitions([backup.url], backup.access), POLICY, engine, None)
    assert [fact.as_json() for fact in found] == facts_here(backup)


def test_audit_of_three_replicas_finds_the_one_that_differs(
    engine: OnSpark, replicas: Mapping[str, str], access: Access
) -> None:
    groups = replicas_of([(name, find_partitions([url], access)) for name, url in replicas.items()])
    (audited,) = audit(groups, engine)
    assert (findings(audited), audited.problems) == ([("deleted-reappears", "two", b"k")], ())


def test_kafka_log_reads_every_record(spark: SparkSession, backup: Backup) -> None:
    counted = rows_by_partition(spark, backup.url, backup.access)
    assert counted == {fact["partition"]: fact["records"] for fact in facts_here(backup)}
