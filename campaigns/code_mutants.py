"""Applies wrong code to a copy of the tree, one change at a time, runs the tests that should notice, prints what lived.

    python -m campaigns.code_mutants [--room ROOM] [--only NAME] [--quick] [--jobs N] [--output text|json]

The changes are in `campaigns/mutants/<room>.toml`. Exit code 0: every mutant is killed, or lives for a written reason; 1: one
lives without, or the reason is stale because a test did notice; 2: a list is wrong, its tests fail without any change, or
a mutant does not run at all. The tree itself is never changed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue

from campaigns.kernel_caches import importers, set_aside
from campaigns.mutant_lists import Mutant, misfits, node_ids, read_lists

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("src", "tests", "testbed", "benchmarks", "campaigns", "examples", "docs", "README.md", "pyproject.toml")
TIMEOUT_S = 300.0
"""Kills a mutant that loops for ever; the named tests take seconds."""
BASELINE_TIMEOUT_S = 3600.0
QUICK = ("-m", "not thorough")
"""The tests that `make test` runs."""
KILLED, LIVES, INVALID = "killed", "lives", "invalid"
NOT_RUN = re.compile(r"^E +(ImportError|NameError|SyntaxError|UnboundLocalError|numba\.core\.errors\.)", re.MULTILINE)
"""Broken rather than wrong: any test would notice, so the mutant says nothing about the tests."""
DID_NOT_RUN = "no test ran"
A_SECOND_LATER_NS = 2 * 10**9
NOTICED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`by` is the first test that noticed, `timeout`, or why the mutant is invalid."""

    mutant: Mutant
    verdict: str
    by: str
    seconds: float

    @property
    def wanted(self) -> bool:
        return self.verdict == (KILLED if self.mutant.lives is None else LIVES)

    def line(self) -> str:
        if self.verdict == KILLED:
            verdict = f"killed by {self.by}" + ("" if self.wanted else f"; STALE: {self.mutant.lives}")
        elif self.verdict == LIVES:
            verdict = f"lives: {self.mutant.lives}" if self.wanted else "LIVES"
        else:
            verdict = f"INVALID: {self.by}"
        return f"{self.mutant.room:13} {self.mutant.name:44} {self.seconds:5.0f} s  {verdict}"


@dataclass(slots=True)
class Children:
    """The processes of this campaign, each the head of its own group, so that an interrupt ends them with their children."""

    running: set[subprocess.Popen[str]] = field(default_factory=set)
    stopped: bool = False

    def run(self, command: list[str], *, cwd: Path, env: dict[str, str], seconds: float) -> tuple[int | None, str]:
        """Returns the exit code, None after a timeout, and everything printed."""
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            child = subprocess.Popen(
                command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True,
                start_new_session=True,
            )  # fmt: skip
            self.running.add(child)
            if self.stopped:
                self._end(child)
            try:
                code: int | None = child.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                self._end(child)
            output.seek(0)
            return code, output.read()

    def end_all(self) -> None:
        self.stopped = True
        for child in list(self.running):
            self._end(child)

    def _end(self, child: subprocess.Popen[str]) -> None:
        self.running.discard(child)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One copy of the tree with its own cache of kernels, for one job at a time."""

    root: Path
    cache: Path
    children: Children
    chosen: tuple[str, ...] = ()
    """Selects among the tests, as options of pytest: all of them, or QUICK."""

    def pytest(self, arguments: list[str], *, seconds: float, bytecode: bool) -> tuple[int | None, str]:
        plugins = ["-p", "no:cacheprovider", "-p", "campaigns.plain_examples"]
        command = [sys.executable, "-m", "pytest", "-q", *plugins, "--hypothesis-seed=0", *arguments, *self.chosen]
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self.root / "src"), str(self.root), str(ROOT)]),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "NUMBA_CACHE_DIR": str(self.cache),
            # A mutant's byte code could be taken for the next one's: same file, same size, same second.
            "PYTHONDONTWRITEBYTECODE": "" if bytecode else "1",
        }
        return self.children.run(command, cwd=self.root, env=env, seconds=seconds)

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        path = self.root / mutant.file
        text, stat = path.read_text(encoding="utf-8"), path.stat()
        stale = importers(self.root, mutant.file)
        with set_aside(self.cache, stale, self.cache.with_name(self.cache.name + ".aside")):
            path.write_text(mutant.applied(text), encoding="utf-8")
            # Otherwise the byte code of the right file would be taken for the mutant's: same size, and only the second is
            # compared.
            os.utime(path, ns=(stat.st_atime_ns, max(time.time_ns(), stat.st_mtime_ns + A_SECOND_LATER_NS)))
            try:
                yield
            finally:
                path.write_text(text, encoding="utf-8")
                os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def run(self, mutant: Mutant) -> Outcome:
        started = time.monotonic()
        with self.mutated(mutant):
            code, output = self.pytest(["-x", *mutant.tests], seconds=TIMEOUT_S, bytecode=False)
        verdict, by = judged(code, output)
        return Outcome(mutant=mutant, verdict=verdict, by=by, seconds=time.monotonic() - started)


def copied(root: Path, to: Path, children: Children, chosen: tuple[str, ...] = ()) -> Copy:
    tree = to / "tree"
    tree.mkdir(parents=True)
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, tree / name)
    cache = to / "numba"
    cache.mkdir()
    return Copy(root=tree, cache=cache, children=children, chosen=chosen)


def judged(code: int | None, output: str) -> tuple[str, str]:
    """The verdict and its cause, from pytest's exit code and everything it printed."""
    noticed = NOTICED.search(output)
    by = noticed[1] if noticed else f"exit code {code}"
    broken = NOT_RUN.search(output)
    if code is None:
        return KILLED, "timeout"
    if code == 0:
        return LIVES, ""
    if broken:
        return INVALID, f"{broken[1].rstrip('.')} in {by}"
    # A process that died has no exit code from pytest; a mutant may well crash it.
    return (KILLED, by) if code == 1 or code < 0 else (INVALID, f"pytest did not run: {by}")


def baseline(copy: Copy, mutants: list[Mutant]) -> dict[tuple[str, ...], str]:
    """Selections of tests that prove nothing, because they fail or run nothing on the unchanged tree, and why.

    In as few runs as possible: all paths and tests in one, `-k` of the same paths in one; only those of a failed run are run by
    themselves. If a file cannot be collected, all are, because pytest runs nothing then."""

    def failed(arguments: Sequence[str]) -> list[str]:
        return _failed(*copy.pytest(list(arguments), seconds=BASELINE_TIMEOUT_S, bytecode=True))

    selections = sorted({mutant.tests for mutant in mutants})
    plain = [tests for tests in selections if node_ids(tests) == list(tests)]
    useless: dict[tuple[str, ...], str] = {}
    if plain:
        names = failed(sorted({argument for tests in plain for argument in tests}))
        failures = {tests: [name for name in names if name.startswith((*tests, DID_NOT_RUN))] for tests in plain}
        if any("::" not in name for name in names):  # files, or none at all
            failures = {tests: failed(tests) for tests in plain}
        useless = {tests: some[0] for tests, some in failures.items() if some}
    by_paths: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for tests in selections:
        if tests not in plain:
            by_paths.setdefault(tests[:-2] if tests[-2] == "-k" else tests, []).append(tests)
    for paths, some in by_paths.items():
        together = some[0] if len(some) == 1 else (*paths, "-k", " or ".join(f"({tests[-1]})" for tests in some))
        if names := failed(together):
            alone = {tests: names if len(some) == 1 else failed(tests) for tests in some}
            useless |= {tests: found[0] for tests, found in alone.items() if found}
    return useless


def _failed(code: int | None, output: str) -> list[str]:
    """Names of the tests that failed, or a remark that none ran: a run in which nothing passed is none."""
    if code == 0 and re.search(r"\b\d+ passed\b", output):
        return []
    return NOTICED.findall(output) or [f"{DID_NOT_RUN} (exit code {code})"]


def campaign(
    root: Path, mutants: list[Mutant], *, jobs: int, tell: Callable[[Outcome], None], chosen: tuple[str, ...] = ()
) -> list[Outcome]:
    """Outcomes in the order of the lists."""
    children = Children()
    with tempfile.TemporaryDirectory(prefix="headstone-mutants-") as here:
        copies: SimpleQueue[Copy] = SimpleQueue()
        first = copied(root, Path(here) / "0", children, chosen)
        try:
            useless = baseline(first, mutants)
            outcomes = {}
            for mutant in mutants:
                if mutant.tests in useless:
                    by = f"without any change: {useless[mutant.tests]}"
                    outcomes[mutant.name] = Outcome(mutant=mutant, verdict=INVALID, by=by, seconds=0.0)
                    tell(outcomes[mutant.name])
            copies.put(first)
            for job in range(1, jobs):
                copies.put(copied(root, Path(here) / str(job), children, chosen))
            rest = [mutant for mutant in mutants if mutant.name not in outcomes]
            outcomes |= _run_all(copies, children, rest, jobs=jobs, tell=tell)
        finally:
            children.end_all()
    return [outcomes[mutant.name] for mutant in mutants]


def _run_all(
    copies: SimpleQueue[Copy], children: Children, mutants: list[Mutant], *, jobs: int, tell: Callable[[Outcome], None]
) -> dict[str, Outcome]:
    def run(mutant: Mutant) -> Outcome:
        copy = copies.get()
        try:
            return copy.run(mutant)
        finally:
            copies.put(copy)

    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for future in as_completed([pool.submit(run, mutant) for mutant in mutants]):
                outcome = future.result()
                outcomes[outcome.mutant.name] = outcome
                tell(outcome)
        except KeyboardInterrupt:
            # Ends running processes, so that the pool can be left and the copies removed.
            children.end_all()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return outcomes


def exit_code(outcomes: list[Outcome]) -> int:
    if any(outcome.verdict == INVALID for outcome in outcomes):
        return 2
    return 0 if all(outcome.wanted for outcome in outcomes) else 1


def summary(outcomes: list[Outcome], seconds: float) -> list[str]:
    lines = [f"{'':13} {'mutants':>8} {'killed':>8} {'lives':>8} {'invalid':>8}"]
    for room in sorted({outcome.mutant.room for outcome in outcomes}):
        count = Counter(outcome.verdict for outcome in outcomes if outcome.mutant.room == room)
        lines.append(f"{room:13} {count.total():8} {count[KILLED]:8} {count[LIVES]:8} {count[INVALID]:8}")
    count = Counter(outcome.verdict for outcome in outcomes)
    lines.append(
        f"{'':13} {count.total():8} {count[KILLED]:8} {count[LIVES]:8} {count[INVALID]:8}   in {seconds:.0f} s"
    )
    return lines + [outcome.line() for outcome in outcomes if not outcome.wanted]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--room", action="append", help="only mutants of this room; may be repeated")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this mutant; may be repeated")
    parser.add_argument("--quick", action="store_true", help="with the tests of `make test` only")
    parser.add_argument("--jobs", type=int, default=1, help="copies that run at the same time (default 1)")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    mutants, problems = read_lists(ROOT)
    chosen = [
        mutant
        for mutant in mutants
        if (not arguments.room or mutant.room in arguments.room)
        and (not arguments.only or mutant.name in arguments.only)
    ]
    problems += misfits(ROOT, chosen) if chosen else ["no mutant of this room and name"]
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 2
    started, done = time.monotonic(), 0
    progress = sys.stderr if arguments.output == "json" else sys.stdout

    def tell(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        print(f"{done:3}/{len(chosen)} {outcome.line()}", file=progress, flush=True)

    print(f"{len(chosen)} mutants; first their tests on the tree as it is", file=progress, flush=True)
    outcomes = campaign(ROOT, chosen, jobs=max(1, arguments.jobs), tell=tell, chosen=QUICK if arguments.quick else ())
    seconds = time.monotonic() - started
    if arguments.output == "json":
        rows = [asdict(outcome) | {"wanted": outcome.wanted} for outcome in outcomes]
        print(json.dumps({"seconds": round(seconds, 1), "outcomes": rows}, indent=2))
    else:
        print("\n".join(summary(outcomes, seconds)))
    return exit_code(outcomes)


if __name__ == "__main__":
    # Also if a shell started it in the background; and for the other signal.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
