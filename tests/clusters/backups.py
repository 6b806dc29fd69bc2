"""Backups of brokers' log directories in object storage, as a copy tool makes them, and their compaction."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headstone.log.directory import find_partitions
from headstone.pipeline.commit import WORK_PREFIX
from headstone.pipeline.compaction import CompactionRequest, compact
from headstone.pipeline.engine import Engine
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.inspection import inspect
from headstone.retention.policy import Policy, kafka_rules
from headstone.storage.access import Access
from headstone.storage.places import place
from headstone.storage.stores import Store
from testbed.s3 import BUCKET

NOW_MS = 1_800_000_000_000
POLICY = kafka_rules(Policy(now_ms=NOW_MS, segment_bytes=500_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    url: str
    access: Access

    def files(self, url: str) -> dict[str, bytes]:
        """What is a log directory there. A twin that Spark did not stop in time uploads behind the commit, into the folder of
        its run, where no reader looks and from where the next run removes it."""
        store = Store.open(url, dict(self.access.settings))
        return {
            entry.path: store.read(entry.path, 0, entry.size)
            for entry in sorted(store.entries(), key=lambda e: e.path)
            if not entry.path.startswith(WORK_PREFIX)
        }


def new_url() -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


def upload(root: Path, settings: Mapping[str, str]) -> str:
    """The URL of a copy of everything below the root."""
    url = new_url()
    store = Store.open(url, settings)
    for file in sorted(path for path in root.rglob("*") if path.is_file()):
        store.put(file.relative_to(root).as_posix(), file.read_bytes())
    return url


def compact_backup(source: str, out: str, access: Access, engine: Engine, path: str) -> None:
    request = CompactionRequest(
        paths=(source,), out=place(out, access), access=access, policy=POLICY, path=path, progress=False, dirty_from=0
    )
    compact(request, engine, lambda text: None)


def facts_here(backup: Backup) -> list[dict[str, Any]]:
    """What `inspect` counts in this process."""
    found = inspect(find_partitions([backup.url], backup.access), POLICY, InProcess(), None)
    return [fact.as_json() for fact in found]


def rows_by_partition(spark: SparkSession, url: str, access: Access) -> dict[str, int]:
    options = {f"store.{name}": value for name, value in access.settings}
    frame = spark.read.format("kafka-log").options(**options).load(url)
    rows = frame.groupBy("topic", "partition").count().collect()
    return {f"{row['topic']}-{row['partition']}": row["count"] for row in rows}
