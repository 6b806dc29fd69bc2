"""One choice of engine, said the same way to every verb; and the question before a broker's own files are changed."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headstone.api.stopping import GRACE_S
from headstone.cli.engines import SMALL_BYTES, on_spark, tell_small
from headstone.cli.main import main, parsed, parser
from headstone.cli.output import Output
from headstone.errors import UsageError
from tests.cli.scenes import HEADSTONE, stopped_broker

VERBS = ["compact logs --dry-run", "inspect logs", "audit a b", "demo", "lake compact lake", "lake worker lake"]


@pytest.mark.parametrize("words", VERBS)
def test_every_verb_that_works_on_logs_takes_an_engine(words: str) -> None:
    def chosen(*more: str, by_default: bool = False) -> bool:
        return on_spark(parser().parse_args([*words.split(), *more]), by_default=by_default)

    assert [chosen(by_default=True), chosen(by_default=False)] == [True, False]
    assert [chosen("--engine", "spark"), chosen("--engine", "process", by_default=True)] == [True, False]
    assert [chosen("--master", "local[1]"), chosen("--spark-remote", "sc://host")] == [True, True]
    with pytest.raises(UsageError, match="--engine process runs without Spark; leave out --master"):
        chosen("--engine", "process", "--master", "local[1]")


def test_without_spark_the_other_engine_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = stopped_broker(tmp_path / "data")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    words = ["compact", str(log), "--topic", "orders", "--dry-run"]
    assert main(words) == 2
    assert "pip install '.[spark]', or say --engine process, which needs no Spark" in capsys.readouterr().err
    assert main([*words, "--engine", "process"]) == 0


@pytest.mark.parametrize(
    ("words", "size", "says"),
    [
        ("", 1, True),
        ("", SMALL_BYTES, True),
        ("", SMALL_BYTES + 1, False),
        ("", 0, False),
        ("--engine spark", 1, False),
        ("--engine process", 1, False),
        ("--master local[2]", 1, False),
        ("--spark-remote sc://h", 1, False),
        ("--quiet", 1, False),
    ],
)
def test_where_nearly_all_of_it_was_sparks_start_it_is_said(
    words: str, size: int, says: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = parser().parse_args(["compact", "logs", *words.split()])
    tell_small(arguments, Output.of(arguments), size=size, seconds=7.0)
    said = capsys.readouterr().err
    assert ("--engine process takes a fifth of the time or less" in said) == says == bool(said)


def test_the_configuration_file_chooses_the_engine_and_a_flag_wins(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[verbs.compact]\nengine = "process"\n')
    words = ["compact", "logs", "--dry-run", "--config", str(file)]
    assert not on_spark(parsed(words), by_default=True)
    assert on_spark(parsed([*words, "--master", "local[1]"]), by_default=True)
    assert on_spark(parsed([*words, "--engine", "spark"]), by_default=False)
    with pytest.raises(UsageError, match="leave out --master"):
        on_spark(parsed([*words, "--engine", "process", "--master", "local[1]"]), by_default=True)


def shown_on(ours: int, theirs: int) -> bytes:
    """What a terminal shows until the command, which has `theirs` by now, has closed it."""
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 1 << 16):
            shown += chunk
    except OSError:  # Linux says so when the other side is closed
        pass
    os.close(ours)
    return shown


def answered(log: Path, answer: bytes, *more: str) -> tuple[int, bytes]:
    """Exit code and stderr of an in-place compaction on a terminal on which somebody types."""
    words = ["compact", str(log), "--in-place", "--topic", "orders", "--engine", "process", *more]
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    done = subprocess.Popen([*HEADSTONE, *words], stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL)
    shown = shown_on(ours, theirs)
    return done.wait(), shown


def test_a_brokers_own_files_are_changed_only_after_a_question(tmp_path: Path) -> None:
    log = stopped_broker(tmp_path / "data")
    segment = log / "orders-0" / ("0" * 20 + ".log")
    before = segment.read_bytes()
    code, shown = answered(log, b"no\n")
    assert (code, segment.read_bytes()) == (3, before)
    assert b"Go on? [y/N]" in shown
    assert b"not confirmed: nothing was changed" in shown
    assert answered(log, b"\n", "--dry-run")[0] == 0
    code, shown = answered(log, b"y\n")
    assert code == 0
    assert segment.read_bytes() != before


def interrupted(words: list[str]) -> tuple[int, float, bytes]:
    """Exit code, seconds from Ctrl-C at the question to the end, and stderr."""
    ours, theirs = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-m", "headstone.cli.start", *words], stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL
    )
    shown = b""
    while b"Go on? [y/N]" not in shown:
        shown += os.read(ours, 1 << 16)
    began = time.monotonic()
    done.send_signal(signal.SIGINT)
    shown += shown_on(ours, theirs)
    return done.wait(), time.monotonic() - began, shown


def test_an_interrupted_question_ends_at_once_and_says_that_nothing_was_changed(tmp_path: Path) -> None:
    log, lake = stopped_broker(tmp_path / "data"), str(tmp_path / "lake")
    assert main(["lake", "init", lake]) == 0
    assert main(["lake", "topics", lake, "create", "orders"]) == 0
    for words in (
        ["compact", str(log), "--in-place", "--engine", "process"],
        ["lake", "topics", lake, "drop", "orders"],
    ):
        code, seconds, shown = interrupted(words)
        assert (code, seconds < GRACE_S) == (3, True), shown
        assert b"not confirmed: nothing was changed" in shown
        assert b": interrupted;" not in shown
    assert main(["lake", "topics", lake, "describe", "orders"]) == 0


def test_yes_and_no_terminal_ask_nothing(tmp_path: Path) -> None:
    code, shown = answered(stopped_broker(tmp_path / "data"), b"", "--yes")
    assert code == 0
    assert b"Go on?" not in shown
    words = [
        "compact",
        str(stopped_broker(tmp_path / "other")),
        "--in-place",
        "--topic",
        "orders",
        "--engine",
        "process",
    ]
    done = subprocess.run([*HEADSTONE, *words], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
