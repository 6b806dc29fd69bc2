"""A run that follows topics of a cluster beside others: whoever drops, erases or writes there, and what becomes of ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from headstone.errors import Unfinished, UsageError
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.erasure import request_erasure
from headstone.lake.jobs.proof import prove_erased
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import CommitRefused
from headstone.lake.topics import TopicFacts, drop_topic
from headstone.lake.transfer.landing import Followed, LandTask, ObjectSize
from headstone.lake.transfer.live import prepare
from headstone.lake.transfer.reading import records
from headstone.log.topic_partition import TopicPartition
from headstone.spark import lake_stream
from headstone.spark.lake_stream import StreamOptions, land_batch, stream
from tests.lake.test_streaming import Batch, rows

AT, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Micro-batches of one run, one after the other."""

    lake: Lake
    followed: Followed

    def land(self, batch: Batch, ends: dict[TopicPartition, int], **more: Any) -> dict[TopicPartition, int]:
        """With one object per offset, at most."""
        options, size = StreamOptions(source={}, extent_bytes=200, **more), ObjectSize(1, records=1, bytes=1)
        return land_batch(self.lake, self.followed, batch, ends, options, size, lambda: 5)  # type: ignore[arg-type]

    def states(self) -> Counter[str]:
        return Counter(row.state for row in self.lake.metastore.objects().values())


@pytest.fixture(autouse=True)
def topic(lake: Lake) -> None:
    lake.metastore.create_topic("t", 2)


@pytest.fixture
def run(lake: Lake, topic: None) -> Run:
    return Run(lake=lake, followed=Followed(lake, {AT: 0, SECOND: 0}))


def offsets(of: Lake, partition: TopicPartition = AT) -> list[int]:
    return [record.offset for record in records(of, partition)]


def test_a_tombstone_that_is_written_here_beside_a_run_takes_the_place_of_no_record(run: Run) -> None:
    """The topic is the lake's own from then on: whatever partition is next, and however late it happens."""
    run.land(Batch([rows(0, *range(10))]), {AT: 10})

    def erase() -> None:
        request_erasure(run.lake, "t", [b"k3"], deadline_ms=10**9, clock=lambda: 6, write=True)

    for batch, ends in ((Batch([rows(0, 10, 11)]), {AT: 12}), (Batch([rows(1, 0)]), {SECOND: 1})):
        with pytest.raises(UsageError, match=r"t: records were written to it in the lake .* ingest into a new lake"):
            run.land(batch, ends, before_commit=erase)
        assert (offsets(run.lake), offsets(run.lake, SECOND)) == (list(range(11)), [])
        run = Run(lake=run.lake, followed=Followed(run.lake, {AT: 0, SECOND: 0}))
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
    beside = Run(lake=run.lake, followed=Followed(run.lake, {AT: 0}))
    beside.land(Batch([rows(0, 10)]), {AT: 11})
    with pytest.raises(UsageError, match="the lake ends at 11, but this run left it at 10: another process"):
        run.land(Batch([rows(0, 11)]), {AT: 12})
    assert (offsets(run.lake), run.lake.metastore.check()) == ([0, 1, 9, 10], [])


def test_the_lakes_log_begins_where_kafkas_log_begins(lake: Lake) -> None:
    """With the first records; what Kafka lets go later stays. A few ids are enough, however high the offsets are."""
    run = Run(lake=lake, followed=Followed(lake, {AT: 1000, SECOND: 7}))
    run.land(Batch([rows(0, 1000, 1004)]), {AT: 1010, SECOND: 7})
    assert lake.metastore.log_ends([AT, SECOND]) == {AT: (1000, 1010), SECOND: (0, 0)}
    run.land(Batch([rows(0, 1012)], [rows(1, 9)]), {AT: 1013, SECOND: 10})
    assert lake.metastore.log_ends([AT, SECOND]) == {AT: (1000, 1013), SECOND: (7, 10)}
    later = Run(lake=lake, followed=Followed(lake, {AT: 1011, SECOND: 10}))
    later.land(Batch([rows(0, 1013)], [rows(1, 10)]), {AT: 1014, SECOND: 11})
    assert lake.metastore.log_ends([AT, SECOND]) == {AT: (1000, 1014), SECOND: (7, 11)}
    assert (offsets(lake), offsets(lake, SECOND), lake.metastore.check()) == ([1000, 1004, 1012, 1013], [9, 10], [])


def test_a_log_that_was_emptied_begins_anew_where_kafkas_log_begins(run: Run) -> None:
    """Nothing is left in it whose deletion could be missing."""
    facts = {"t": TopicFacts(partitions=2, starts=(20, 0), ends=(30, 0))}
    run.land(Batch([rows(0, *range(10))]), {AT: 10})
    with pytest.raises(UsageError, match="the lake ends at 10, but Kafka's log starts at 20"):
        prepare(run.lake, facts)
    run.lake.metastore.start_at(AT, 10, now_ms=6)
    prepare(run.lake, facts)
    later = Run(lake=run.lake, followed=Followed(run.lake, {AT: 20, SECOND: 0}))
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
