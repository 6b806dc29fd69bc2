"""Log directories in the oracle's notation, and compaction of them in this process: for the tests of all rooms."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headstone.pipeline.compaction import CompactionRequest, CompactionResult, compact
from headstone.pipeline.engine import Engine
from headstone.pipeline.inprocess import InProcess
from headstone.retention.policy import Policy
from headstone.storage.places import Place
from tests.oracle.batches import Batch, Record
from tests.oracle.files import read_partition
from tests.oracle.notation import History


def history_of(notation: str) -> History:
    history = History()
    history.append(notation)
    return history


def batch_of(*records: Record, **fields: Any) -> Batch:
    """With these and no others, and what its header then says of them."""
    given = {
        "base_offset": records[0].offset, "last_offset_delta": records[-1].offset - records[0].offset, "records": records,
        "count": len(records), "base_timestamp": records[0].timestamp,
        "max_timestamp": max(record.timestamp for record in records),
    }  # fmt: skip
    return Batch(**{**given, **fields})


def write_log(root: Path, notation: str, name: str = "t-0", *, snapshots: bool = False) -> Path:
    """Returns the log directory `root`, which gets one partition more."""
    history_of(notation).write_partition(root, name, snapshots=snapshots)
    return root


def offsets_of(partition: Path) -> list[int]:
    return [record.offset for s in read_partition(partition) for batch in s.batches for record in batch.records]


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def owner(program: str, *words: str | Path) -> Iterator[None]:
    """Somebody else, in a process of its own, who holds the lock as a broker does."""
    command = [sys.executable, "-c", program, *map(str, words)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.communicate()


def nobody(line: str) -> None:
    """Hears what a run tells."""


def compact_here(
    *roots: Place, tell: Callable[[str], None] = nobody, engine: Engine | None = None, **settings: Any
) -> CompactionResult:
    """In place and at 9 s of the epoch, unless the settings say something else."""
    given = {"out": None, "policy": Policy(now_ms=9000), "progress": False, **settings}
    return compact(CompactionRequest(paths=tuple(map(str, roots)), **given), engine or InProcess(), tell)


def flip_a_byte(partition: Path, segment: int = 0) -> tuple[Path, bytes]:
    """Of a batch of that segment: the file, and what it was before."""
    victim = sorted(partition.glob("*.log"))[segment]
    content = victim.read_bytes()
    victim.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    return victim, content
