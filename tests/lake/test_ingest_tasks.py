"""An ingest as tasks of an engine: how the log is cut, tasks that run twice or fail, and runs that are killed."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headstone.errors import Unfinished
from headstone.lake.format.spans import Span
from headstone.lake.lake import Lake, create_lake
from headstone.lake.metastore.leader_epochs import known_leader_epochs
from headstone.lake.transfer.ingest import LogIngestSettings, ingest
from headstone.lake.transfer.ingest_tasks import IngestWork, ingest_object, objects_of, shares_of
from headstone.lake.transfer.reading import records
from headstone.log.checkpoints import LEADER_EPOCHS, read_leader_epochs
from headstone.log.directory import PartitionDir, find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Stop, never
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.planning import survey_all
from headstone.pipeline.progress import Board, Meter
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample

OBJECT_BYTES = 100_000
SMALL_OBJECTS = LogIngestSettings(object_bytes=OBJECT_BYTES)
ONE_BY_ONE = LogIngestSettings(object_bytes=OBJECT_BYTES, wave_objects=1)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[PartitionDir]:
    """One partition of many objects' worth, and three that share one."""
    root = tmp_path_factory.mktemp("logs")
    write_sample(root, SampleSettings(topic="large", records=6000, batch_bytes=4000, segment_bytes=40_000, seed=1))
    for number in range(3):
        write_sample(root, SampleSettings(topic=f"small{number}", records=100, batch_bytes=2000, seed=number))
    return find_partitions([root])


class Engine(InProcess):
    """Runs every task twice, as speculation does; fails those that are told to, before or after they ran."""

    def __init__(self, fails: Callable[[IngestWork], bool] = lambda work: False, *, ran: bool = True) -> None:
        super().__init__(2)
        self._fails, self._ran = fails, ran

    def as_they_end(
        self, body: Callable[[Any, Meter], Any], tasks: Sequence[Any], board: Board | None = None, *, stop: Stop = never
    ) -> Iterator[tuple[int, Any]]:
        def twice(task: Any, meter: Meter) -> Any:
            fails = isinstance(task, IngestWork) and self._fails(task)
            if not fails or self._ran:
                body(pickle.loads(pickle.dumps(task)), Meter())
            if fails:
                raise Unfinished("an executor was lost")
            return body(task, meter)

        return super().as_they_end(twice, tasks, board, stop=stop)


class Killed(BaseException):
    """Nobody may catch it."""


class EndsInOrder(InProcess):
    """Tasks end in this order, by number, the last one is -1; then the driver is killed."""

    def __init__(self, *order: int) -> None:
        super().__init__(1)
        self._order = order

    def as_they_end(
        self, body: Callable[[Any, Meter], Any], tasks: Sequence[Any], board: Board | None = None, *, stop: Stop = never
    ) -> Iterator[tuple[int, Any]]:
        for number in self._order:
            yield number % len(tasks), body(tasks[number], Meter())
        raise Killed


def shown(lake: Lake) -> dict[str, list[tuple[int, bytes | None]]]:
    return {
        str(at): [(record.offset, record.value) for record in records(lake, at)] for at in lake.metastore.partitions()
    }


@pytest.fixture
def expected(logs: list[PartitionDir], tmp_path: Path) -> dict[str, list[tuple[int, bytes | None]]]:
    """All of it as one object each."""
    other = create_lake(f"sqlite:///{tmp_path / 'other.db'}", f"file://{tmp_path / 'other'}", now_ms=0)
    for directory in logs:
        ingest(other, [directory], clock=lambda: 1)
    return shown(other)


def test_shares_tile_the_log_and_small_partitions_share_an_object(logs: list[PartitionDir]) -> None:
    surveys = {
        TopicPartition(one.topic, one.partition): survey
        for one, (survey, _) in zip(logs, survey_all(logs), strict=True)
    }
    shares = {at: list(shares_of(at, survey, 0, OBJECT_BYTES)) for at, survey in surveys.items()}
    large = shares[TopicPartition("large", 0)]
    lso = surveys[TopicPartition("large", 0)].lso
    assert [share.span.start for share in large] == [0, *(share.span.end for share in large[:-1])]
    assert (large[-1].span.end, len(large) > 5) == (lso, True)
    assert max(share.size for share in large) < 1.5 * OBJECT_BYTES
    assert {len(some) for at, some in shares.items() if at.topic != "large"} == {1}
    objects = list(objects_of(shares, OBJECT_BYTES))
    assert [{share.topic_partition.topic for share in some} for some in objects] == [{"large"}] * len(large) + [
        {"small0", "small1", "small2"}
    ]
    behind = list(shares_of(TopicPartition("large", 0), surveys[TopicPartition("large", 0)], lso - 1, OBJECT_BYTES))
    assert [share.span for share in behind] == [Span(lso - 1, lso)]
    assert list(shares_of(TopicPartition("large", 0), surveys[TopicPartition("large", 0)], lso, OBJECT_BYTES)) == []


def test_tasks_that_run_twice_change_nothing(
    lake: Lake, logs: list[PartitionDir], expected: dict[str, list[tuple[int, bytes | None]]]
) -> None:
    done = ingest(
        lake,
        logs,
        clock=lambda: 1,
        engine=Engine(),
        settings=LogIngestSettings(extent_bytes=20_000, object_bytes=OBJECT_BYTES),
    )
    assert (shown(lake), lake.metastore.check()) == (expected, [])
    assert len(lake.store.list("objects")) == len(lake.metastore.objects()) > 6
    assert {one.records for one in done if one.partition.topic != "large"} == {100}


@pytest.mark.parametrize("ran", [True, False])
def test_a_run_that_ends_in_the_middle_has_kept_what_it_committed(
    lake: Lake, logs: list[PartitionDir], expected: dict[str, list[tuple[int, bytes | None]]], ran: bool
) -> None:
    """Behind the share that failed nothing of its partition is appended; other partitions are."""
    border = len(expected["large-0"]) // 2
    engine = Engine(lambda work: work.shares[0].span.start <= border < work.shares[0].span.end, ran=ran)
    at = TopicPartition("large", 0)
    with pytest.raises(Unfinished, match="an executor was lost"):
        ingest(lake, logs, clock=lambda: 1, engine=engine, settings=SMALL_OBJECTS)
    kept = lake.metastore.partition(at).next_offset
    assert (0 < kept <= border, lake.metastore.check()) == (True, [])
    assert {name: rows for name, rows in shown(lake).items() if name != "large-0"} == {
        name: rows for name, rows in expected.items() if name != "large-0"
    }
    (again,) = [one for one in ingest(lake, logs, clock=lambda: 2, settings=SMALL_OBJECTS) if one.partition == at]
    assert (again.start, shown(lake), lake.metastore.check()) == (kept, expected, [])


@pytest.mark.parametrize(
    ("order", "objects"), [([0, 1], 2), ([0, 2, 3], 1), ([2, 1, 0], 3), ([4, 3, 1], 0)]
)  # fmt: skip
def test_a_killed_run_has_kept_all_that_lies_before_what_is_missing(
    lake: Lake, logs: list[PartitionDir], expected: dict[str, list[tuple[int, bytes | None]]],
    order: Sequence[int], objects: int,
) -> None:  # fmt: skip
    """In the middle of a wave; with the leader epochs."""
    (large,) = [one for one in logs if one.topic == "large"]
    at = TopicPartition("large", 0)
    ((survey, _),) = survey_all([large])
    ends = [0, *(share.span.end for share in shares_of(at, survey, 0, OBJECT_BYTES))]
    with pytest.raises(Killed):
        ingest(lake, logs, clock=lambda: 1, engine=EndsInOrder(*order), settings=SMALL_OBJECTS)
    assert (lake.metastore.partition(at).next_offset, lake.metastore.check()) == (ends[objects], [])
    epochs = read_leader_epochs(large.path / LEADER_EPOCHS)
    assert epochs
    assert known_leader_epochs(lake.metastore, at) == (tuple(epochs) if objects else ())
    (again,) = [one for one in ingest(lake, logs, clock=lambda: 2, settings=SMALL_OBJECTS) if one.partition == at]
    assert (again.start, shown(lake), lake.metastore.check()) == (ends[objects], expected, [])


def test_small_partitions_do_not_wait_for_a_large_one(
    lake: Lake, logs: list[PartitionDir], expected: dict[str, list[tuple[int, bytes | None]]]
) -> None:
    with pytest.raises(Killed):
        ingest(lake, logs, clock=lambda: 1, engine=EndsInOrder(-1), settings=SMALL_OBJECTS)
    assert shown(lake) == {**expected, "large-0": []}


def test_a_wave_in_which_something_failed_is_followed_by_the_others(
    lake: Lake, logs: list[PartitionDir], expected: dict[str, list[tuple[int, bytes | None]]]
) -> None:
    """Of the partition that failed no task is begun any more."""
    begun: list[tuple[str, int]] = []

    def fails(work: IngestWork) -> bool:
        begun.append((work.shares[0].topic_partition.topic, work.shares[0].span.start))
        return work.shares[0].topic_partition.topic == "large" and work.shares[0].span.start > 0

    with pytest.raises(Unfinished, match="an executor was lost"):
        ingest(
            lake,
            logs,
            clock=lambda: 1,
            engine=Engine(fails),
            settings=LogIngestSettings(object_bytes=OBJECT_BYTES, wave_objects=2),
        )
    kept = lake.metastore.partition(TopicPartition("large", 0)).next_offset
    assert (sorted(begun), kept > 0) == ([("large", 0), ("large", kept), ("small0", 0)], True)
    assert {name: rows for name, rows in shown(lake).items() if name != "large-0"} == {
        name: rows for name, rows in expected.items() if name != "large-0"
    }


def test_a_wave_that_has_come_to_nothing_is_the_last(lake: Lake, logs: list[PartitionDir]) -> None:
    """A store that is away is not asked object by object; what the wave before has made stays."""
    engine = Engine(lambda work: work.shares[0].span.start > 0)
    with pytest.raises(Unfinished):
        ingest(lake, logs, clock=lambda: 1, engine=engine, settings=ONE_BY_ONE)
    assert lake.metastore.partition(TopicPartition("large", 0)).next_offset > 0
    assert len(lake.metastore.objects()) == 2


def test_an_ingest_that_is_told_to_stop_keeps_what_is_made_and_the_next_goes_on_there(
    lake: Lake, logs: list[PartitionDir], expected: dict[str, list[tuple[int, bytes | None]]]
) -> None:
    asked = itertools.count(1)  # once before the wave, then before each task
    with pytest.raises(Unfinished, match=r"stopped: 2 of \d+ objects in the lake; run the same command again"):
        ingest(
            lake, logs, clock=lambda: 1, engine=InProcess(1), settings=SMALL_OBJECTS, stop=lambda: next(asked) > 3
        )  # fmt: skip
    kept = lake.metastore.partition(TopicPartition("large", 0)).next_offset
    done = {one.partition: one for one in ingest(lake, logs, clock=lambda: 2, settings=SMALL_OBJECTS)}
    assert (done[TopicPartition("large", 0)].start, kept > 0) == (kept, True)
    assert (shown(lake), lake.metastore.check()) == (expected, [])


def test_a_task_is_told_nothing_of_the_metastore(lake: Lake, logs: list[PartitionDir]) -> None:
    seen: list[bytes] = []
    engine = Engine(lambda work: bool(seen.append(pickle.dumps(work))))
    ingest(lake, logs, clock=lambda: 1, engine=engine)
    assert seen
    assert not [work for work in seen if b"sqlite" in work or b"lake.db" in work]


def test_an_object_of_other_ranges_is_not_taken_for_a_twins(lake: Lake, logs: list[PartitionDir]) -> None:
    (large,) = [one for one in logs if one.topic == "large"]
    at = TopicPartition("large", 0)
    ((survey, _),) = survey_all([large])
    first, second, *_ = shares_of(at, survey, 0, OBJECT_BYTES)

    def work(*shares: Any) -> IngestWork:
        return IngestWork(
            store=lake.store, lake_id=lake.metastore.lake_id, object_id="one", hash_key=lake.metastore.hash_key, shares=shares,
            extent_bytes=1 << 20,
        )  # fmt: skip

    ingest_object(work(first), Meter())
    with pytest.raises(Unfinished, match="does not contain what this task wrote"):
        ingest_object(work(second), Meter())
