"""Where a verb's words go: the answer to stdout, the rest to stderr, colours to terminals, nothing to who has gone away."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headstone.cli.main import main
from headstone.cli.output import BAD, Output
from tests.cli.scenes import HEADSTONE

STORY = ["reproduce", "tombstone-divergence"]


def test_an_answer_is_text_or_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    Output().answer(lambda: {"a": 1}, ["one", "two"])
    assert capsys.readouterr() == ("one\ntwo\n", "")
    Output(as_json=True).answer(lambda: {"a": 1}, ["one", "two"])
    answer = capsys.readouterr()
    assert (json.loads(answer.out), answer.err) == ({"a": 1}, "")


def test_quiet_leaves_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    for output in (Output(), Output(quiet=True)):
        output.tell("half way")
        output.warn("dropped")
    assert capsys.readouterr() == ("", "half way\ndropped\ndropped\n")


def test_what_is_told_on_the_way_is_progress_beside_json(capsys: pytest.CaptureFixture[str]) -> None:
    Output().say("first")
    Output(as_json=True).say("second")
    assert capsys.readouterr() == ("first\n", "second\n")


def test_only_who_wants_colours_gets_them() -> None:
    assert Output().painted("bad", BAD) == "bad"
    assert Output(coloured=True).painted("bad", BAD) == "\x1b[31mbad\x1b[0m"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_without_no_color_and_json(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(*words: str, screen: io.StringIO) -> str:
        monkeypatch.setattr(sys, "stdout", screen)
        assert main([*STORY, *words]) == 0
        return screen.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[31m" in shown(screen=Terminal())
    assert "\x1b" not in shown(screen=io.StringIO())
    assert "\x1b" not in shown("--output", "json", screen=Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in shown(screen=Terminal())


@pytest.mark.parametrize("words", [STORY, ["--help"]])
def test_a_reader_who_has_seen_enough_is_no_error(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*HEADSTONE, *words], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_quiet_says_nothing_but_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["synth", str(tmp_path / "log"), "--records", "100"]) == 0
    capsys.readouterr()
    words = ["compact", str(tmp_path / "log"), "--dry-run", "--engine", "process"]
    assert main(words) == 0
    assert "no watermarks" in capsys.readouterr().err
    assert main([*words, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_inspect_of_a_topic_leaves_the_others_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for topic in ("orders", "users"):
        assert main(["synth", str(tmp_path / topic), "--records", "10", "--topic", topic]) == 0
    logs = [str(tmp_path / topic) for topic in ("orders", "users")]
    capsys.readouterr()
    assert main(["inspect", *logs, "--topic", "users", "--output", "json"]) == 0
    assert [found["partition"] for found in json.loads(capsys.readouterr().out)["partitions"]] == ["users-0"]
