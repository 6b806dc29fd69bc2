"""From log directories and backups into the lake: committed records up to the last stable offset, transactions resolved.

What is in the lake already is not read again: next_offset says where to continue, and the second of two commits is refused. So
running it twice, or killing it anywhere, loses and duplicates nothing. Keeps offsets, timestamps, keys, headers, codecs.

The driver surveys by tasks, registers objects, and starts one task per object (`ingest_tasks`). It appends each result as soon
as everything before it in the same partitions is in the lake. Tasks never see the metastore.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from headstone import units
from headstone.errors import CorruptLog, Unfinished, UsageError
from headstone.lake.defaults import EXTENT_BYTES, OBJECT_BYTES
from headstone.lake.format.extents import Extent
from headstone.lake.format.objects import Stored
from headstone.lake.jobs.key_search import with_remembered
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Append, CommitRefused
from headstone.lake.metastore.journal import SetBack
from headstone.lake.metastore.leader_epochs import Epochs, note_leader_epochs
from headstone.lake.topics import adopt, in_directories
from headstone.lake.transfer.ingest_tasks import IngestWork, LogShare, ingest_object, objects_of, shares_of
from headstone.log import checkpoints
from headstone.log.directory import METADATA_TOPIC, PartitionDir
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine, Stop, never
from headstone.pipeline.failed_partition import FailedPartition
from headstone.pipeline.inprocess import NEAR_THREADS, InProcess
from headstone.pipeline.planning import Surveyed, survey_each
from headstone.pipeline.progress import Board
from headstone.retention.survey import PartitionSurvey

WAVE_OBJECTS = 256
"""Objects registered together. What a killed run has uploaded and not committed of them is garbage."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogIngestSettings:
    policy: str | None = None
    """The topics' cleanup.policy; None: what their log directories say."""
    extent_bytes: int = EXTENT_BYTES
    object_bytes: int = OBJECT_BYTES
    wave_objects: int = WAVE_OBJECTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """One partition: what was in the lake before, and what was added."""

    partition: TopicPartition
    start: int
    end: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingestion:
    """`partitions`: what is in the lake now, including partitions that failed on the way; `unfinished`: it was stopped."""

    partitions: tuple[Ingested, ...]
    failed: tuple[FailedPartition, ...] = ()
    unfinished: str | None = None


def ingest(
    lake: Lake, directories: Sequence[PartitionDir], *, clock: Callable[[], int], settings: LogIngestSettings | None = None,
    engine: Engine | None = None, board: Board | None = None, tell: Tell = lambda text: None, stop: Stop = never,
) -> list[Ingested]:  # fmt: skip
    """For callers that need all of it: reports errors and raises one; errors of the data before unfinished ones."""
    done = ingest_each(
        lake, directories, clock=clock, settings=settings, engine=engine, board=board, tell=tell, stop=stop
    )  # fmt: skip
    if len(done.failed) > 1:
        for failure in done.failed:
            tell(f"{failure.partition} was not ingested to its end: {failure.error}")
    if done.failed:
        raise min(done.failed, key=lambda failure: isinstance(failure.error, Unfinished)).error
    if done.unfinished is not None:
        raise Unfinished(done.unfinished)
    return list(done.partitions)


def ingest_each(
    lake: Lake, directories: Sequence[PartitionDir], *, clock: Callable[[], int], settings: LogIngestSettings | None = None,
    engine: Engine | None = None, board: Board | None = None, tell: Tell = lambda text: None, stop: Stop = never,
) -> Ingestion:  # fmt: skip
    """Ingests all given partitions; creates topics that the lake does not have. One commit per object.

    Unfinished if it was stopped: what was committed stays, and the next run continues there.

    A partition that can't be read, that lacks the next offset, or that another writer appends to, ends where it is. All others
    are ingested. Without an engine, threads of this process do it. The lake takes the log start of the first log. Later ones do
    not move it: a shorter log must not take away what is there."""
    settings, engine = settings or LogIngestSettings(), engine or InProcess(NEAR_THREADS)
    run = _IngestRun(lake, clock, tell, board)
    wanted = run.adopt([directory for directory in directories if directory.topic != METADATA_TOPIC], settings.policy)
    run.look_at(wanted, survey_each(wanted, engine))
    objects = deque(run.objects(settings.object_bytes))
    while objects and not stop():
        wave = [objects.popleft() for _ in range(min(settings.wave_objects, len(objects)))]
        wave = [some for some in wave if run.follows(some)]
        works = [
            IngestWork(
                store=lake.store, lake_id=lake.metastore.lake_id, object_id=object_id, hash_key=lake.metastore.hash_key,
                shares=some, extent_bytes=settings.extent_bytes,
            )
            for object_id, some in zip(lake.metastore.register(len(wave), now_ms=clock), wave, strict=True)
        ]  # fmt: skip
        has_stored = not works or run.take(works, engine.as_they_end(ingest_object, works, board, stop=stop))
        alone = run.alone()
        if not has_stored and not alone:
            break  # the logs are not the cause: the next wave would end like this one
        objects.extendleft(reversed(alone))
    return run.outcome()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A partition's log as it was found, and [start, end) of the lake's."""

    survey: PartitionSurvey
    epochs: Epochs
    start: int
    end: int

    @property
    def log_start(self) -> int | None:
        """Where the lake's log will begin: where this log does, if the lake's is still empty."""
        log_start = min(self.survey.log_start, self.survey.lso)
        return log_start if self.start == self.end < log_start else None


def _gap(source: _Source) -> str | None:
    """For a log whose beginning is gone, or a part of a backup: what it lacks may be the deletion of keys that the lake has."""
    if source.start < source.end < source.survey.log_start:
        return (
            f"the lake ends at {source.end}, this log begins at {source.survey.log_start}: what lies between is missing; "
            "ingest a log or backup that has it, or make a new lake"
        )
    return None


def _as_found(directory: PartitionDir, survey: PartitionSurvey, log: tuple[int, int]) -> _Source:
    epochs = tuple(checkpoints.read_leader_epochs(directory.path / checkpoints.LEADER_EPOCHS))
    source = _Source(survey=survey, epochs=epochs, start=log[0], end=log[1])
    if (missing := _gap(source)) is not None:
        raise UsageError(f"{directory.topic_partition}: {missing}")
    return source


class _IngestRun:
    """What was committed so far, by partition, and the errors."""

    def __init__(self, lake: Lake, clock: Callable[[], int], tell: Tell, board: Board | None) -> None:
        self._lake, self._clock, self._tell, self._board = lake, clock, tell, board
        self._sources: dict[TopicPartition, _Source] = {}
        self.added: dict[TopicPartition, Ingested] = {}
        self.appended = 0
        self.expected = 0
        """Number of objects."""
        self._alone: list[tuple[LogShare, ...]] = []
        self._errors: dict[TopicPartition, Exception] = {}

    def adopt(self, directories: Sequence[PartitionDir], policy: str | None) -> list[PartitionDir]:
        """The partitions whose topics the lake has or accepts."""
        topics, refused = in_directories(directories), dict[str, UsageError]()
        for topic, facts in topics.facts.items():
            try:
                adopt(self._lake, topic, facts, policy=policy, tell=self._tell)
            except UsageError as error:
                refused[topic] = error
        self._errors |= {d.topic_partition: refused[d.topic] for d in directories if d.topic in refused}
        self._errors |= topics.failed
        return [directory for directory in directories if directory.topic_partition not in self._errors]

    def look_at(self, directories: Sequence[PartitionDir], surveys: Sequence[Surveyed | Exception]) -> None:
        """Where each partition continues; an error of one does not affect the others."""
        logs = self._lake.metastore.log_ends([directory.topic_partition for directory in directories])
        for directory, surveyed in zip(directories, surveys, strict=True):
            name = directory.topic_partition
            if isinstance(surveyed, Exception):
                self._errors[name] = surveyed
                continue
            try:
                self._sources[name] = _as_found(directory, surveyed[0], logs[name])
            except (UsageError, CorruptLog, OSError) as error:
                self._errors[name] = error
                continue
            end = logs[name][1]
            self.added[name] = Ingested(partition=name, start=end, end=end, records=0, bytes=0)

    def objects(self, object_bytes: int) -> list[tuple[LogShare, ...]]:
        """The shares for each object."""
        shares = {
            name: list(shares_of(name, source.survey, source.end, object_bytes))
            for name, source in self._sources.items()
        }
        for name in (name for name, own in shares.items() if not own):
            self._note_epochs(name)
        return self._expect(list(objects_of(shares, object_bytes)))

    def _expect(self, objects: list[tuple[LogShare, ...]]) -> list[tuple[LogShare, ...]]:
        self.expected += len(objects)
        if self._board is not None:
            self._board.expect(sum(share.size for some in objects for share in some))
        return objects

    def follows(self, shares: Sequence[LogShare]) -> bool:
        """Whether nothing is missing before these; otherwise they can't be appended."""
        return self._errors.keys().isdisjoint(share.topic_partition for share in shares)

    def alone(self) -> list[tuple[LogShare, ...]]:
        """Shares of objects that failed as a whole, each for an object of its own: most of them are not the cause."""
        shares, self._alone = self._alone, []
        return self._expect(shares)

    def take(self, works: Sequence[IngestWork], ended: Iterable[tuple[int, Stored | Exception]]) -> bool:
        """Takes one wave. Appends each object once it is the next one in each of its partitions. False: all have failed."""
        queues: dict[TopicPartition, deque[int]] = {}
        for number, work in enumerate(works):
            for share in work.shares:
                queues.setdefault(share.topic_partition, deque()).append(number)
        outcomes: dict[int, Stored | Exception] = {}
        stored = False
        for ended_number, answer in ended:
            outcomes[ended_number] = answer
            stored |= isinstance(answer, Stored)
            ready = [ended_number]
            while ready:
                number = ready.pop()
                own = [queues[share.topic_partition] for share in works[number].shares]
                if number not in outcomes or any(queue[0] != number for queue in own):
                    continue
                self._keep(works[number], outcomes.pop(number))
                for queue in own:
                    queue.popleft()
                ready += [queue[0] for queue in own if queue]
        return stored

    def _keep(self, work: IngestWork, outcome: Stored | Exception) -> None:
        """Appends what continues the logs. What does not has an error before it, which was already reported."""
        if not self.follows(work.shares):
            return
        error = self._refusal(outcome, work.shares) if isinstance(outcome, Stored) else outcome
        if error is None:
            return
        if isinstance(
            outcome, CorruptLog | UsageError
        ):  # the log can't be read, so a twin of this task has uploaded nothing either
            self._lake.metastore.unregister([work.object_id])
        if len(work.shares) > 1:
            self._alone += [(share,) for share in work.shares]
            self.expected -= 1
        else:
            self._errors[work.shares[0].topic_partition] = error

    def _refusal(self, uploaded: Stored, shares: Sequence[LogShare]) -> Exception | None:
        """None: appended. A metastore that was set back in time is not a partition's own error, and ends the run."""
        try:
            self._append(uploaded, shares)
        except SetBack:
            raise
        except CommitRefused as error:
            return error
        except UsageError as error:
            if self._is_committed(uploaded):
                raise  # the store may not have been told, which is not the partition's own error either
            return error
        return None

    def _is_committed(self, uploaded: Stored) -> bool:
        """Whether the logs end where these shares do. All of them or none: it is one commit."""
        ends = {TopicPartition(part.topic, part.partition): part.extent.span.end for part in uploaded.ranges}
        return self._lake.metastore.next_offsets(ends) == ends

    def outcome(self) -> Ingestion:
        """Where objects are missing because of errors, these say why."""
        unfinished = None
        if not self._errors and self.appended < self.expected:
            unfinished = (
                f"stopped: {self.appended} of {units.count(self.expected, 'object')} in the lake; run the same command again "
                "to continue"
            )
        return Ingestion(
            partitions=tuple(self.added[name] for name in sorted(self.added)),
            failed=tuple(
                FailedPartition(partition=str(name), error=self._errors[name]) for name in sorted(self._errors)
            ),
            unfinished=unfinished,
        )

    def _note_epochs(self, topic_partition: TopicPartition) -> None:
        """As in the log directory. Epochs that begin above what the lake has so far do no harm."""
        note_leader_epochs(self._lake.metastore, topic_partition, self._sources[topic_partition].epochs)

    def _append(self, uploaded: Stored, shares: Sequence[LogShare]) -> None:
        by_partition: dict[TopicPartition, list[Extent]] = {share.topic_partition: [] for share in shares}
        for part in uploaded.ranges:
            by_partition[TopicPartition(part.topic, part.partition)].append(part.extent)
        appends: dict[TopicPartition, Append] = {}
        for topic_partition, extents in by_partition.items():
            added = self.added[topic_partition]
            is_first = added.end == added.start
            appends[topic_partition] = Append(
                expected_next=added.end, extents=tuple(extents), from_kafka=True,
                log_start=self._sources[topic_partition].log_start if is_first else None,
            )  # fmt: skip
            if is_first:
                self._note_epochs(topic_partition)
        appends = with_remembered(self._lake, appends)
        self._lake.metastore.append(appends, {uploaded.object_id: uploaded.size}, now_ms=self._clock)
        self.appended += 1
        for topic_partition, extents in by_partition.items():
            self._note(topic_partition, extents)

    def _note(self, topic_partition: TopicPartition, extents: Sequence[Extent]) -> None:
        before, end = self.added[topic_partition], extents[-1].span.end
        self.added[topic_partition] = replace(
            before, end=end, records=before.records + sum(extent.records for extent in extents),
            bytes=before.bytes + sum(extent.length for extent in extents),
        )  # fmt: skip
        if end < self._sources[topic_partition].survey.lso:
            self._tell(f"{topic_partition}: up to offset {end}")
