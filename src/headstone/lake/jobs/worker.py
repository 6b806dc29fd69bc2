"""A worker: takes the most urgent free partitions, compacts them in one job under their leases, and repeats.

Any number of them on any machine. A stop is soft (current parts are finished and committed) or hard (no more commits). A worker
that dies leaves leases that expire, and unreferenced objects. Every failure goes into the history; its partition waits, the
worker continues. When nothing is due, and once a minute while something is, it looks after the lake, a limited amount at a
time: it merges small extents, and does what `upkeep` has to do. It catches broadly, so that one bad partition does not end the
worker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace

from headstone import units
from headstone.errors import HeadstoneError
from headstone.interruption import Interrupted
from headstone.lake.defaults import LEASE_MS, PARTITIONS_AT_ONCE, UPKEEP_BYTES_AT_ONCE
from headstone.lake.jobs.compaction import Compacted, compact_partitions
from headstone.lake.jobs.job import JobControl, Stopped
from headstone.lake.jobs.job_plan import JobSettings
from headstone.lake.jobs.keeping import KeptLeases, LeaseLost, kept_alive, said
from headstone.lake.jobs.leveling import Leveled, level_partitions, runs_to_merge, with_small_extents
from headstone.lake.jobs.turns import Turn
from headstone.lake.jobs.upkeep import Upkeep
from headstone.lake.lake import Lake
from headstone.lake.metastore.clock import Clock
from headstone.lake.metastore.commits import CommitRefused
from headstone.lake.metastore.leases import COMMITTED, FAILED, IDLE, LEVELED, REFUSED, STOPPED, WAIT_MS, Leases
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine

RUN, SOFT, HARD = "run", "soft", "hard"
UPKEEP_EVERY_MS = 60_000
"""While partitions are due: this holds up compaction little, and still looks after the lake often enough."""
LEVELED_AT_ONCE = 100
"""Partitions per look, in one job, within a limit of bytes. Then the queue is looked at again."""


class StoppedHard(HeadstoneError):
    """Told to stop before the commit: nothing was changed."""


Details = dict[str, object]


@dataclass(slots=True, kw_only=True)
class Worker:
    name: str
    lake: Lake
    engine: Engine
    clock: Clock
    tell: Callable[[str], None]
    lease_ms: int = LEASE_MS
    wait_ms: int = WAIT_MS
    """For a partition after its first failure."""
    partitions_at_once: int = PARTITIONS_AT_ONCE
    settings: JobSettings = field(default_factory=JobSettings)
    control: JobControl = field(default_factory=JobControl)
    """The worker replaces its clock, messages and stop."""
    upkeep: Upkeep | None = None
    """What else to do when nothing is due, and now and then when something is."""
    upkeep_every_ms: int = UPKEEP_EVERY_MS
    bytes_at_once: int = UPKEEP_BYTES_AT_ONCE
    """Bytes of small extents to merge before the queue is looked at again."""
    stop: str = RUN
    """Set by a signal handler or another thread."""
    kept: KeptLeases | None = None
    """Of the running job."""

    def look(self) -> int:
        """As `work`, for callers that look again later: reports errors, such as a metastore that does not answer."""
        try:
            return self.work()
        except Exception as error:
            self.tell(f"retrying later: {said(error)}")
            return 0

    def work(self) -> int:
        """Runs jobs until nothing is due, or until stopped; returns how many compactions were committed.

        Looks after the lake when nothing is due, and between two jobs if the last time was a while ago: on a busy lake
        something is always due, and garbage, retention and erasure deadlines would get no turn."""
        leases, committed = Leases(self.lake.metastore), 0
        refused, passed = set[TopicPartition](), set[TopicPartition]()
        cared_ms = self.clock()
        while self.stop == RUN and leases.seen(self.name, "looking", now_ms=self.clock()):
            due = self._next(leases, refused)
            if due:
                outcomes = self._compact(leases, due)
                committed += sum(outcome == COMMITTED for outcome in outcomes.values())
                # Not again at once, but after the next look at the rest: another worker was faster, or it would fail again.
                refused |= {name for name, outcome in outcomes.items() if outcome != COMMITTED}
                if self.clock() - cared_ms < self.upkeep_every_ms:
                    continue
            more, cared_ms = self._care(leases, passed), self.clock()
            refused.clear()
            if not more:
                passed.clear()  # all the others had their turn
            if not due and not more:
                break
        return committed

    def _care(self, leases: Leases, passed: set[TopicPartition]) -> bool:
        """A limited amount of each; returns whether there is more to do."""
        turn = Turn(bytes_left=self.bytes_at_once, go_on=lambda: self.stop == RUN)
        more = self._level(leases, turn, passed)
        if self.upkeep is not None:
            self.upkeep.look(lambda: self.stop == RUN and leases.seen(self.name, "upkeep", now_ms=self.clock()))
        return more or turn.is_spent or (self.upkeep is not None and self.upkeep.is_spent)

    def _next(self, leases: Leases, refused: set[TopicPartition]) -> list[TopicPartition]:
        taken = leases.take_due(
            self.name, self.partitions_at_once + len(refused), now_ms=self.clock(), lease_ms=self.lease_ms
        )
        names = list(taken)
        again = [name for name in names if name in refused]
        if again:
            leases.release_all(again, self.name)
        return [name for name in names if name not in refused]

    def _compact(self, leases: Leases, names: list[TopicPartition]) -> dict[TopicPartition, str]:
        """One job, under the leases taken. As each partition ends, the history gets its outcome and its lease is released."""
        started, outcomes = self.clock(), dict[TopicPartition, str]()
        self.tell(f"compacting {', '.join(map(str, names))}")
        leases.seen(self.name, f"compacting {units.count(len(names), 'partition')}, {names[0]} first", now_ms=started)

        def ended(name: TopicPartition, outcome: Compacted | Exception) -> None:
            outcomes[name] = self._remember(leases, name, started, *_told(outcome))

        with self._heartbeat(leases, names) as self.kept:
            try:
                control = replace(self.control, clock=self.clock, tell=self.tell, stop=lambda: self.stop != RUN)
                compact_partitions(
                    self.lake, names, self.engine, now_ms=started, settings=self.settings, control=control,
                    check=self._check, done=ended,
                )  # fmt: skip
            except (Exception, Interrupted) as error:
                for name in [name for name in names if name not in outcomes]:
                    ended(name, _failure(error))
        return outcomes

    def _level(self, leases: Leases, turn: Turn, passed: set[TopicPartition]) -> bool:
        """Merges small extents of many partitions in one job; returns whether there may be more such partitions.

        `passed`: not again at once, because others work on them or it would fail again; this adds to them."""
        metastore, skipped = self.lake.metastore, passed | leases.waiting(now_ms=self.clock()).keys()
        offered = metastore.unleveled(limit=LEVELED_AT_ONCE + len(skipped))
        fresh = [name for name in offered if name not in skipped][:LEVELED_AT_ONCE]
        if not fresh or turn.is_over:
            return False
        looked, budget = with_small_extents(self.lake, fresh), replace(turn)
        runs = {name: runs_to_merge(looked[name].partition) for name in fresh if name in looked}
        wanted = [name for name, some in runs.items() if budget.spend(some)]
        merged = self._merge(leases, wanted, turn) if wanted else {}
        passed |= {name for name, outcome in merged.items() if not isinstance(outcome, Leveled)}
        idle = [name for name, some in runs.items() if not some]
        done = [name for name, outcome in merged.items() if isinstance(outcome, Leveled) and not outcome.runs_left]
        for name in [*idle, *done]:
            metastore.looked_for_small(name, offered[name])
        return len(fresh) == LEVELED_AT_ONCE or budget.is_spent

    def _merge(
        self, leases: Leases, names: list[TopicPartition], turn: Turn
    ) -> dict[TopicPartition, Leveled | Exception]:
        """For each what was done, or why not; CommitRefused, without an entry in the history, if another worker has it."""
        started, outcomes = self.clock(), dict[TopicPartition, Leveled | Exception]()
        if not leases.seen(
            self.name, f"leveling {units.count(len(names), 'partition')}, {names[0]} first", now_ms=started
        ):
            return {}
        taken = leases.take_all(names, self.name, now_ms=started, lease_ms=self.lease_ms)
        free = [name for name in names if name in taken]

        def ended(name: TopicPartition, outcome: Leveled | Exception) -> None:
            outcomes[name] = outcome
            self._remember(leases, name, started, *_told(outcome))

        with self._heartbeat(leases, free) as self.kept:
            try:
                level_partitions(
                    self.lake, free, clock=self.clock, engine=self.engine, worker=self.name, turn=turn,
                    stop=lambda: self.stop != RUN, check=self._check, done=ended,
                )  # fmt: skip
            except (Exception, Interrupted) as error:
                for name in [name for name in free if name not in outcomes]:
                    ended(name, _failure(error))
        return outcomes | {name: CommitRefused("somebody else works on it") for name in names if name not in taken}

    def _remember(self, leases: Leases, name: TopicPartition, started: int, outcome: str, details: Details) -> str:
        try:
            leases.done(
                name, self.name, outcome, {**details, "partition": str(name)}, started_ms=started, now_ms=self.clock(),
                wait_ms=self.wait_ms,
            )  # fmt: skip
        finally:
            if self.kept is not None:
                self.kept.let_go(name)
            leases.release(name, self.name)
        self.tell(f"{name}: {outcome}" + (f": {details['why']}" if "why" in details else ""))
        return outcome

    def _check(self, name: TopicPartition) -> None:
        if self.stop == HARD:
            raise StoppedHard("stopped before the commit")
        if self.kept is not None:
            self.kept.check(name)

    def _heartbeat(self, leases: Leases, names: Collection[TopicPartition]) -> AbstractContextManager[KeptLeases]:
        return kept_alive(leases, names, self.name, self.clock, lease_ms=self.lease_ms)


def _failure(error: Exception | Interrupted) -> Exception:
    """An interrupted run is over, and its partitions are free for others."""
    return StoppedHard("given up in the middle") if isinstance(error, Interrupted) else error


def _told(outcome: Compacted | Leveled | Exception) -> tuple[str, Details]:
    """What the history records about a partition."""
    if isinstance(outcome, Compacted):
        return (COMMITTED if outcome.committed else IDLE), asdict(outcome)
    if isinstance(outcome, Leveled):
        return LEVELED, asdict(outcome)
    if isinstance(outcome, CommitRefused):
        return REFUSED, {"why": str(outcome)}
    stopped = isinstance(outcome, Stopped | StoppedHard | LeaseLost)
    return (STOPPED if stopped else FAILED), {"why": said(outcome)}
