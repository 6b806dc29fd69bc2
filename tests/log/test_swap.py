"""A swap that is killed at any step leaves the old log or the new one: to a starting broker, and to the next compaction.

`kafka_load` tells a broker's start once more, from Kafka's `LogLoader` and in plain Python, so that the swap is not judged by
its own recovery. Children are forked from this warm process: importing compiled kernels anew would take a second each.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from headstone.log import failpoint
from headstone.log.swap import recover, uncovered_base
from headstone.pipeline import commit, outputs
from headstone.pipeline.compaction import CompactionRequest, compact
from headstone.pipeline.inprocess import InProcess
from headstone.retention.policy import NO_LIMIT, Policy, kafka_rules
from tests.oracle.batches import Batch, parse_log
from tests.oracle.files import read_checkpoint, read_partition, read_segment, write_segment
from tests.oracle.notation import History
from tests.oracle.producers import ProducerTable
from tests.oracle.segments import AbortedTxn, Segment, make_segment

NUMBERED = re.compile(r"(\d{20})\.(log|index|timeindex|txnindex|snapshot)(\.cleaned|\.swap|\.deleted)?")
NAME = "t-0"
CHILDREN = 3
STEPS_MAX = 400
NOW_MS = 100_000
BROKER = (
    ("meta.properties", "version=1\n"),
    (".kafka_cleanshutdown", "{}"),
    ("replication-offset-checkpoint", "0\n1\nt 0 99\n"),
)
BROKER_FILES = ("meta.properties", ".kafka_cleanshutdown", ".lock")
SHARED_MEMORY = Path("/dev/shm")
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What readers of a directory can tell apart; of indexes, what is in them."""

    segments: tuple[Segment, ...]

    @property
    def bases(self) -> list[int]:
        return [segment.base for segment in self.segments]


def read_log(directory: Path) -> Log:
    return Log(segments=tuple(replace(segment, mtime_ms=0) for segment in read_partition(directory)))


def offset_of(name: str) -> int:
    return int(name[:20])


def kafka_load(directory: Path) -> Log:
    """A broker's start after a clean stop, in the steps of Kafka's `LogLoader.load`: changes the directory and reads it."""

    def names(stage: str) -> list[str]:
        found = (NUMBERED.fullmatch(name) for name in sorted(os.listdir(directory)))
        return [match[0] for match in found if match and (match[3] or "") == stage]

    def delete(doomed: list[str]) -> None:
        for name in doomed:
            (directory / name).unlink()

    delete(names(".deleted"))
    if names(".cleaned"):
        smallest = min(map(offset_of, names(".cleaned")))
        delete([name for name in names(".swap") if offset_of(name) >= smallest])
        delete(names(".cleaned"))
    logs = [name for name in names(".swap") if name.endswith(".log.swap")]
    if logs:
        start, end = min(map(offset_of, logs)), max(_next_offset(directory / name) for name in logs)
        delete([name for name in names("") if start <= offset_of(name) < end])
    for name in names(".swap"):
        os.replace(directory / name, directory / name.removesuffix(".swap"))
    bases = [offset_of(name) for name in names("") if name.endswith(".log")]
    delete([name for name in names("") if not name.endswith(".snapshot") and offset_of(name) not in bases])
    segments = [_loaded(directory, base, bases) for base in bases]
    stray = [name for name in names("") if name.endswith(".snapshot") and offset_of(name) not in bases]
    delete([name for name in stray if name != stray[-1] or offset_of(name) < bases[-1]])
    return Log(segments=tuple(replace(segment, mtime_ms=0) for segment in segments))


def _next_offset(swap: Path) -> int:
    return make_segment(base=offset_of(swap.name), batches=_batches(swap), mtime_ms=0).next_offset


def _batches(path: Path) -> list[Batch]:
    return parse_log(path.read_bytes())


def _loaded(directory: Path, base: int, bases: list[int]) -> Segment:
    """A segment without its offset index is recovered from its data and from the producers before it."""
    stem = f"{base:020d}"
    if (directory / f"{stem}.index").exists():
        if not (directory / f"{stem}.timeindex").exists():
            (directory / f"{stem}.timeindex").write_bytes(b"")
        return read_segment(directory, base)
    producers = ProducerTable()
    for earlier in bases:
        if earlier < base:
            producers.replay(_batches(directory / f"{earlier:020d}.log"))
    batches = _batches(directory / f"{stem}.log")
    aborted: list[AbortedTxn] = [entry for entry in map(producers.append, batches) if entry]
    return make_segment(base=base, batches=batches, mtime_ms=0, aborted=aborted)


def leftovers(directory: Path) -> list[str]:
    """Names in a partition directory and its log directory that belong to no finished log."""
    plain = re.compile(r"\d{20}\.(log|index|timeindex|txnindex|snapshot)|leader-epoch-checkpoint|partition\.metadata")
    inside = [name for name in os.listdir(directory) if not plain.fullmatch(name)]
    brokers = BROKER_FILES if (directory.parent / "meta.properties").exists() else ()
    beside = [
        name
        for name in os.listdir(directory.parent)
        if not name.endswith("-checkpoint") and name not in (NAME, *brokers)
    ]
    bases = {name[:20] for name in os.listdir(directory) if name.endswith(".log")}
    orphans = [name for name in os.listdir(directory) if name.endswith("index") and name[:20] not in bases]
    return sorted(inside + beside + orphans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    log: str
    policy: Policy
    path: str = "whole"
    segment_bytes_max: int = outputs.SEGMENT_BYTES_MAX
    files: tuple[tuple[str, str], ...] = BROKER

    def write(self, logs: Path) -> None:
        history = History()
        history.append(self.log)
        history.write_partition(logs, NAME, snapshots=True)
        for name, content in self.files:
            (logs / name).write_text(content)


COMMON = Policy(now_ms=NOW_MS, delete_retention_ms=1_000, producer_id_expiration_ms=10, segment_bytes=420)
PLAIN = replace(COMMON, plain_below=NO_LIMIT)
KAFKA = kafka_rules(COMMON)
TRANSACTIONS = "P1[a,b] N[c] P2[d] | A1 N[a,~c]/zstd C2 | P1[e,f]/gzip N[b] | A1 P2[g] | N[h]/lz4 A2 C1 | I7[j] N[a]"
SMALL = "P1[a,b] N[c] | A1 N[a,~c]/zstd | P1[d] C1 | I7[j] N[a]"
SCENARIOS = {
    "kafka": Scenario(log=TRANSACTIONS, policy=KAFKA),
    "coordinated": Scenario(log=TRANSACTIONS, policy=PLAIN, path="shuffle"),
    "one output": Scenario(log=SMALL, policy=replace(KAFKA, segment_bytes=1 << 30)),
    "more segments than before": Scenario(
        log=SMALL, policy=replace(KAFKA, segment_bytes=1 << 30), segment_bytes_max=100
    ),
    # The map is full early, so that nothing holds the end of what is rewritten, and its last batches vanish.
    "trailing batches vanish": Scenario(
        log="N[a] | N[b] | U P1[b] A1 | U U | N[z] | N[a,b]", policy=replace(PLAIN, index_keys_max=2)
    ),
    "trailing segments vanish": Scenario(
        log="N[a] | U | U | U | N[b] | N[a] N[b]", policy=replace(KAFKA, index_keys_max=1)
    ),
    "log start": Scenario(
        log=SMALL, policy=KAFKA, files=(*BROKER, ("log-start-offset-checkpoint", "0\n1\nt 0 5\n"))
    ),
    "compact,delete": Scenario(log=SMALL, policy=replace(KAFKA, cleanup_delete=True, retention_ms=NOW_MS - 1_006)),
    "everything expires": Scenario(log=SMALL, policy=replace(PLAIN, cleanup_delete=True, retention_ms=1)),
    "no broker's directory": Scenario(log="N[a] | N[a] | N[b]", policy=KAFKA, files=()),
}  # fmt: skip


def run_compaction(logs: Path, scenario: Scenario) -> None:
    request = CompactionRequest(
        drop_keyless=True,
        all_topics=True,
        paths=(str(logs),),
        out=None,
        policy=scenario.policy,
        path=scenario.path,
        progress=False,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outputs, "SEGMENT_BYTES_MAX", scenario.segment_bytes_max)
        compact(request, InProcess(), lambda text: None)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """The logs a scenario may come to: `undeleted` is the new one before retention took its oldest segments.

    `further` is what one more compaction makes of either, with the checkpoint of the old one or its own.
    """

    old: Log
    undeleted: Log
    new: Log
    further: tuple[Log, ...]

    def on_the_way(self, log: Log) -> str:
        """Which of them a broker would see after a kill, or '' for a mixture."""
        if log == self.old:
            return "old"
        whole = [self.undeleted.segments]
        if not self.undeleted.segments[-1].batches:
            whole.append(self.undeleted.segments[:-1])
        behind = [segments[k:] for segments in whole for k in range(len(segments))]
        return "new" if log.segments in behind and len(log.segments) >= len(self.new.segments) else ""


def outcomes(scenario: Scenario, place: Path) -> Outcomes:
    def made(name: str, source: str) -> Path:
        shutil.copytree(place / source, place / name)
        return place / name

    scenario.write(place / "old")
    run_compaction(made("new", "old"), scenario)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "remove_segments", lambda directory, bases: None)
        run_compaction(made("undeleted", "old"), scenario)
    for source in ("new", "undeleted"):
        run_compaction(made(f"onward from {source}", source), scenario)
        (made(f"again from {source}", source) / "cleaner-offset-checkpoint").unlink()
        run_compaction(place / f"again from {source}", scenario)
    return Outcomes(
        old=read_log(place / "old" / NAME),
        undeleted=read_log(place / "undeleted" / NAME),
        new=read_log(place / "new" / NAME),
        further=tuple(read_log(path / NAME) for path in sorted(place.glob("* from *"))),
    )


def loaded_copy(logs: Path) -> Log:
    """What a broker would see, which is not let near the directory itself."""
    copy = logs.with_name(logs.name + "-broker")
    shutil.copytree(logs, copy)
    log = kafka_load(copy / NAME)
    assert [
        name
        for name in leftovers(copy / NAME)
        if not name.startswith(".headstone") and not name.endswith(".tmp") and name != ".lock"
    ] == []
    shutil.rmtree(copy)
    return log


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


@pytest.mark.parametrize("name", ["one output", "trailing batches vanish"])
def test_a_recovery_killed_at_any_step_is_finished_by_the_next(name: str, place: Path) -> None:
    scenario = SCENARIOS[name]
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
        check_after_kill(logs, scenario, may, f"{name}, {logs.name}")


OLD = "N[a,b] | N[a] P1[c] A1 | N[d]"
SUFFIXES = ("log", "index", "timeindex", "txnindex")


@pytest.fixture
def halves(tmp_path: Path) -> tuple[Path, Path]:
    """An old log of three segments, and the new one into which its first two were merged."""
    history = History()
    history.append(OLD)
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
