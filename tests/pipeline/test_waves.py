"""A run is committed wave by wave: what one partition meets stops neither the others nor what was done before."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headstone.errors import CorruptLog
from headstone.log import checkpoints
from headstone.log.checkpoints import CLEANER, HIGH_WATERMARK, read_offsets
from headstone.pipeline import commit, compaction, splitting
from headstone.pipeline.compaction import CompactionResult
from headstone.pipeline.inprocess import NEAR_THREADS, InProcess
from headstone.pipeline.progress import Board, Meter
from headstone.retention.policy import Policy, kafka_rules
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from tests.logs import compact_here, files_of, flip_a_byte

POLICY = kafka_rules(Policy(now_ms=1_800_000_000_000))
PARTITIONS = 5
NAMES = [f"t-{number}" for number in range(PARTITIONS)]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    settings = SampleSettings(
        topic="t", partitions=PARTITIONS, records=400, keys=50, segment_bytes=20_000, batch_bytes=2_000
    )
    return write_sample(tmp_path / "logs", settings)[0]


def run(logs: Path, out: Path | None = None, **settings: Any) -> CompactionResult:
    return compact_here(logs, out=out, policy=POLICY, **settings)


@pytest.fixture(
    params=[{"WAVE_PARTITIONS": 1}, {"WAVE_PARTITIONS": 2}, {}, {"WAVE_BYTES": 0}, {"SPLIT_BYTES_MIN": 0}], ids=str
)
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    for name, value in request.param.items():
        monkeypatch.setattr(splitting if name == "SPLIT_BYTES_MIN" else compaction, name, value)
    return dict(request.param)


class Counting(InProcess):
    """How many works were split over tasks, and the works of each whole stage."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.split_works = 0

    def split(self, works: Sequence[Any], *arguments: Any, **named: Any) -> Iterator[tuple[int, Any]]:
        self.split_works += len(works)
        return super().split(works, *arguments, **named)


@pytest.mark.parametrize(("threads", "split"), [(1, 0), (4, 0), (8, PARTITIONS)])
def test_a_partition_is_split_where_it_would_hold_up_the_engines_other_tasks(
    threads: int, split: int, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a fifth of the log: that is more than its share where eight tasks run at a time."""
    monkeypatch.setattr(splitting, "SPLIT_BYTES_MIN", 0)
    engine = Counting(threads)
    run(logs, tmp_path / "out", engine=engine)
    assert engine.split_works == split


@pytest.mark.parametrize(("threads", "together"), [(1, 1), (3, 3)])
def test_a_wave_takes_as_much_as_the_engine_has_room_for(
    threads: int, together: int, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [sum(log.stat().st_size for log in (logs / name).glob("*.log")) for name in NAMES]
    monkeypatch.setattr(compaction, "WAVE_BYTES", max(sizes))
    waves: list[int] = []
    run_wave = compaction._run_wave
    monkeypatch.setattr(compaction, "_run_wave", lambda wave, *rest: waves.append(len(wave)) or run_wave(wave, *rest))
    run(logs, tmp_path / "out", engine=InProcess(threads))
    assert (waves[0], sum(waves)) == (together, PARTITIONS)


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "--out"])
def test_waves_change_nothing_but_the_moment(
    in_place: bool, sizes: dict[str, int], logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(logs, copy)
    made = run(logs, None if in_place else tmp_path / "out", engine=InProcess(64))
    monkeypatch.undo()
    expected = run(copy, None if in_place else tmp_path / "expected")
    assert files_of(logs if in_place else tmp_path / "out") == files_of(copy if in_place else tmp_path / "expected")
    assert [report.partition for report in made.partitions] == NAMES
    assert [report.dirty_end for report in made.partitions] == [report.dirty_end for report in expected.partitions]


@pytest.mark.parametrize("path", ["whole", "shuffle"])
@pytest.mark.parametrize("replicated", [True, False], ids=["in what is rewritten", "in what is carried over"])
def test_a_bad_partition_stays_as_it_was_and_the_others_are_compacted(
    replicated: bool, path: str, sizes: dict[str, int], logs: Path
) -> None:
    victim, _ = flip_a_byte(logs / "t-1", 1)
    highs = dict(read_offsets(logs / HIGH_WATERMARK))
    checkpoints.write_offsets(logs / HIGH_WATERMARK, {**highs, ("t", 1): highs["t", 1] if replicated else 1})
    before = files_of(logs / "t-1")
    result = run(logs, path=path)
    assert [(one.partition, type(one.error), victim.name in str(one.error)) for one in result.failed] == [
        ("t-1", CorruptLog, True)
    ]
    assert [report.partition for report in result.partitions] == ["t-0", "t-2", "t-3", "t-4"]
    assert files_of(logs / "t-1") == before
    assert sorted(read_offsets(logs / CLEANER)) == [("t", 0), ("t", 2), ("t", 3), ("t", 4)]
    assert all(report.records_after < report.records_before for report in result.partitions)


def test_a_bad_header_is_found_by_the_survey_and_stops_only_its_partition(logs: Path) -> None:
    victim = sorted((logs / "t-3").glob("*.log"))[1]
    victim.write_bytes(b"\xff" * 200)
    result = run(logs)
    assert [one.partition for one in result.failed] == ["t-3"]
    assert [report.partition for report in result.partitions] == ["t-0", "t-1", "t-2", "t-4"]


def test_an_output_that_lacks_a_partition_is_no_brokers_directory(logs: Path, tmp_path: Path) -> None:
    (logs / checkpoints.META_PROPERTIES).write_text("broker.id=1\n")
    (logs / checkpoints.CLEAN_SHUTDOWN).write_text("{}")
    flip_a_byte(logs / "t-0")
    result = run(logs, tmp_path / "out", topics=("t",))
    assert [one.partition for one in result.failed] == ["t-0"]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names & {"t-0", checkpoints.META_PROPERTIES, checkpoints.CLEAN_SHUTDOWN} == set()


def test_nothing_but_bad_partitions_is_the_first_ones_error(logs: Path) -> None:
    victims = [flip_a_byte(logs / name)[0] for name in NAMES]
    with pytest.raises(CorruptLog) as raised:
        run(logs)
    assert raised.value.file == str(victims[0])


class FullDisk(InProcess):
    """Answers the third partition's task as a full disk would."""

    def outcomes(
        self, body: Callable[[Any, Meter], Any], tasks: Sequence[Any], board: Board | None = None
    ) -> list[Any]:
        found = super().outcomes(body, tasks, board)
        return [
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if task.path.endswith("t-2") else outcome
            for task, outcome in zip(tasks, found, strict=True)
        ]


def test_a_full_disk_ends_the_run_and_what_was_done_stays_done(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "WAVE_PARTITIONS", 1)
    copy = tmp_path / "copy"
    shutil.copytree(logs, copy)
    told: list[str] = []
    with pytest.raises(OSError, match="No space left"):
        run(logs, engine=FullDisk(), tell=told.append)
    assert "done: 2 of 5 partitions; the others are as they were" in told
    assert sorted(read_offsets(logs / CLEANER)) == [("t", 0), ("t", 1)]
    for name in ("t-2", "t-3", "t-4"):
        assert files_of(logs / name) == files_of(copy / name)
    run(logs)
    run(copy)
    assert files_of(logs) == files_of(copy)


def test_checkpoint_files_are_parsed_and_written_once_a_wave(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    parsed: list[Path] = []
    write, rows = commit.write_offsets, checkpoints._rows
    monkeypatch.setattr(
        commit, "write_offsets", lambda path, offsets: (written.append(path.name), write(path, offsets))
    )
    monkeypatch.setattr(checkpoints, "_rows", lambda path: (parsed.append(path), rows(path))[1])
    monkeypatch.setattr(compaction, "WAVE_PARTITIONS", 3)
    run(logs)
    assert written == [CLEANER, CLEANER]
    assert max(Counter(parsed).values()) <= NEAR_THREADS  # threads that begin together may each parse it


def test_ctrl_c_right_after_a_work_directory_was_made_leaves_none(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of a wave's it is."""
    mkdir, before = Path.mkdir, files_of(logs)
    for last in range(1, len(NAMES) + 1):
        made = []

        def interrupted(self: Path, *args: Any, last: int = last, made: list[Path] = made, **kwargs: Any) -> None:
            mkdir(self, *args, **kwargs)
            made.append(self)
            if len(made) == last:
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Path, "mkdir", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run(logs)
        assert made[-1].name.startswith(commit.WORK_PREFIX)
        assert files_of(logs) == before
        assert not list(logs.rglob(commit.WORK_PREFIX + "*"))


def test_a_task_that_goes_on_after_ctrl_c_leaves_no_work_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens an output while the directory is being removed."""
    place, rmtree, late = tmp_path / "work", shutil.rmtree, iter("abc")

    def beaten(path: Path, ignore_errors: bool) -> None:
        for name in late:
            (path / name).touch()
            return
        rmtree(path, ignore_errors=ignore_errors)

    place.mkdir()
    monkeypatch.setattr(shutil, "rmtree", beaten)
    commit.remove_work_dir(place)
    assert not place.exists()
