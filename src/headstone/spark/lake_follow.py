"""`spark.readStream.format("headstone")`: the records that come into topics of a lake, each once.

A stream's position is an offset per partition, `{"orders-0": 1200}`, and nothing else: compaction may replace extents
between two micro-batches, or while one is read. What it removed before the stream came is not served: a reader that must see
every tombstone needs a hold (`headstone lake hold`). What a micro-batch reads is pinned until the next one begins.

Owns what counts as lost: records below the log start that were not read, a partition that is gone, a log that became
shorter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headstone.errors import UsageError
from headstone.lake.defaults import RECORDS
from headstone.lake.format.spans import Span
from headstone.lake.lake import Lake, LakeAddress
from headstone.lake.metastore.pins import Pin, Pins
from headstone.log.topic_partition import TopicPartition
from headstone.spark.lake_selection import LakeSelection, RecordsPart, record_parts
from headstone.spark.source_options import truth
from headstone.spark.stream_limits import SupportsTriggerAvailableNow, ends_of_batch, offsets_max_of, read_limit

OPTIONS = (
    "failOnDataLoss", "lake", "maxOffsetsPerTrigger", "partitions", "path", "pinMs", "startingOffsets", "store.NAME", "topic",
    "view",
)  # fmt: skip

Offsets = Mapping[str, int]
"""By partition, such as `orders-0`: the next offset to read."""


class Log(NamedTuple):
    """Existing offsets: [start, end)."""

    start: int
    end: int


class LakeStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(
        self, address: LakeAddress, selection: LakeSelection, columns: Sequence[str], options: Mapping[str, str]
    ) -> None:
        if selection.view != RECORDS:
            raise UsageError("a stream is of records; the table changes with each of them")
        self._address: LakeAddress | None = address
        self._selection, self._columns = selection, columns
        self._fail_on_data_loss = truth("failOnDataLoss", options.get("failOnDataLoss", "true"))
        self._offsets_max = offsets_max_of(options)
        self._until: Offsets | None = None
        self._opened: Lake | None = None
        self._pins: list[Pin] = []

    def __getstate__(self) -> dict[str, object]:
        """Executors get access to the store with each part, and none to the metastore."""
        return {**self.__dict__, "_address": None, "_opened": None, "_pins": []}

    def initialOffset(self) -> dict[str, int]:
        starting = self._selection.starting
        return {
            str(partition): starting.of(partition, earliest=log.start, latest=log.end)
            for partition, log in self._logs()
        }

    def getDefaultReadLimit(self) -> Any:
        return super().getDefaultReadLimit() if self._offsets_max is None else read_limit(self._offsets_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = {str(partition): log.end for partition, log in self._logs()}

    def latestOffset(self, start: Offsets | None = None, limit: object = None) -> dict[str, int]:
        """Spark passes both since 4.2. Partitions that were added since begin with their log."""
        logs = {str(partition): log for partition, log in self._logs()}
        begins = {**{name: log.start for name, log in logs.items()}, **(start or {})}
        ends = {name: self._end(name, logs.get(name), begin) for name, begin in begins.items()}
        return ends_of_batch(begins, ends, until=self._until, limit=limit)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        lake = self._lake()
        self._pins.append(Pins(lake.metastore).pin("spark stream", for_ms=self._selection.pin_ms))
        logs = dict(self._logs())
        gone = sorted(end.keys() - {str(partition) for partition in logs})
        for name in gone:
            self._lost(f"{name} is gone")
        wanted = {
            partition: Span(start.get(str(partition), log.start), end[str(partition)])
            for partition, log in logs.items()
            if start.get(str(partition), log.start) < end.get(str(partition), 0)
        }
        parts: list[InputPartition] = []
        for partition, state in lake.metastore.within(wanted).items():
            first, last = wanted[partition]
            if first < state.start_offset:
                self._lost(
                    f"{partition} begins at offset {state.start_offset} now: those from {first} on are gone unread"
                )
            parts += record_parts(lake.store, partition, state.extents, max(first, state.start_offset), last)
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RecordsPart):
            yield from partition.rows(self._columns)

    def commit(self, end: Offsets) -> None:
        """What was planned earlier is read; what is planned for the next batch may already be among the pins."""
        for pin in self._pins[:-1]:
            Pins(self._lake().metastore).release(pin)
        self._pins = self._pins[-1:]

    def stop(self) -> None:
        for pin in self._pins:
            Pins(self._lake().metastore).release(pin)
        self._pins = []

    def _lake(self) -> Lake:
        if self._opened is None:
            assert self._address is not None, "parts are planned where the lake's address is"
            self._opened = self._address.open()
        return self._opened

    def _logs(self) -> list[tuple[TopicPartition, Log]]:
        """The partitions that are read, as they are now."""
        metastore = self._lake().metastore
        ends = metastore.log_ends(self._selection.chosen(metastore.partitions()))
        return [(partition, Log(*offsets)) for partition, offsets in ends.items()]

    def _end(self, name: str, log: Log | None, begin: int) -> int:
        """A partition that is gone, or has become shorter, keeps its position."""
        if log is None:
            self._lost(f"{name} is gone")
        elif log.end < begin:
            self._lost(f"{name} ends at offset {log.end} now, and was read up to {begin}: it became shorter")
        return begin if log is None else max(begin, log.end)

    def _lost(self, what: str) -> None:
        if self._fail_on_data_loss:
            raise UsageError(f'{what}; with the option failOnDataLoss "false" the stream goes on without it')
