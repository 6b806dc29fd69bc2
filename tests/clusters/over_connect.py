"""Every job over one Spark Connect session, in a process that has never had another kind: `test_connect.py` runs it.

Reads what to do as JSON from its input and answers as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import headstone as hs
from headstone.lake.jobs.compaction import Compacted, compact_partitions
from headstone.lake.jobs.job_plan import JobSettings
from headstone.lake.lake import open_lake
from headstone.lake.transfer.ingest import Ingested
from headstone.log.directory import find_partitions
from headstone.pipeline.auditing import audit, replicas_of
from headstone.pipeline.inspection import inspect
from headstone.spark.engine import OnSpark
from headstone.spark.inheriting import inheriting
from headstone.spark.session import spark_session
from headstone.storage.access import Access
from tests.clusters.backups import NOW_MS, POLICY, compact_backup, rows_by_partition
from tests.divergence.replicas import findings


def compacted_lake(url: str, settings: dict[str, str], path: str, engine: OnSpark) -> dict[str, int]:
    """Of each partition the records that are left; -1 if it was not compacted."""
    lake = open_lake(url, settings=settings)
    settings = JobSettings(path=path, commit_bytes=150_000)
    outcomes = compact_partitions(lake, lake.metastore.partitions(), engine, now_ms=NOW_MS, settings=settings)
    lake.close()
    return {
        str(name): outcome.records_after if isinstance(outcome, Compacted) else -1 for name, outcome in outcomes.items()
    }


def by_library(spark: Any, task: dict[str, Any]) -> dict[str, Any]:
    """The calls of docs/python.md on this session."""
    store = task["store"]
    facts = hs.inspect(task["source"], spark=spark, store=store, progress=False)
    audit = hs.audit(list(task["replicas"].values()), spark=spark, store=store, progress=False)
    settings = hs.CompactionSettings(
        rules="kafka", now_ms=NOW_MS, dirty_from=0, topic_settings={"segment.bytes": "500000"}
    )
    done = hs.compact(spark, task["source"], out=task["library_out"], settings=settings, store=store, progress=False)
    counters = done.to_spark(spark).select("partition", "records_after").collect()
    return {
        "compacted": {row["partition"]: row["records_after"] for row in counters},
        "tags": tags_elsewhere(spark),
        "records": {row["partition"]: row["records"] for row in facts.collect()},
        "verdict": audit.verdict,
        "findings": [finding.kind for finding in audit.findings],
    }


def lake_by_library(spark: Any, task: dict[str, Any]) -> dict[str, Any]:
    """A lake from beginning to end. The server plans what is read: it has to reach the metastore."""
    store = task["store"]
    with hs.Lake.create(task["library_lake"], objects=task["library_objects"], store=store) as lake:
        parts = lake.ingest(task["source"], spark=spark, store=store, progress=False)
        run = lake.compact(spark, settings=hs.LakeCompactionSettings(everything=True), progress=False)
        topics = [lake.topic(row.topic) for row in lake.topics()]
        return {
            "ingested": {str(part.partition): part.records for part in parts if isinstance(part, Ingested)},
            "compacted": len(run.compacted),
            "tables": {topic.name: offsets_of(topic.table(spark)) for topic in topics},
            "records": {topic.name: offsets_of(topic.records(spark)) for topic in topics},
        }


def offsets_of(rows: Any) -> list[list[int]]:
    return sorted([row["partition"], row["offset"]] for row in rows.select("partition", "offset").collect())


def tags_elsewhere(spark: Any) -> list[list[str]]:
    """On threads of ours, while the caller's thread has a tag and after that; and what the caller's has then."""
    found: list[list[str]] = []
    spark.addTag("callers")
    inherited = inheriting(spark, lambda: found.append(sorted(spark.getTags())))
    spark.removeTag("callers")
    for work in (inherited, inheriting(spark, lambda: found.append(sorted(spark.getTags())))):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    return [*found, sorted(spark.getTags())]


def answers(task: dict[str, Any]) -> dict[str, Any]:
    access = Access.of(task["store"])
    with spark_session(app_name="over connect", remote=task["remote"]) as spark:
        engine = OnSpark(lambda: spark, parallelism=2)
        for path, out in task["outs"].items():
            compact_backup(task["source"], out, access, engine, path)
        facts = inspect(find_partitions([task["source"]], access), POLICY, engine, None)
        groups = replicas_of([(name, find_partitions([url], access)) for name, url in task["replicas"].items()])
        return {
            "session": type(spark).__module__,
            "facts": [fact.as_json() for fact in facts],
            "findings": [str(findings(audited)) for audited in audit(groups, engine)],
            "lakes": {path: compacted_lake(url, task["store"], path, engine) for path, url in task["lakes"].items()},
            "rows": rows_by_partition(spark, task["source"], access),
            "library": by_library(spark, task),
            "library_lake": lake_by_library(spark, task),
        }


if __name__ == "__main__":
    json.dump(answers(json.load(sys.stdin)), sys.stdout)
