"""The table of tests that `make test` leaves out: each pattern is some test's."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

from tests.thorough import QUICK, THOROUGH, is_thorough

ROOT = Path(__file__).resolve().parent.parent


def test_every_pattern_is_of_a_test_and_some_of_each_room_stay() -> None:
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"], cwd=ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    tests = [line for line in collected.stdout.splitlines() if line.startswith("tests/") and "::" in line]
    assert len(tests) > 5000, collected.stdout[-2000:]
    patterns = [*(pattern for pattern, _ in THOROUGH), *QUICK]
    assert [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in tests)] == []
    rooms = {name.split("/")[1] for name in tests if name.count("/") > 1}
    quick = {name.split("/")[1] for name in tests if name.count("/") > 1 and not is_thorough(name)}
    assert rooms - quick == {"campaigns"}
