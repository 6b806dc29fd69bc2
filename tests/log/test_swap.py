"""A swap that is killed at any step leaves the old log or the new one: to a starting broker, and to the next compaction.

Children are forked from this warm process: importing compiled kernels anew would take a second each.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headstone.log import failpoint
from headstone.log.swap import recover, uncovered_base
from tests.log.swaps import (
    NAME,
    PLAIN,
    SCENARIOS,
    TRANSACTIONS,
    Outcomes,
    Scenario,
    kafka_load,
    leftovers,
    loaded_copy,
    outcomes,
    read_log,
    run_compaction,
)
from tests.logs import history_of
from tests.oracle.files import read_checkpoint, write_segment
from tests.oracle.segments import make_segment

CHILDREN = 3
STEPS_MAX = 400
SHARED_MEMORY = Path("/dev/shm")
FORK = multiprocessing.get_context("fork")


def _child(logs: Path, scenario: Scenario, step: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.environ[failpoint.VARIABLE] = str(step)
    failpoint._reached = 0
    run_compaction(logs, scenario)


def killed_at(cases: list[tuple[Path, int]], scenario: Scenario) -> list[bool]:
    """Compacts each directory in a child that dies before its given step; True where it did not live to the end."""
    died: list[bool] = []
    for start in range(0, len(cases), CHILDREN):
        children = [
            FORK.Process(target=_child, args=(logs, scenario, step)) for logs, step in cases[start : start + CHILDREN]
        ]
        for child in children:
            child.start()
        for child in children:
            child.join()
            assert child.exitcode in (0, -signal.SIGKILL)
            died.append(child.exitcode != 0)
    return died


def check_after_kill(logs: Path, scenario: Scenario, may: Outcomes, step: str) -> None:
    seen = may.on_the_way(loaded_copy(logs))
    assert seen, f"{step}: a broker would see neither the old nor the new log"
    run_compaction(logs, scenario)
    finished = read_log(logs / NAME)
    wanted = (may.new, *may.further) if seen == "new" else (may.new,)
    assert finished in wanted, f"{step}: {finished.bases}, not {may.new.bases}"
    assert leftovers(logs / NAME) == [], step
    assert read_checkpoint((logs / "cleaner-offset-checkpoint").read_text())["t", 0] >= may.new.bases[0], step
    shutil.rmtree(logs)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be had: what a kill leaves behind is the same there, and fsync costs nothing."""
    root = Path(tempfile.mkdtemp(dir=SHARED_MEMORY)) if os.access(SHARED_MEMORY, os.W_OK) else tmp_path
    yield root
    shutil.rmtree(root)


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kernels are loaded once, before anything forks."""
    for name in ("kafka", "coordinated"):
        logs = tmp_path_factory.mktemp("warm")
        SCENARIOS[name].write(logs)
        run_compaction(logs, SCENARIOS[name])


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_compaction_killed_at_any_step_leaves_the_old_log_or_the_new(name: str, place: Path) -> None:
    scenario = SCENARIOS[name]
    may = outcomes(scenario, place)
    assert may.old != may.new
    for first in range(1, STEPS_MAX, CHILDREN * 4):
        steps = range(first, first + CHILDREN * 4)
        cases = [(place / f"killed-{step}", step) for step in steps]
        for logs, _ in cases:
            shutil.copytree(place / "old", logs)
        died = killed_at(cases, scenario)
        for logs, step in cases:
            check_after_kill(logs, scenario, may, f"{name}, killed before step {step}")
        if not all(died):
            assert died == sorted(died, reverse=True)
            return
    raise AssertionError(f"still killed after {STEPS_MAX} steps")


def test_a_recovery_killed_at_any_step_is_finished_by_the_next(place: Path) -> None:
    scenario = SCENARIOS["one output"]
    may = outcomes(scenario, place)
    doubly = []
    for step in range(1, STEPS_MAX):
        logs = place / f"killed-{step}"
        shutil.copytree(place / "old", logs)
        if not killed_at([(logs, step)], scenario)[0]:
            break
        copy = place / "counted"
        shutil.copytree(logs, copy)
        steps = len(recover(copy / NAME))
        shutil.rmtree(copy)
        for second in range(1, steps + 1):
            twice = place / f"killed-{step}-{second}"
            shutil.copytree(logs, twice)
            doubly.append((twice, second))
    assert doubly
    assert all(killed_at(doubly, scenario))
    for logs, _ in doubly:
        check_after_kill(logs, scenario, may, logs.name)


OLD = "N[a,b] | N[a] P1[c] A1 | N[d]"
SUFFIXES = ("log", "index", "timeindex", "txnindex")


@pytest.fixture
def halves(tmp_path: Path) -> tuple[Path, Path]:
    """An old log of three segments, and the new one into which its first two were merged."""
    history = history_of(OLD)
    old = history.write_partition(tmp_path / "old", NAME)
    first, second, active = history.segments
    new = tmp_path / "new" / NAME
    new.mkdir(parents=True)
    merged = make_segment(
        base=first.base, batches=[*first.batches[1:], *second.batches[:1], second.batches[-1]], mtime_ms=0,
        aborted=list(second.aborted),
    )  # fmt: skip
    for segment in (merged, active):
        write_segment(new, segment)
    return old, new


def lay_out(old: Path, new: Path, stages: dict[str, str], old_stage: str | None) -> None:
    """Beside the old segments (as they are, as `.deleted`, or gone) the merged one's files, each at its stage."""
    for base in (0, 2):
        for suffix in SUFFIXES:
            path = old / f"{base:020d}.{suffix}"
            if path.exists() and old_stage is None:
                path.unlink()
            elif path.exists():
                path.rename(path.with_name(path.name + old_stage))
    for suffix, stage in stages.items():
        shutil.copy2(new / f"{0:020d}.{suffix}", old / f"{0:020d}.{suffix}{stage}")


ALL_CLEANED = dict.fromkeys(SUFFIXES, ".cleaned")
ALL_SWAP = dict.fromkeys(SUFFIXES, ".swap")
CRASHES = {
    "1 only .cleaned": (ALL_CLEANED, "", "old"),
    "2 .log.swap, the rest .cleaned": (ALL_CLEANED | {"log": ".swap"}, "", "old"),
    "3 all .swap, old files there": (ALL_SWAP, "", "new"),
    "4 all .swap, old files .deleted": (ALL_SWAP, ".deleted", "new"),
    "5 only .timeindex.swap left": (dict.fromkeys(SUFFIXES, "") | {"timeindex": ".swap"}, None, "new"),
    "6 swap done, .deleted left": (dict.fromkeys(SUFFIXES, ""), ".deleted", "new"),
}


@pytest.mark.parametrize("crash", CRASHES)
@pytest.mark.parametrize("loader", [recover, kafka_load])
def test_crash_point(crash: str, loader: object, halves: tuple[Path, Path]) -> None:
    old, new = halves
    wanted = {"old": read_log(old), "new": read_log(new)}
    stages, old_stage, which = CRASHES[crash]
    lay_out(old, new, stages, old_stage)
    assert callable(loader)
    loader(old)
    assert read_log(old) == wanted[which]
    assert leftovers(old) == []


@pytest.mark.parametrize(
    ("new", "old", "needed"),
    [
        ([(0, 10)], [0, 5], None),
        ([(0, 10)], [0, 9], None),
        ([(0, 10)], [0, 10], 10),
        ([(0, 4), (4, 10)], [0, 4, 12], 12),
        ([(0, 4), (10, 10)], [0, 4, 10], None),
        ([(0, 0)], [0], None),
    ],
)
def test_the_last_old_segment_is_covered_wherever_the_new_ones_end(
    new: list[tuple[int, int]], old: list[int], needed: int | None
) -> None:
    """Recovery deletes old files below the end of the new ones, and those of the same base."""
    assert uncovered_base(new, old) == needed


def test_indexes_whose_log_is_gone_go(halves: tuple[Path, Path]) -> None:
    """Retention takes a segment's log first; the abort entries of one that is gone would hide what is written there next."""
    old, _ = halves
    gone = [f"{2:020d}.{suffix}" for suffix in SUFFIXES]
    (old / gone[0]).rename(old / (gone[0] + ".deleted"))
    left = sorted({path.name for path in old.iterdir()} - {*gone, gone[0] + ".deleted"})
    recover(old)
    assert sorted(path.name for path in old.iterdir()) == left


def test_recovery_of_a_whole_log_does_nothing(halves: tuple[Path, Path]) -> None:
    assert recover(halves[0]) == []


FULL = Scenario(log=TRANSACTIONS, policy=PLAIN)
PAGE_BYTES = 4096
PAGES_ENOUGH = 30


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte; only root may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        why = f"cannot mount a small disk: {mounted.stderr.decode().strip()}"
        pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)
    yield place
    # Lazily: a file that was mapped a moment ago keeps a file system busy.
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_leaves_the_old_log_and_the_next_run_finishes(small_disk: Path, place: Path) -> None:
    may = outcomes(FULL, place)
    full = 0
    for pages in range(PAGES_ENOUGH):
        logs = small_disk / "logs"
        shutil.copytree(place / "old", logs)
        ballast = small_disk / "ballast"
        room = os.statvfs(small_disk).f_bavail - pages
        ballast.write_bytes(bytes(max(room, 0) * PAGE_BYTES))
        full += fills_the_disk(logs)
        ballast.unlink()
        check_after_failure(logs, FULL, may, f"{pages} pages free")
    assert 5 < full < PAGES_ENOUGH


def fills_the_disk(logs: Path) -> bool:
    try:
        run_compaction(logs, FULL)
    except OSError as error:
        return error.errno == errno.ENOSPC
    return False


def check_after_failure(logs: Path, scenario: Scenario, may: Outcomes, step: str) -> None:
    """The process lived to clean up behind itself."""
    assert [name for name in leftovers(logs / NAME) if not name.endswith((".tmp", ".cleaned"))] == [], step
    check_after_kill(logs, scenario, may, step)


def _child_with_small_files(logs: Path, size_max: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_max, size_max))
    try:
        run_compaction(logs, FULL)
    except OSError as error:
        os._exit(error.errno or 1)


@pytest.mark.parametrize("size_max", [0, 20, 60, 200, 300])
def test_a_file_that_cannot_grow_leaves_the_old_log(size_max: int, place: Path) -> None:
    may = outcomes(FULL, place)
    logs = place / "limited"
    shutil.copytree(place / "old", logs)
    child = FORK.Process(target=_child_with_small_files, args=(logs, size_max))
    child.start()
    child.join()
    assert child.exitcode == errno.EFBIG
    assert may.on_the_way(loaded_copy(logs)) == "old"
    check_after_failure(logs, FULL, may, f"files of at most {size_max} bytes")


def test_recovery_takes_the_indexes_of_deleted_segments_and_of_no_others(tmp_path: Path) -> None:
    """A segment whose `.log` is gone without a trace was lost; its indexes are all that tells of it."""
    names = {
        "00000000000000000000.log.deleted", "00000000000000000000.index", "00000000000000000000.txnindex.deleted",
        "00000000000000000005.index", "00000000000000000005.timeindex",
        "00000000000000000009.log", "00000000000000000009.log.deleted", "00000000000000000009.index",
    }  # fmt: skip
    for name in names:
        (tmp_path / name).write_bytes(b"")
    recover(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "00000000000000000005.index", "00000000000000000005.timeindex",
        "00000000000000000009.index", "00000000000000000009.log",
    ]  # fmt: skip
