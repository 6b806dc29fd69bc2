"""`make test` and `make test-all`: every part, beside each other as far as the cores go, and one summary of all at the end.

    python -m tests.run [--all] [PART …]        parts and what they are: PARTS

A part is a process of its own; what it prints goes to build/tests/PART.log, and what fails is told at once. A red part does not
keep the others from running. Without --all, tests marked `thorough` are left out (CONTRIBUTING.md says which belong there).
Exit code: 0 if every part that was asked for is green, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headstone.units import duration

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "tests"
CORES = 2
BIN = Path(sys.executable).parent
LOOK_SECONDS, TELL_SECONDS = 1.0, 20.0
LINES_OF_A_FAILURE, LINES_OF_A_LOG = 25, 15
TESTS_FAILED = int(pytest.ExitCode.TESTS_FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`cores` it keeps busy. Without `folders` it runs `command` as it is."""

    name: str
    cores: int
    folders: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    own_process: bool = False
    """A process has one Spark session at a time: its tests run one after the other."""


SPARK = ("tests/clusters", "tests/spark", "tests/cli", "tests/examples")
BROKERS = "tests/brokers"
PARTS = (
    Part(name="style", cores=1, command=(f"{BIN}/ruff", "check", "--quiet")),
    Part(name="format", cores=1, command=(f"{BIN}/ruff", "format", "--check", "--quiet")),
    Part(name="layers", cores=1, command=(f"{BIN}/lint-imports",)),
    Part(name="types", cores=1, command=(f"{BIN}/mypy",)),
    *(Part(name=Path(folder).name, cores=1, folders=(folder,), own_process=True) for folder in SPARK),
    Part(name="rooms", cores=2, folders=("tests", *(f"--ignore={folder}" for folder in (*SPARK, BROKERS)))),
    Part(name="brokers", cores=2, folders=(BROKERS,)),
)
"""Long ones that keep one core busy come first, so that two of them run side by side."""


@dataclass(slots=True, kw_only=True)
class Run:
    """A part that was started. `told` is how far its events were read."""

    part: Part
    process: subprocess.Popen[bytes]
    started: float
    told: int = 0
    count: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    """By reason."""
    seconds: float = 0.0

    @property
    def green(self) -> bool:
        return self.process.returncode == 0

    @property
    def explained(self) -> bool:
        """Whether the tests that failed are all that went wrong: pytest ends with another code if it broke off."""
        return bool(self.failed) and self.process.returncode == TESTS_FAILED

    @property
    def standing(self) -> str:
        done = sum(self.outcomes.values())
        red = f", {len(self.failed)} red" if self.failed else ""
        return f"{self.part.name} {done} of {self.count}{red}" if self.count else self.part.name


def main(words: Sequence[str] | None = None) -> int:
    arguments = parsed(words)
    wanted = [part for part in PARTS if not arguments.parts or part.name in arguments.parts]
    # SIGINT too: whoever starts this in the background has it ignored, by all parts as well.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    began, done = time.monotonic(), list[Run]()
    try:
        for run in all_parts(wanted, every_test=arguments.all):
            done.append(run)
            say(f"{'green' if run.green else 'RED'}: {run.standing}, {told_seconds(run.seconds)}")
            if not run.green and not run.explained:
                say(tail(log_of(run.part)))
    except KeyboardInterrupt:
        say("interrupted")
    print("\n".join(summary(wanted, done, time.monotonic() - began)))
    return 0 if len(done) == len(wanted) and all(run.green for run in done) else 1


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.run", description="runs the tests in parts, and sums them up"
    )
    parser.add_argument("--all", action="store_true", help="those marked `thorough` too")
    parser.add_argument(
        "parts", metavar="PART", nargs="*", help="only these: " + ", ".join(part.name for part in PARTS)
    )
    arguments = parser.parse_args(words)
    if unknown := set(arguments.parts) - {part.name for part in PARTS}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return arguments


def all_parts(wanted: Sequence[Part], *, every_test: bool) -> Generator[Run, None, None]:
    """Each as it ends. Whoever stops listening, or is interrupted, leaves no process behind."""
    waiting, running, ended = list(wanted), list[Run](), threading.Event()
    told = time.monotonic()
    try:
        while waiting or running:
            while (part := next_of(waiting, running)) is not None:
                waiting.remove(part)
                running.append(begun(part, every_test=every_test))
                threading.Thread(target=_wake, args=(running[-1].process, ended), daemon=True).start()
            ended.wait(LOOK_SECONDS)
            ended.clear()
            for run in running:
                hear(run)
            if time.monotonic() - told > TELL_SECONDS:
                told = time.monotonic()
                say("; ".join(run.standing for run in running))
            for run in [run for run in running if run.process.poll() is not None]:
                hear(run)
                running.remove(run)
                run.seconds = time.monotonic() - run.started
                yield run
    finally:
        for run in running:
            end(run.process)


def _wake(process: subprocess.Popen[bytes], ended: threading.Event) -> None:
    process.wait()
    ended.set()


def next_of(waiting: Sequence[Part], running: Sequence[Run]) -> Part | None:
    free = CORES - sum(run.part.cores for run in running)
    return next((part for part in waiting if part.cores <= free), None)


def begun(part: Part, *, every_test: bool) -> Run:
    LOGS.mkdir(parents=True, exist_ok=True)
    events_of(part).unlink(missing_ok=True)
    command = part.command or (
        sys.executable, "-m", "pytest", "-p", "tests.events", *(() if part.own_process else ("-n", str(part.cores))),
        *(() if every_test else ("-m", "not thorough")), *part.folders,
    )  # fmt: skip
    environment = {**os.environ, "HEADSTONE_TEST_EVENTS": str(events_of(part))}
    with log_of(part).open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    say(f"begun: {part.name} ({log_of(part).relative_to(ROOT)})")
    return Run(part=part, process=process, started=time.monotonic())


def hear(run: Run) -> None:
    """What tests/events.py has written since."""
    path = events_of(run.part)
    if not path.exists():
        return
    with path.open("rb") as events:
        events.seek(run.told)
        for line in events:
            if not line.endswith(b"\n"):
                break
            run.told += len(line)
            take(run, json.loads(line))


def take(run: Run, event: dict[str, str | int]) -> None:
    if "count" in event:
        run.count = int(event["count"])
        return
    run.outcomes[str(event["outcome"])] += 1
    if event["outcome"] == "skipped":
        run.skipped[first_line(str(event["why"]))] += 1
    if event["outcome"] == "failed":
        run.failed.append(str(event["test"]))
        lines = str(event["why"]).splitlines()
        say(f"FAILED {event['test']}\n" + "\n".join(f"    {line}" for line in lines[-LINES_OF_A_FAILURE:]))


def summary(wanted: Sequence[Part], done: Sequence[Run], seconds: float) -> Iterator[str]:
    runs = {run.part.name: run for run in done}
    yield ""
    for part in wanted:
        run = runs.get(part.name)
        if run is None:
            yield f"  {'not ended':<10} {part.name}"
            continue
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(run.outcomes.items()))
        yield f"  {'green' if run.green else 'RED':<10} {part.name:<10} {told_seconds(run.seconds):>12}  {counts}"
        yield from (f"{'':<13}{test}" for test in run.failed)
        yield from (f"{'':<13}{count} skipped: {reason}" for reason, count in sorted(run.skipped.items()))
    red = [part.name for part in wanted if part.name not in runs or not runs[part.name].green]
    yield f"{'all green' if not red else 'RED: ' + ', '.join(red)}, {told_seconds(seconds)}"
    if red:
        yield "everything they printed: " + ", ".join(str(log_of(p).relative_to(ROOT)) for p in wanted if p.name in red)


def end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started: pytest's workers, brokers, Spark."""
    for asked in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, asked)
            process.wait(20)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def events_of(part: Part) -> Path:
    return LOGS / f"{part.name}.jsonl"


def log_of(part: Part) -> Path:
    return LOGS / f"{part.name}.log"


def tail(path: Path) -> str:
    return "\n".join(f"    {line}" for line in path.read_text(errors="replace").splitlines()[-LINES_OF_A_LOG:])


def first_line(text: str) -> str:
    return (text.splitlines() or ["no reason given"])[0]


def told_seconds(seconds: float) -> str:
    return duration(round(seconds) * 1000)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
