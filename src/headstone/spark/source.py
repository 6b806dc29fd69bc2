"""`spark.read.format("kafka-log").load(PATH)`: every record of a log directory or backup, with its place.

One row per record, control records included; `spark.readStream` is `log_stream.py`. The options `topic`, `partitions` and
`offsets` choose segments and chunks before anything is read. The columns of the reader's schema choose what is decoded; if
batch headers have all of them, no record is read.

A query's own filters choose nothing here. Spark 4.1 to 4.3 keeps what a Python source planned with pushed filters at the
provider that all queries of one DataFrame share (`PythonDataSourceV2.readInfo`, set by `PythonScanBuilder.pushFilters`): a
later query without filters, or the other side of a join or union, silently gets the rows of the first, and the source is not
asked again. So a Python source that pushes filters down is wrong there; 4.0 cannot push at all. Spark 5 keeps it per scan
(SPARK-58551). Spark applies the filters to what is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from headstone.log.directory import PartitionDir, list_segments
from headstone.log.reading import SegmentFile
from headstone.pipeline.planning import RememberedWalk, run_survey, survey_all, survey_task
from headstone.retention.policy import NO_LIMIT
from headstone.spark import log_selection, log_stream
from headstone.spark.log_rows import SPLIT_BYTES, LogPart, ObjectPart, headers_tell, parts_of, rows_of, rows_of_object
from headstone.spark.log_selection import LogSelection
from headstone.spark.log_stream import KafkaLogStream, StreamSettings
from headstone.spark.record_columns import SCHEMA, chosen_columns
from headstone.spark.source_options import refuse_unknown
from headstone.storage.places import ObjectPlace

NAME = "kafka-log"
NO_SPLIT = 1 << 31
"""Kafka's own limit of a segment: its indexes have positions of 32 bits."""


@dataclass
class QueryPart(InputPartition):
    part: LogPart


@dataclass
class FarPart(InputPartition):
    """In an object store, where a header costs the bytes around it: the driver only lists.

    One segment; or the whole partition (`file` is None) if visibility is requested, because other segments decide that."""

    directory: PartitionDir
    file: SegmentFile | None
    offset_start: int
    offset_end: int

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        topic, number = self.directory.topic_partition
        start, end = self.offset_start, self.offset_end
        if self.file is not None:
            part = ObjectPart(topic=topic, partition=number, file=self.file, offset_start=start, offset_end=end)
            yield from rows_of_object(part, columns)
            return
        walk = RememberedWalk()
        for segment in run_survey(survey_task(self.directory), walk)[0].segments:
            for surveyed in parts_of(topic, number, segment, start, end, NO_SPLIT):
                yield from rows_of(surveyed, columns, walk)


class KafkaLogSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        refuse_unknown(self.options, log_selection.OPTIONS)
        return KafkaLogReader(LogSelection.of(self.options), chosen_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        refuse_unknown(self.options, (*log_selection.OPTIONS, *log_stream.OPTIONS))
        return KafkaLogStream(LogSelection.of(self.options), chosen_columns(schema), StreamSettings.of(self.options))


class KafkaLogReader(DataSourceReader):
    def __init__(self, selection: LogSelection, columns: Sequence[str]) -> None:
        self._selection = selection
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        directories = self._selection.directories()
        far = [directory for directory in directories if isinstance(directory.path, ObjectPlace)]
        near = [directory for directory in directories if not isinstance(directory.path, ObjectPlace)]
        return [*self._near(near), *(part for directory in far for part in self._far(directory))]

    def _near(self, directories: Sequence[PartitionDir]) -> Iterator[InputPartition]:
        start, end = self._selection.offset_start, self._selection.offset_end
        split_bytes = NO_SPLIT if headers_tell(self._columns) else SPLIT_BYTES
        for directory, (survey, _) in zip(directories, survey_all(directories), strict=True):
            for segment in survey.segments:
                for part in parts_of(directory.topic, directory.partition, segment, start, end, split_bytes):
                    yield QueryPart(part)

    def _far(self, directory: PartitionDir) -> Iterator[InputPartition]:
        start, end = self._selection.offset_start, self._selection.offset_end
        if "visibility" in self._columns:
            yield FarPart(directory, None, start, end)
            return
        files = list_segments(directory)
        following = [*(file.base for file in files[1:]), NO_LIMIT]
        for file, next_base in zip(files, following, strict=True):
            if file.base < end and next_base > start:
                yield FarPart(directory, file, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, QueryPart):
            yield from rows_of(partition.part, self._columns)
        elif isinstance(partition, FarPart):  # or what Spark makes of an empty list of partitions
            yield from partition.rows(self._columns)
