"""Every job over one Spark Connect session, in a process that has never had another kind: `test_connect.py` runs it.

Reads what to do as JSON from its input and answers as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from headstone.lake.compaction import Compacted, compact_partitions
from headstone.lake.job_plan import JobOptions
from headstone.lake.lake import open_lake
from headstone.log.directory import find_partitions
from headstone.pipeline.auditing import audit, replicas_of
from headstone.pipeline.inspection import inspect
from headstone.spark.engine import OnSpark
from headstone.spark.session import spark_session
from headstone.storage.access import Access
from tests.audit.replicas import findings
from tests.clusters.backups import NOW_MS, POLICY, compact_backup, rows_by_partition


def compacted_lake(url: str, settings: dict[str, str], path: str, engine: OnSpark) -> dict[str, int]:
    """Of each partition the records that are left; -1 if it was not compacted."""
    lake = open_lake(url, settings=settings)
    options = JobOptions(path=path, commit_bytes=150_000)
    outcomes = compact_partitions(lake, lake.metastore.partitions(), engine, now_ms=NOW_MS, options=options)
    lake.close()
    return {
        str(name): outcome.records_after if isinstance(outcome, Compacted) else -1 for name, outcome in outcomes.items()
    }


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
        }


if __name__ == "__main__":
    json.dump(answers(json.load(sys.stdin)), sys.stdout)
