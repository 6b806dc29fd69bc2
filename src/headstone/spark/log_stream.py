"""`spark.readStream.format("kafka-log").load(PATH)`: the records that are added to a growing log directory, each once.

A stream's position is an offset per partition, `{"orders-0": 1200}`, and nothing else. Segments may be rolled, compacted or
appended to between two batches, or while one is read; everything at or above the position is read exactly once. It reads up
to the last stable offset, where a record's `visibility` no longer changes, or to the high watermark.

Owns what counts as lost: records that were deleted before they were read, a partition that is gone, a log that became
shorter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headstone.errors import CorruptLog, UsageError
from headstone.log import checkpoints
from headstone.log.directory import PartitionDir, list_segments
from headstone.log.reading import SegmentFile
from headstone.pipeline.planning import RememberedWalk, run_survey, survey_directory, survey_task
from headstone.retention.survey import PartitionSurvey
from headstone.spark.log_rows import LogPart, parts_of, rows_of_records
from headstone.spark.log_selection import LogSelection
from headstone.spark.source_options import one_of, truth
from headstone.spark.stream_limits import SupportsTriggerAvailableNow, ends_of_batch, offsets_max_of, read_limit
from headstone.storage.places import ObjectPlace, place
from headstone.storage.stores import MissingObject

OPTIONS = ("failOnDataLoss", "maxOffsetsPerTrigger", "upTo")
LSO, HIGH_WATERMARK = "lso", "high-watermark"
PATIENCE_SECONDS = 10.0
"""A swap or an append under way is over by then; a log that is still incomplete is reported."""
POLL_SECONDS = 0.1
ATTEMPTS = 3
"""A task's attempts to read its range: when compaction has replaced a segment under it, it looks up its offsets again."""

Offsets = Mapping[str, int]
"""By partition, named as its directory: the next offset to read."""
Partitions = Mapping[str, tuple[PartitionDir, PartitionSurvey]]

_IN_MOTION = (CorruptLog, UsageError, FileNotFoundError, MissingObject)
"""What a log looks like during a swap of segments, or in the middle of an append."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    up_to: str = LSO
    fail_on_data_loss: bool = True
    offsets_max: int | None = None
    """Of one micro-batch, over all partitions; None: all there are."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StreamSettings:
        return cls(
            up_to=one_of("upTo", options.get("upTo", LSO), (LSO, HIGH_WATERMARK)),
            fail_on_data_loss=truth("failOnDataLoss", options.get("failOnDataLoss", "true")),
            offsets_max=offsets_max_of(options),
        )


@dataclass
class StreamPart(InputPartition):
    directory: PartitionDir
    part: LogPart


class KafkaLogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, selection: LogSelection, columns: Sequence[str], settings: StreamSettings) -> None:
        self._selection = selection
        self._columns = columns
        self._settings = settings
        self._surveys: dict[str, tuple[_State, PartitionSurvey]] = {}
        self._headers: dict[str, RememberedWalk] = {}
        self._until: Offsets | None = None

    def initialOffset(self) -> dict[str, int]:
        return self._firsts(self._partitions())

    def getDefaultReadLimit(self) -> Any:
        if self._settings.offsets_max is None:
            return super().getDefaultReadLimit()
        return read_limit(self._settings.offsets_max)

    def prepareForTriggerAvailableNow(self) -> None:
        partitions = self._partitions()
        self._until = self._ends(partitions, self._firsts(partitions))

    def latestOffset(self, start: Offsets | None = None, limit: object = None) -> dict[str, int]:
        """Spark passes both since 4.2. `limit` is what the options say, or everything there is if the trigger wants that."""
        partitions = self._partitions()
        begins = {**self._firsts(partitions), **(start or {})}
        ends = self._ends(partitions, begins)
        return ends_of_batch(begins, ends, until=self._until, limit=limit)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        partitions = self._partitions()
        begins = {**self._firsts(partitions), **start}
        parts: list[InputPartition] = []
        for name, until in sorted(end.items()):
            if name in partitions and begins[name] < until:
                directory, survey = partitions[name]
                self._require_whole(name, survey, begins[name], until)
                begin = max(begins[name], survey.log_start)
                parts += [StreamPart(directory, part) for part in _range_of(directory, survey, begin, until)]
            elif name not in partitions:
                self._lost(f"{name} is gone")
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of the part's offsets, wherever they are: looks up segments again that compaction has replaced."""
        if not isinstance(partition, StreamPart):
            return
        directory, parts = partition.directory, [partition.part]
        start, end = partition.part.offset_start, partition.part.offset_end
        for attempt in range(ATTEMPTS):
            try:
                for part in parts:
                    for batch, following in rows_of_records(part, self._columns):
                        yield batch
                        start = max(start, following)
                return
            except _IN_MOTION:
                if attempt + 1 == ATTEMPTS:
                    raise
            survey = settled(listed_anew(directory), lambda found: survey_directory(found)[0])
            self._require_whole(directory.name, survey, start, end)
            parts = list(_range_of(directory, survey, start, end))

    def _partitions(self) -> Partitions:
        """All that exist now. Headers are walked again only where a log has changed."""
        partitions: dict[str, tuple[PartitionDir, PartitionSurvey]] = {}
        for directory in self._selection.directories():
            name = directory.name
            if name in partitions:
                raise UsageError(
                    f"{name} is in {partitions[name][0].path} and in {directory.path}; a stream reads one of them"
                )
            partitions[name] = directory, settled(directory, self._survey)
        return partitions

    def _survey(self, directory: PartitionDir) -> PartitionSurvey:
        name, state = directory.name, _state(directory)
        last = self._surveys.get(name)
        if last is None or last[0] != state:
            task = survey_task(directory)
            walk = self._headers.setdefault(name, RememberedWalk()) if task.is_far else None
            self._surveys[name] = state, run_survey(task, walk)[0]
            if walk is not None:
                walk.keep_only(state.files)
        return self._surveys[name][1]

    def _firsts(self, partitions: Partitions) -> dict[str, int]:
        return {name: max(survey.log_start, self._selection.offset_start) for name, (_, survey) in partitions.items()}

    def _ends(self, partitions: Partitions, begins: Offsets) -> dict[str, int]:
        """A partition that is gone, or has become shorter, keeps its position: nothing is read twice if it comes back."""
        ends = dict(begins)
        for name, begin in begins.items():
            if name not in partitions:
                self._lost(f"{name} is gone")
                continue
            survey = partitions[name][1]
            if survey.log_end < begin:
                self._lost(f"{name} ends at offset {survey.log_end} now, and was read up to {begin}: it became shorter")
            end = survey.lso if self._settings.up_to == LSO else survey.high_watermark
            ends[name] = max(min(end, self._selection.offset_end), begin)
        return ends

    def _require_whole(self, name: str, survey: PartitionSurvey, begin: int, end: int) -> None:
        if begin < survey.log_start:
            self._lost(f"{name} begins at offset {survey.log_start} now: those from {begin} on were deleted unread")
        if end > survey.log_end:
            self._lost(f"{name} ends at offset {survey.log_end} now, and was to be read up to {end}: it became shorter")

    def _lost(self, what: str) -> None:
        if self._settings.fail_on_data_loss:
            raise UsageError(f'{what}; with the option failOnDataLoss "false" the stream goes on without it')


def _range_of(directory: PartitionDir, survey: PartitionSurvey, start: int, end: int) -> Iterator[LogPart]:
    for segment in survey.segments:
        yield from parts_of(directory.topic, directory.partition, segment, start, end)


def settled(directory: PartitionDir, look: Callable[[PartitionDir], PartitionSurvey]) -> PartitionSurvey:
    """Looks again at a log in motion until it is whole, for some seconds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return look(directory)
        except _IN_MOTION:
            if time.monotonic() >= deadline:
                raise
            time.sleep(POLL_SECONDS)
        directory = listed_anew(directory)


def listed_anew(directory: PartitionDir) -> PartitionDir:
    """Object stores were listed when the place was found, so list again."""
    log_dir = directory.log_dir
    if not isinstance(log_dir, ObjectPlace):
        return directory
    return replace(directory, path=place(str(log_dir), log_dir.access) / directory.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """Two states are equal while a survey would give the same."""

    files: tuple[SegmentFile, ...]
    high_watermark: int | None
    log_start: int | None


def _state(directory: PartitionDir) -> _State:
    def offset_in(name: str) -> int | None:
        return checkpoints.read_offsets(directory.log_dir / name).get(directory.topic_partition)

    return _State(
        files=tuple(list_segments(directory)),
        high_watermark=offset_in(checkpoints.HIGH_WATERMARK),
        log_start=offset_in(checkpoints.LOG_START),
    )
