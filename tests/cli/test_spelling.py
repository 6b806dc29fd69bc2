"""Which name was meant, and which there are; and small answers that a newcomer reads first."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.cli.main import main
from headstone.log.compiling import Compiling
from headstone.pipeline import progress
from headstone.pipeline.progress import ProgressLine
from headstone.pipeline.report import RATED_BYTES_MIN, read_in
from headstone.spelling import instead, likely, meant


@pytest.mark.parametrize(
    ("name", "names", "expected"),
    [
        ("ordres", ["orders", "payments"], "orders"),
        ("ORDERS", ["orders"], "orders"),
        ("xyz", ["orders"], None),
        ("", ["orders"], None),
        ("orders", [], None),
        ("retention", ["partitions", "delete-retention-ms"], "delete-retention-ms"),
        ("retention", ["partitions"], None),
        ("retention", ["minimum-retention-ms", "maximum-retention-ms"], None),
    ],
)
def test_the_name_that_is_much_like_it(name: str, names: list[str], expected: str | None) -> None:
    assert likely(name, names) == expected
    assert meant(name, names) == ("" if expected is None else f"; did you mean {expected}?")


def test_those_that_there_are_follow_and_not_a_thousand_of_them() -> None:
    assert instead("ordres", ["payments", "orders"]) == "; did you mean orders? there are orders, payments"
    assert instead("xyz", ["b", "a"], what="it has") == "; it has a, b"
    assert instead("xyz", []) == "; there are none"
    assert instead("xyz", [f"t{n:03}" for n in range(1000)]).endswith("t010, t011 and 988 more")


def test_no_question_ends_in_a_semicolon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.toml").write_text('[verbs."compct"]\nengine = "process"\n')
    lake = str(tmp_path / "lake")
    assert main(["lake", "init", lake]) == 0
    for words, said in (
        (["inspect", "logs", "--config", str(tmp_path / "config.toml")], "did you mean compact? there are agent, "),
        (["lake", "topics", lake, "create", "t", "--conf", "retention.m=1"], "did you mean retention.ms? there are "),
        (["simulate", "--mutant", "no-such", "--rules", "coordinated"], "rules; `headstone simulate --mutant list`"),
    ):
        assert main(words) == 2
        shown = capsys.readouterr().err
        assert said in shown
        assert "?;" not in shown


def test_a_sample_says_that_kernels_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ProgressLine, "QUIET_S", 0.0)
    monkeypatch.setattr(progress, "POLL_S", 0.001)
    monkeypatch.setattr(Compiling, "__call__", lambda compiling: True)
    assert main(["synth", str(tmp_path / "sample"), "--records", "20000"]) == 0
    assert "compiling kernels (once); 20,000 records to do" in capsys.readouterr().err


def test_a_rate_is_told_where_it_means_something() -> None:
    assert read_in(16_600_000, 2.0) == "16.6 MB read in 2.0 s"
    assert read_in(RATED_BYTES_MIN, 2.0) == "100.0 MB read in 2.0 s (50.0 MB/s)"
    assert read_in(RATED_BYTES_MIN, 0.0) == "100.0 MB read in 0.0 s"


def test_the_agents_help_names_the_port_where_agents_are_heard(capsys: pytest.CaptureFixture[str]) -> None:
    """9464 is that of the guard's metrics."""
    for verb in ("agent", "guard"):
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  headstone ")]
        ports = {word for line in lines for word in ("9464", "9465") if word in line and ("agent" in line)}
        assert ports == {"9465"}
