"""One job over many partitions: whatever path their keys take, the same log; one that fails costs the others nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headstone.errors import CorruptLog, Unfinished
from headstone.lake.jobs import extent_work, job_plan
from headstone.lake.jobs.compaction import Compacted, compact_partition, compact_partitions
from headstone.lake.jobs.job import JobControl, Stopped
from headstone.lake.jobs.job_plan import JobSettings
from headstone.lake.lake import Lake, create_lake
from headstone.lake.metastore.commits import CommitRefused
from headstone.lake.transfer.ingest import ingest
from headstone.lake.transfer.reading import records
from headstone.log.directory import find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline import splitting
from headstone.pipeline.inprocess import InProcess
from tests.lake.appending import log_of
from tests.lake.damage import flip
from tests.oracle.notation import History

RETENTION_MS = 1000
NAMES = [TopicPartition("t", number) for number in range(4)]


class Logs:
    """Four partitions that grow, in as many lakes as are named."""

    def __init__(self, root: Path, lakes: dict[str, Lake], seed: int) -> None:
        self.lakes = lakes
        self._root = root / "logs"
        self._chance = random.Random(seed)
        self._histories = [History() for _ in NAMES]
        for lake in lakes.values():
            lake.metastore.create_topic("t", len(NAMES), {"delete.retention.ms": RETENTION_MS})

    def grow(self, records_max: int = 40, keys: int = 30) -> None:
        for number, history in enumerate(self._histories):
            for _ in range(self._chance.randint(1, records_max)):
                history.append(f"{self._chance.choice('NNNT')}[k{self._chance.randrange(keys)}]")
            log_of(self._root, "t", "", number, history=history)
        for lake in self.lakes.values():
            ingest(lake, find_partitions([self._root]), clock=lambda: 0)


def rows_of(lake: Lake) -> dict[TopicPartition, list[tuple[int, bytes | None, bytes | None]]]:
    return {name: [(r.offset, r.key, r.value) for r in records(lake, name)] for name in NAMES}


@pytest.fixture
def two(tmp_path: Path) -> Iterator[dict[str, Lake]]:
    lakes = {
        name: create_lake(f"sqlite:///{tmp_path / name}.db", f"memory://{tmp_path / name}", now_ms=0)
        for name in ("one by one", "many")
    }
    yield lakes
    for lake in lakes.values():
        lake.close()


@pytest.mark.parametrize("path", ["whole", "shuffle", "shares"])
@pytest.mark.parametrize("seed", range(2))
def test_whatever_path_keys_take_the_log_is_the_same(
    two: dict[str, Lake], tmp_path: Path, seed: int, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compacted partition by partition in one task each, and in one job; units of a few records, marks and rewriting mixed."""
    logs = Logs(tmp_path, two, seed)
    monkeypatch.setattr(extent_work, "UNIT_RECORDS", 50)
    monkeypatch.setattr(job_plan, "SHARE_BYTES", 1)
    settings = JobSettings(commit_bytes=[1, 3000][seed % 2], path="auto" if path == "shares" else path)
    if path == "shares":
        monkeypatch.setattr(splitting, "SPLIT_BYTES_MIN", 0)
        settings = JobSettings(commit_bytes=settings.commit_bytes, parallelism=100)
    for step in range(4):
        logs.grow()
        now_ms = step * RETENTION_MS // 2
        for name in NAMES:
            compact_partition(two["one by one"], name, InProcess(), now_ms=now_ms, settings=JobSettings(path="whole"))
        done = compact_partitions(two["many"], NAMES, InProcess(2), now_ms=now_ms, settings=settings)
        assert [outcome for outcome in done.values() if isinstance(outcome, Exception)] == []
        assert rows_of(two["many"]) == rows_of(two["one by one"])
        assert two["many"].metastore.check() == []
    expected, found = (lake.metastore.snapshot(NAMES) for lake in two.values())
    assert [found[name].cleaned for name in NAMES] == [expected[name].cleaned for name in NAMES]
    assert [found[name].tombstones for name in NAMES] == [expected[name].tombstones for name in NAMES]


@pytest.fixture
def in_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small they are."""
    monkeypatch.setattr(splitting, "SPLIT_BYTES_MIN", 0)
    monkeypatch.setattr(job_plan, "SHARE_BYTES", 1)


class Backwards(InProcess):
    """Tasks end in the wrong order."""

    def as_they_end(self, *given: Any, **options: Any) -> Iterator[tuple[int, Any]]:
        yield from reversed(list(super().as_they_end(*given, **options)))


@pytest.mark.usefixtures("in_shares")
def test_parts_are_committed_oldest_first_whichever_ends_first(two: dict[str, Lake], tmp_path: Path) -> None:
    logs, lake, name = Logs(tmp_path, two, 5), two["many"], NAMES[0]
    for _ in range(5):
        logs.grow()
    ends = []

    def look() -> None:
        extents = lake.metastore.partition(name).extents
        ends.append([extent.span.end for extent in extents if extent.object_id not in first])

    first = {extent.object_id for extent in lake.metastore.partition(name).extents}
    settings, control = JobSettings(commit_bytes=1, parallelism=100, dead_share_max=0.0), JobControl(before_commit=look)
    done = compact_partition(lake, name, Backwards(), now_ms=10, settings=settings, control=control)
    assert done.commits == len(ends) > 2
    assert all(after[: len(before)] == before and len(after) == len(before) + 1 for before, after in pairwise(ends))


def test_a_partition_that_cannot_be_read_costs_the_others_nothing(tmp_path: Path) -> None:
    lake = create_lake(f"sqlite:///{tmp_path / 'db'}", f"file://{tmp_path / 'objects'}", now_ms=0)
    logs = Logs(tmp_path, {"only": lake}, 1)
    for _ in range(2):
        logs.grow()
    bad = lake.metastore.partition(NAMES[2]).extents[-1]
    flip(lake, bad.object_id, bad.position + bad.length + 1)
    before = lake.metastore.partition(NAMES[2])
    done = compact_partitions(lake, NAMES, InProcess(), now_ms=10)
    assert [isinstance(done[name], Compacted) for name in NAMES] == [True, True, False, True]
    assert isinstance(done[NAMES[2]], CorruptLog)
    assert (lake.metastore.partition(NAMES[2]), lake.metastore.check()) == (before, [])
    lake.close()


@pytest.mark.usefixtures("in_shares")
@pytest.mark.parametrize("path", ["whole", "shuffle", "shares"])
def test_of_a_job_that_is_stopped_what_is_complete_is_committed_and_the_next_goes_on(
    two: dict[str, Lake], tmp_path: Path, path: str
) -> None:
    """Stopped by its fourth commit: no task is begun after that, and no partition that is not complete is claimed."""
    logs, lake = Logs(tmp_path, two, 3), two["many"]
    for _ in range(5):
        logs.grow()
    commits: list[int] = []
    settings = JobSettings(
        commit_bytes=1, parallelism=100, dead_share_max=0.0, path="auto" if path == "shares" else path
    )  # fmt: skip
    control = JobControl(before_commit=lambda: commits.append(len(commits)), stop=lambda: len(commits) >= 4)
    done = compact_partitions(lake, NAMES, InProcess(1), now_ms=10, settings=settings, control=control)
    stopped = [name for name in NAMES if isinstance(done[name], Stopped)]
    snapshot = lake.metastore.snapshot(NAMES)
    assert (sorted(done), 0 < len(stopped) <= len(NAMES), lake.metastore.check()) == (NAMES, True, [])
    assert [bool(snapshot[name].cleaned) for name in NAMES] == [name not in stopped for name in NAMES]
    assert sum(partition.compaction_epoch for partition in snapshot.values()) == len(commits) >= 4
    compact_partitions(lake, NAMES, InProcess(), now_ms=10)
    compact_partitions(two["one by one"], NAMES, InProcess(), now_ms=10)
    assert rows_of(lake) == rows_of(two["one by one"])


@pytest.mark.usefixtures("in_shares")
def test_a_part_that_waited_for_the_claim_is_committed_when_the_job_is_stopped(
    two: dict[str, Lake], tmp_path: Path
) -> None:
    logs, lake = Logs(tmp_path, two, 3), two["many"]
    for _ in range(5):
        logs.grow()
    reads: list[str] = []

    class Counting(InProcess):
        def as_they_end(self, *given: Any, **options: Any) -> Iterator[tuple[int, Any]]:
            for number, answer in super().as_they_end(*given, **options):
                reads.append(answer[0].object_id)
                yield number, answer

    settings = JobSettings(commit_bytes=1, parallelism=100, dead_share_max=0.0)
    control = JobControl(stop=lambda: len(reads) >= 1)
    done = compact_partitions(lake, NAMES[:1], Counting(1), now_ms=10, settings=settings, control=control)
    (outcome,) = done.values()
    assert str(outcome) == "stopped: 1 of 5 parts done; run it again to continue"
    partition = lake.metastore.partition(NAMES[0])
    assert (partition.compaction_epoch, partition.cleaned) == (1, ())
    assert [extent.object_id for extent in partition.extents if extent.object_id in reads] == reads


def test_one_that_is_given_up_or_overtaken_costs_the_others_nothing(two: dict[str, Lake], tmp_path: Path) -> None:
    logs, lake = Logs(tmp_path, two, 4), two["many"]
    for _ in range(2):
        logs.grow()
    told: list[TopicPartition] = []

    def check(name: TopicPartition) -> None:
        if name == NAMES[0]:
            raise Unfinished("the lease is lost")
        if name == NAMES[1]:
            compact_partition(lake, name, InProcess(), now_ms=10)

    done = compact_partitions(
        lake, NAMES, InProcess(), now_ms=10, check=check, done=lambda name, outcome: told.append(name)
    )
    kinds = [type(done[name]) for name in NAMES]
    assert kinds == [Unfinished, CommitRefused, Compacted, Compacted]
    assert (sorted(told), lake.metastore.partition(NAMES[0]).compaction_epoch) == (NAMES, 0)
    assert lake.metastore.check() == []
