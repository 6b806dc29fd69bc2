"""Runs of offsets: the same as by the plain way, in whatever pieces they come, and small."""

from __future__ import annotations

import pickle
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from headstone.errors import UsageError
from headstone.lake.transfer import offset_map, offset_runs
from headstone.lake.transfer.offset_map import OffsetMap, read_map
from headstone.lake.transfer.offset_runs import GrowingRuns, Runs, translated

RECORDS = 400_000


def plain(offsets: list[int], base: int) -> tuple[tuple[int, ...], ...]:
    runs: list[list[int]] = []
    for position, offset in enumerate(offsets, start=base):
        if runs and offset == runs[-1][0] + runs[-1][2]:
            runs[-1][2] += 1
        else:
            runs.append([offset, position, 1])
    return tuple(map(tuple, runs))


def grown(offsets: list[int], base: int) -> Runs:
    growing = GrowingRuns(base)
    for offset in offsets:
        growing.put(offset)
    return growing.ended()


@pytest.mark.parametrize("seed", range(20))
def test_runs_are_the_same_in_whatever_pieces_they_come(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(offset_runs, "OFFSETS_AT_ONCE", chance.choice([1, 2, 7]))
    monkeypatch.setattr(offset_runs, "RUNS_PER_CHUNK", chance.choice([1, 2, 5]))
    offsets = sorted(chance.sample(range(100), chance.randrange(60)))
    base = chance.randrange(1 << 40)
    runs = grown(offsets, base)
    assert tuple(runs) == plain(offsets, base)
    for offset in range(101):
        assert translated(runs, base, offset) == base + sum(each < offset for each in offsets)
    finished = OffsetMap(
        lake_id="id", topic="t", to_topic="again", as_of_ms=1, starts=(0, 0), bases=(base, 0), finished=True,
        fingerprints=("", ""), runs={0: runs, 1: Runs()},
    )  # fmt: skip
    finished.write(tmp_path / "map.json")
    monkeypatch.setattr(offset_map, "CHARACTERS_AT_ONCE", chance.choice([1, 2, 7, 1000]))
    assert read_map(tmp_path / "map.json") == finished
    text = (tmp_path / "map.json").read_text()
    (tmp_path / "map.json").write_text(text[: chance.randrange(len(text) - 1)])
    with pytest.raises(UsageError, match="not an offset map"):
        read_map(tmp_path / "map.json")


def test_a_map_takes_a_few_bytes_per_record_also_where_no_two_follow_each_other() -> None:
    """A list of 400,000 runs takes 96 MB, and the offsets alone 3.2 MB."""
    chance, growing, offset = random.Random(1), GrowingRuns(7), 0
    tracemalloc.start()
    for _ in range(RECORDS):
        offset += 2 + int(chance.expovariate(0.1))
        growing.put(offset)
    runs = growing.ended()
    assert translated(runs, 7, offset) == 7 + RECORDS - 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    sent = len(pickle.dumps(runs))
    assert (sent < 4 * RECORDS, peak < sent + (8 << 20)) == (True, True), (sent, peak)


def test_a_map_is_read_in_a_few_bytes_per_run(tmp_path: Path) -> None:
    """As one document of Python's numbers it took 177."""
    rows = np.column_stack((np.arange(RECORDS) * 3, np.arange(RECORDS), np.ones(RECORDS, np.int64)))
    written = OffsetMap(
        lake_id="id", topic="t", to_topic="again", as_of_ms=1, starts=(0,), bases=(0,), finished=True, fingerprints=("",),
        runs={0: offset_runs.runs_in(rows)}, not_resumable='of, "runs": {',
    )  # fmt: skip
    written.write(tmp_path / "map.json")
    tracemalloc.start()
    assert read_map(tmp_path / "map.json") == written
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20, peak


def test_the_map_of_a_dense_log_is_next_to_nothing() -> None:
    runs = grown(list(range(5, 5 + 3 * offset_runs.OFFSETS_AT_ONCE)), 0)
    assert (tuple(runs), len(pickle.dumps(runs)) < 500) == (((5, 0, 3 * offset_runs.OFFSETS_AT_ONCE),), True)
