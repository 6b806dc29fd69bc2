"""A lake with one partition that is fed from a log which grows, for tests that tell a story about it.

Records are written in the notation of the acceptance cases (tests/oracle/notation.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headstone.lake.jobs.compaction import Compacted, compact_partition
from headstone.lake.jobs.job import JobControl
from headstone.lake.jobs.job_plan import JobSettings
from headstone.lake.lake import Lake
from headstone.lake.transfer.ingest import ingest
from headstone.lake.transfer.reading import records, table
from headstone.log.directory import find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from tests.oracle.notation import History

Said = Callable[..., Any]
"""The fixtures `said` and `told`: a verb of the lake, and what it says."""
ANYWHERE = pytest.mark.parametrize(
    ("metastore_url", "object_store"), [("sqlite", "file"), ("postgresql", "s3")], indirect=True
)
"""For `lake_anywhere`: each database and both kinds of stores; that each store is like the others says test_dead.py."""
AT = TopicPartition("t", 0)
RETENTION_MS = 1000


class Scene:
    """A lake with one partition, fed from a log that grows."""

    def __init__(self, lake: Lake, root: Path) -> None:
        self.lake = lake
        self.history = History()
        self._root = root / "log"
        lake.metastore.create_topic("t", 1, {"delete.retention.ms": RETENTION_MS})

    def write(self, *terms: str, now_ms: int = 0) -> None:
        """In the notation of the acceptance cases; each call is an extent of its own."""
        for term in terms:
            self.history.append(term)
        self.history.roll()
        self.history.write_partition(self._root, "t-0")
        ingest(self.lake, find_partitions([self._root / "t-0"]), clock=lambda: now_ms)

    def compact(self, now_ms: int, control: JobControl | None = None, **settings: object) -> Compacted:
        given = JobSettings(**settings)  # type: ignore[arg-type]
        return compact_partition(self.lake, AT, InProcess(1), now_ms=now_ms, settings=given, control=control)

    def held(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(record.offset, record.key, record.value) for record in records(self.lake, AT)]

    def offsets(self, as_of_ms: int | None = None) -> list[int]:
        return [record.offset for record in records(self.lake, AT, as_of_ms=as_of_ms)]

    def keys(self) -> list[tuple[int, bytes | None]]:
        """With their offsets."""
        return [(offset, key) for offset, key, _ in self.held()]

    def table(self) -> dict[bytes, bytes | None]:
        return {key: record.value for key, record in table(self.lake, AT).items()}
