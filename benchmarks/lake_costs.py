"""What a step of the lake costs: provides a lake to try it on, the wall clock, processor time, and requests to the store.

Does not know which steps are worth measuring.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from benchmarks.lake_logs import MB, PARTITION, VALUE_BYTES, evenly, write_log
from headstone.lake.defaults import DEAD_SHARE_MAX
from headstone.lake.jobs.compaction import Compacted, compact_partition
from headstone.lake.jobs.job_plan import JobSettings
from headstone.lake.lake import EMBEDDED, Lake, create_lake
from headstone.lake.transfer.ingest import ingest
from headstone.log import codecs
from headstone.pipeline.inprocess import InProcess
from headstone.storage.stores import Traffic

NOW_MS = 1_800_000_000_000

Row = dict[str, object]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One step: wall-clock time, processor time of all threads of this process, and requests to the store."""

    seconds: float
    processor_seconds: float
    traffic: Traffic

    @property
    def requests(self) -> int:
        return self.traffic.reads + self.traffic.writes


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def new_lake(root: Path, objects: str | None) -> Iterator[tuple[Lake, str]]:
    """(lake, URL of its metastore, a file under `root`). The lake is deleted afterwards, and so are its objects, wherever they
    were."""
    place = root / f"lake-{uuid.uuid4().hex}"
    place.mkdir()
    url = f"{objects.rstrip('/')}/{place.name}" if objects else f"file://{place / 'objects'}"
    metastore_url = f"sqlite:///{place / EMBEDDED}"
    lake = create_lake(metastore_url, url, now_ms=NOW_MS)
    try:
        yield lake, metastore_url
    finally:
        lake.store.delete(lake.store.list())
        lake.close()
        if url.startswith("file://"):
            shutil.rmtree(url.removeprefix("file://"))
        shutil.rmtree(place)


def costed(lake: Lake | None, run: Callable[[], T]) -> tuple[T, Cost]:
    before = replace(lake.store.traffic) if lake else Traffic()
    seconds, processor = time.monotonic(), time.process_time()
    result = run()
    seconds, processor = time.monotonic() - seconds, time.process_time() - processor
    after = lake.store.traffic if lake else Traffic()
    asked = {name: getattr(after, name) - getattr(before, name) for name in asdict(after)}
    return result, Cost(seconds=seconds, processor_seconds=processor, traffic=Traffic(**asked))


def best(costs: Sequence[Cost]) -> Cost:
    """The least time of all runs; requests to the store are the same in each."""
    return replace(
        costs[0], seconds=min(c.seconds for c in costs), processor_seconds=min(c.processor_seconds for c in costs)
    )


def rate(size: int, cost: Cost) -> float:
    return round(size / MB / cost.seconds, 1)


def compacted(
    lake: Lake, arguments: argparse.Namespace, map_bytes: int | None = None, dead_share_max: float = DEAD_SHARE_MAX
) -> Compacted:
    settings = JobSettings(map_bytes=map_bytes, dead_share_max=dead_share_max)
    return compact_partition(lake, PARTITION, InProcess(arguments.threads), now_ms=NOW_MS, settings=settings)


def warm_up(arguments: argparse.Namespace) -> None:
    """Loads the kernels, so that the first measurement does not include that."""
    with tempfile.TemporaryDirectory(prefix="headstone-bench-") as root:
        log = write_log(Path(root) / "log", evenly(1), VALUE_BYTES, codecs.NAMES.index(arguments.codec))
        with new_lake(Path(root), None) as (lake, _):
            ingest(lake, [log], clock=lambda: NOW_MS)
            compacted(lake, arguments)
