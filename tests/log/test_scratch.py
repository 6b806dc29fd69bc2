"""Temporary directories: gone behind the block, and what a killed process has left is removed by the next."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from headstone.log.scratch import scratch_directory

HOLDER = """
import sys
from headstone.log.scratch import scratch_directory
with scratch_directory("test") as here:
    (here / "copy").write_text("much")
    print(here, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_it_is_gone_behind_the_block(temporary: Path) -> None:
    for wrong in (None, KeyboardInterrupt):
        try:
            with scratch_directory("test") as here:
                assert list(here.iterdir()) == []
                (here / "file").touch()
                if wrong:
                    raise wrong
        except KeyboardInterrupt:
            pass
        assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_is_in_use_is_not(temporary: Path) -> None:
    (temporary / "headstone-test-strange").mkdir()
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    places = [Path(holder.stdout.readline().strip()) for holder in holders if holder.stdout]
    assert [(place / "copy").read_text() for place in places] == ["much", "much"]
    holders[0].kill()
    holders[0].wait()
    assert places[0].exists()
    with scratch_directory("other"):
        assert places[0].exists()
    with scratch_directory("test"):
        assert (places[0].parent.exists(), places[1].exists()) == (False, True)
    holders[1].communicate("")
    assert [path.name for path in temporary.iterdir()] == ["headstone-test-strange"]
