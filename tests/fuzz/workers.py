"""Owns the processes that run fuzz inputs: a crash, a hang or a hunger for memory ends a worker, not the run.

Each worker says which seed it is at, so that whatever ends it has a name. Knows nothing of what an input is.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

SECONDS_MAX = 60.0
MEMORY_BYTES_MAX = 1536 << 20
"""What a worker may take beyond what it has when it is warm."""
BLOCK = 50
POLL_S = 0.5
SHARED_MEMORY = Path("/dev/shm")


@dataclass(slots=True, kw_only=True)
class Findings:
    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[tuple[int, str]] = field(default_factory=list)
    slowest: tuple[float, int] = (0.0, 0)
    rss_bytes_max: int = 0

    def add(self, other: Findings) -> None:
        self.inputs += other.inputs
        self.outcomes += other.outcomes
        self.problems += other.problems
        self.slowest = max(self.slowest, other.slowest)
        self.rss_bytes_max = max(self.rss_bytes_max, other.rss_bytes_max)


class _Caught:
    """Any Exception becomes a finding: an input may raise whatever it manages to raise."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> _Caught:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> bool:
        self.error = error
        return isinstance(error, Exception)


def run_seed(seed: int, place: Path) -> tuple[str, list[str]]:
    """(outcome, problems) of one input."""
    from tests.fuzz.verdict import judge, make_input

    given = make_input(seed)
    with _Caught() as caught:
        verdict = judge(given, place)
        return verdict.outcome, [f"{problem} (after {', '.join(given.done)})" for problem in verdict.problems]
    shutil.rmtree(place, ignore_errors=True)
    error = caught.error
    last = traceback.extract_tb(error.__traceback__)[-1] if error else None
    where = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}" if last else ""
    return "raised", [f"{type(error).__name__}: {error} at {where} (after {', '.join(given.done)})"]


def run_seeds(first: int, end: int, jobs: int, tell: Callable[[Findings], None]) -> Findings:
    """Inputs [first, end), in blocks, on `jobs` processes; `tell` hears the sum after each block."""
    root = Path(tempfile.mkdtemp(dir=SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None))
    blocks = iter([(at, min(at + BLOCK, end)) for at in range(first, end, BLOCK)])
    found = Findings()
    workers = [_Worker(root / str(number)) for number in range(jobs)]
    try:
        busy = [worker for worker in workers if worker.take(next(blocks, None))]
        while busy:
            wait([worker.pipe for worker in busy] + [worker.process.sentinel for worker in busy], timeout=POLL_S)
            for worker in busy:
                for answer, block in worker.answers():
                    found.add(answer)
                    worker.take(block or next(blocks, None))
                    tell(found)
            busy = [worker for worker in busy if worker.busy]
    finally:
        for worker in workers:
            worker.stop()
        shutil.rmtree(root, ignore_errors=True)
    return found


class _Worker:
    """One process and the block it is at; a new process takes over after one that died."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._context = multiprocessing.get_context("spawn")
        self._seed = self._context.Value("q", -1)
        self._since = self._context.Value("d", 0.0)
        self._block: tuple[int, int] | None = None
        self._start()

    def _start(self) -> None:
        self.pipe, theirs = self._context.Pipe()
        self.process = self._context.Process(
            target=_work, args=(theirs, self._seed, self._since, self._place), daemon=True
        )
        self._seed.value = -1
        self.process.start()
        theirs.close()

    @property
    def busy(self) -> bool:
        return self._block is not None

    def take(self, block: tuple[int, int] | None) -> bool:
        self._block = block
        if block is not None:
            self.pipe.send(block)
        return self.busy

    def answers(self) -> Iterator[tuple[Findings, tuple[int, int] | None]]:
        """Findings of a block that is done; or of the seed that ended the process, and the rest of its block."""
        hung = self._seed.value >= 0 and time.monotonic() - self._since.value > SECONDS_MAX
        if self.pipe.poll() and not hung:
            answer = self._received()
            if answer is not None:
                yield answer, None
                return
        if hung or not self.process.is_alive():
            yield self._after_end(hung)

    def _received(self) -> Findings | None:
        try:
            return self.pipe.recv()  # type: ignore[no-any-return]
        except EOFError:
            return None

    def _after_end(self, hung: bool) -> tuple[Findings, tuple[int, int] | None]:
        self.process.kill()
        self.process.join()
        assert self._block is not None
        seed = max(self._seed.value, self._block[0])
        why = f"took more than {SECONDS_MAX} s" if hung else f"ended the process with code {self.process.exitcode}"
        shutil.rmtree(self._place, ignore_errors=True)
        self._start()
        rest = (seed + 1, self._block[1])
        found = Findings(inputs=seed + 1 - self._block[0], outcomes=Counter({"lost": 1}), problems=[(seed, why)])
        return found, rest if rest[0] < rest[1] else None

    def stop(self) -> None:
        self.process.kill()
        self.process.join()


def _work(pipe: Connection, seed: Any, since: Any, place: Path) -> None:
    warm_up(place)
    _limit_memory()
    while True:
        first, end = pipe.recv()
        found = Findings()
        for number in range(first, end):
            since.value = started = time.monotonic()
            seed.value = number
            outcome, problems = run_seed(number, place)
            found.outcomes[outcome] += 1
            found.problems += [(number, problem) for problem in problems]
            found.slowest = max(found.slowest, (time.monotonic() - started, number))
        seed.value = -1
        found.inputs = end - first
        found.rss_bytes_max = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        pipe.send(found)


def exit_code_of(body: Callable[[Path], None], place: Path) -> int | None:
    """Runs `body(place)` in a warm process of bounded memory; 0 if it came to its end."""
    process = multiprocessing.get_context("spawn").Process(target=_run_bounded, args=(body, place), daemon=True)
    process.start()
    process.join(SECONDS_MAX)
    process.kill()
    return process.exitcode


def _run_bounded(body: Callable[[Path], None], place: Path) -> None:
    warm_up(place / "warm")
    _limit_memory()
    body(place)


def warm_up(place: Path) -> None:
    """Compiled kernels are loaded, and both paths have run, before memory is limited."""
    from tests.fuzz.verdict import run_in_line

    run_in_line()
    for number in range(4):
        run_seed(number, place)


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES_MAX
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
