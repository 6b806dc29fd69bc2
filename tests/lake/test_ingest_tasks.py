"""An ingest as tasks of an engine: how the log is cut and where the lake's begins, tasks that run twice or fail, partitions
that are damaged or refused beside others, and runs that are killed or stopped."""

from __future__ import annotations

import itertools
import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from headstone.errors import CorruptLog, HeadstoneError, Unfinished, UsageError
from headstone.lake.format.spans import Span
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.erasure import make_lakes_own
from headstone.lake.lake import Lake, create_lake
from headstone.lake.metastore.commits import CommitRefused
from headstone.lake.metastore.leader_epochs import known_leader_epochs
from headstone.lake.metastore.listeners import Listeners
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.transfer.ingest import LogIngestSettings, ingest
from headstone.lake.transfer.ingest_tasks import IngestWork, ingest_object, objects_of, shares_of
from headstone.lake.transfer.reading import records
from headstone.log.checkpoints import LEADER_EPOCHS, read_leader_epochs
from headstone.log.directory import PartitionDir, find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.planning import survey_all
from headstone.pipeline.progress import Board, Meter
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from tests.lake.appending import log_of
from tests.lake.mortal import Killed

OBJECT_BYTES = 100_000
SMALL_OBJECTS = LogIngestSettings(object_bytes=OBJECT_BYTES)
LARGE = TopicPartition("large", 0)
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

    def as_they_end(self, body: Any, tasks: Sequence[Any], *given: Any, **options: Any) -> Iterator[tuple[int, Any]]:
        def twice(task: Any, meter: Meter) -> Any:
            fails = isinstance(task, IngestWork) and self._fails(task)
            if not fails or self._ran:
                body(pickle.loads(pickle.dumps(task)), Meter())
            if fails:
                raise Unfinished("an executor was lost")
            return body(task, meter)

        return super().as_they_end(twice, tasks, *given, **options)


Shown = dict[str, list[tuple[int, bytes | None]]]


class EndsInOrder(InProcess):
    """Tasks end in this order, by number, the last one is -1; then the driver is killed."""

    def __init__(self, *order: int) -> None:
        super().__init__(1)
        self._order = order

    def as_they_end(self, body: Any, tasks: Sequence[Any], *given: Any, **options: Any) -> Iterator[tuple[int, Any]]:
        for number in self._order:
            yield number % len(tasks), body(tasks[number], Meter())
        raise Killed


def shown(lake: Lake) -> Shown:
    return {
        str(at): [(record.offset, record.value) for record in records(lake, at)] for at in lake.metastore.partitions()
    }


@pytest.fixture
def expected(logs: list[PartitionDir], tmp_path: Path) -> Shown:
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
    large = shares[LARGE]
    lso = surveys[LARGE].lso
    assert [share.span.start for share in large] == [0, *(share.span.end for share in large[:-1])]
    assert (large[-1].span.end, len(large) > 5) == (lso, True)
    assert max(share.size for share in large) < 1.5 * OBJECT_BYTES
    assert {len(some) for at, some in shares.items() if at.topic != "large"} == {1}
    objects = list(objects_of(shares, OBJECT_BYTES))
    assert [{share.topic_partition.topic for share in some} for some in objects] == [{"large"}] * len(large) + [
        {"small0", "small1", "small2"}
    ]
    behind = list(shares_of(LARGE, surveys[LARGE], lso - 1, OBJECT_BYTES))
    assert [share.span for share in behind] == [Span(lso - 1, lso)]
    assert list(shares_of(LARGE, surveys[LARGE], lso, OBJECT_BYTES)) == []


def test_tasks_that_run_twice_change_nothing(lake: Lake, logs: list[PartitionDir], expected: Shown) -> None:
    settings = LogIngestSettings(extent_bytes=20_000, object_bytes=OBJECT_BYTES)
    done = ingest(lake, logs, clock=lambda: 1, engine=Engine(), settings=settings)
    assert (shown(lake), lake.metastore.check()) == (expected, [])
    assert len(lake.store.list("objects")) == len(lake.metastore.objects()) > 6
    assert {one.records for one in done if one.partition.topic != "large"} == {100}


@pytest.mark.parametrize("ran", [True, False])
def test_a_run_that_ends_in_the_middle_has_kept_what_it_committed(
    lake: Lake, logs: list[PartitionDir], expected: Shown, ran: bool
) -> None:
    """Behind the share that failed nothing of its partition is appended; other partitions are."""
    border = len(expected["large-0"]) // 2
    engine = Engine(lambda work: work.shares[0].span.start <= border < work.shares[0].span.end, ran=ran)
    with pytest.raises(Unfinished, match="an executor was lost"):
        ingest(lake, logs, clock=lambda: 1, engine=engine, settings=SMALL_OBJECTS)
    kept = lake.metastore.partition(LARGE).next_offset
    assert (0 < kept <= border, lake.metastore.check()) == (True, [])
    assert {**shown(lake), "large-0": []} == {**expected, "large-0": []}
    (again,) = [one for one in ingest(lake, logs, clock=lambda: 2, settings=SMALL_OBJECTS) if one.partition == LARGE]
    assert (again.start, shown(lake), lake.metastore.check()) == (kept, expected, [])


@pytest.mark.parametrize(
    ("order", "objects"), [([0, 1], 2), ([0, 2, 3], 1), ([2, 1, 0], 3), ([4, 3, 1], 0)]
)  # fmt: skip
def test_a_killed_run_has_kept_all_that_lies_before_what_is_missing(
    lake: Lake, logs: list[PartitionDir], expected: Shown,
    order: Sequence[int], objects: int,
) -> None:  # fmt: skip
    """In the middle of a wave; with the leader epochs."""
    (large,) = [one for one in logs if one.topic == "large"]
    ((survey, _),) = survey_all([large])
    ends = [0, *(share.span.end for share in shares_of(LARGE, survey, 0, OBJECT_BYTES))]
    with pytest.raises(Killed):
        ingest(lake, logs, clock=lambda: 1, engine=EndsInOrder(*order), settings=SMALL_OBJECTS)
    assert (lake.metastore.partition(LARGE).next_offset, lake.metastore.check()) == (ends[objects], [])
    epochs = read_leader_epochs(large.path / LEADER_EPOCHS)
    assert epochs
    assert known_leader_epochs(lake.metastore, LARGE) == (tuple(epochs) if objects else ())
    (again,) = [one for one in ingest(lake, logs, clock=lambda: 2, settings=SMALL_OBJECTS) if one.partition == LARGE]
    assert (again.start, shown(lake), lake.metastore.check()) == (ends[objects], expected, [])


def test_small_partitions_do_not_wait_for_a_large_one(lake: Lake, logs: list[PartitionDir], expected: Shown) -> None:
    with pytest.raises(Killed):
        ingest(lake, logs, clock=lambda: 1, engine=EndsInOrder(-1), settings=SMALL_OBJECTS)
    assert shown(lake) == {**expected, "large-0": []}


def test_a_wave_in_which_something_failed_is_followed_by_the_others(
    lake: Lake, logs: list[PartitionDir], expected: Shown
) -> None:
    """Of the partition that failed no task is begun any more."""
    begun: list[tuple[str, int]] = []

    def fails(work: IngestWork) -> bool:
        begun.append((work.shares[0].topic_partition.topic, work.shares[0].span.start))
        return work.shares[0].topic_partition.topic == "large" and work.shares[0].span.start > 0

    settings = LogIngestSettings(object_bytes=OBJECT_BYTES, wave_objects=2)
    with pytest.raises(Unfinished, match="an executor was lost"):
        ingest(lake, logs, clock=lambda: 1, engine=Engine(fails), settings=settings)
    kept = lake.metastore.partition(LARGE).next_offset
    assert (sorted(begun), kept > 0) == ([("large", 0), ("large", kept), ("small0", 0)], True)
    assert {**shown(lake), "large-0": []} == {**expected, "large-0": []}


def test_a_wave_that_has_come_to_nothing_is_the_last(lake: Lake, logs: list[PartitionDir]) -> None:
    """A store that is away is not asked object by object; what the wave before has made stays."""
    engine = Engine(lambda work: work.shares[0].span.start > 0)
    with pytest.raises(Unfinished):
        ingest(lake, logs, clock=lambda: 1, engine=engine, settings=ONE_BY_ONE)
    assert lake.metastore.partition(LARGE).next_offset > 0
    assert len(lake.metastore.objects()) == 2


def test_an_ingest_that_is_told_to_stop_keeps_what_is_made_and_the_next_goes_on_there(
    lake: Lake, logs: list[PartitionDir], expected: Shown
) -> None:
    asked = itertools.count(1)  # once before the wave, then before each task
    with pytest.raises(Unfinished, match=r"stopped: 2 of \d+ objects in the lake; run the same command again"):
        ingest(
            lake, logs, clock=lambda: 1, engine=InProcess(1), settings=SMALL_OBJECTS, stop=lambda: next(asked) > 3
        )  # fmt: skip
    kept = lake.metastore.partition(LARGE).next_offset
    done = {one.partition: one for one in ingest(lake, logs, clock=lambda: 2, settings=SMALL_OBJECTS)}
    assert (done[LARGE].start, kept > 0) == (kept, True)
    assert (shown(lake), lake.metastore.check()) == (expected, [])


def test_a_task_is_told_nothing_of_the_metastore(lake: Lake, logs: list[PartitionDir]) -> None:
    seen: list[bytes] = []
    engine = Engine(lambda work: bool(seen.append(pickle.dumps(work))))
    ingest(lake, logs, clock=lambda: 1, engine=engine)
    assert seen
    assert not [work for work in seen if b"sqlite" in work or b"lake.db" in work]


def test_an_object_of_other_ranges_is_not_taken_for_a_twins(lake: Lake, logs: list[PartitionDir]) -> None:
    (large,) = [one for one in logs if one.topic == "large"]
    ((survey, _),) = survey_all([large])
    first, second, *_ = shares_of(LARGE, survey, 0, OBJECT_BYTES)

    def work(*shares: Any) -> IngestWork:
        return IngestWork(
            store=lake.store, lake_id=lake.metastore.lake_id, object_id="one", hash_key=lake.metastore.hash_key, shares=shares,
            extent_bytes=1 << 20,
        )  # fmt: skip

    ingest_object(work(first), Meter())
    with pytest.raises(Unfinished, match="does not contain what this task wrote"):
        ingest_object(work(second), Meter())


@pytest.fixture
def four(tmp_path: Path) -> Path:
    """Four partitions of twenty records each, which share an object."""
    for number in range(4):
        log_of(tmp_path / "four", "t", keys(20), number)
    return tmp_path / "four"


def keys(count: int) -> str:
    return " ".join(f"N[k{i}]" for i in range(count))


def ends(lake: Lake) -> list[int]:
    return list(lake.metastore.next_offsets().values())


def damage(partition: Path) -> None:
    """A batch whose checksum is wrong: the survey, which reads headers, does not notice."""
    log = min(partition.glob("*.log"))
    data = bytearray(log.read_bytes())
    data[len(data) // 2 + 20] ^= 0xFF
    log.write_bytes(data)


def leave_unfinished(partition: Path) -> None:
    (partition / "00000000000000000000.log.cleaned").write_bytes(b"x")


def spoil_epochs(partition: Path) -> None:
    (partition / LEADER_EPOCHS).write_text("0\n1\nnone\n")


@pytest.mark.parametrize("harm", [damage, leave_unfinished, spoil_epochs])
@pytest.mark.parametrize("harmed", [(1,), (0, 2)])
def test_all_others_come_in_and_the_error_is_told(lake: Lake, four: Path, harm: Any, harmed: tuple[int, ...]) -> None:
    for number in harmed:
        harm(four / f"t-{number}")
    told: list[str] = []
    board = Board()
    with pytest.raises(HeadstoneError, match=f"t-{harmed[0]}") as caught:
        ingest(lake, find_partitions([four]), clock=lambda: 1, tell=told.append, board=board)
    board.close()
    assert caught.value.exit_code == 2
    assert ends(lake) == [0 if number in harmed else 20 for number in range(4)]
    names = [f"t-{number} was not ingested to its end" for number in harmed] if len(harmed) > 1 else []
    assert [text.partition(":")[0] for text in told] == names
    assert (lake.metastore.check(), {row.state for row in lake.metastore.objects().values()}) == ([], {"committed"})


def test_a_gap_of_one_partition_is_its_own(lake: Lake, four: Path) -> None:
    ingest(lake, find_partitions([four / "t-1"]), clock=lambda: 1)
    shutil.rmtree(four / "t-1")
    log_of(four, "t", keys(40), 1)
    (four / "log-start-offset-checkpoint").write_text("0\n1\nt 1 30\n")
    with pytest.raises(UsageError, match="t-1: the lake ends at 20, this log begins at 30"):
        ingest(lake, find_partitions([four]), clock=lambda: 2)
    assert ends(lake) == [20, 20, 20, 20]


@pytest.fixture
def before_append(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Somebody does something between the upload and the first commit."""
    real = Metastore.append

    def arrange(act: Callable[[], object]) -> None:
        def late(self: Metastore, *arguments: Any, **options: Any) -> None:
            monkeypatch.setattr(Metastore, "append", real)
            act()
            real(self, *arguments, **options)

        monkeypatch.setattr(Metastore, "append", late)

    return arrange


def test_of_an_object_that_is_refused_the_others_come_in(
    lake: Lake, four: Path, before_append: Callable[[Callable[[], object]], None]
) -> None:
    """Somebody else was faster with one of its partitions."""
    before_append(lambda: ingest(lake, find_partitions([four / "t-2"]), clock=lambda: 2))
    with pytest.raises(CommitRefused, match="append at 0, but the log ends at 20"):
        ingest(lake, find_partitions([four]), clock=lambda: 1)
    assert (ends(lake), lake.metastore.check()) == ([20, 20, 20, 20], [])


def test_a_store_that_may_not_be_told_of_a_commit_ends_the_run_with_its_own_error(lake: Lake, four: Path) -> None:
    """What is in the lake by then is not uploaded again, to be refused for a reason that is none."""

    def refused() -> None:
        if any(ends(lake)):
            raise UsageError("access refused")

    lake.metastore.after_commit = Listeners(refused)
    with pytest.raises(UsageError, match="access refused"):
        ingest(lake, find_partitions([four]), clock=lambda: 1)
    assert (ends(lake), len(lake.metastore.objects())) == ([20, 20, 20, 20], 1)


def test_a_topic_that_becomes_the_lakes_own_during_a_run_gets_nothing_more(
    lake: Lake, four: Path, before_append: Callable[[Callable[[], object]], None]
) -> None:
    before_append(lambda: make_lakes_own(lake, "t"))
    with pytest.raises(UsageError, match="its offsets are no longer those of any Kafka topic"):
        ingest(lake, find_partitions([four]), clock=lambda: 1)
    assert ends(lake) == [0, 0, 0, 0]


def test_a_store_that_is_away_is_not_asked_for_ever(lake: Lake, four: Path) -> None:
    """Once for the object, and once more for a wave of its partitions."""
    begun: list[int] = []

    def fails(work: IngestWork) -> bool:
        begun.append(len(work.shares))
        return True

    with pytest.raises(Unfinished, match="an executor was lost"):
        ingest(
            lake, find_partitions([four]), clock=lambda: 1, engine=Engine(fails, ran=False),
            settings=LogIngestSettings(wave_objects=3),
        )  # fmt: skip
    assert (begun[0], begun[1:], ends(lake)) == (4, [1, 1, 1], [0, 0, 0, 0])


def test_what_is_wrong_with_the_data_is_raised_before_what_was_unfinished(lake: Lake, four: Path) -> None:
    damage(four / "t-3")
    engine = Engine(lambda work: work.shares[0].topic_partition == TopicPartition("t", 0), ran=False)
    with pytest.raises(CorruptLog, match="t-3"):
        ingest(lake, find_partitions([four]), clock=lambda: 1, engine=engine)
    assert ends(lake) == [0, 20, 20, 0]


AT = TopicPartition("t", 0)


def new_lake(root: Path, name: str) -> Lake:
    return create_lake(f"sqlite:///{root / name}.db", f"file://{root / name}", now_ms=0)


def begun_at(root: Path, start: int) -> list[PartitionDir]:
    """As after DeleteRecords: the checkpoint says where the log begins, the segment still has what lies below."""
    (root / "log-start-offset-checkpoint").write_text(f"0\n1\nt 0 {start}\n")
    return find_partitions([root])


@pytest.fixture
def tens(tmp_path: Path) -> Path:
    """Ten records in batches of two, in one segment."""
    return log_of(
        tmp_path / "tens", "t", " ".join(f"N[k{number}] N[k{number + 1}]" for number in range(0, 10, 2))
    ).parent


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many objects' worth."""
    root = tmp_path_factory.mktemp("long_log")
    write_sample(root, SampleSettings(topic="t", records=6000, batch_bytes=4000, segment_bytes=40_000, seed=1))
    return root


def offsets(lake: Lake) -> list[int]:
    return [record.offset for record in records(lake, AT)]


@pytest.mark.parametrize("start", [0, 1, 6, 7, 9, 10])
@pytest.mark.parametrize("extent_bytes", [1, 1 << 20])
def test_what_was_deleted_is_not_in_the_lake(lake: Lake, tens: Path, start: int, extent_bytes: int) -> None:
    ingest(lake, begun_at(tens, start), clock=lambda: 1, settings=LogIngestSettings(extent_bytes=extent_bytes))
    assert (lake.metastore.log_ends([AT]), offsets(lake)) == ({AT: (start, 10)}, list(range(start, 10)))
    assert lake.metastore.check() == []
    collect(lake, garbage(lake, now_ms=1 << 40))
    assert (offsets(lake), lake.metastore.check()) == (list(range(start, 10)), [])


def test_a_run_that_is_killed_between_any_two_commits_never_shows_what_was_deleted(
    tmp_path: Path, tens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next run comes to what an undisturbed one does."""
    found = begun_at(tens, 5)
    real = Metastore.transaction
    for allowed in itertools.count():
        lake = new_lake(tmp_path, f"lake{allowed}")
        left = itertools.count(allowed, -1)

        @contextmanager
        def killing(self: Metastore, *, snapshot: bool = False, left: Iterator[int] = left) -> Iterator[Connection]:
            if next(left) <= 0:
                raise Killed
            with real(self, snapshot=snapshot) as connection:
                yield connection

        with monkeypatch.context() as patch:
            patch.setattr(Metastore, "transaction", killing)
            try:
                ingest(lake, found, clock=lambda: 1, settings=LogIngestSettings(extent_bytes=1), engine=InProcess(1))
                is_whole = True
            except Killed:
                is_whole = False
        if lake.metastore.partitions():
            assert offsets(lake) in ([], [5, 6, 7, 8, 9])
        ingest(lake, found, clock=lambda: 2, settings=LogIngestSettings(extent_bytes=1), engine=InProcess(1))
        assert (lake.metastore.log_ends([AT]), offsets(lake)) == ({AT: (5, 10)}, [5, 6, 7, 8, 9])
        assert lake.metastore.check() == []
        lake.close()
        if is_whole:
            break
    assert allowed > 8


@pytest.mark.parametrize("asked_max", [1, 2, 3])
def test_a_run_that_is_stopped_at_any_object_goes_on(lake: Lake, long_log: Path, asked_max: int) -> None:
    """Where the log begins in the midst of it, several objects' worth behind its first segment."""
    found = begun_at(long_log, 2500)
    asked = itertools.count(1)
    with pytest.raises(Unfinished, match="stopped"):
        ingest(
            lake, found, clock=lambda: 1, settings=ONE_BY_ONE, engine=InProcess(1),
            stop=lambda: next(asked) > asked_max,
        )  # fmt: skip
    assert min(offsets(lake), default=2500) == 2500
    ingest(lake, found, clock=lambda: 2, settings=SMALL_OBJECTS)
    assert (lake.metastore.log_ends([AT])[AT][0], offsets(lake)[0], lake.metastore.check()) == (2500, 2500, [])


def test_a_lake_that_was_emptied_goes_on_wherever_the_log_begins(lake: Lake, long_log: Path) -> None:
    """Nothing is in it whose deletion could be missing; where something is left, it is refused."""
    asked = itertools.count(1)
    with pytest.raises(Unfinished):
        ingest(
            lake, begun_at(long_log, 0), clock=lambda: 1, settings=ONE_BY_ONE, engine=InProcess(1),
            stop=lambda: next(asked) > 2,
        )  # fmt: skip
    found = begun_at(long_log, 2500)
    reached = lake.metastore.next_offsets([AT])[AT]
    assert 0 < reached < 2500
    with pytest.raises(UsageError, match=f"the lake ends at {reached}, this log begins at 2500"):
        ingest(lake, found, clock=lambda: 2)
    lake.metastore.start_at(AT, reached, now_ms=3)
    (done,) = ingest(lake, found, clock=lambda: 4)
    assert (lake.metastore.log_ends([AT]), lake.metastore.check()) == ({AT: (2500, done.end)}, [])
    assert offsets(lake)[0] == 2500
