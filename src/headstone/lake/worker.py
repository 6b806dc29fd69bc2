"""A worker: pulls the most urgent partition that nobody works on, compacts it under a lease, and again.

Any number of them on any machine. Stopping is soft (the job is finished first) or hard (it is given up before its commit). A
worker that dies leaves a lease that expires, and objects that nobody points at. A job that fails, of whatever, is told in the
history; its partition waits, the worker goes on. One of the two places that catch broadly.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace

from headstone.errors import HeadstoneError, UsageError
from headstone.lake.clock import Clock
from headstone.lake.commits import CommitRefused
from headstone.lake.compaction import compact_partition
from headstone.lake.holds import Holds
from headstone.lake.job_plan import JobOptions
from headstone.lake.lake import Lake
from headstone.lake.leases import COMMITTED, FAILED, IDLE, LEASE_MS, LEVELED, REFUSED, STOPPED, WAIT_MS, Leases
from headstone.lake.leveling import level_partition, runs_to_merge
from headstone.lake.scheduling import Eligibility, eligibility, ineligible, queue
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine

RUN, SOFT, HARD = "run", "soft", "hard"
HEARTBEATS = 4
"""In a lease: one that is late does not cost it."""


def eligibilities(
    lake: Lake, *, now_ms: int, requested: Collection[TopicPartition] = ()
) -> dict[TopicPartition, Eligibility]:
    """Every partition of the lake: whether it is worth a compaction, and why. Settings that make no sense are their own.

    `requested`: as if somebody had asked for these too."""
    metastore, holds = lake.metastore, Holds(lake.metastore)
    settings, requested = metastore.topics(), {*Leases(metastore).requested(), *requested}
    states = {}
    for at in metastore.partitions():
        try:
            states[at] = eligibility(
                metastore.partition(at), settings[at.topic], now_ms=now_ms, requested=at in requested,
                held_from=holds.held_from(at, now_ms=now_ms),
            )  # fmt: skip
        except UsageError as error:
            states[at] = ineligible(str(error))
    return states


class StoppedHard(HeadstoneError):
    """Told to stop before the commit: nothing was changed."""


class LeaseLost(HeadstoneError):
    """Somebody else may have begun the same work: the job is given up before its commit, and nothing was changed."""


@dataclass(slots=True)
class Lease:
    """A lease that a thread keeps alive. `lost` says why it could not."""

    lost: str = ""

    def check(self) -> None:
        if self.lost:
            raise LeaseLost(self.lost)


@contextmanager
def leased(lake: Lake, at: TopicPartition, worker: str, *, lease_ms: int = LEASE_MS) -> Iterator[Lease]:
    """Has the partition's lease while the block runs; CommitRefused if somebody else has it."""
    leases, clock = Leases(lake.metastore), lake.metastore.clock
    if not leases.take(at, worker, now_ms=clock(), lease_ms=lease_ms):
        holder = leases.held(now_ms=clock()).get(at, "another worker")
        raise CommitRefused(f"{holder} works on it; look again when that has ended")
    try:
        with beating(leases, at, worker, clock, lease_ms=lease_ms) as lease:
            yield lease
    finally:
        leases.release(at, worker)


@contextmanager
def beating(leases: Leases, at: TopicPartition, worker: str, clock: Clock, *, lease_ms: int) -> Iterator[Lease]:
    """Renews a lease that was taken. A sign of life that fails is tried again, until a whole lease has gone by without one."""
    lease, over = Lease(), threading.Event()

    def beat() -> None:
        alive = time.monotonic()
        while not over.wait(lease_ms / HEARTBEATS / 1000):
            try:
                ours = leases.renew(at, worker, now_ms=clock(), lease_ms=lease_ms)
            except Exception as error:
                if (time.monotonic() - alive) * 1000 >= lease_ms:
                    lease.lost = f"no sign of life got through for a whole lease: {_said(error)}"
                    return
                continue
            if not ours:
                lease.lost = "the lease is another worker's now"
                return
            alive = time.monotonic()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        over.set()
        thread.join()


def _said(error: Exception) -> str:
    """Of what is no error of ours, with its kind: the words alone may be no more than a number."""
    return str(error) if isinstance(error, HeadstoneError) else f"{type(error).__name__}: {error}"


@dataclass(slots=True, kw_only=True)
class Worker:
    name: str
    lake: Lake
    engine: Engine
    clock: Clock
    tell: Callable[[str], None]
    lease_ms: int = LEASE_MS
    wait_ms: int = WAIT_MS
    """Of a partition after its first failure."""
    options: JobOptions = field(default_factory=JobOptions)
    stop: str = RUN
    """Set by a signal handler or another thread."""
    lease: Lease | None = None
    """Of the job that runs."""

    def look(self) -> int:
        """As `work`, for whoever looks again later: a metastore that does not answer is told, and may be back then."""
        try:
            return self.work()
        except Exception as error:
            self.tell(f"looking again later: {_said(error)}")
            return 0

    def work(self) -> int:
        """Jobs until nothing is due, or until it is told to stop; how many were committed."""
        leases, committed = Leases(self.lake.metastore), 0
        refused: set[TopicPartition] = set()
        while self.stop == RUN and leases.seen(self.name, "looking", now_ms=self.clock()):
            at = self._next(leases, refused)
            if at is None:
                break
            self.tell(f"compacting {at}")
            outcome = self._job(leases, at, self._compact)
            committed += outcome == COMMITTED
            if outcome != COMMITTED:
                refused.add(at)  # not again at once: somebody else was faster, or it would fail again
        if self.stop == RUN:
            self._level(leases)
        return committed

    def _next(self, leases: Leases, refused: set[TopicPartition]) -> TopicPartition | None:
        now = self.clock()
        requested, waiting = leases.requested(), leases.waiting(now_ms=now)
        states = {at: state for at, state in eligibilities(self.lake, now_ms=now).items() if at not in refused}
        for at in requested:
            if at in states and not states[at].eligible:
                leases.done(at, self.name, IDLE, {"why": states[at].reason}, started_ms=now, now_ms=now)
        for at, _ in queue(states.items(), now_ms=now):
            if at not in waiting and leases.take(at, self.name, now_ms=self.clock(), lease_ms=self.lease_ms):
                return at
        return None

    def _level(self, leases: Leases) -> None:
        """When nothing is due: small extents are merged, one partition after the other."""
        waiting = leases.waiting(now_ms=self.clock())
        for at in self.lake.metastore.partitions():
            small = at not in waiting and runs_to_merge(self.lake.metastore.partition(at))
            if not small or self.stop != RUN or not leases.seen(self.name, f"leveling {at}", now_ms=self.clock()):
                continue
            if leases.take(at, self.name, now_ms=self.clock(), lease_ms=self.lease_ms):
                self._job(leases, at, self._merge)

    def _job(
        self, leases: Leases, at: TopicPartition, body: Callable[[TopicPartition, int], tuple[str, object]]
    ) -> str:
        """Under the lease that was taken, which is free afterwards, and the history knows how it ended."""
        started = self.clock()
        leases.seen(self.name, f"working on {at}", now_ms=started)
        outcome, told = self._attempt(leases, at, lambda: body(at, started))
        try:
            leases.done(
                at, self.name, outcome, {**told, "at": str(at)}, started_ms=started, now_ms=self.clock(), wait_ms=self.wait_ms
            )  # fmt: skip
        finally:
            leases.release(at, self.name)
        self.tell(f"{at}: {outcome}" + (f": {told['why']}" if "why" in told else ""))
        return outcome

    def _attempt(
        self, leases: Leases, at: TopicPartition, body: Callable[[], tuple[str, object]]
    ) -> tuple[str, dict[str, object]]:
        with self._heartbeat(leases, at) as self.lease:
            try:
                outcome, done = body()
                return outcome, asdict(done)  # type: ignore[call-overload]
            except CommitRefused as error:
                return REFUSED, {"why": str(error)}
            except (StoppedHard, LeaseLost) as error:
                return STOPPED, {"why": str(error)}
            except Exception as error:
                return FAILED, {"why": _said(error)}

    def _compact(self, at: TopicPartition, started: int) -> tuple[str, object]:
        options = replace(
            self.options, clock=self.clock, check=self._check, before_commit=self._check, tell=self.tell
        )  # fmt: skip
        done = compact_partition(self.lake, at, self.engine, now_ms=started, options=options)
        return (COMMITTED if done.committed else IDLE), done

    def _merge(self, at: TopicPartition, started: int) -> tuple[str, object]:
        del started
        return LEVELED, level_partition(self.lake, at, clock=self.clock, worker=self.name)

    def _check(self) -> None:
        if self.stop == HARD:
            raise StoppedHard("stopped before its commit")
        if self.lease is not None:
            self.lease.check()

    def _heartbeat(self, leases: Leases, at: TopicPartition) -> AbstractContextManager[Lease]:
        return beating(leases, at, self.name, self.clock, lease_ms=self.lease_ms)
