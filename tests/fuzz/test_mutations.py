"""Mutated log directories are refused with a message and nothing written, or read right: never a crash, never a guess.

`benchmarks/fuzz.py` runs as many more as one likes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.retention.policy import Policy, kafka_rules
from headstone.spark.compaction import CompactionRequest, compact
from headstone.spark.inprocess import InProcess
from tests.fuzz.workers import exit_code_of, run_seeds
from tests.oracle.batches import Batch, Record, encode

INPUTS = 3_000
SHARES = 6
BOMBS = 24
BOMB_BYTES = 64 << 20


@pytest.mark.parametrize("share", range(SHARES))
def test_mutated_logs_are_refused_or_read_right(share: int) -> None:
    first = share * INPUTS // SHARES
    found = run_seeds(first, first + INPUTS // SHARES, 1, lambda so_far: None)
    replays = [
        f"python benchmarks/fuzz.py --inputs 1 --seed {seed}   # {problem[:300]}" for seed, problem in found.problems
    ]
    assert found.inputs == INPUTS // SHARES
    assert not replays, "\n" + "\n".join(replays)
    assert found.outcomes["accepted"] > found.inputs // 10, found.outcomes
    assert found.outcomes["refused"] > found.inputs // 10, found.outcomes


@pytest.mark.parametrize("path", ["whole", "shuffle"])
def test_batches_that_expand_hugely_do_not_add_up(path: str, tmp_path: Path) -> None:
    """Each is allowed by itself; all of them lie in one chunk, and together they are more than a task may have."""
    record = Record(offset=0, timestamp=1, key=b"a", value=bytes(BOMB_BYTES))
    bomb = encode(
        Batch(
            base_offset=0,
            last_offset_delta=0,
            records=(record,),
            count=1,
            base_timestamp=1,
            max_timestamp=1,
            codec="zstd",
        )
    )
    partition = tmp_path / path / "t-0"
    partition.mkdir(parents=True)
    # The base offset is outside the checksum.
    bombs = [number.to_bytes(8, "big") + bomb[8:] for number in range(BOMBS)]
    (partition / f"{0:020d}.log").write_bytes(b"".join(bombs))
    (partition / f"{BOMBS:020d}.log").write_bytes(b"")
    assert exit_code_of(_compact_bombs, tmp_path / path) == 0


def _compact_bombs(logs: Path) -> None:
    request = CompactionRequest(
        paths=(str(logs / "t-0"),),
        out=logs / "out",
        policy=kafka_rules(Policy(now_ms=0)),
        path=logs.name,
        progress=False,
    )
    compact(request, InProcess(), lambda text: None)
