"""What each recorded program may leave after a power loss: the old state or the new one, to Headstone and to a broker.

A judge is made once per program, before it is recorded; it prepares the disk, and judges one crash after the other, each at the
place where it was recorded. Its answer is empty, or says what is wrong.
"""

from __future__ import annotations

import copy
import io
import json
import os
import shutil
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from headstone.errors import HeadstoneError, UsageError
from headstone.guard.ledger.journal import Journal
from headstone.lake.transfer.offset_map import read_map
from headstone.log import checkpoints
from headstone.pipeline.output_record import OUTPUT_RECORD
from headstone.storage.stores import Store
from tests.log.swaps import (
    NUMBERED,
    PARTITION,
    Outcomes,
    Scenario,
    kafka_load,
    leftovers,
    loaded_copy,
    outcomes_of_each,
    read_log,
    run_compaction,
)
from tests.oracle.batches import BadLog
from tests.oracle.files import read_checkpoint
from tests.oracle.notation import History
from tests.power import programs
from tests.power.disks import Crash, Recording
from tests.power.recording import record

CLEANER, LOG_START = "cleaner-offset-checkpoint", "log-start-offset-checkpoint"
UNFORESEEN = (HeadstoneError, BadLog, AssertionError, ArithmeticError, LookupError, OSError, ValueError, struct.error)
LATER = "4000000"
"""By the lake's clock: whoever was at work then has lost the lease."""
LIFTED = (".lock", "-shm", ".tmp")
"""Of no meaning to whoever comes next."""
CLEAN_STOP, SIGN = ".kafka_cleanshutdown", "meta.properties"
"""A broker does not start without it, so it comes last."""


class Judge(Protocol):
    program: str

    def prepare(self, root: Path) -> None:
        """Who does not say otherwise begins with nothing."""
        return

    def judge(self, crash: Crash, root: Path) -> str: ...


def recorded(judge: Judge, work: Path) -> Recording:
    """In a process of its own, below work / "disk"."""
    root, marks = work / "disk", work / "marks"
    root.mkdir(parents=True)
    judge.prepare(root)
    command = [sys.executable, "-m", "tests.power.programs", judge.program, str(root), str(marks)]
    return record(command, root, marks, work / "strace.log", env={"PYTHONPATH": os.pathsep.join(sys.path)})


def judged(judge: Judge, crash: Crash, root: Path) -> str:
    """An error that nobody has foreseen is a finding too."""
    shutil.rmtree(root)
    crash.write(root)
    try:
        problem = judge.judge(crash, root)
    except UNFORESEEN as error:
        problem = f"{type(error).__name__}: {error}"
    return f"{judge.program}, {crash.how}: {problem}" if problem else ""


class InPlace:
    """A compaction in place, or the recovery of one that was interrupted before."""

    def __init__(self, name: str, place: Path) -> None:
        self.program = f"in place, {name}"
        self.scenario: Scenario = programs.IN_PLACE[name]
        self.may: dict[str, Outcomes] = outcomes_of_each(self.scenario, place)
        self.checkpoints = {
            state: {name: _offsets(place / state / name) for name in (CLEANER, LOG_START)} for state in ("old", "new")
        }
        self.goes_on = True
        """Whether the next run is tried as well, which takes longest."""
        self._interrupted: Crash | None = None

    def interrupted(self, crash: Crash) -> InPlace:
        """Of a recovery that finds this."""
        judge = copy.copy(self)
        judge.program, judge._interrupted = "recovery", crash
        return judge

    def prepare(self, root: Path) -> None:
        if self._interrupted is None:
            self.scenario.write(root / "logs")
        else:
            root.rmdir()
            self._interrupted.write(root)

    def judge(self, crash: Crash, root: Path) -> str:
        logs = root / "logs"
        seen = {name: self.may[name].on_the_way(loaded_copy(logs, name)) for name in self.may}
        if not all(seen.values()):
            return f"a broker would see neither the old log nor the new one: {seen}"
        finished = crash.ended and self._interrupted is None
        if finished and any(read_log(logs / name) != may.new for name, may in self.may.items()):
            return "the command had ended, and its logs are not there"
        problem = self._of_checkpoints(logs, seen, finished=finished)
        if problem:
            return problem
        if self._interrupted and crash.ended and any(leftovers_of_swaps(logs / name) for name in self.may):
            return "the recovery had ended, and left something to recover"
        if not self.goes_on:
            return ""
        run_compaction(logs, self.scenario)
        for name, may in self.may.items():
            left = read_log(logs / name)
            wanted = (may.new, *may.further) if seen[name] == "new" else (may.new,)
            if left not in wanted:
                return f"{name}: the next run leaves segments {left.bases}, not {may.new.bases}"
            if leftovers(logs / name):
                return f"{name}: the next run leaves {leftovers(logs / name)}"
        return ""

    def _of_checkpoints(self, logs: Path, seen: dict[str, str], *, finished: bool) -> str:
        """An entry is the old one, or the new one of a log that is new."""
        for file in (CLEANER, LOG_START):
            there = _offsets(logs / file)
            old, new = (self.checkpoints[state][file] for state in ("old", "new"))
            for topic, partition in sorted(old.keys() | new.keys() | there.keys()):
                name = f"{topic}-{partition}"
                entry, before, after = (offsets.get((topic, partition)) for offsets in (there, old, new))
                if entry not in (before, after) or (finished and entry != after):
                    return f"{file}: {name} has {entry}; before it was {before}, afterwards {after}"
                if entry != before and seen[name] != "new" and self.may[name].old != self.may[name].new:
                    return f"{file}: {name} has {entry} already, and the old log is still there"
        return ""


def leftovers_of_swaps(directory: Path) -> list[str]:
    return [name for name in leftovers(directory) if name.endswith((".cleaned", ".swap", ".deleted"))]


def _offsets(path: Path) -> dict[tuple[str, int], int]:
    return read_checkpoint(path.read_text()) if path.exists() else {}


class Out:
    """A compaction into a new directory: a partition is there whole or not at all, and a broker's sign only with all of it."""

    def __init__(self, name: str, place: Path) -> None:
        self.program = f"out, {name}"
        self._name = name
        self.wanted: dict[str, bytes | None] = {}
        self._place = place

    def prepare(self, root: Path) -> None:
        programs.write_given(self._name, root.parent / programs.GIVEN)
        reference = self._place / "reference"
        shutil.copytree(root.parent / programs.GIVEN, self._place / programs.GIVEN)
        reference.mkdir()
        list(programs.compact_out(self._name, reference))
        self.wanted = _contents(reference / "made" / "out")
        self.logs = {
            path.name: read_log(path)
            for path in (reference / "made" / "out").iterdir()
            if PARTITION.fullmatch(path.name)
        }

    def judge(self, crash: Crash, root: Path) -> str:
        out = root / "made" / "out"
        there = _contents(out) if out.exists() else {}
        if not crash.ended and SIGN in there:
            there |= {CLEAN_STOP: self.wanted[CLEAN_STOP]}  # without it a broker goes over the logs
            there = {name: content for name, content in there.items() if not name.endswith(".tmp")}
            there.pop(OUTPUT_RECORD, None)  # a broker does not look at it, and the next run takes it away
        if (crash.ended or SIGN in there) and there != self.wanted:
            wrong = sorted(
                name for name in there.keys() | self.wanted.keys() if there.get(name) != self.wanted.get(name)
            )
            return f"a broker would start on it, or the command had ended, and {wrong[:5]} are not as they should be"
        for name, log in self.logs.items():
            if (out / name).exists() and kafka_load(out / name) != log:
                return f"{name} is in its place and not whole"
        return "" if crash.ended or _contents(out, but=OUTPUT_RECORD) == self.wanted else self._again(root)

    def _again(self, root: Path) -> str:
        """The same command goes on, whatever is there."""
        list(programs.compact_out(self._name, root))
        there = _contents(root / "made" / "out")
        wrong = sorted(name for name in there.keys() | self.wanted.keys() if there.get(name) != self.wanted.get(name))
        return f"the same command went on, and {wrong[:5]} are not as they should be" if wrong else ""


class Export:
    """An export to new brokers: a folder in its place is whole, and the same command goes on, whatever is there."""

    program = "export"

    def __init__(self, place: Path) -> None:
        self._place = place
        self.wanted: dict[str, bytes | None] = {}
        self.goes_on = True
        """Whether the same command is tried, which takes longest."""

    def prepare(self, root: Path) -> None:
        with redirect_stdout(io.StringIO()):
            programs.write_lake(root.parent / programs.GIVEN)
        reference = self._place / "reference"
        shutil.copytree(root.parent / programs.GIVEN, self._place / programs.GIVEN)
        for place in (root, reference):
            for number, name in enumerate(programs.EXPORTS, start=1):
                (place / name).mkdir(parents=True)
                (place / name / SIGN).write_text(f"version=1\nnode.id={number}\n")
                (place / name / checkpoints.BOOTSTRAP).write_bytes(programs.BOOTSTRAP.read_bytes())
        self.wanted = self._exported(reference)

    def judge(self, crash: Crash, root: Path) -> str:
        there = _contents(root)
        if problem := self._in_place(there) or self._of_checkpoints(root):
            return problem
        if not crash.ended and there != self.wanted:
            if not self.goes_on:
                return ""
            there = self._exported(root)
        wrong = sorted(name for name in there.keys() | self.wanted.keys() if there.get(name) != self.wanted.get(name))
        return f"the command had ended, and {wrong[:5]} are not as they should be" if wrong else ""

    def _of_checkpoints(self, root: Path) -> str:
        """What they say is said of a log that is there: a broker would take it for the state of an empty one."""
        for path in sorted(path for name in programs.EXPORTS for path in (root / name).glob("*-checkpoint")):
            lost = [name for name in map("%s-%d".__mod__, _offsets(path)) if not (path.parent / name).is_dir()]
            if lost:
                return f"{path.parent.name}/{path.name} tells of {lost}, which is not there"
        return ""

    def _exported(self, root: Path) -> dict[str, bytes | None]:
        with redirect_stdout(io.StringIO()):
            list(programs.export_lake(root))
        return _contents(root)

    def _in_place(self, there: dict[str, bytes | None]) -> str:
        places = {f"{place}/{name}" for place in programs.EXPORTS for name in ("t-0", "u-0")}
        for folder in sorted(places & there.keys()):
            for name in (name for name in there.keys() | self.wanted.keys() if name.startswith(f"{folder}/")):
                if there.get(name) != self.wanted.get(name):
                    return f"{folder} is in its place, and {name} is not as it should be"
        return ""


def _contents(directory: Path, but: str = "") -> dict[str, bytes | None]:
    files = [path for path in sorted(directory.rglob("*")) if path.name != but]
    return {
        str(path.relative_to(directory)): None if path.is_dir() else path.read_bytes()
        for path in files
        if not path.name.endswith(LIFTED)
    }


class GuardsJournal(Judge):
    """What a method of the journal has returned from is on the disk, and nothing is there in halves."""

    program = "journal"

    def __init__(self, place: Path) -> None:
        """Of a journal that nothing happens to, after each of its steps."""
        self.steps: list[str] = []
        place.mkdir(parents=True)
        for _ in programs.write_journal(place):
            self.steps.append(_dump(place))

    def judge(self, crash: Crash, root: Path) -> str:
        done = len(crash.said)
        path = root / "state" / "guard" / "journal.sqlite"
        if done:
            may = self.steps[done - 1 : done + 1]
            if not path.exists():
                return f"after {crash.said[-1]!r} the journal is gone"
            try:
                left = _dump(root)
            except HeadstoneError as error:
                return f"after {crash.said[-1]!r}: {error}"
            if left not in may:
                return f"after {crash.said[-1]!r} and {done} steps the journal says {left}"
        with Journal.open(path, cluster_id=programs.CLUSTER) as journal:
            journal.note_fact("again", "written")
            return "" if journal.fact("again") == "written" else "the journal does not take anything any more"


def _dump(root: Path) -> str:
    with Journal.open(root / "state" / "guard" / "journal.sqlite", cluster_id=None) as journal:
        return repr((journal.lease(), journal.changes(), journal.topics(), journal.alarms()))


class Objects(Judge):
    """Each object is there whole or not at all, from when its step was over; and gone from then, too."""

    program = "objects"

    def judge(self, crash: Crash, root: Path) -> str:
        done = len(crash.said)
        if done and not (root / programs.OBJECTS).is_dir():
            return f"after {crash.said[-1]!r} the store is gone"
        store = Store.open(f"file://{root / programs.OBJECTS}")
        objects = {path: store.read(path, 0, store.size(path)) for path in store.list()}
        before, after = (programs.OBJECTS_AFTER[min(n, len(programs.OBJECTS_AFTER) - 1)] for n in (done, done + 1))
        wrong = sorted(
            path
            for path in objects.keys() | before.keys() | after.keys()
            if objects.get(path) not in (before.get(path), after.get(path))
        )
        return f"after {crash.said[-1:]} {wrong} are not as they were, nor as they should be" if wrong else ""


class OffsetMaps(Judge):
    """Whoever goes on with a restore finds the map of before or the new one, and the new one from when it was written."""

    program = "offset map"

    def judge(self, crash: Crash, root: Path) -> str:
        done = len(crash.said)
        try:
            found = read_map(root / programs.OFFSET_MAP)
        except UsageError as error:
            return str(error)
        maps = (None, *programs.OFFSET_MAPS)
        return "" if found in maps[done : done + 2] else f"after {crash.said[-1:]} the map is another one"


class Views(Judge):
    """Whoever reads the file finds the one of before or the new one, and the new one from when it was written."""

    program = "view"

    def judge(self, crash: Crash, root: Path) -> str:
        done, file = len(crash.said), root / programs.VIEW
        views = (None, *([key.encode()] * 2 for key in programs.VIEWS))
        try:
            left = pq.read_table(file)["key"].to_pylist() if file.exists() else None
        except pa.ArrowException as error:
            return str(error)
        return "" if left in views[done : done + 2] else f"after {crash.said[-1:]} the file has {left}"


class Lake:
    """After each command its records are there, and all that the metastore points at; a lost metastore is rebuilt no older."""

    program = "lake"

    def __init__(self) -> None:
        tables: dict[str, bytes | None] = {}
        grown = []
        history = History()
        for log in programs.LAKE_LOGS:
            history.append(log)
            for batch in (batch for segment in history.segments for batch in segment.batches):
                for entry in batch.records:
                    assert entry.key is not None
                    tables[entry.key.decode()] = entry.value
            grown.append({key: value.decode() for key, value in tables.items() if value is not None})
            history.roll()
        none: dict[str, str] = {}
        others = [{"x": f"v{number}"} for number in range(len(grown))]
        self.steps = [("", none, none), ("init", none, none)]
        self.steps += [("ingest", table, other) for table, other in zip(grown, others, strict=True)]
        self.steps += [("compact", grown[-1], others[-1]), ("topics", grown[-1], none), *[("gc", grown[-1], none)] * 3]

    def prepare(self, root: Path) -> None:
        programs.write_lake_logs(root.parent / programs.GIVEN)

    def judge(self, crash: Crash, root: Path) -> str:
        done = len(crash.said)
        assert crash.said == tuple(name for name, _, _ in self.steps[1 : done + 1])
        lake = root / programs.LAKE
        if not done:
            return ""  # a lake that was not made yet
        problem = self._read(lake, done)
        if problem:
            return problem
        code, told = _headstone("lake", "compact", str(lake), "--all", "--now-ms", LATER)
        if code:
            return f"compact ends with {code}: {told}"
        for database in lake.glob("metastore.db*"):
            database.unlink()
        code, told = _headstone("lake", "rebuild", str(lake))
        if code:
            return f"rebuild ends with {code}: {told}"
        problem = self._read(lake, done)
        return problem and f"rebuilt: {problem}"

    def _read(self, lake: Path, done: int) -> str:
        for column, topic in ((1, "t"), (2, "u")):
            left = _table(lake, topic)
            may = [step[column] for step in self.steps[done : done + 2]]
            if left not in may:
                return f"after {done} commands, the last {self.steps[done][0]!r}: topic {topic} reads {left}, not {may}"
        return ""


def _table(lake: Path, topic: str) -> dict[str, str] | str:
    code, told = _headstone("lake", "topics", str(lake), "list", "--output", "json")
    if code:
        return told
    if topic not in {each["topic"] for each in json.loads(told)["topics"]}:
        return {}
    code, told = _headstone("lake", "read", str(lake), topic, "--view", "table", "--output", "json")
    if code:
        return told
    return {row["key"]: row["value"] for row in map(json.loads, told.splitlines())}


def _headstone(*command: str) -> tuple[int, str]:
    """Exit code, and its document or what it has met."""
    from headstone.cli.main import main

    out, told = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(told):
        code = main(list(command))
    return code, told.getvalue()[-800:] if code else out.getvalue()


JUDGES: dict[str, Callable[[Path], Judge]] = {
    **{f"in place, {name}": partial(InPlace, name) for name in programs.IN_PLACE},
    **{f"out, {name}": partial(Out, name) for name in programs.OUT},
    "journal": GuardsJournal,
    "objects": lambda place: Objects(),
    "export": Export,
    "lake": lambda place: Lake(),
    "offset map": lambda place: OffsetMaps(),
    "view": lambda place: Views(),
}


def interrupted_swaps(crashes: Sequence[Crash]) -> list[Crash]:
    """Those that a recovery has something to do with, the most first."""
    return sorted((crash for crash in crashes if _steps(crash)), key=_steps, reverse=True)


def interrupted_of_each_kind(crashes: Iterable[Crash]) -> dict[str, Crash]:
    """Of each thing that a recovery may have to do, the one with most of it."""
    found: dict[str, Crash] = {}
    for crash in crashes:
        for kind in _kinds(crash):
            if kind not in found or _steps(crash) > _steps(found[kind]):
                found[kind] = crash
    return found


def _steps(crash: Crash) -> int:
    return sum(path.endswith((".cleaned", ".swap", ".deleted")) for path in crash.tree)


def _kinds(crash: Crash) -> set[str]:
    kinds = set()
    for directory in {path.rpartition("/")[0] for path in crash.tree}:
        names = [path.rpartition("/")[2] for path in crash.tree if path.rpartition("/")[0] == directory]
        files = {(match[1], match[2], match[3] or "") for match in map(NUMBERED.fullmatch, names) if match}
        stages = {stage for _, _, stage in files}
        logs = {(base, stage) for base, suffix, stage in files if suffix == "log"}
        log_stages = {stage for _, stage in logs}
        lost = {base for base, stage in logs if stage == ".deleted"} - {
            base for base, stage in logs if stage != ".deleted"
        }
        left = {base for base, suffix, stage in files if suffix.endswith("index") and stage == ""}
        if {".cleaned", ".swap"} <= stages:
            kinds.add("new files are thrown away")
        elif ".swap" in log_stages and ".deleted" not in log_stages:
            kinds.add("old files are still there")
        elif ".swap" in stages - log_stages:
            kinds.add("indexes get their names")
        elif ".swap" not in stages and lost & left:
            kinds.add("indexes of what was deleted go")
    return kinds
