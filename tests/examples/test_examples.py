"""Every example runs as it is written and checks its own result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
RUNNERS = {".py": [sys.executable], ".sh": ["bash"]}
FOUND = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in RUNNERS)
SECONDS_MAX = 600
"""An example takes half a minute; this is for a machine that does ten other things."""


@pytest.mark.parametrize("name", FOUND)
def test_example(name: str, tmp_path: Path) -> None:
    path = EXAMPLES / name
    bin_dir = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{bin_dir}{os.pathsep}{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        [*RUNNERS[path.suffix], str(path)],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "live keys" in ended.stdout
    assert list(tmp_path.iterdir()) == [], "an example cleans up behind itself"


def test_there_are_examples() -> None:
    assert FOUND == ["backup_sql.py", "compact_backup.sh"]
