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

from headstone.errors import HeadstoneError
from headstone.lake.clock import Clock
from headstone.lake.commits import CommitRefused
from headstone.lake.compaction import compact_partition
from headstone.lake.job_plan import JobOptions
from headstone.lake.lake import Lake
from headstone.lake.leases import COMMITTED, FAILED, IDLE, LEASE_MS, LEVELED, REFUSED, STOPPED, WAIT_MS, Leases
from headstone.lake.leveling import level_partition, runs_to_merge
from headstone.lake.rows import located_all
from headstone.lake.scheduling import Eligibility, queue
from headstone.lake.standings import standings
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
    with lake.metastore.transaction(snapshot=True) as connection:
        rows = located_all(connection, None)
        found = standings(
            connection, rows, now_ms=lake.metastore.moment(connection, now_ms), requested=requested
        )  # fmt: skip
    return {standing.partition: standing.state for standing in sorted(found, key=lambda standing: standing.partition)}


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
def leased(lake: Lake, topic_partition: TopicPartition, worker: str, *, lease_ms: int = LEASE_MS) -> Iterator[Lease]:
    """Has the partition's lease while the block runs; CommitRefused if somebody else has it."""
    leases, clock = Leases(lake.metastore), lake.metastore.clock
    if not leases.take(topic_partition, worker, now_ms=clock(), lease_ms=lease_ms):
        holder = leases.held(now_ms=clock()).get(topic_partition, "another worker")
        raise CommitRefused(f"{holder} works on it; look again when that has ended")
    try:
        with beating(leases, topic_partition, worker, clock, lease_ms=lease_ms) as lease:
            yield lease
    finally:
        leases.release(topic_partition, worker)


@contextmanager
def beating(
    leases: Leases, topic_partition: TopicPartition, worker: str, clock: Clock, *, lease_ms: int
) -> Iterator[Lease]:
    """Renews a lease that was taken. A sign of life that fails is tried again, until a whole lease has gone by without one."""
    lease, over = Lease(), threading.Event()

    def beat() -> None:
        alive = time.monotonic()
        while not over.wait(lease_ms / HEARTBEATS / 1000):
            try:
                ours = leases.renew(topic_partition, worker, now_ms=clock(), lease_ms=lease_ms)
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
            topic_partition = self._next(leases, refused)
            if topic_partition is None:
                break
            self.tell(f"compacting {topic_partition}")
            outcome = self._job(leases, topic_partition, self._compact)
            committed += outcome == COMMITTED
            if outcome != COMMITTED:
                refused.add(topic_partition)  # not again at once: somebody else was faster, or it would fail again
        if self.stop == RUN:
            self._level(leases)
        return committed

    def _next(self, leases: Leases, refused: set[TopicPartition]) -> TopicPartition | None:
        now = self.clock()
        requested, waiting = leases.requested(), leases.waiting(now_ms=now)
        states = {
            topic_partition: state
            for topic_partition, state in eligibilities(self.lake, now_ms=now).items()
            if topic_partition not in refused
        }
        for topic_partition in requested:
            if topic_partition in states and not states[topic_partition].eligible:
                leases.done(
                    topic_partition,
                    self.name,
                    IDLE,
                    {"why": states[topic_partition].reason},
                    started_ms=now,
                    now_ms=now,
                )
        for topic_partition, _ in queue(states.items(), now_ms=now):
            if topic_partition not in waiting and leases.take(
                topic_partition, self.name, now_ms=self.clock(), lease_ms=self.lease_ms
            ):
                return topic_partition
        return None

    def _level(self, leases: Leases) -> None:
        """When nothing is due: small extents are merged, one partition after the other."""
        waiting = leases.waiting(now_ms=self.clock())
        for topic_partition in self.lake.metastore.partitions():
            small = topic_partition not in waiting and runs_to_merge(self.lake.metastore.partition(topic_partition))
            if (
                not small
                or self.stop != RUN
                or not leases.seen(self.name, f"leveling {topic_partition}", now_ms=self.clock())
            ):
                continue
            if leases.take(topic_partition, self.name, now_ms=self.clock(), lease_ms=self.lease_ms):
                self._job(leases, topic_partition, self._merge)

    def _job(
        self, leases: Leases, topic_partition: TopicPartition, body: Callable[[TopicPartition, int], tuple[str, object]]
    ) -> str:
        """Under the lease that was taken, which is free afterwards, and the history knows how it ended."""
        started = self.clock()
        leases.seen(self.name, f"working on {topic_partition}", now_ms=started)
        outcome, details = self._attempt(leases, topic_partition, lambda: body(topic_partition, started))
        try:
            leases.done(
                topic_partition, self.name, outcome, {**details, "partition": str(topic_partition)}, started_ms=started,
                now_ms=self.clock(), wait_ms=self.wait_ms
            )  # fmt: skip
        finally:
            leases.release(topic_partition, self.name)
        self.tell(f"{topic_partition}: {outcome}" + (f": {details['why']}" if "why" in details else ""))
        return outcome

    def _attempt(
        self, leases: Leases, topic_partition: TopicPartition, body: Callable[[], tuple[str, object]]
    ) -> tuple[str, dict[str, object]]:
        with self._heartbeat(leases, topic_partition) as self.lease:
            try:
                outcome, done = body()
                return outcome, asdict(done)  # type: ignore[call-overload]
            except CommitRefused as error:
                return REFUSED, {"why": str(error)}
            except (StoppedHard, LeaseLost) as error:
                return STOPPED, {"why": str(error)}
            except Exception as error:
                return FAILED, {"why": _said(error)}

    def _compact(self, topic_partition: TopicPartition, started: int) -> tuple[str, object]:
        options = replace(
            self.options, clock=self.clock, check=self._check, before_commit=self._check, tell=self.tell
        )  # fmt: skip
        done = compact_partition(self.lake, topic_partition, self.engine, now_ms=started, options=options)
        return (COMMITTED if done.committed else IDLE), done

    def _merge(self, topic_partition: TopicPartition, started: int) -> tuple[str, object]:
        del started
        return LEVELED, level_partition(self.lake, topic_partition, clock=self.clock, worker=self.name)

    def _check(self) -> None:
        if self.stop == HARD:
            raise StoppedHard("stopped before its commit")
        if self.lease is not None:
            self.lease.check()

    def _heartbeat(self, leases: Leases, topic_partition: TopicPartition) -> AbstractContextManager[Lease]:
        return beating(leases, topic_partition, self.name, self.clock, lease_ms=self.lease_ms)
