"""`spark.readStream.format("kafka-log")` over logs that grow, are compacted and lose their beginning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headstone.errors import UsageError
from headstone.retention.policy import Policy
from headstone.spark import log_stream
from headstone.spark.log_stream import KafkaLogStream, StreamPart
from headstone.spark.stream_limits import limited
from tests.logs import compact_here
from tests.oracle.files import read_partition
from tests.oracle.notation import History
from tests.spark.kafka_log import rows_of, source


class Log:
    """A partition that grows in the notation of the acceptance cases."""

    def __init__(self, root: Path, name: str = "t-0") -> None:
        self.root, self.name = root, name
        self._history = History()

    def append(self, text: str) -> None:
        self._history.append(text)
        self._history.write_partition(self.root, self.name)

    def compact(self) -> None:
        """In place; what was rolled before is rewritten, and the history goes on from it."""
        compact_here(self.root / self.name, policy=Policy(now_ms=10**6))
        self._history.install(read_partition(self.root / self.name))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "logs")


def stream(root: Path, **options: str) -> KafkaLogStream:
    reader = source(root, **options).streamReader(StructType())
    assert isinstance(reader, KafkaLogStream)
    return reader


def between(reader: KafkaLogStream, start: Mapping[str, int], end: Mapping[str, int]) -> list[int]:
    return [row["offset"] for row in rows_of(reader, reader.partitions(start, end))]


def test_what_is_added_is_read_once(log: Log) -> None:
    log.append("N[a,b] N[c]/zstd | N[d]")
    reader = stream(log.root)
    start = reader.initialOffset()
    first = reader.latestOffset(start)
    assert (start, first, between(reader, start, first)) == ({"t-0": 0}, {"t-0": 4}, [0, 1, 2, 3])
    assert reader.latestOffset(first) == first
    assert between(reader, first, first) == []
    log.append("N[e] | +5 N[f,g]")
    second = reader.latestOffset(first)
    assert (second, between(reader, first, second)) == ({"t-0": 12}, [4, 10, 11])


def test_an_open_transaction_is_waited_for_unless_the_high_watermark_is_asked_for(log: Log) -> None:
    log.append("N[a] P1[b] N[c]")
    assert stream(log.root).latestOffset() == {"t-0": 1}
    assert stream(log.root, upTo="high-watermark").latestOffset() == {"t-0": 3}
    log.append("A1")
    reader = stream(log.root)
    rows = rows_of(reader, reader.partitions({"t-0": 1}, reader.latestOffset()))
    assert [(row["offset"], row["visibility"]) for row in rows] == [(1, "aborted"), (2, "committed"), (3, None)]
    (log.root / "replication-offset-checkpoint").write_text("0\n1\nt 0 3\n")
    assert stream(log.root, upTo="high-watermark").latestOffset() == {"t-0": 3}


def test_a_compaction_between_two_batches_loses_and_repeats_nothing(log: Log) -> None:
    log.append("N[a] N[b] | N[a] N[c] | N[a]")
    reader = stream(log.root)
    first = {"t-0": 3}
    assert between(reader, reader.initialOffset(), first) == [0, 1, 2]
    log.compact()
    log.append("N[d] | N[e]")
    second = reader.latestOffset(first)
    assert between(reader, first, second) == [3, 4, 5, 6]
    assert between(stream(log.root), {}, second) == [1, 2, 3, 4, 5, 6], (
        "what a new reader finds: offset 0 is superseded"
    )


@pytest.mark.parametrize("read_before", [0, 1, 2])
def test_a_compaction_while_a_batch_is_read_loses_and_repeats_nothing(
    log: Log, read_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task has its plan, and some rows already; then its segments are replaced by one."""
    monkeypatch.setattr("headstone.retention.survey.CHUNK_BYTES", 1)
    log.append("N[a] N[b] N[c] N[d] | N[a] N[e] | N[f]")
    reader = stream(log.root)
    parts = list(reader.partitions({"t-0": 0}, {"t-0": 6}))
    rows = (offset for part in parts for batch in reader.read(part) for offset in batch.column("offset").to_pylist())
    seen = [next(rows) for _ in range(read_before)]
    log.compact()
    seen += rows
    assert sorted(set(seen) - {0}) == [1, 2, 3, 4, 5]
    assert len(seen) == len(set(seen))


def test_a_segment_that_is_written_over_while_it_is_read_is_read_on_where_it_was_left(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a copy tool does, or an object that is replaced between two requests."""
    monkeypatch.setattr("headstone.retention.survey.CHUNK_BYTES", 1)
    log.append("N[a] N[b] N[c] N[d]")
    other = Log(tmp_path / "other")
    other.append("+1 N[b]/zstd N[c] N[d]")
    reader = stream(log.root)
    (part,) = reader.partitions({"t-0": 0}, {"t-0": 4})
    rows = (offset for batch in reader.read(part) for offset in batch.column("offset").to_pylist())
    seen = [next(rows), next(rows)]
    name = f"t-0/{0:020d}.log"
    (log.root / name).write_bytes((other.root / name).read_bytes())
    assert [*seen, *rows] == [0, 1, 2, 3]


def test_partitions_that_come_later_are_read_from_their_beginning(log: Log, tmp_path: Path) -> None:
    log.append("N[a]")
    reader = stream(tmp_path / "*")
    first = reader.latestOffset(reader.initialOffset())
    Log(tmp_path / "more", "u-7").append("N[x] N[y]")
    second = reader.latestOffset(first)
    assert second == {"t-0": 1, "u-7": 2}
    assert [(part.part.topic, part.part.partition) for part in stream_parts(reader, first, second)] == [("u", 7)]


def stream_parts(reader: KafkaLogStream, start: Mapping[str, int], end: Mapping[str, int]) -> list[StreamPart]:
    return [part for part in reader.partitions(start, end) if isinstance(part, StreamPart)]


def test_options_choose_what_is_streamed(log: Log) -> None:
    log.append("N[a] N[b] N[c] N[d]")
    Log(log.root, "u-0").append("N[x]")
    reader = stream(log.root, topic="t", offsets="1:3")
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    assert (start, end, between(reader, start, end)) == ({"t-0": 1}, {"t-0": 3}, [1, 2])


LOST = 'with the option failOnDataLoss "false" the stream goes on without it'


def test_records_that_were_deleted_unread_are_told(log: Log) -> None:
    log.append("N[a] N[b] | N[c] | N[d]")
    for path in (log.root / "t-0").glob("0" * 20 + ".*"):
        path.unlink()
    why = f"t-0 begins at offset 2 now: those from 1 on were deleted unread; {LOST}"
    with pytest.raises(UsageError, match=re.escape(why)):
        stream(log.root).partitions({"t-0": 1}, {"t-0": 4})
    assert between(stream(log.root, failOnDataLoss="false"), {"t-0": 1}, {"t-0": 4}) == [2, 3]


def test_a_stream_begins_at_the_log_start_and_not_at_its_segment(log: Log) -> None:
    log.append("N[a] N[b] N[c]")
    (log.root / "log-start-offset-checkpoint").write_text("0\n1\nt 0 2\n")
    reader = stream(log.root, failOnDataLoss="false")
    assert (reader.initialOffset(), reader.latestOffset({})) == ({"t-0": 2}, {"t-0": 3})
    assert between(reader, {}, {"t-0": 3}) == between(reader, {"t-0": 0}, {"t-0": 3}) == [2]


def test_a_log_that_became_shorter_is_told(log: Log) -> None:
    log.append("N[a] N[b]")
    reader = stream(log.root)
    with pytest.raises(UsageError, match=r"t-0 ends at offset 2 now, and was read up to 5: it became shorter"):
        reader.latestOffset({"t-0": 5})
    with pytest.raises(UsageError, match=r"t-0 ends at offset 2 now, and was to be read up to 5"):
        reader.partitions({"t-0": 0}, {"t-0": 5})
    patient = stream(log.root, failOnDataLoss="false")
    assert patient.latestOffset({"t-0": 5}) == {"t-0": 5}
    assert between(patient, {"t-0": 0}, {"t-0": 5}) == [0, 1]


def test_a_partition_that_is_gone_is_told_and_keeps_its_place(log: Log) -> None:
    log.append("N[a]")
    start = {"t-0": 1, "u-0": 8}
    with pytest.raises(UsageError, match=re.escape(f"u-0 is gone; {LOST}")):
        stream(log.root).latestOffset(start)
    assert stream(log.root, failOnDataLoss="false").latestOffset(start) == start


def test_one_partition_in_two_places_is_refused(log: Log, tmp_path: Path) -> None:
    log.append("N[a]")
    Log(tmp_path / "other").append("N[a]")
    with pytest.raises(UsageError, match=r"t-0 is in .*/logs/t-0 and in .*/other/t-0; a stream reads one of them"):
        stream(tmp_path / "*").initialOffset()


def test_half_an_append_and_half_a_swap_are_waited_for_and_then_told(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append("N[a] N[b]")
    path = log.root / "t-0" / f"{0:020d}.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        path.write_bytes(whole)

    monkeypatch.setattr("time.sleep", nap)
    assert stream(log.root).latestOffset() == {"t-0": 2}
    assert naps == [log_stream.POLL_SECONDS]
    monkeypatch.setattr(log_stream, "PATIENCE_SECONDS", 0.0)
    path.with_suffix(".log.swap").write_bytes(b"")
    with pytest.raises(UsageError, match="an interrupted compaction was left here"):
        stream(log.root).latestOffset()


def test_a_limit_is_shared_by_what_each_partition_has() -> None:
    begins = {"a-0": 10, "b-0": 0, "c-0": 5}
    ends = {"a-0": 110, "b-0": 50, "c-0": 5}
    assert limited(begins, ends, 1000) == ends
    assert limited(begins, ends, 30) == {"a-0": 30, "b-0": 10, "c-0": 5}
    assert limited(begins, ends, 1) == {"a-0": 11, "b-0": 0, "c-0": 5}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"failOnDataLoss": "no"}, "failOnDataLoss 'no': there are true and false"),
        ({"upTo": "end"}, "upTo 'end': there are lso and high-watermark"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger '0': expected a number above 0"),
        ({"startingOffsets": "latest"}, "unknown option startingoffsets; there are failOnDataLoss, maxOffsetsPer"),
    ],
)
def test_what_is_wrong_is_said(log: Log, options: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        stream(log.root, **options)


def test_a_query_goes_on_from_its_checkpoint(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    batches: list[list[int]] = []

    def keep(frame: DataFrame, number: int) -> None:
        batches.append(sorted(row.offset for row in frame.select("offset").collect()))

    def run() -> list[list[int]]:
        batches.clear()
        rows = spark.readStream.format("kafka-log").option("maxOffsetsPerTrigger", "3").load(str(log.root))
        writer = rows.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        return list(batches)

    log.append("N[a] N[b] | N[a] N[c] | N[d]")
    assert run() == [[0, 1, 2], [3, 4]]
    log.compact()
    log.append("N[e] N[a]")
    assert run() == [[5, 6]]
