"""Headstone's commands on what a stopped broker has left."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from headstone.cli.main import main


@dataclass(frozen=True, kw_only=True)
class Ended:
    code: int
    out: str
    err: str


def headstone(*arguments: str) -> Ended:
    """Without Spark, which writes the same bytes (tests/spark/test_compaction.py) and takes ten seconds to start."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*arguments, "--engine", "process"])
    return Ended(code=code, out=out.getvalue(), err=err.getvalue())


def headstone_on_spark(*arguments: str) -> Ended:
    """In a process of its own: Spark changes how Py4J, which drives our producers, tells errors."""
    command = [sys.executable, "-m", "headstone.cli.main", *arguments, "--engine", "spark"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Ended(code=done.returncode, out=done.stdout, err=done.stderr)
