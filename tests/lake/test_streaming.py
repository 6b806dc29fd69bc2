"""The parts of ingest from a cluster that need none: what a task writes, how a batch is tiled, and what becomes of a run beside
others who drop, erase or write."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from headstone.errors import Unfinished, UsageError
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.erasure import request_erasure
from headstone.lake.jobs.proof import prove_erased
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import CommitRefused
from headstone.lake.metastore.leader_epochs import known_leader_epochs
from headstone.lake.metastore.surveys import record_bytes
from headstone.lake.topics import TopicFacts, drop_topic
from headstone.lake.transfer.landing import FollowedTopics, LandTask, ObjectSize
from headstone.lake.transfer.live import ReadTopics, expect_ids, facts_of, offsets_to_come, prepare
from headstone.lake.transfer.reading import records
from headstone.log import codecs
from headstone.log.columns import HEADER_TYPE
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.progress import Board, Meter
from headstone.spark import lake_stream
from headstone.spark.lake_stream import StreamOptions, batching, land_batch, stream
from tests.lake.twin import TwinCluster, TwinTopic

AT, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

SCHEMA = pa.schema(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp_ms", pa.int64()),
        ("log_append_time", pa.bool_()), ("key", pa.binary()), ("value", pa.binary()), ("headers", HEADER_TYPE),
    ]
)  # fmt: skip


@pytest.fixture
def lake(lake: Lake) -> Lake:
    lake.metastore.create_topic("t", 2)
    return lake


def rows(number: int, *offsets: int) -> pa.RecordBatch:
    found = [
        {
            "topic": "t", "partition": number, "offset": offset, "timestamp_ms": 1000 + offset, "log_append_time": False,
            "key": b"k%d" % offset, "value": b"v", "headers": None,
        }
        for offset in offsets
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(found, schema=SCHEMA)


class Batch:
    """A micro-batch without Spark: each of its tasks is given some rows, and runs twice, as speculation has it."""

    def __init__(self, *tasks: list[pa.RecordBatch]) -> None:
        self._tasks = tasks

    def coalesce(self, count: int) -> Batch:
        """Neighbours together, as Spark does."""
        size = -(-len(self._tasks) // count)
        groups = [self._tasks[i : i + size] for i in range(0, len(self._tasks), size)]
        return Batch(*([batch for task in group for batch in task] for group in groups))

    def mapInArrow(self, task: Stage, schema: str) -> Batch:
        made = []
        try:
            for number, some in enumerate(self._tasks):
                TaskContext._getOrCreate()._partitionId = number
                list(task(iter(some)))
                made.append(list(task(iter(some))))
        finally:  # a process in which a task runs is no driver
            TaskContext._setTaskContext(None)
        return Batch(*made)

    def collect(self) -> list[dict[str, Any]]:
        return [row for task in self._tasks for batch in task for row in batch.to_pylist()]


def land(lake: Lake, batch: Batch, ends: dict[tuple[str, int], int], size: int = 1, **more: Any) -> dict[Any, int]:
    """`size`: offsets per object."""
    read_until = {TopicPartition(*partition): end for partition, end in ends.items()}
    options = StreamOptions(source={}, extent_bytes=200, **more)
    learned = ObjectSize(size, records=1, bytes=1)
    followed = FollowedTopics(lake, dict.fromkeys(lake.metastore.partitions(), 0))
    return land_batch(lake, followed, batch, read_until, options, learned, lambda: 5)  # type: ignore[arg-type]


def offsets(lake: Lake, number: int) -> list[int]:
    return [record.offset for record in records(lake, TopicPartition("t", number))]


def test_a_batch_lands_once_with_its_gaps(lake: Lake) -> None:
    batch = Batch([rows(0, 0, 1, 5), rows(0, 7)], [rows(1, 3)], [])
    assert land(lake, batch, {("t", 0): 10, ("t", 1): 4}) == {("t", 0): 4, ("t", 1): 1}
    assert (offsets(lake, 0), offsets(lake, 1)) == ([0, 1, 5, 7], [3])
    assert [lake.metastore.partition(TopicPartition("t", n)).next_offset for n in (0, 1)] == [10, 4]
    assert land(lake, batch, {("t", 0): 10, ("t", 1): 4}) == {}
    assert land(lake, Batch([rows(0, 7, 10, 11)]), {("t", 0): 12}) == {("t", 0): 2}
    assert (offsets(lake, 0), lake.metastore.check()) == ([0, 1, 5, 7, 10, 11], [])


@pytest.mark.parametrize("ends", [{("t", 0): 6}, {}], ids=["two tasks", "one task"])
def test_tasks_may_share_a_partition_and_have_its_rows_in_any_order(
    lake: Lake, ends: dict[tuple[str, int], int]
) -> None:
    """Spark puts what it coalesces together in no order of its own."""
    assert land(lake, Batch([rows(0, 4, 5)], [rows(0, 0, 2)]), ends) == {("t", 0): 4}
    assert (offsets(lake, 0), lake.metastore.check()) == ([0, 2, 4, 5], [])


def test_of_two_streams_the_second_is_refused(lake: Lake) -> None:
    def somebody_is_faster() -> None:
        land(lake, Batch([rows(0, 0)]), {})

    with pytest.raises(CommitRefused, match="append at 0, but the log ends at 1"):
        land(lake, Batch([rows(0, 0, 1)]), {}, before_commit=somebody_is_faster)
    assert (offsets(lake, 0), lake.metastore.check()) == ([0], [])


def land_task(lake: Lake, *object_ids: str) -> LandTask:
    return LandTask(
        store=lake.store, lake_id=lake.metastore.lake_id, hash_key=lake.metastore.hash_key, object_ids=object_ids,
        nexts=lake.metastore.next_offsets(), codec=codecs.ZSTD, extent_bytes=100,
    )  # fmt: skip


def test_an_empty_task_uploads_nothing(lake: Lake) -> None:
    assert land_task(lake, "one").land(0, iter([rows(0)]), Meter()) is None
    assert lake.store.list("objects") == []


def test_a_task_knows_no_metastore_and_answers_as_its_twin(lake: Lake) -> None:
    task = land_task(lake, "one", "two")
    sent = pickle.dumps(task)
    assert b"lake.db" not in sent
    first = task.land(1, iter([rows(0, 0, 1)]), Meter())
    assert first is not None
    assert pickle.loads(sent).land(1, iter([rows(0, 0, 1)]), Meter()) == first
    assert (first.object_id, pickle.loads(pickle.dumps(first))) == ("two", first)


def test_objects_hold_many_partitions_and_are_as_many_as_the_batch_is_worth(lake: Lake) -> None:
    lake.metastore.add_partitions("t", 6)
    ends = {("t", number): 2 for number in range(6)}
    parts = [[rows(number, 0, 1)] for number in range(6)]
    assert land(lake, Batch(*parts), ends, size=6) == {("t", number): 2 for number in range(6)}
    used = [lake.metastore.partition(TopicPartition("t", number)).extents[0].object_id for number in range(6)]
    assert (len(set(used)), len(lake.store.list("objects")), lake.metastore.check()) == (2, 2, [])


def test_the_size_of_objects_follows_that_of_the_records(lake: Lake) -> None:
    size = ObjectSize(64 << 20)
    assert size.offsets == (64 << 20) // 1000
    stored = land_task(lake, "one").land(0, iter([rows(0, *range(10))]), Meter())
    assert stored is not None
    size.learn([stored])
    assert size.offsets == (64 << 20) * 10 // sum(found.extent.length for found in stored.ranges)
    nexts = {AT: 5, SECOND: 7}
    assert ObjectSize(10, 1, 1).objects(nexts, {AT: 26, SECOND: 7}) == 3
    assert ObjectSize(10, 1, 1).objects(nexts, {}) == 1
    assert ObjectSize(10, 1, 1, offsets_max=3).objects(nexts, {AT: 26}) == 7


def test_what_a_batch_waits_for_is_told_to_spark() -> None:
    assert batching(StreamOptions(source={}), 67108) == {
        "maxRecordsPerPartition": "67108", "maxOffsetsPerTrigger": str(64 * 67108)
    }  # fmt: skip
    waiting = StreamOptions(source={}, continuous=True, age_ms_max=5000)
    assert batching(waiting, 1000) == {
        "maxRecordsPerPartition": "1000", "maxOffsetsPerTrigger": "64000", "minOffsetsPerTrigger": "1000",
        "maxTriggerDelay": "5000ms",
    }  # fmt: skip
    assert batching(replace(waiting, offsets_per_batch=10), 1000)["minOffsetsPerTrigger"] == "10"
    assert batching(replace(waiting, age_ms_max=0), 7) == {"maxRecordsPerPartition": "7", "maxOffsetsPerTrigger": "448"}


def test_the_lake_tells_what_a_record_takes(lake: Lake) -> None:
    assert record_bytes(lake.metastore, ["t"]) is None
    land(lake, Batch([rows(0, 0, 1)], [rows(1, 0)]), {})
    lengths = [extent.length for n in (0, 1) for extent in lake.metastore.partition(TopicPartition("t", n)).extents]
    assert (record_bytes(lake.metastore, ["t"]), record_bytes(lake.metastore, ["u"])) == (sum(lengths) // 3, None)


def test_records_too_large_for_a_tasks_memory_are_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headstone.lake.transfer.landing.OBJECT_BYTES_MAX", 1 << 20)
    wide = rows(0, 0).set_column(6, SCHEMA.field("value"), pa.array([random.Random(0).randbytes(2 << 20)], pa.binary()))
    with pytest.raises(UsageError, match="--offsets-per-task"):
        land(lake, Batch([wide]), {("t", 0): 1})
    assert (offsets(lake, 0), lake.metastore.check()) == ([], [])


def test_topics_and_partitions_are_made_and_a_gap_is_refused(lake: Lake) -> None:
    facts = {
        "t": TopicFacts(partitions=3, starts=(0, 0, 0), ends=(1, 0, 0)),
        "new": TopicFacts(partitions=1, starts=(7,), ends=(9,), settings={"delete.retention.ms": "5"}, kafka_id="id"),
    }
    assert prepare(lake, facts) == {"t": 3, "new": 1}
    assert [str(at) for at in lake.metastore.partitions()] == ["new-0", "t-0", "t-1", "t-2"]
    assert lake.metastore.topics()["new"] == {"delete.retention.ms": "5"}
    land(lake, Batch([rows(0, 0)]), {})
    with pytest.raises(UsageError, match="the lake ends at 1, but Kafka's log starts at 2"):
        prepare(lake, {"t": TopicFacts(partitions=3, starts=(2, 0, 0), ends=(4, 0, 0))})
    with pytest.raises(UsageError, match="the lake ends at 1, but Kafka's log ends at 0"):
        prepare(lake, {"t": TopicFacts(partitions=3, starts=(0, 0, 0), ends=(0, 0, 0))})
    with pytest.raises(UsageError, match="has the topic with ID id, but this one has ID other"):
        prepare(lake, {"new": replace(facts["new"], kafka_id="other")})


def test_partitions_that_are_added_during_a_run_are_ingested(lake: Lake) -> None:
    land(lake, Batch([rows(0, 0)]), {("t", 0): 1, ("t", 1): 0})
    ends = {("t", 0): 1, ("t", 1): 0, ("t", 2): 3, ("t", 3): 0}
    assert land(lake, Batch([rows(2, 0, 2)]), ends) == {("t", 2): 2}
    assert [str(at) for at in lake.metastore.partitions()] == ["t-0", "t-1", "t-2", "t-3"]
    assert (offsets(lake, 2), lake.metastore.partition(TopicPartition("t", 2)).next_offset) == ([0, 2], 3)


def test_a_batch_that_is_found_to_be_of_another_topic_is_not_taken(lake: Lake) -> None:
    def created_again() -> None:
        raise UsageError("deleted and created again while it was read")

    with pytest.raises(UsageError, match="created again"):
        land(lake, Batch([rows(0, 0, 1)]), {}, before_commit=created_again)
    assert (offsets(lake, 0), lake.metastore.check()) == ([], [])


def test_a_policy_that_changes_in_kafka_changes_in_the_lake(lake: Lake) -> None:
    """Other settings are the lake's own; where the cluster may not be asked, what is known stays."""
    said: list[str] = []
    facts = TopicFacts(partitions=2, starts=(0, 0), ends=(0, 0))
    for policy in ("delete", "unknown", "compact,delete"):
        given = replace(facts, settings={"cleanup.policy": policy, "delete.retention.ms": policy})
        prepare(lake, {"t": given}, tell=said.append)
    assert said == [
        "t: cleanup.policy changed from compact to delete", "t: cleanup.policy changed from delete to compact,delete"
    ]  # fmt: skip
    assert lake.metastore.topics()["t"] == {"cleanup.policy": "compact,delete"}
    prepare(lake, {"t": replace(facts, settings={"cleanup.policy": "delete"})}, policy="compact")
    assert lake.metastore.topics()["t"] == {"cleanup.policy": "compact"}


def test_a_run_begins_where_the_lake_ends_or_where_the_log_begins(lake: Lake) -> None:
    land(lake, Batch([rows(0, 0, 1, 2)]), {})
    starts = {AT: 1, SECOND: 7}
    assert FollowedTopics(lake, starts).unread() == {AT: 3, SECOND: 7}


def test_offsets_far_apart_are_extents_of_their_own(lake: Lake) -> None:
    """A segment of Kafka's reaches 2^31 offsets, and compaction works on segments."""
    land(lake, Batch([rows(0, 0, 1 << 31, (1 << 32) + 7)]), {})
    found = lake.metastore.partition(AT).extents
    assert [tuple(one.span) for one in found] == [(0, 1), (1, (1 << 31) + 1), ((1 << 31) + 1, (1 << 32) + 8)]
    assert {one.oldest_timestamp_ms == one.max_timestamp_ms for one in found} == {True}


def followed(
    batches: Sequence[tuple[Batch, dict[tuple[str, int], int]]], whole: bool, *given: Any, **more: Any
) -> bool:
    """In the place of Spark's query: these micro-batches, and whether they were all."""
    for number, (batch, ends) in enumerate(batches):
        given[3](batch, number, ends)
    return whole


@pytest.mark.parametrize("whole", [True, False])
def test_a_run_counts_offsets_and_says_if_it_was_stopped(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """Kafka's log starts at 3, ends with a gap, and a partition has nothing; the second batch tells while it runs."""
    seen = []
    board = Board()

    def before_commit() -> None:
        seen.append(board.total())

    batches = [(Batch([rows(0, 3, 5)]), {("t", 0): 6, ("t", 1): 0}), (Batch([rows(0, 6, 7, 9)]), {("t", 0): 12})]
    monkeypatch.setattr(lake_stream, "follow_kafka", partial(followed, batches, whole))
    monkeypatch.setattr(lake_stream, "host_for_tasks", lambda spark: "127.0.0.1")
    facts = {"t": TopicFacts(partitions=2, starts=(3, 0), ends=(12, 0))}
    board.expect(offsets_to_come(lake, facts))
    options = StreamOptions(source={}, before_commit=before_commit)
    run = partial(
        stream, lake, None, {"t": (3, 0)}, options, clock=lambda: 5, tell=lambda text: None, board=board  # type: ignore[arg-type]
    )  # fmt: skip
    if whole:
        assert run() == {("t", 0): 5}
    else:
        with pytest.raises(Unfinished, match="stopped: 5 records more in the lake; run the same command again"):
            run()
    assert (seen, board.expected, board.total()) == ([(3, 2), (3 + 4, 5)], 9, (9, 5))
    assert offsets_to_come(lake, facts) == 0
    board.close()


def test_a_run_that_follows_a_topic_ends_when_it_is_told_to(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_stream, "follow_kafka", partial(followed, [(Batch([rows(0, 0)]), {("t", 0): 1})], False))
    options = StreamOptions(source={}, continuous=True)
    assert stream(lake, None, {"t": (0, 0)}, options, clock=lambda: 5, tell=lambda text: None) == {("t", 0): 1}  # type: ignore[arg-type]


def stamped(number: int, *rows_of: tuple[int, int]) -> pa.RecordBatch:
    """(offset, timestamp)."""
    batch = rows(number, *(offset for offset, _ in rows_of))
    stamps = pa.array([timestamp_ms for _, timestamp_ms in rows_of], pa.int64())
    return batch.set_column(SCHEMA.get_field_index("timestamp_ms"), "timestamp_ms", stamps)


@pytest.mark.parametrize("together", [False, True])
def test_the_lag_of_what_was_streamed_counts_from_its_oldest_record_and_retention_from_its_newest(
    lake: Lake, together: bool
) -> None:
    """However a backlog is cut into batches. Records without a timestamp say nothing, and the other partition has its own."""
    task = replace(land_task(lake, "one"), extent_bytes=1 << 20)
    records = {0: [(0, 5000), (1, 1000), (2, 9000), (3, 4000)], 1: [(0, -1), (1, 8000), (2, 7000)]}
    batches = [
        stamped(number, *some)
        for number, rows_of in records.items()
        for some in ([rows_of] if together else [[row] for row in rows_of])
    ]
    stored = task.land(0, iter(batches), Meter())
    assert stored is not None
    assert [(each.partition, each.extent.oldest_timestamp_ms, each.extent.max_timestamp_ms) for each in stored.ranges] == [
        (0, 1000, 9000), (1, 7000, 8000)
    ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Micro-batches of one run, one after the other."""

    lake: Lake
    followed: FollowedTopics

    def land(self, batch: Batch, ends: dict[TopicPartition, int], **more: Any) -> dict[TopicPartition, int]:
        """With one object per offset, at most."""
        options, size = StreamOptions(source={}, extent_bytes=200, **more), ObjectSize(1, records=1, bytes=1)
        return land_batch(self.lake, self.followed, batch, ends, options, size, lambda: 5)  # type: ignore[arg-type]

    def states(self) -> Counter[str]:
        return Counter(row.state for row in self.lake.metastore.objects().values())


@pytest.fixture
def run(lake: Lake) -> Run:
    return Run(lake=lake, followed=FollowedTopics(lake, {AT: 0, SECOND: 0}))


def test_a_tombstone_that_is_written_here_beside_a_run_takes_the_place_of_no_record(run: Run) -> None:
    """The topic is the lake's own from then on: whatever partition is next, and however late it happens."""
    run.land(Batch([rows(0, *range(10))]), {AT: 10})

    def erase() -> None:
        request_erasure(run.lake, "t", [b"k3"], deadline_ms=10**9, clock=lambda: 6, write=True)

    for batch, ends in ((Batch([rows(0, 10, 11)]), {AT: 12}), (Batch([rows(1, 0)]), {SECOND: 1})):
        with pytest.raises(UsageError, match=r"t: records were written to it in the lake .* ingest into a new lake"):
            run.land(batch, ends, before_commit=erase)
        assert (offsets(run.lake, 0), offsets(run.lake, 1)) == (list(range(11)), [])
        run = Run(lake=run.lake, followed=FollowedTopics(run.lake, {AT: 0, SECOND: 0}))
    assert run.lake.metastore.check() == []


@pytest.mark.parametrize("made_again", [True, False])
def test_a_topic_that_is_dropped_or_made_again_during_a_run_gets_nothing_of_it(run: Run, made_again: bool) -> None:
    run.land(Batch([rows(0, *range(10))]), {AT: 10})
    drop_topic(run.lake, "t", now_ms=6)
    if made_again:
        run.lake.metastore.create_topic("t", 2)
    expected = "the lake ends at 0, but this run left it at 10" if made_again else "t-0 was dropped from the lake"
    for ends in ({AT: 15}, {AT: 15, TopicPartition("t", 2): 0}):
        missing = not made_again and len(ends) > 1
        with pytest.raises(UsageError, match="the lake has no topic t" if missing else expected):
            run.land(Batch([rows(0, *range(10, 15))]), ends)
    assert set(run.lake.metastore.next_offsets().values()) <= {0}


@pytest.mark.parametrize(("made_again", "error"), [(True, CommitRefused), (False, UsageError)])
def test_a_topic_that_is_dropped_or_made_again_before_the_commit_gets_nothing_either(
    run: Run, made_again: bool, error: type[Exception]
) -> None:
    run.land(Batch([rows(0, *range(10))]), {AT: 10})

    def drop() -> None:
        drop_topic(run.lake, "t", now_ms=6)
        if made_again:
            run.lake.metastore.create_topic("t", 2)

    with pytest.raises(error, match="append at 10, but the log ends at 0" if made_again else "no partition t-0"):
        run.land(Batch([rows(0, *range(10, 15))]), {AT: 15}, before_commit=drop)
    assert set(run.lake.metastore.next_offsets().values()) <= {0}


def test_a_run_goes_on_where_it_was_itself(run: Run) -> None:
    """A batch of which nothing was new moves nothing; somebody else who appends is noticed."""
    run.land(Batch([rows(0, 0, 1)]), {AT: 4, SECOND: 3})
    run.land(Batch([]), {AT: 8, SECOND: 3})
    assert run.land(Batch([rows(0, 9)]), {AT: 10, SECOND: 3}) == {AT: 1}
    beside = Run(lake=run.lake, followed=FollowedTopics(run.lake, {AT: 0}))
    beside.land(Batch([rows(0, 10)]), {AT: 11})
    with pytest.raises(UsageError, match="the lake ends at 11, but this run left it at 10: another process"):
        run.land(Batch([rows(0, 11)]), {AT: 12})
    assert (offsets(run.lake, 0), run.lake.metastore.check()) == ([0, 1, 9, 10], [])


def test_the_lakes_log_begins_where_kafkas_log_begins(lake: Lake) -> None:
    """With the first records; what Kafka lets go later stays. A few ids are enough, however high the offsets are."""
    run = Run(lake=lake, followed=FollowedTopics(lake, {AT: 1000, SECOND: 7}))
    run.land(Batch([rows(0, 1000, 1004)]), {AT: 1010, SECOND: 7})
    assert lake.metastore.log_ends([AT, SECOND]) == {AT: (1000, 1010), SECOND: (0, 0)}
    run.land(Batch([rows(0, 1012)], [rows(1, 9)]), {AT: 1013, SECOND: 10})
    assert lake.metastore.log_ends([AT, SECOND]) == {AT: (1000, 1013), SECOND: (7, 10)}
    later = Run(lake=lake, followed=FollowedTopics(lake, {AT: 1011, SECOND: 10}))
    later.land(Batch([rows(0, 1013)], [rows(1, 10)]), {AT: 1014, SECOND: 11})
    assert lake.metastore.log_ends([AT, SECOND]) == {AT: (1000, 1014), SECOND: (7, 11)}
    assert (offsets(lake, 0), offsets(lake, 1), lake.metastore.check()) == ([1000, 1004, 1012, 1013], [9, 10], [])


def test_a_log_that_was_emptied_begins_anew_where_kafkas_log_begins(run: Run) -> None:
    """Nothing is left in it whose deletion could be missing."""
    facts = {"t": TopicFacts(partitions=2, starts=(20, 0), ends=(30, 0))}
    run.land(Batch([rows(0, *range(10))]), {AT: 10})
    with pytest.raises(UsageError, match="the lake ends at 10, but Kafka's log starts at 20"):
        prepare(run.lake, facts)
    run.lake.metastore.start_at(AT, 10, now_ms=6)
    prepare(run.lake, facts)
    later = Run(lake=run.lake, followed=FollowedTopics(run.lake, {AT: 20, SECOND: 0}))
    later.land(Batch([rows(0, 20)]), {AT: 30, SECOND: 0})
    assert (run.lake.metastore.log_ends([AT]), run.lake.metastore.check()) == ({AT: (20, 30)}, [])


def test_ids_that_no_task_has_used_do_not_count_as_uploads_on_their_way(run: Run) -> None:
    """Fewer tasks than ids, tasks that find nothing new, a batch of gaps alone: none leaves a proof in doubt."""
    run.land(Batch([rows(0, *range(50))], [rows(1)]), {AT: 100, SECOND: 0})
    assert run.states() == {"committed": 1}
    run.land(Batch([]), {AT: 120, SECOND: 0})
    run.land(Batch([rows(0, 3)]), {AT: 120, SECOND: 0})
    assert (run.states(), prove_erased(run.lake, "t", b"nobody").verdict) == ({"committed": 1}, "never seen here")


def refused() -> None:
    raise UsageError("created again")


@pytest.mark.parametrize("lost", [False, True])
def test_ids_of_a_batch_that_failed_stay_where_something_may_have_been_uploaded(
    run: Run, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """In the driver, or by the error of a task, which may have an upload behind it."""
    real = LandTask.land

    def failing(task: LandTask, number: int, batches: Any, meter: Any) -> Any:
        stored = real(task, number, batches, meter)
        if number == 1:
            raise Unfinished("does not contain what this task wrote")
        return stored

    if lost:
        monkeypatch.setattr(LandTask, "land", failing)
    with pytest.raises(Unfinished if lost else UsageError):
        run.land(Batch([rows(0, 0)], [rows(0, 1)], []), {AT: 50}, before_commit=refused)
    assert run.states() == {"registered": 2}
    assert len(run.lake.store.list("objects")) == 2
    collect(run.lake, garbage(run.lake, now_ms=1 << 40))
    assert run.lake.store.list("objects") == []


def test_a_stream_remembers_what_it_has_appended(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """From batch to batch of a query: the topic is dropped and made again between two of them."""

    def between(land: Callable[..., None]) -> bool:
        land(Batch([rows(0, 5, 6)]), 0, {("t", 0): 7})
        drop_topic(lake, "t", now_ms=6)
        lake.metastore.create_topic("t", 2)
        land(Batch([rows(0, 7)]), 1, {("t", 0): 8})
        return True

    def follow(*given: Any, **more: Any) -> bool:
        return between(given[3])

    monkeypatch.setattr(lake_stream, "follow_kafka", follow)
    run = partial(stream, lake, None, {"t": (5, 0)}, StreamOptions(source={}), clock=lambda: 5, tell=lambda text: None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the lake ends at 0, but this run left it at 7"):
        run()
    assert lake.metastore.next_offsets() == {AT: 0, SECOND: 0}


def test_settings_that_compaction_goes_by_are_taken_over_and_others_if_they_are_the_topics_own() -> None:
    settings = {
        "cleanup.policy": "compact", "delete.retention.ms": "5", "retention.ms": "6", "retention.bytes": "7",
        "segment.bytes": "8",
    }  # fmt: skip
    topic = TwinTopic(
        logs=[[], []], first=3, settings=settings, settings_of_its_own=frozenset({"retention.bytes", "segment.bytes"})
    )
    assert facts_of(TwinCluster({"t": topic, "other": topic}), ["t"]) == {
        "t": TopicFacts(
            partitions=2, starts=(3, 3), ends=(3, 3), kafka_id="id",
            settings={"cleanup.policy": "compact", "delete.retention.ms": "5", "retention.bytes": "7"},
        )
    }  # fmt: skip


def test_of_a_topic_whose_settings_may_not_be_read_the_policy_is_unknown() -> None:
    facts = facts_of(TwinCluster({"t": TwinTopic(logs=[[]], settings=None)}), ["t"])
    assert facts["t"].settings == {"cleanup.policy": "unknown"}


def test_topics_that_are_not_there_are_named() -> None:
    with pytest.raises(UsageError, match="the cluster has no topic a, c"):
        facts_of(TwinCluster({"b": TwinTopic(logs=[[]])}), ["c", "b", "a"])


def test_a_topic_that_was_created_again_while_it_was_read_is_refused() -> None:
    cluster = TwinCluster({"t": TwinTopic(logs=[[]], kafka_id="new"), "none": TwinTopic(logs=[[]], kafka_id=None)})
    expect_ids(cluster, {"t": "new", "none": None})
    with pytest.raises(UsageError, match=r"t was deleted and created again .*ID was old, now new"):
        expect_ids(cluster, {"t": "old", "none": None})


def test_leader_epochs_are_noted_while_a_topic_is_read(lake: Lake) -> None:
    """As they change, of partitions that the lake has, and only of the topic that is read."""
    topic = TwinTopic(logs=[[], []], leader_epochs={0: ((0, 0), (2, 5)), 2: ((1, 0),)})
    cluster = TwinCluster({"t": topic})
    prepare(lake, facts_of(cluster, ["t"]))
    names = [TopicPartition("t", number) for number in range(3)]
    read = ReadTopics(lake, cluster, {"t": "id"})
    read.confirm()
    assert [known_leader_epochs(lake.metastore, name) for name in names[:2]] == [((0, 0), (2, 5)), ()]
    assert read.untold() == [names[1]]
    lake.metastore.add_partitions("t", 3)
    topic.leader_epochs = {0: ((2, 6), (4, 9)), 1: ((3, 0),), 2: ((1, 0),)}
    read.confirm()
    epochs = [known_leader_epochs(lake.metastore, name) for name in names]
    assert epochs == [((0, 0), (2, 5), (4, 9)), ((3, 0),), ((1, 0),)]
    assert read.untold() == []
    topic.kafka_id, topic.leader_epochs = "another", {0: ((9, 0),)}
    with pytest.raises(UsageError, match="t was deleted and created again"):
        read.confirm()
    assert known_leader_epochs(lake.metastore, names[0]) == ((0, 0), (2, 5), (4, 9))
