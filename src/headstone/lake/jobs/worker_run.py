"""One run of `lake worker`: a worker with all that it looks after, until nothing is due or it is stopped.

Owns the caller's choices (`WorkerSettings`). What a worker does with them is in `worker` and `upkeep`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial

from headstone.bounds import COUNT, DURATION_MS, INTERVAL_MS, SHARE, expect_all
from headstone.interruption import Interrupted, until_asked
from headstone.lake.defaults import (
    DEAD_SHARE_MAX,
    GC_EVERY_MS,
    GC_OBJECTS_AT_ONCE,
    GRACE_MS,
    LEASE_MS,
    PARTITIONS_AT_ONCE,
    UPKEEP_BYTES_AT_ONCE,
    UPLOAD_MS,
)
from headstone.lake.jobs.erasure import Tools
from headstone.lake.jobs.job import JobControl
from headstone.lake.jobs.job_plan import JobSettings
from headstone.lake.jobs.keeping import leased
from headstone.lake.jobs.upkeep import Upkeep
from headstone.lake.jobs.worker import HARD, RUN, SOFT, Worker
from headstone.lake.lake import Lake
from headstone.lake.metastore.leases import Leases
from headstone.pipeline.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    every_ms: int | None = None
    """Between two looks; None: it ends when nothing is due."""
    lease_ms: int = LEASE_MS
    partitions_at_once: int = PARTITIONS_AT_ONCE
    map_bytes: int | None = None
    """A bounded map of keys, in several passes; None for one pass."""
    dead_share_max: float = DEAD_SHARE_MAX
    dead_age_ms_max: int | None = None
    """For topics without a limit of their own; None for no limit."""
    gc: bool = True
    """False: garbage is collected elsewhere."""
    gc_every_ms: int = GC_EVERY_MS
    gc_objects: int = GC_OBJECTS_AT_ONCE
    upkeep_bytes: int = UPKEEP_BYTES_AT_ONCE
    grace_ms: int = GRACE_MS
    upload_ms: int = UPLOAD_MS

    def __post_init__(self) -> None:
        intervals = dict.fromkeys(("every_ms", "lease_ms", "gc_every_ms", "upload_ms"), INTERVAL_MS)
        counts = dict.fromkeys(("partitions_at_once", "map_bytes", "gc_objects", "upkeep_bytes"), COUNT)
        durations = dict.fromkeys(("dead_age_ms_max", "grace_ms"), DURATION_MS)
        expect_all(self, {**intervals, **counts, **durations, "dead_share_max": SHARE})


class WorkerRun:
    def __init__(
        self, lake: Lake, settings: WorkerSettings, engine: Engine, *, name: str, tell: Callable[[str], None], progress: bool
    ) -> None:  # fmt: skip
        clock = lake.metastore.clock
        tools = Tools(
            lake=lake, engine=engine, clock=clock, worker=name, tell=tell, working_on=partial(leased, lake, worker=name),
            grace_ms=settings.grace_ms, upload_ms=settings.upload_ms,
            control=JobControl(stop=lambda: self._worker.stop != RUN),
        )  # fmt: skip
        self._every_ms = settings.every_ms
        self._worker = Worker(
            name=name, lake=lake, engine=engine, clock=clock, tell=tell, lease_ms=settings.lease_ms,
            partitions_at_once=settings.partitions_at_once, bytes_at_once=settings.upkeep_bytes,
            settings=JobSettings(map_bytes=settings.map_bytes, dead_share_max=settings.dead_share_max),
            control=JobControl(progress=progress),
            upkeep=Upkeep(
                tools=tools, dead_age_ms_max=settings.dead_age_ms_max, gc=settings.gc, gc_every_ms=settings.gc_every_ms,
                objects_at_once=settings.gc_objects, bytes_at_once=settings.upkeep_bytes,
            ),
        )  # fmt: skip

    def stop(self, count: int) -> None:
        """The first signal lets it finish the current parts, the second gives them up before their commits."""
        self._worker.stop = SOFT if count == 1 else HARD

    def work(self, hearing: AbstractContextManager[object]) -> int:
        """Returns how many compactions were committed. `hearing`: the signal handlers, which call `stop`."""
        worker, committed = self._worker, 0
        with suppress(Interrupted), hearing:
            committed += worker.look() if self._every_ms else worker.work()
            while self._every_ms and worker.stop == RUN:
                until_asked(self._every_ms / 1000)
                committed += worker.look()
        Leases(worker.lake.metastore).left(worker.name)
        return committed
