"""`headstone lake ingest` from a cluster, as a process of its own that can be killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


@contextmanager
def ingesting(
    lake_dir: Path, bootstrap: str, topic: str, connector: str, *more: str
) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable, "-m", "headstone.cli.main", "lake", "ingest", str(lake_dir), "--bootstrap", bootstrap, "--topic", topic,
        "--spark-conf", f"spark.jars={connector}", "--master", "local[2]", "--output", "json", *more,
    ]  # fmt: skip
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()
