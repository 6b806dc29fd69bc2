"""One partition at a time, for tests; the program levels many in one job, and decides many tables in one. And one worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from headstone.lake.defaults import EXTENT_BYTES
from headstone.lake.jobs.leveling import Leveled, level_partitions
from headstone.lake.jobs.worker import Worker
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Partition
from headstone.lake.transfer.table_view import TASK_KEYS_MAX, decided, rows_of_table
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine
from headstone.pipeline.inprocess import InProcess


def level_partition(
    lake: Lake, topic_partition: TopicPartition, *, clock: Callable[[], int], extent_bytes: int = EXTENT_BYTES,
    purge: bool = False, engine: Engine | None = None,
) -> Leveled:  # fmt: skip
    """As `level_partitions`, of one: what it met is raised."""
    done = level_partitions(lake, [topic_partition], clock=clock, extent_bytes=extent_bytes, purge=purge, engine=engine)
    outcome = done[topic_partition]
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def worker(lake: Lake, name: str = "w", *, now_ms: int = 100, **options: Any) -> Worker:
    """Of one thread; it tells nobody."""
    given: dict[str, Any] = {"engine": InProcess(1), "tell": lambda text: None, "clock": lambda: now_ms, **options}
    return Worker(name=name, lake=lake, **given)


def table_batches(
    lake: Lake, topic_partition: TopicPartition, partition: Partition, *, keys_max: int = TASK_KEYS_MAX
) -> Iterator[pa.RecordBatch]:
    """All of it in this process."""
    store, hash_key = lake.store, lake.metastore.hash_key
    live = decided(store, hash_key, {topic_partition: partition}, InProcess(), keys_max=keys_max)
    yield from rows_of_table(store, hash_key, topic_partition, live[topic_partition])
