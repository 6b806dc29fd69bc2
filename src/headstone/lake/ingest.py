"""From log directories and backups into the lake: committed records up to the last stable offset, transactions resolved.

What is in the lake already is not read again: next_offset says where to go on, and a commit that comes second is refused, so
running it twice, or killing it anywhere, loses nothing and doubles nothing. Keeps offsets, timestamps, keys, headers, codecs.

The driver: it surveys by tasks, registers objects, hands out one task per object (`ingest_tasks`), and appends what each has
made as soon as what lies before it of the same partitions is in the lake. Tasks never see the metastore.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headstone.errors import Unfinished, UsageError
from headstone.lake.commits import CommitRefused, Extent
from headstone.lake.ingest_tasks import IngestWork, Share, ingest_object, objects_of, shares_of
from headstone.lake.lake import Lake
from headstone.lake.leader_epochs import note_leader_epochs
from headstone.lake.metastore import Append
from headstone.lake.objects import Stored
from headstone.lake.topics import adopt, in_directories
from headstone.log import checkpoints
from headstone.log.directory import METADATA_TOPIC, PartitionDir
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine, Stop, never
from headstone.pipeline.inprocess import NEAR_THREADS, InProcess
from headstone.pipeline.planning import survey_all
from headstone.pipeline.progress import Board
from headstone.retention.survey import PartitionSurvey

EXTENT_BYTES = 16 << 20
OBJECT_BYTES = 64 << 20
WAVE_OBJECTS = 256
"""Objects that are registered together. What a killed run has uploaded of them, and not committed, is garbage."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """One partition: what was in the lake before, and what was added."""

    partition: TopicPartition
    start: int
    end: int
    records: int
    bytes: int


def ingest(
    lake: Lake, directories: Sequence[PartitionDir], *, clock: Callable[[], int], engine: Engine | None = None,
    board: Board | None = None, tell: Tell = lambda text: None, policy: str | None = None,
    extent_bytes: int = EXTENT_BYTES, object_bytes: int = OBJECT_BYTES, wave_objects: int = WAVE_OBJECTS,
    stop: Stop = never,
) -> list[Ingested]:  # fmt: skip
    """All partitions found; topics that the lake does not have are created. One commit per object.

    Unfinished: somebody said stop; what was committed stays, and the next run goes on there.

    A partition that can't be read, or that somebody else appends to, ends where it is; the first such error is raised when all
    others are in the lake. Without an engine by threads of this process. `policy` is these topics' cleanup.policy; None: what
    their log directories tell of it. The log start of the first log is the lake's. Later ones do not move it: a shorter log
    must not take away what is there."""
    engine = engine or InProcess(NEAR_THREADS)
    wanted = [directory for directory in directories if directory.topic != METADATA_TOPIC]
    for topic, facts in in_directories(wanted).items():
        adopt(lake, topic, facts, policy=policy, tell=tell)
    surveys = {
        TopicPartition(directory.topic, directory.partition): survey
        for directory, (survey, _) in zip(wanted, survey_all(wanted, engine), strict=True)
    }
    starts = lake.metastore.next_offsets(surveys)
    for topic_partition, survey in surveys.items():
        _refuse_gap(topic_partition, starts[topic_partition], survey)
    shares = {
        topic_partition: list(shares_of(topic_partition, survey, starts[topic_partition], object_bytes))
        for topic_partition, survey in surveys.items()
    }
    objects = list(objects_of(shares, object_bytes))
    if board is not None:
        board.expect(sum(share.size for some in objects for share in some))
    run = _Run(lake, {directory.topic_partition: directory for directory in wanted}, surveys, starts, clock, tell)
    for topic_partition in (name for name, own in shares.items() if not own):
        run.note_epochs(topic_partition)
    for first in range(0, len(objects), wave_objects):
        if stop():
            break
        wave = [some for some in objects[first : first + wave_objects] if run.follows(some)]
        works = [
            IngestWork(
                store=lake.store, object_id=object_id, hash_key=lake.metastore.hash_key, shares=some,
                extent_bytes=extent_bytes,
            )
            for object_id, some in zip(lake.metastore.register(len(wave), now_ms=clock), wave, strict=True)
        ]  # fmt: skip
        if works and not run.take(works, engine.as_they_end(ingest_object, works, board, stop=stop)):
            break  # it is not the logs: the next wave would end as this one did
    if run.error is not None:
        raise run.error
    if run.appended < len(objects):
        raise Unfinished(
            f"stopped: {run.appended} of {len(objects)} objects are in the lake; run the same command again, it goes on there"
        )
    return [run.added[topic_partition] for topic_partition in sorted(run.added)]


def _refuse_gap(topic_partition: TopicPartition, start: int, survey: PartitionSurvey) -> None:
    """A log whose beginning is gone, or a part of a backup: what it lacks may be the deletion of what the lake holds."""
    if 0 < start < survey.log_start:
        raise UsageError(
            f"{topic_partition}: the lake ends at {start}, this log begins at {survey.log_start}: what lies between "
            "is missing; "
            "ingest a log or backup that has it, or make a new lake"
        )


class _Run:
    """What was committed so far, partition by partition."""

    def __init__(
        self, lake: Lake, directories: Mapping[TopicPartition, PartitionDir],
        surveys: Mapping[TopicPartition, PartitionSurvey], starts: Mapping[TopicPartition, int],
        clock: Callable[[], int], tell: Tell,
    ) -> None:  # fmt: skip
        self._lake, self._directories, self._surveys = lake, directories, surveys
        self._clock, self._tell = clock, tell
        self.added = {
            topic_partition: Ingested(partition=topic_partition, start=start, end=start, records=0, bytes=0)
            for topic_partition, start in starts.items()
        }
        self.appended = 0
        """Objects."""
        self._failed: set[TopicPartition] = set()
        self.error: Exception | None = None
        """The first, in the order of the objects."""

    def follows(self, shares: Sequence[Share]) -> bool:
        """Nothing is missing before these; else they can't be appended."""
        return self._failed.isdisjoint(share.topic_partition for share in shares)

    def take(self, works: Sequence[IngestWork], ended: Iterable[tuple[int, Stored | Exception]]) -> bool:
        """Of one wave. Appends each object as soon as it is the next one of each of its partitions. False: all have failed."""
        queues: dict[TopicPartition, deque[int]] = {}
        for number, work in enumerate(works):
            for share in work.shares:
                queues.setdefault(share.topic_partition, deque()).append(number)
        outcomes: dict[int, Stored | Exception] = {}
        errors: dict[int, Exception] = {}
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
                error = self._kept(works[number], outcomes.pop(number))
                if error is not None:
                    errors[number] = error
                for queue in own:
                    queue.popleft()
                ready += [queue[0] for queue in own if queue]
        if errors and self.error is None:
            self.error = errors[min(errors)]
        return stored

    def _kept(self, work: IngestWork, outcome: Stored | Exception) -> Exception | None:
        """Appends what follows on what is there. None: it did, or an error before it has told already why it could not."""
        follows = self.follows(work.shares)
        if isinstance(outcome, Stored) and follows:
            try:
                self._append(outcome, work.shares)
            except CommitRefused as error:
                outcome = error
        if isinstance(outcome, Exception) or not follows:
            self._failed.update(share.topic_partition for share in work.shares)
        return outcome if isinstance(outcome, Exception) else None

    def note_epochs(self, topic_partition: TopicPartition) -> None:
        """As the log directory tells them. Those that begin behind what the lake has so far are of no use to anybody yet."""
        epochs = checkpoints.read_leader_epochs(self._directories[topic_partition].path / checkpoints.LEADER_EPOCHS)
        note_leader_epochs(self._lake.metastore, topic_partition, epochs)

    def _append(self, uploaded: Stored, shares: Sequence[Share]) -> None:
        by_partition: dict[TopicPartition, list[Extent]] = {share.topic_partition: [] for share in shares}
        for part in uploaded.ranges:
            by_partition[TopicPartition(part.topic, part.partition)].append(part.extent)
        appends = {
            topic_partition: Append(expected_next=self.added[topic_partition].end, extents=tuple(extents))
            for topic_partition, extents in by_partition.items()
        }
        for topic_partition in by_partition:
            if self.added[topic_partition].end == self.added[topic_partition].start:
                self.note_epochs(topic_partition)
        self._lake.metastore.append(appends, {uploaded.object_id: uploaded.size}, now_ms=self._clock)
        self.appended += 1
        for topic_partition, extents in by_partition.items():
            self._note(topic_partition, extents)

    def _note(self, topic_partition: TopicPartition, extents: Sequence[Extent]) -> None:
        before, log_start = self.added[topic_partition], self._surveys[topic_partition].log_start
        end = extents[-1].span.end
        self.added[topic_partition] = replace(
            before, end=end, records=before.records + sum(extent.records for extent in extents),
            bytes=before.bytes + sum(extent.length for extent in extents),
        )  # fmt: skip
        if before.start == 0 and before.end < log_start:
            self._lake.metastore.start_at(topic_partition, min(log_start, end), now_ms=self._clock)
        if end < self._surveys[topic_partition].lso:
            self._tell(f"{topic_partition}: up to offset {end}")
