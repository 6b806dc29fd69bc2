"""The moment at which tombstones and markers go: at their horizon, not before it, and only below the watermarks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.logs import history_of
from tests.oracle.cleaner import Pass
from tests.oracle.files import read_partition
from tests.retention.stories import FOREVER, written

START = 10_000
RETENTION = 50
BOTH = pytest.mark.parametrize("path", ["whole", "shuffle"])


def records_after(text: str, path: str, *passes: Pass) -> list[int]:
    """Offsets of the records left, control records included, active segment excluded."""
    history = history_of(text)
    with written(history, path) as files:
        for settings in passes:
            files.compact(replace(settings, high_watermark=history.next_offset))
        segments = read_partition(files.partition)[:-1]
    return [record.offset for segment in segments for batch in segment.batches for record in batch.records]


def at(now_ms: int, **settings: object) -> Pass:
    return Pass(now_ms=now_ms, dirty_start=0, delete_retention_ms=RETENTION, **settings)  # type: ignore[arg-type]


@BOTH
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_tombstone_goes_at_its_horizon_and_not_before(path: str, codec: str) -> None:
    log = f"N[a,b]/{codec} N[~a,c]/{codec} | N[z]"
    stamped = at(START)
    assert records_after(log, path, stamped) == [1, 2, 3]
    assert records_after(log, path, stamped, at(START + RETENTION - 1)) == [1, 2, 3]
    assert records_after(log, path, stamped, at(START + RETENTION)) == [1, 3]


@BOTH
def test_a_batch_of_one_tombstone_goes_at_its_horizon_and_not_before(path: str) -> None:
    log = "N[a] T[a] N[c] | N[z]"
    stamped = at(START)
    assert records_after(log, path, stamped, at(START + RETENTION - 1)) == [1, 2]
    assert records_after(log, path, stamped, at(START + RETENTION)) == [2]


def test_a_marker_whose_data_is_there_stays_whatever_its_horizon_says() -> None:
    history = history_of("P1[a] C1 N[b] | N[z]")
    data, marker, plain = history.segments[0].batches
    stamped = replace(marker, horizon_ms=START - 1, base_timestamp=START - 1, raw=None)
    history.segments[0] = replace(history.segments[0], batches=(data, stamped, plain))
    with written(history) as files:
        files.compact(replace(at(START), high_watermark=history.next_offset))
        left = [record.offset for batch in read_partition(files.partition)[0].batches for record in batch.records]
    assert left == [0, 1, 2]


@BOTH
def test_a_marker_goes_at_its_horizon_and_not_before(path: str) -> None:
    """First its data goes, then it is stamped, then it goes."""
    log = "P1[a] A1e1 P1e1[b] C1e1 N[b] | N[z]"
    gone, stamped = at(START), at(START + 1)
    assert records_after(log, path, gone) == [1, 3, 4]
    assert records_after(log, path, gone, stamped, at(START + RETENTION)) == [1, 3, 4]
    assert records_after(log, path, gone, stamped, at(START + 1 + RETENTION)) == [3, 4]


@BOTH
@pytest.mark.parametrize(("mtro", "left"), [(1, [1, 2]), (2, [2]), (3, [])])
def test_an_expired_tombstone_goes_only_below_mtro(path: str, mtro: int, left: list[int]) -> None:
    rules = {"rules": "coordinated", "mtro": mtro, "mxro": FOREVER}
    log = "N[a] T[a] T[b] | N[z]"
    assert records_after(log, path, at(START, **rules), at(START + RETENTION, **rules)) == left


@BOTH
@pytest.mark.parametrize(("mxro", "left"), [(1, [1, 2]), (2, [2]), (3, [])])
def test_an_expired_marker_goes_only_below_mxro(path: str, mxro: int, left: list[int]) -> None:
    """Nobody's data precedes these markers, so the first pass stamps them."""
    rules = {"rules": "coordinated", "mtro": FOREVER, "mxro": mxro, "producer_expiration_ms": 1}
    log = "U C1 C2 | N[z]"
    assert records_after(log, path, at(START, **rules), at(START + RETENTION, **rules)) == left


@BOTH
def test_a_retention_without_end_stamps_nothing_and_keeps_every_tombstone(path: str) -> None:
    settings = replace(at(START), delete_retention_ms=FOREVER)
    assert records_after("N[a] T[a] | N[z]", path, settings, replace(settings, now_ms=FOREVER)) == [1]


@BOTH
def test_an_empty_value_is_no_tombstone(path: str) -> None:
    history = history_of("N[a] N[b] | N[z]")
    batch = history.segments[0].batches[0]
    empty = replace(batch, records=(replace(batch.records[0], value=b""),))
    history.segments[0] = replace(history.segments[0], batches=(empty, *history.segments[0].batches[1:]))
    with written(history, path) as files:
        for now_ms in (START, START + RETENTION, START + 9 * RETENTION):
            files.compact(replace(at(now_ms), high_watermark=3))
        values = [r.value for s in read_partition(files.partition) for b in s.batches for r in b.records]
    assert values == [b"", b"v1", b"v2"]
