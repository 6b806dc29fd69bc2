"""What `make test` makes of its parts: a red one is told and keeps nothing from running, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests import run
from tests.run import Part, Run, all_parts, summary


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(run, "ROOT", tmp_path)
    return run.LOGS


def part(name: str, program: str, cores: int = 1) -> Part:
    return Part(name=name, cores=cores, command=(sys.executable, "-c", program))


def test_a_red_part_keeps_no_other_from_running() -> None:
    parts = [part("one", "raise SystemExit(1)", cores=2), part("two", "print('well')"), part("three", "")]
    done = list(all_parts(parts, every_test=True))
    assert {r.part.name: r.green for r in done} == {"one": False, "two": True, "three": True}
    text = "\n".join(summary(parts, done, 1.0))
    assert "RED: one" in text
    assert "all green" not in text


def test_a_part_that_did_not_end_is_not_green() -> None:
    parts = [part("one", ""), part("two", "")]
    done = list(all_parts(parts[:1], every_test=True))
    assert list(summary(parts, done, 1.0))[-2] == "RED: two, 1 s"


def test_each_test_that_fails_is_told_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tests").symlink_to(Path(run.__file__).parent)
    (tmp_path / "test_small.py").write_text(
        "import pytest\n\ndef test_right(): pass\n\ndef test_wrong():\n    assert 1 == 2, 'the reason'\n\n"
        "@pytest.mark.skip\ndef test_left_out(): pass\n\n@pytest.mark.thorough\ndef test_long(): raise ValueError\n\n"
        "@pytest.mark.parametrize('n', [1, 2])\ndef test_of_a_server(n): pytest.skip('no server here')\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = thorough\n")
    small = Part(name="small", cores=2, folders=("test_small.py",))
    (ended,) = all_parts([small], every_test=False)
    assert ended.outcomes == {"passed": 1, "failed": 1, "skipped": 3}
    assert ended.count == 5, "the marked one is left out"
    assert ended.failed == ["test_small.py::test_wrong"]
    assert "the reason" in capsys.readouterr().out
    told = [line.strip() for line in summary([small], [ended], 1.0)]
    assert {"2 skipped: no server here", "1 skipped: unconditional skip"} <= set(told)


@pytest.mark.parametrize(("ending", "shown"), [("", False), ("os._exit(70)", True)])
def test_a_part_that_breaks_off_after_a_failure_shows_its_log(
    ending: str, shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests").symlink_to(Path(run.__file__).parent)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_small.py").write_text(
        "import os, sys\n\ndef test_wrong(): assert False\n\n"
        f"def test_last():\n    os.write(sys.__stdout__.fileno(), b'the last words\\n')\n    {ending}\n"
    )
    part = Part(name="small", cores=1, folders=("-p", "no:cacheprovider", "-s", "test_small.py"), own_process=True)
    monkeypatch.setattr(run, "PARTS", (part,))
    assert run.main([]) == 1
    told = capsys.readouterr().out
    assert "FAILED test_small.py::test_wrong" in told
    assert ("the last words" in told) == shown


def test_whoever_stops_listening_leaves_no_process() -> None:
    sign = uuid.uuid4().hex
    parts = [part("quick", ""), part("endless", f"import time; time.sleep(1000)  # {sign}")]
    started: list[Run] = []
    for ended in (runs := all_parts(parts, every_test=True)):
        started.append(ended)
        break
    runs.close()
    assert started[0].part.name == "quick"
    assert subprocess.run(["pgrep", "-f", sign], capture_output=True, check=False).returncode == 1
