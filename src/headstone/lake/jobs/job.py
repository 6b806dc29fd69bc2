"""A job over many partitions, as compaction and rewriting drive it: register objects, take answers, commit, report the end.

Owns what is the same for both. Objects are registered at once, and stay registered while the job lasts. A partition that fails
costs the others nothing; each is reported as soon as it has ended; a stop keeps what was committed. The caller's `Work` knows
what a partition consists of, and how a part of it is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from headstone import units
from headstone.errors import HeadstoneError, Unfinished
from headstone.lake.lake import Lake
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Stop, never

RENEW_MS = 900_000

Answer = TypeVar("Answer")
Outcome = TypeVar("Outcome")
Check = Callable[[TopicPartition], None]
"""May give up one partition before a commit, by raising."""
Told = Callable[[TopicPartition, Outcome | Exception], None]
"""Called for each partition as soon as it has ended."""


class Stopped(Unfinished):
    """Stopped before all of it was done: what was committed stays, and the next job continues there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobControl:
    """A job's surroundings: its clock, its messages, and ways to end it."""

    clock: Callable[[], int] | None = None
    """For events during the job: objects registered and extents replaced. None: all count from the job's beginning."""
    check: Callable[[], None] = lambda: None
    """Called at every step; an exception gives the job up."""
    before_commit: Callable[[], None] = lambda: None
    """Called when only a commit is left to do; an exception gives the job up."""
    stop: Stop = never
    """Once it is true no further part is begun; what is complete then is committed."""
    tell: Callable[[str], None] = lambda text: None
    progress: bool = False
    """Whether to show progress."""


Answer_contra = TypeVar("Answer_contra", contravariant=True)
Outcome_co = TypeVar("Outcome_co", covariant=True)


class Work(Protocol[Answer_contra, Outcome_co]):
    """A partition that is under way."""

    @property
    def parts(self) -> tuple[int, int]:
        """How many are done, and of how many."""
        ...

    def unwritten(self) -> Iterable[str]:
        """Objects registered for it that no commit has taken yet."""
        ...

    def take(self, answer: Answer_contra) -> Outcome_co | None:
        """Commits what is complete with this answer of a task; returns what was done, once that is all."""
        ...

    def finish_early(self) -> None:
        """No more answers will come. Commits what may stand without the rest."""
        ...


@dataclass(slots=True, kw_only=True)
class Job(Generic[Answer, Outcome]):
    lake: Lake
    clock: Callable[[], int]
    done: Told[Outcome]
    renew_ms: int = RENEW_MS
    under_way: dict[TopicPartition, Work[Answer, Outcome]] = field(default_factory=dict)
    outcomes: dict[TopicPartition, Outcome | Exception] = field(default_factory=dict)
    _registered_ms: int = 0

    def register(self, count: int) -> Iterator[str]:
        """Ids of all objects that the job may write, in one registration."""
        self._registered_ms = self.clock()
        return iter(self.lake.metastore.register(count, now_ms=self._registered_ms))

    def renew(self) -> None:
        """Before each commit: a job may last longer than an upload may take."""
        now_ms = self.clock()
        if now_ms - self._registered_ms >= self.renew_ms:
            unwritten = [object_id for work in self.under_way.values() for object_id in work.unwritten()]
            self.lake.metastore.keep_registered(unwritten, now_ms=now_ms)
            self._registered_ms = now_ms

    def hear(self, answers: Iterable[tuple[TopicPartition, Answer | Exception]]) -> None:
        """Takes the answers of tasks as they end."""
        for name, answer in answers:
            self.take(name, answer)

    def take(self, name: TopicPartition, answer: Answer | Exception) -> None:
        if name not in self.under_way:  # it has failed before
            return
        if isinstance(answer, Exception):
            self.end(name, answer)
            return
        try:
            outcome = self.under_way[name].take(answer)
        except HeadstoneError as error:
            self.end(name, error)
            return
        if outcome is not None:
            self.end(name, outcome)

    def end(self, name: TopicPartition, outcome: Outcome | Exception) -> None:
        self.under_way.pop(name, None)
        self.outcomes[name] = outcome
        self.done(name, outcome)

    def stop(self) -> None:
        """Those that are still under way are not complete."""
        for name, work in list(self.under_way.items()):
            try:
                work.finish_early()
            except HeadstoneError as error:
                self.end(name, error)
                continue
            done, of = work.parts
            self.end(name, Stopped(f"stopped: {done} of {units.count(of, 'part')} done; run it again to continue"))
