"""Where the lake's log begins: as the first log does, from its first commit on, wherever a run is killed or stopped."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from headstone.errors import Unfinished, UsageError
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.lake import Lake, create_lake
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.transfer.ingest import LogIngestSettings, ingest
from headstone.lake.transfer.reading import records
from headstone.log.directory import PartitionDir, find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from tests.oracle.notation import History

AT = TopicPartition("t", 0)
OBJECT_BYTES = 100_000
SMALL_OBJECTS = LogIngestSettings(object_bytes=OBJECT_BYTES)
ONE_BY_ONE = LogIngestSettings(object_bytes=OBJECT_BYTES, wave_objects=1)


class Killed(BaseException):
    """Nobody may catch it."""


def new_lake(root: Path, name: str) -> Lake:
    return create_lake(f"sqlite:///{root / name}.db", f"file://{root / name}", now_ms=0)


def begun_at(root: Path, start: int) -> list[PartitionDir]:
    """As after DeleteRecords: the checkpoint says where the log begins, the segment still has what lies below."""
    (root / "log-start-offset-checkpoint").write_text(f"0\n1\nt 0 {start}\n")
    return find_partitions([root])


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Ten records in batches of two, in one segment."""
    history = History()
    for number in range(0, 10, 2):
        history.append(f"N[k{number}] N[k{number + 1}]")
    history.roll()
    history.write_partition(tmp_path / "logs", "t-0")
    return tmp_path / "logs"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many objects' worth."""
    root = tmp_path_factory.mktemp("large")
    write_sample(root, SampleSettings(topic="t", records=6000, batch_bytes=4000, segment_bytes=40_000, seed=1))
    return root


def offsets(lake: Lake) -> list[int]:
    return [record.offset for record in records(lake, AT)]


@pytest.mark.parametrize("start", [0, 1, 6, 7, 9, 10])
@pytest.mark.parametrize("extent_bytes", [1, 1 << 20])
def test_what_was_deleted_is_not_in_the_lake(lake: Lake, logs: Path, start: int, extent_bytes: int) -> None:
    ingest(lake, begun_at(logs, start), clock=lambda: 1, settings=LogIngestSettings(extent_bytes=extent_bytes))
    assert (lake.metastore.log_ends([AT]), offsets(lake)) == ({AT: (start, 10)}, list(range(start, 10)))
    assert lake.metastore.check() == []
    collect(lake, garbage(lake, now_ms=1 << 40))
    assert (offsets(lake), lake.metastore.check()) == (list(range(start, 10)), [])


def test_a_run_that_is_killed_between_any_two_commits_never_shows_what_was_deleted(
    tmp_path: Path, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next run comes to what an undisturbed one does."""
    found = begun_at(logs, 5)
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
def test_a_run_that_is_stopped_at_any_object_goes_on(lake: Lake, large: Path, asked_max: int) -> None:
    """Where the log begins in the midst of it, several objects' worth behind its first segment."""
    found = begun_at(large, 2500)
    asked = itertools.count(1)
    with pytest.raises(Unfinished, match="stopped"):
        ingest(
            lake, found, clock=lambda: 1, settings=ONE_BY_ONE, engine=InProcess(1),
            stop=lambda: next(asked) > asked_max,
        )  # fmt: skip
    assert min(offsets(lake), default=2500) == 2500
    ingest(lake, found, clock=lambda: 2, settings=SMALL_OBJECTS)
    assert (lake.metastore.log_ends([AT])[AT][0], offsets(lake)[0], lake.metastore.check()) == (2500, 2500, [])


def test_a_lake_that_was_emptied_goes_on_wherever_the_log_begins(lake: Lake, large: Path) -> None:
    """Nothing is in it whose deletion could be missing; where something is left, it is refused."""
    asked = itertools.count(1)
    with pytest.raises(Unfinished):
        ingest(
            lake, begun_at(large, 0), clock=lambda: 1, settings=ONE_BY_ONE, engine=InProcess(1),
            stop=lambda: next(asked) > 2,
        )  # fmt: skip
    found = begun_at(large, 2500)
    reached = lake.metastore.next_offsets([AT])[AT]
    assert 0 < reached < 2500
    with pytest.raises(UsageError, match=f"the lake ends at {reached}, this log begins at 2500"):
        ingest(lake, found, clock=lambda: 2)
    lake.metastore.start_at(AT, reached, now_ms=3)
    (done,) = ingest(lake, found, clock=lambda: 4)
    assert (lake.metastore.log_ends([AT]), lake.metastore.check()) == ({AT: (2500, done.end)}, [])
    assert offsets(lake)[0] == 2500
