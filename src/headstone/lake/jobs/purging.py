"""Purging: dead records leave the store, and not only the log.

Extents are rewritten without their dead records and without what lies below the log start. An object holds ranges of many
partitions and can only be deleted as a whole. So if it has a record that is in no log any more, everything still in use moves
out of it, including other topics' extents. No log changes by that: the same offsets, other places. Then garbage collection
deletes the object.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial

from headstone.errors import CorruptLog
from headstone.interruption import Threads
from headstone.lake.format.extents import Extent
from headstone.lake.format.objects import Range, read_index
from headstone.lake.jobs.job import Stopped
from headstone.lake.jobs.rewriting import Rewriting, RewrittenExtents, rewrite_all
from headstone.lake.jobs.turns import Turn
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import CommitRefused, Partition
from headstone.lake.metastore.object_accounts import Account, accounts_in_use
from headstone.lake.metastore.surveys import aged_behind, aged_partitions, pointing_at
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine
from headstone.pipeline.progress import Board
from headstone.retention.settings import DEAD_AGE_MAX, setting_of
from headstone.storage.stores import MissingObject

INDEXES_AT_ONCE = 8
PARTITIONS_AT_ONCE = 16
"""Per job: it holds their leases, and their extents' rows are in memory."""

WorkingOn = Callable[[TopicPartition], AbstractContextManager[object]]
"""Has the lease of a partition while the block runs."""
Choice = Callable[[Partition], list[Extent]]
"""Which extents of a partition to rewrite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evacuated:
    """Objects with records that are in no log any more, and what had to move out of them."""

    objects: tuple[str, ...] = ()
    extents: int = 0
    bytes_written: int = 0
    busy: tuple[str, ...] = ()
    """Partitions that another worker has, or changed first, and its error; the others had their turn."""
    complete: bool = True
    """False: the turn was over before all of it was done, or some were busy."""


@dataclass(slots=True, kw_only=True)
class _Mover:
    """Rewrites extents, of some partitions at a time, and adds up the results."""

    lake: Lake
    clock: Callable[[], int]
    worker: str | None
    working_on: WorkingOn
    turn: Turn
    board: Board | None = None
    engine: Engine | None = None
    indexes: bool = False
    """Whether to read the index of every object in use."""
    objects: set[str] = field(default_factory=set)
    extents: int = 0
    bytes_written: int = 0
    busy: list[str] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    complete: bool = True

    def move(self, chosen: Mapping[TopicPartition, Choice]) -> None:
        """In jobs of many partitions. Busy partitions and errors are noted, and all the others have their turn."""
        names = sorted(chosen)
        for first in range(0, len(names), PARTITIONS_AT_ONCE):
            if self.turn.is_over:
                self.complete = False
                break
            with ExitStack() as stack:
                free = [name for name in names[first : first + PARTITIONS_AT_ONCE] if self._is_free(name, stack)]
                self._move({name: chosen[name] for name in free})

    def _is_free(self, topic_partition: TopicPartition, stack: ExitStack) -> bool:
        """Takes the lease, for as long as the stack is open."""
        try:
            stack.enter_context(self.working_on(topic_partition))
        except CommitRefused as refusal:
            self._pass_over(topic_partition, refusal)
            return False
        return True

    def _pass_over(self, topic_partition: TopicPartition, refusal: CommitRefused) -> None:
        self.busy.append(f"{topic_partition}: {refusal}")
        self.complete = False

    def _move(self, chosen: Mapping[TopicPartition, Choice]) -> None:
        wanted: dict[TopicPartition, Rewriting] = {}
        for name, partition in self.lake.metastore.snapshot(chosen, present_only=True).items():
            runs = [[extent] for extent in chosen[name](partition)]
            some = self.turn.spend(runs)
            self.complete = self.complete and len(some) == len(runs)
            wanted[name] = Rewriting(partition=partition, runs=some)
            if self.board is not None:
                self.board.expect(sum(extent.length for run in some for extent in run))
        outcomes = rewrite_all(
            self.lake, wanted, clock=self.clock, engine=self.engine, worker=self.worker, board=self.board,
            stop=lambda: not self.turn.go_on(),
        )  # fmt: skip
        for name, outcome in outcomes.items():
            match outcome:
                case RewrittenExtents():
                    self.extents += outcome.extents
                    self.bytes_written += outcome.bytes_written
                case CommitRefused():
                    self._pass_over(name, outcome)
                case Stopped():
                    self.complete = False
                case _:
                    self.failures.append(outcome)

    def evacuate(self, topics: Collection[str]) -> None:
        if self.turn.is_over:
            self.complete = False
            return
        left = objects_to_leave(self.lake, topics, indexes=self.indexes)

        def inside(partition: Partition) -> list[Extent]:
            return [extent for extent in partition.extents if {extent.object_id, extent.dead_object} & left]

        self.move(dict.fromkeys(pointing_at(self.lake.metastore, left), inside))
        self.objects |= left

    def summary(self) -> Evacuated:
        """The totals; or raises the error of the first partition that failed."""
        for error in self.failures:
            raise error
        return Evacuated(
            objects=tuple(sorted(self.objects)), extents=self.extents, bytes_written=self.bytes_written,
            busy=tuple(self.busy), complete=self.complete,
        )  # fmt: skip


def evacuate_idle(
    lake: Lake, topics: Collection[str], *, clock: Callable[[], int], worker: str | None = None,
    working_on: WorkingOn = nullcontext, turn: Turn | None = None, board: Board | None = None,
    engine: Engine | None = None, indexes: bool = True,
) -> Evacuated:  # fmt: skip
    """Objects in use keep only those records of these topics that are in their logs, except in partitions that others work on.

    `working_on`: has a partition's lease for `worker` while it is changed; busy ones are reported. `indexes` False: does not
    read the indexes of objects that the metastore can explain, so that a damaged index goes unnoticed."""
    mover = _Mover(
        lake=lake, clock=clock, worker=worker, working_on=working_on, turn=turn or Turn(), board=board, engine=engine,
        indexes=indexes,
    )  # fmt: skip
    mover.evacuate(topics)
    return mover.summary()


def objects_to_leave(lake: Lake, topics: Collection[str], *, indexes: bool = True) -> set[str]:
    """Objects in use that also hold batches of these topics that no extent points at.

    An object with an unreadable index may hold anything. Lists of dead records are offsets: they contain no key and no value.
    Looks at every object in use, or only those that the metastore can't explain; a few hundred at a time."""
    left: set[str] = set()
    with Threads(INDEXES_AT_ONCE) as pool:
        for accounts in accounts_in_use(lake.metastore):
            unread = [account for account in accounts if indexes or not account.is_explained]
            ranges = dict(
                zip([account.object_id for account in unread], pool.map(partial(_listed, lake), unread), strict=True)
            )
            for account in accounts:
                listed = ranges.get(account.object_id, account.ranges)
                if listed is None or _holds_more(topics, account, listed):
                    left.add(account.object_id)
    return left


def _listed(lake: Lake, account: Account) -> Collection[Range] | None:
    """The ranges in its index; None if it can't be read."""
    try:
        return read_index(lake.store, account.object_id, lake.metastore.lake_id)
    except MissingObject:
        return ()  # left and collected since
    except CorruptLog:
        return None


def _holds_more(topics: Collection[str], account: Account, ranges: Collection[Range]) -> bool:
    own = [listed for listed in ranges if listed.extent.object_id == account.object_id and listed.extent.length]
    return any(listed.topic in topics and listed.extent.position not in account.used for listed in own)


def aged_extents(partition: Partition, *, age_ms_max: int, now_ms: int) -> list[Extent]:
    """Those with a record that has been dead for at least this long."""
    return [extent for extent in partition.extents if extent.dead and now_ms - extent.dead_since_ms >= age_ms_max]


def purge_aged(
    lake: Lake, *, clock: Callable[[], int], age_ms_max: int | None = None, topics: Collection[str] | None = None,
    worker: str | None = None,
    working_on: WorkingOn = nullcontext, turn: Turn | None = None, board: Board | None = None,
    engine: Engine | None = None,
) -> Evacuated:  # fmt: skip
    """Records dead for longer than their topic allows leave the objects in use; gc does the rest.

    `age_ms_max`: for topics without a limit of their own; None: no limit. Partitions that others work on are reported. The next
    turn continues where this one ends, in any worker."""
    mover = _Mover(
        lake=lake, clock=clock, worker=worker, working_on=working_on, turn=turn or Turn(), board=board, engine=engine
    )  # fmt: skip
    ages, now_ms = _ages(lake, age_ms_max, topics), clock()
    mover.move(
        {
            name: partial(aged_extents, age_ms_max=age, now_ms=now_ms)
            for name, age in aged_partitions(lake.metastore, now_ms, ages)
        }
    )
    if left_behind := aged_behind(lake.metastore, clock(), ages):
        mover.evacuate(left_behind)  # looks at every object in use: once, when all that is aged has left
    return mover.summary()


def _ages(lake: Lake, age_ms_max: int | None, topics: Collection[str] | None) -> dict[str, int]:
    """How long records of each of these topics, or of all, may be dead; only topics with a limit."""
    ages = {
        topic: _age_ms_max(settings, age_ms_max)
        for topic, settings in lake.metastore.topics().items()
        if topics is None or topic in topics
    }
    return {topic: age for topic, age in ages.items() if age is not None}


def _age_ms_max(settings: Mapping[str, object], otherwise: int | None) -> int | None:
    if DEAD_AGE_MAX not in settings:
        return otherwise
    age = int(setting_of(settings, DEAD_AGE_MAX))
    return age if age >= 0 else None
