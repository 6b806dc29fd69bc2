"""A worker: pulls the most urgent partition that nobody works on, compacts it under a lease, and again.

Any number of them on any machine. Stopping is soft (the job is finished first) or hard (it is given up before its commit). A
worker that dies leaves a lease that expires, and objects that nobody points at.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

from headstone.errors import HeadstoneError
from headstone.lake.commits import CommitRefused
from headstone.lake.compaction import compact_partition
from headstone.lake.holds import Holds
from headstone.lake.job_plan import JobOptions
from headstone.lake.lake import Lake
from headstone.lake.leases import COMMITTED, FAILED, IDLE, LEASE_MS, LEVELED, REFUSED, Leases
from headstone.lake.leveling import level_partition, runs_to_merge
from headstone.lake.rows import TopicPartition
from headstone.lake.scheduling import Eligibility, eligibility, queue
from headstone.spark.compaction import Engine

RUN, SOFT, HARD = "run", "soft", "hard"
HEARTBEATS = 4
"""In a lease: one that is late does not cost it."""

Clock = Callable[[], int]
"""Milliseconds since 1970."""


def eligibilities(lake: Lake, *, now_ms: int) -> dict[TopicPartition, Eligibility]:
    """Every partition of the lake: whether it is worth a compaction, and why."""
    metastore, holds = lake.metastore, Holds(lake.metastore)
    settings, requested = metastore.topics(), Leases(metastore).requested()
    return {
        at: eligibility(
            metastore.partition(at), settings[at.topic], now_ms=now_ms, requested=at in requested,
            held_from=holds.held_from(at, now_ms=now_ms),
        )
        for at in metastore.partitions()
    }  # fmt: skip


class StoppedHard(HeadstoneError):
    """Told to stop before the commit: nothing was changed."""


@dataclass(slots=True, kw_only=True)
class Worker:
    name: str
    lake: Lake
    engine: Engine
    clock: Clock
    tell: Callable[[str], None]
    lease_ms: int = LEASE_MS
    options: JobOptions = field(default_factory=JobOptions)
    stop: str = RUN
    """Set by a signal handler or another thread."""

    def work(self) -> int:
        """Jobs until nothing is due, or until it is told to stop; how many were committed."""
        leases, committed = Leases(self.lake.metastore), 0
        refused: set[TopicPartition] = set()
        while self.stop == RUN and leases.seen(self.name, "looking", now_ms=self.clock()):
            at = self._next(leases, refused)
            if at is None:
                break
            outcome = self._job(leases, at)
            committed += outcome == COMMITTED
            if outcome != COMMITTED:
                refused.add(at)  # not again at once: somebody else was faster, or it would fail again
        if self.stop == RUN:
            self._level(leases)
        return committed

    def _level(self, leases: Leases) -> None:
        """When nothing is due: small extents are merged, one partition after the other."""
        for at in self.lake.metastore.partitions():
            small = runs_to_merge(self.lake.metastore.partition(at))
            if not small or self.stop != RUN or not leases.seen(self.name, f"leveling {at}", now_ms=self.clock()):
                continue
            if leases.take(at, self.name, now_ms=self.clock(), lease_ms=self.lease_ms):
                started = self.clock()
                with self._heartbeat(leases, at):
                    try:
                        outcome, told = LEVELED, asdict(level_partition(self.lake, at, clock=self.clock))
                    except HeadstoneError as error:
                        outcome, told = REFUSED, {"why": str(error)}
                leases.done(at, self.name, outcome, {**told, "at": str(at)}, started_ms=started, now_ms=self.clock())
                leases.release(at, self.name)

    def _next(self, leases: Leases, refused: set[TopicPartition]) -> TopicPartition | None:
        now = self.clock()
        requested = leases.requested()
        states = {at: state for at, state in eligibilities(self.lake, now_ms=now).items() if at not in refused}
        for at in requested:
            if at in states and not states[at].eligible:
                leases.done(at, self.name, IDLE, {"why": states[at].reason}, started_ms=now, now_ms=now)
        for at, _ in queue(states.items(), now_ms=now):
            if leases.take(at, self.name, now_ms=self.clock(), lease_ms=self.lease_ms):
                return at
        return None

    def _job(self, leases: Leases, at: TopicPartition) -> str:
        started = self.clock()
        self.tell(f"compacting {at}")
        with self._heartbeat(leases, at):
            try:
                options = replace(self.options, clock=self.clock, before_commit=self._check_stop, tell=self.tell)
                done = compact_partition(self.lake, at, self.engine, now_ms=started, options=options)
                outcome, told = (COMMITTED if done.committed else IDLE), {**asdict(done), "at": str(at)}
            except CommitRefused as error:
                outcome, told = REFUSED, {"why": str(error)}
            except HeadstoneError as error:
                outcome, told = FAILED, {"why": str(error)}
        leases.done(at, self.name, outcome, told, started_ms=started, now_ms=self.clock())
        leases.release(at, self.name)
        self.tell(f"{at}: {outcome}" + (f": {told['why']}" if "why" in told else ""))
        return outcome

    def _check_stop(self) -> None:
        if self.stop == HARD:
            raise StoppedHard("stopped before its commit")

    @contextmanager
    def _heartbeat(self, leases: Leases, at: TopicPartition) -> Iterator[None]:
        over = threading.Event()

        def beat() -> None:
            while not over.wait(self.lease_ms / HEARTBEATS / 1000):
                leases.renew(at, self.name, now_ms=self.clock(), lease_ms=self.lease_ms)
                leases.seen(self.name, f"compacting {at}", now_ms=self.clock())

        beating = threading.Thread(target=beat, daemon=True)
        beating.start()
        try:
            yield
        finally:
            over.set()
            beating.join()
