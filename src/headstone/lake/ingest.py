"""From log directories and backups into the lake: committed records up to the last stable offset, transactions resolved.

What is in the lake already is not read again: next_offset says where to go on, and a commit that comes second is refused, so
running it twice, or killing it anywhere, loses nothing and doubles nothing. Keeps offsets, timestamps, keys, headers, codecs.

The driver: it surveys by tasks, registers objects, hands out one task per object (`ingest_tasks`), and appends what they made,
the oldest of each partition first. Tasks never see the metastore.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from headstone.errors import UsageError
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
from headstone.pipeline.engine import Engine
from headstone.pipeline.inprocess import NEAR_THREADS, InProcess
from headstone.pipeline.planning import survey_all
from headstone.pipeline.progress import Board
from headstone.retention.survey import PartitionSurvey

EXTENT_BYTES = 16 << 20
OBJECT_BYTES = 64 << 20
WAVE_OBJECTS = 256
"""Objects that are on their way at once. What a killed run has uploaded of them, and not committed, is garbage."""

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
) -> list[Ingested]:  # fmt: skip
    """All partitions found; topics that the lake does not have are created. One commit per object.

    Without an engine by threads of this process. `policy` is these topics' cleanup.policy; None: what their log directories
    tell of it. The log start of the first log is the lake's. Later ones do not move it: a shorter log must not take away what
    is there."""
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
    run = _Run(lake, surveys, starts, clock, tell)
    for first in range(0, len(objects), wave_objects):
        wave = objects[first : first + wave_objects]
        works = [
            IngestWork(
                store=lake.store, object_id=object_id, hash_key=lake.metastore.hash_key, shares=some,
                extent_bytes=extent_bytes,
            )
            for object_id, some in zip(lake.metastore.register(len(wave), now_ms=clock), wave, strict=True)
        ]  # fmt: skip
        run.commit(works, engine.outcomes(ingest_object, works, board))
    for directory in wanted:
        epochs = checkpoints.read_leader_epochs(directory.path / checkpoints.LEADER_EPOCHS)
        note_leader_epochs(lake.metastore, directory.topic_partition, epochs)
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
        self, lake: Lake, surveys: Mapping[TopicPartition, PartitionSurvey], starts: Mapping[TopicPartition, int],
        clock: Callable[[], int], tell: Tell,
    ) -> None:  # fmt: skip
        self._lake, self._surveys, self._clock, self._tell = lake, surveys, clock, tell
        self.added = {
            topic_partition: Ingested(partition=topic_partition, start=start, end=start, records=0, bytes=0)
            for topic_partition, start in starts.items()
        }

    def commit(self, works: Sequence[IngestWork], outcomes: Sequence[Stored | Exception]) -> None:
        """Appends what follows on what is there; of a partition with a share that failed, nothing behind that.

        The first error is raised when all that can be kept is kept."""
        errors: list[Exception] = []
        failed: set[TopicPartition] = set()
        for work, outcome in zip(works, outcomes, strict=True):
            own = {share.topic_partition for share in work.shares}
            if isinstance(outcome, Stored) and not own & failed:
                try:
                    self._append(outcome, work.shares)
                except CommitRefused as error:
                    outcome = error
            if isinstance(outcome, Exception):
                errors.append(outcome)
            if isinstance(outcome, Exception) or own & failed:
                failed |= own
        if errors:
            raise errors[0]

    def _append(self, uploaded: Stored, shares: Sequence[Share]) -> None:
        by_partition: dict[TopicPartition, list[Extent]] = {share.topic_partition: [] for share in shares}
        for part in uploaded.ranges:
            by_partition[TopicPartition(part.topic, part.partition)].append(part.extent)
        appends = {
            topic_partition: Append(expected_next=self.added[topic_partition].end, extents=tuple(extents))
            for topic_partition, extents in by_partition.items()
        }
        self._lake.metastore.append(appends, {uploaded.object_id: uploaded.size}, now_ms=self._clock)
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
