"""Signals: no handler raises, whoever works hears of them at safe points, and every process ends in seconds with its code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from headstone.api import stopping
from headstone.api.stopping import SIGNALS, run_heard, soft_stop
from headstone.cli import synth
from headstone.cli.leftovers import BEGUN, NOTHING, left_by
from headstone.cli.main import main, parsed
from headstone.interruption import Interrupted, asked, check, result_of, sleep, until_asked

NEVER_S = 600.0


@pytest.fixture(autouse=True)
def _no_signal_is_ignored() -> Iterator[None]:
    """Below `nohup` SIGHUP is, and stays so."""
    ignored = [number for number in SIGNALS if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in SIGNALS]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_gives_up_a_verb_that_has_no_orderly_end(number: signal.Signals) -> None:
    before = handlers()

    def work() -> int:
        signal.raise_signal(number)
        with pytest.raises(Interrupted):
            sleep(NEVER_S)
        with pytest.raises(Interrupted):
            check()
        return 7

    assert run_heard(work, left_behind=str) == 7
    assert handlers() == before


def test_the_first_signal_asks_and_the_second_gives_up(capfd: pytest.CaptureFixture[str]) -> None:
    before, counts = handlers(), list[int]()

    def work() -> int:
        with soft_stop("stopping", counts.append) as stop:
            assert not stop()
            signal.raise_signal(signal.SIGTERM)
            assert until_asked(NEVER_S)
            check()
            assert (stop(), asked(), stop.given_up()) == (True, True, False)
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(Interrupted):
                sleep(NEVER_S)
            assert stop.given_up()
        return 0

    assert run_heard(work, left_behind=str) == 0
    assert (counts, capfd.readouterr().err) == ([1, 2], "stopping\n")
    assert handlers() == before


def test_what_a_verb_raises_reaches_its_caller() -> None:
    def work() -> int:
        raise LookupError("of the verb")

    with pytest.raises(LookupError, match="of the verb"):
        run_heard(work, left_behind=str)


def test_a_call_on_another_thread_touches_no_handler_and_is_stopped_by_nobody() -> None:
    """As of a library, or a notebook that runs cells on threads."""
    seen: list[object] = []

    def work() -> int:
        with soft_stop("stopping") as stop:
            seen.extend([handlers(), stop(), asked()])
        return 5

    thread = threading.Thread(target=lambda: seen.append(run_heard(work, left_behind=str)))
    thread.start()
    thread.join()
    assert seen == [handlers(), False, False, 5]


def test_a_future_that_never_comes_is_left_when_the_run_is_given_up() -> None:
    """What raised in the midst of `Future.result`, with the future's lock held, stood for ever: handlers did, and do not."""
    future: Future[int] = Future()

    def work() -> int:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted):
            result_of(future)
        future.set_result(4)  # takes the lock
        return future.result()

    assert run_heard(work, left_behind=str) == 4


def test_a_signal_within_a_lock_of_the_future_that_is_waited_for_raises_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The deadlock as it was seen, made to happen: the signal comes while the lock of the future of spark-start is held."""
    began = threading.Event()
    future: Future[int] = Future()

    class Condition(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            if threading.current_thread().name == "verb":
                os.kill(os.getpid(), signal.SIGINT)
                began.set()
            return super().wait(timeout)

    future._condition = Condition()

    def start() -> None:
        began.wait()
        future.set_result(9)

    starter = threading.Thread(target=start, name="spark-start")
    starter.start()
    try:
        assert run_heard(future.result, left_behind=str) == 9
    finally:
        starter.join()


def test_in_somebody_elses_process_a_verb_that_cannot_be_ended_is_left(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stopping, "GRACE_S", 0.1)
    before, over = handlers(), threading.Event()

    def work() -> int:
        signal.raise_signal(signal.SIGINT)
        over.wait()  # as in a call that nobody can end
        return 0

    with pytest.raises(KeyboardInterrupt):
        run_heard(work, left_behind=lambda: "what is left")
    over.set()
    assert "what is left; what still ran is left in the middle of it" in capfd.readouterr().err
    assert handlers() == before


PROGRAM = """
import os, signal, subprocess, sys, threading
from headstone.api import stopping
from headstone.cli.main import VERBS
from headstone.cli.start import start

def add_arguments(parser): pass

def lingering():
    while signal.getsignal(signal.SIGTERM) is stopping._noted:
        os.sched_yield()
    print("over", flush=True)
    threading.Event().wait()

def run(arguments, output):
    child = subprocess.Popen(["sleep", "600"])
    print(child.pid, flush=True)
    {body}

module = type(sys)("headstone.cli.inspect")
module.add_arguments, module.run, module.EXAMPLES, module.EXIT_CODES = add_arguments, run, (), {{}}
sys.modules["headstone.cli.inspect"] = module
sys.argv = ["headstone", "inspect"]
start()
"""


@pytest.fixture
def program() -> Iterator[list[subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []
    yield running
    for process in running:
        process.kill()
        process.communicate()


def begun(running: list[subprocess.Popen[str]], body: str) -> tuple[subprocess.Popen[str], int]:
    """A process `headstone inspect` whose verb does this; and the process that it has started."""
    command = [sys.executable, "-c", PROGRAM.format(body=body)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    running.append(process)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def is_running(process: int) -> bool:
    status = Path(f"/proc/{process}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


@pytest.mark.parametrize("signals", [1, 2])
def test_a_verb_that_hears_nothing_is_ended_with_what_it_has_started(
    program: list[subprocess.Popen[str]], signals: int
) -> None:
    """After some seconds, or at one signal more."""
    process, child = begun(program, "threading.Event().wait()")
    for _ in range(signals):
        process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, is_running(child)) == (3, False)
    assert f"headstone inspect: interrupted; {NOTHING}" in err


def test_a_full_pipe_keeps_nobody(program: list[subprocess.Popen[str]]) -> None:
    """Nobody reads what is said: not the verb, which has filled the pipe, and not the last words."""
    process, child = begun(program, "sys.stderr.write('x' * (1 << 22))")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 3
    assert not is_running(child)


def test_a_signal_behind_the_end_does_not_change_the_exit_code(program: list[subprocess.Popen[str]]) -> None:
    """Another thread, which nobody can end, keeps the process; its result is known by then."""
    body = "child.kill(); child.wait(); threading.Thread(target=lingering, daemon=False).start(); return 1"
    process, _ = begun(program, body)
    assert process.stdout is not None
    assert process.stdout.readline() == "over\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 1


def test_signals_of_forked_children_are_not_the_verbs(program: list[subprocess.Popen[str]]) -> None:
    """Ctrl-C goes to all processes of the terminal: the first one still asks only."""
    body = "os.fork() or (signal.raise_signal(signal.SIGINT), os._exit(0)); os.wait(); child.kill(); return 1"
    process, _ = begun(program, body)
    assert process.wait(60) == 1


def test_what_is_left_is_the_last_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*given: object) -> int:
        raise Interrupted

    monkeypatch.setattr(synth, "run", interrupted)
    assert main(["synth", str(tmp_path / "new")]) == 3
    text = f"what it has written is not whole, remove {tmp_path / 'new'}"
    assert capfd.readouterr().err.splitlines()[-1] == f"headstone synth: interrupted; {text}"


def test_a_process_that_was_given_up_waits_for_no_thread_of_a_pool() -> None:
    """Such as the one that waits for Spark's JVM: Python would wait for it at its end."""
    program = """
import signal, threading
from headstone.api.stopping import own_process, run_heard
from headstone.interruption import Interrupted, Threads, sleep

def work():
    Threads(1).submit(threading.Event().wait)
    signal.raise_signal(signal.SIGTERM)
    try:
        sleep(600)
    except Interrupted:
        return 3

with own_process() as signals:
    signals.end_process_with(run_heard(work, left_behind=str))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == 3


def test_whoever_waits_for_a_process_that_was_ended_hears_how_it_ended() -> None:
    program = """
import subprocess
from headstone.api.own_processes import end_descendants

child = subprocess.Popen(["sleep", "600"])
end_descendants()
print(child.wait())
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=120, capture_output=True, text=True, check=True)
    assert done.stdout == "-9\n"


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("inspect logs", NOTHING),
        ("compact logs --dry-run", NOTHING),
        ("compact logs --in-place", BEGUN),
        ("lake topics mylake", NOTHING),
        ("lake topics mylake describe orders", NOTHING),
        ("lake topics mylake drop orders --dry-run", NOTHING),
        ("lake topics mylake drop orders", BEGUN),
        ("lake gc mylake", NOTHING),
        ("lake gc mylake --apply", BEGUN),
    ],
)
def test_a_verb_that_changes_nothing_says_so_when_it_is_interrupted(words: str, left: str) -> None:
    assert left_by(parsed(words.split())) == left
