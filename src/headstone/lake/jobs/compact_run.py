"""One run of `lake compact`: compacts what is due, merges small extents, moves old dead records out of their objects.

For a caller outside the workers' queue: the command line, or a program. Partitions that fail, or that another worker has, do
not hold up the others. The result lists what was done and what was not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from headstone.bounds import COUNT, DURATION_MS, SHARE, expect_all, several
from headstone.errors import HeadstoneError, Unfinished
from headstone.lake.defaults import DEAD_SHARE_MAX
from headstone.lake.jobs.compaction import Compacted
from headstone.lake.jobs.job import JobControl, Stopped
from headstone.lake.jobs.job_plan import JobSettings
from headstone.lake.jobs.keeping import leased
from headstone.lake.jobs.leased_jobs import compact_leased, level_leased
from headstone.lake.jobs.leveling import Leveled
from headstone.lake.jobs.purging import Evacuated, evacuate_idle, purge_aged
from headstone.lake.jobs.turns import Turn
from headstone.lake.jobs.urgencies import urgencies
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import expect_topics
from headstone.lake.metastore.erasures import Erasures
from headstone.lake.metastore.scheduling import Urgency, queue
from headstone.log.topic_partition import TopicPartition, partition_row
from headstone.pipeline.engine import Engine, Stop
from headstone.pipeline.progress import Board


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeCompactionSettings:
    topics: tuple[str, ...] = ()
    """Only these; empty for all of the lake."""
    everything: bool = False
    """Whatever is dirty, due or not."""
    level: bool = False
    """Merge small extents too."""
    purge: bool = False
    """Also empty every object with dead records, or with records of dropped topics: then gc deletes it."""
    map_bytes: int | None = None
    """A bounded map of keys, in several passes; None for one pass."""
    dead_share_max: float = DEAD_SHARE_MAX
    dead_age_ms_max: int | None = None
    """For topics without a limit of their own; None for no limit."""

    def __post_init__(self) -> None:
        several("topics", self.topics)
        expect_all(self, {"map_bytes": COUNT, "dead_share_max": SHARE, "dead_age_ms_max": DURATION_MS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Agenda:
    """What a run will do: compact `order`; level and purge `partitions` if requested."""

    order: tuple[TopicPartition, ...]
    partitions: tuple[TopicPartition, ...]
    dirty_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactRun:
    """`failed` and `left` are partitions: those with an error, and those that a stop has left for the next run."""

    compacted: tuple[Compacted, ...]
    leveled: tuple[Leveled, ...]
    failed: tuple[tuple[TopicPartition, Exception], ...]
    left: tuple[TopicPartition, ...]
    evacuated: Evacuated
    stopped: bool
    """By a signal or the caller, with something left to do."""
    error: HeadstoneError | None
    """The error that ended the evacuation."""

    @property
    def exit_code(self) -> int:
        """Of the first failure; else unfinished, if it was stopped, or if others have partitions that were to be purged."""
        if self.failed:
            return int(getattr(self.failed[0][1], "exit_code", Unfinished.exit_code))
        return Unfinished.exit_code if self.stopped or self.evacuated.busy else 0


def agenda_of(lake: Lake, settings: LakeCompactionSettings) -> Agenda:
    """Decides what a run will do; changes nothing."""
    now_ms = lake.metastore.clock()
    states = _of_topics(settings.topics, urgencies(lake, now_ms=now_ms))
    order = list(states) if settings.everything else [name for name, _ in queue(states.items(), now_ms=now_ms)]
    return Agenda(
        order=tuple(order), partitions=tuple(states), dirty_bytes=sum(states[name].dirty_bytes for name in order)
    )


def compact_due(
    lake: Lake, agenda: Agenda, settings: LakeCompactionSettings, engine: Engine, *, worker: str, stop: Stop,
    tell: Callable[[str], None], progress: bool, tidying: Callable[[], Board | None],
) -> CompactRun:  # fmt: skip
    """`tidying`: called when compaction has ended; gives the board for the rest."""
    outcomes = compact_leased(
        lake, agenda.order, engine, worker=worker,
        settings=JobSettings(map_bytes=settings.map_bytes, dead_share_max=settings.dead_share_max),
        control=JobControl(clock=lake.metastore.clock, tell=tell, stop=stop, progress=progress),
    )  # fmt: skip
    board = tidying()
    to_level = agenda.partitions if settings.level or settings.purge else ()
    leveled = level_leased(
        lake, to_level, engine, worker=worker, purge=settings.purge, stop=stop, board=board
    )  # fmt: skip
    evacuated, error = Evacuated(), None
    try:
        evacuated = _evacuated(lake, agenda, settings, engine, worker=worker, stop=stop, board=board)
    except HeadstoneError as failure:
        error = failure
    ended = [*((name, outcomes[name]) for name in agenda.order), *((name, leveled[name]) for name in to_level)]
    left = sorted({name for name, outcome in ended if isinstance(outcome, Stopped)})
    return CompactRun(
        compacted=tuple(outcome for _, outcome in ended if isinstance(outcome, Compacted)),
        leveled=tuple(outcome for _, outcome in ended if isinstance(outcome, Leveled)),
        failed=tuple(
            (name, outcome) for name, outcome in ended
            if isinstance(outcome, Exception) and not isinstance(outcome, Stopped)
        ),
        left=tuple(left), evacuated=evacuated, stopped=stop() and bool(left or not evacuated.complete), error=error,
    )  # fmt: skip


def _evacuated(
    lake: Lake,
    agenda: Agenda,
    settings: LakeCompactionSettings,
    engine: Engine,
    *,
    worker: str,
    stop: Stop,
    board: Board | None,
) -> Evacuated:
    topics = {name.topic for name in agenda.partitions}
    moved_by: dict[str, Any] = {
        "clock": lake.metastore.clock, "worker": worker, "turn": Turn(go_on=lambda: not stop()), "board": board,
        "engine": engine, "working_on": partial(leased, lake, worker=worker),
    }  # fmt: skip
    if settings.purge:
        dropped = () if settings.topics else Erasures(lake.metastore).open_drops()
        return evacuate_idle(lake, topics.union(dropped), **moved_by)
    return purge_aged(lake, topics=topics, age_ms_max=settings.dead_age_ms_max, **moved_by)


def _of_topics(wanted: Sequence[str], states: Mapping[TopicPartition, Urgency]) -> dict[TopicPartition, Urgency]:
    """Only the named topics, if any are named; an unknown name is an error."""
    expect_topics(wanted, {name.topic for name in states})
    return {name: state for name, state in states.items() if not wanted or name.topic in wanted}


def run_document(run: CompactRun, settings: LakeCompactionSettings) -> dict[str, object]:
    evacuated = run.evacuated
    return {
        "partitions": list(map(partition_row, run.compacted)),
        "leveled": list(map(partition_row, run.leveled)),
        "failed": [{"partition": str(name), "why": str(error)} for name, error in run.failed],
        "left": [str(name) for name in run.left],
        "evacuated": asdict(evacuated) if settings.purge or evacuated.extents or evacuated.busy else None,
    }
