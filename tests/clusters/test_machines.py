"""A machine of its own sees programs and this repository, and nothing of the folders that are hidden from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from testbed.machines import ROOT, MachinesUnavailable, environment, machine
from tests.demanded import demanded

PROGRAM = """
import sys, headstone.errors, testbed
from pathlib import Path

folder = Path(sys.argv[1])
print(*sorted(path.name for path in folder.iterdir()) if folder.exists() else [], sep="\\n", end="")
"""


@pytest.fixture(autouse=True)
def _machines() -> None:
    with demanded(MachinesUnavailable):
        machine()


def seen(hidden: list[Path], folder: Path) -> list[str]:
    command = [*machine(hidden), sys.executable, "-c", PROGRAM, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_hidden_folders_are_empty(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert seen([tmp_path], tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_repository_inside_a_hidden_folder_is_seen() -> None:
    assert ROOT.name in seen([ROOT.parent], ROOT.parent)


def test_what_a_machine_writes_stays_there() -> None:
    name = "written-by-a-machine"
    command = [*machine(), "sh", "-c", f"touch /tmp/{name} && ls /tmp/{name}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"/tmp/{name}\n"
    assert not Path("/tmp", name).exists()
