"""The processes that this one has started, and their own: Spark's JVM with its Python workers, brokers, tools.

Only for a process that is ours: in a notebook they may be the user's.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

TRIES = 3
"""A process that is just starting is found by the next look."""


def end_descendants() -> None:
    """At once, and without asking them: the caller has asked before.

    Their exit codes are left to the code that started them: pyspark would wait for ever for a JVM whose exit code was taken."""
    for _ in range(TRIES):
        processes = descendants(os.getpid())
        if not processes:
            return
        for process in processes:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)


def descendants(process: int) -> list[int]:
    """Without zombies: those that have ended and were not waited for."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    all_below, left = list[int](), [process]
    while left:
        below = children.get(left.pop(), [])
        all_below += below
        left += below
    return all_below


def _parents() -> list[tuple[int, int]]:
    """(process, its parent) for all running processes."""
    if Path("/proc/self/stat").exists():
        stats = [_stat(folder) for folder in Path("/proc").iterdir() if folder.name.isdecimal()]
        return [stat for stat in stats if stat is not None]
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=False).stdout
    rows = [line.split() for line in table.splitlines()]
    return [(int(row[0]), int(row[1])) for row in rows if not row[2].startswith("Z")]


def _stat(folder: Path) -> tuple[int, int] | None:
    try:
        # The name of the program, in parentheses, may hold anything.
        state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return None  # it has gone meanwhile
    return None if state == "Z" else (int(folder.name), int(parent))
