"""Every example runs as it is written and checks its own result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
RUNNERS = {
    ".py": [sys.executable],
    ".sh": ["bash"],
    ".ipynb": [sys.executable, "-m", "nbconvert", "--execute", "--stdout", "--to", "notebook"],
}
FOUND = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in RUNNERS)
SUBMITTED = "compact_job.py"
"""By tests/clusters/test_submit.py."""
SECONDS_MAX = 600
"""An example takes half a minute; this is for a machine that does ten other things."""


@pytest.mark.parametrize("name", [name for name in FOUND if name != SUBMITTED])
def test_example(name: str, tmp_path: Path) -> None:
    path = EXAMPLES / name
    bin_dir = Path(sys.executable).parent
    work = tmp_path / "work"
    work.mkdir()
    env = {**os.environ, "PATH": f"{bin_dir}{os.pathsep}{os.environ['PATH']}", "TMPDIR": str(work)}
    ended = subprocess.run(
        [*RUNNERS[path.suffix], str(path)],
        cwd=work,
        env={**env, "IPYTHONDIR": str(tmp_path / "ipython"), "JUPYTER_RUNTIME_DIR": str(tmp_path / "jupyter")},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "live keys" in ended.stdout
    assert list(work.iterdir()) == [], "an example cleans up behind itself"


def test_the_notebook_is_committed_without_what_it_printed() -> None:
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


def test_there_are_examples() -> None:
    assert FOUND == ["backup_sql.py", "compact_backup.sh", "compact_job.py", "notebook.ipynb"]
