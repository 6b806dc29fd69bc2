"""Laws that hold of any compaction of any history: repeating it, having nothing to do, and that every record is counted."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from headstone.pipeline.report import PartitionReport
from tests.logs import history_of
from tests.oracle.batches import Batch, to_bytes
from tests.oracle.cleaner import Pass
from tests.oracle.compression import CODECS
from tests.oracle.files import read_partition
from tests.oracle.notation import History
from tests.oracle.reader import read_committed, view
from tests.retention.stories import DAY_MS, NAME, TIME_START, Cleaning, Files, Story, Teller, quick_directory, story

SEEDS = range(25)
DROPPED = ("superseded", "aborted", "expired tombstone", "expired marker", "keyless")
WAITING = ("tombstone: horizon not passed", "tombstone: above MTRO", "marker: horizon not passed", "marker: above MXRO")
KEPT = ("newest", "unmapped", "marker: data not gone", *WAITING)


def batches(directory: Path) -> list[Batch]:
    return [batch for segment in read_partition(directory) for batch in segment.batches]


def log_bytes(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.log"))}


def told_until(made: Story, files: Files) -> tuple[Teller, Pass]:
    """Everything but the last cleaning has happened; its settings, from the start of the log and without a bound."""
    teller, cleanings = Teller(), [step for step in made.steps if isinstance(step, Cleaning)]
    for step in teller.cleanings(made):
        files.write(teller.history)
        settings = teller.settings(step)
        if step is cleanings[-1]:
            return teller, replace(settings, dirty_start=0, keys_max=None)
        teller.next_dirty = files.compact(settings).dirty_end
        files.take_over(teller.history)
    raise AssertionError("a story ends in a cleaning")


@pytest.mark.parametrize("rules", ["kafka", "coordinated"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_second_compaction_at_the_same_time_removes_no_record(seed: int, rules: str) -> None:
    with quick_directory() as root:
        files = Files(root, "whole", in_place=True)
        _, settings = told_until(story(seed, passes=2), files)
        settings = replace(settings, rules=rules, delete_retention_ms=1, mtro=2**62, mxro=2**62)
        files.compact(settings)
        once = [record for batch in batches(files.partition) for record in batch.records]
        files.compact(settings)
        twice = [record for batch in batches(files.partition) for record in batch.records]
        assert twice == once


@pytest.mark.parametrize("seed", SEEDS)
def test_no_superseded_record_is_left_below_the_new_first_dirty_offset(seed: int) -> None:
    with quick_directory() as root:
        files = Files(root, "shuffle", in_place=True)
        teller, settings = told_until(story(seed, passes=2), files)
        dirty = files.compact(settings).dirty_end
        log = view(read_partition(files.partition), teller.history.producers, settings.high_watermark)
        keys = [record.key for record in read_committed(log)[0] if record.offset < dirty]
        assert len(keys) == len(set(keys))


def counted(report: PartitionReport, names: tuple[str, ...]) -> int:
    return sum(report.reasons.get(name, 0) for name in names)


@pytest.mark.parametrize("path", ["whole", "shuffle"])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_record_is_kept_or_dropped_for_one_reason(seed: int, path: str) -> None:
    with quick_directory() as root:
        files = Files(root, path, in_place=False)
        _, settings = told_until(story(seed, passes=2), files)
        segments = read_partition(files.partition)
        report = files.compact(settings)
        rewritten = [s for s in segments if s.base < report.dirty_end and report.dirty_end > report.dirty_start]
        records = sum(batch.count for segment in rewritten for batch in segment.batches)
        assert counted(report, KEPT) + counted(report, DROPPED) == records
        assert report.records_before - report.records_after == counted(report, DROPPED)
        assert sum(batch.count for batch in batches(files.partition)) == report.records_after


def log_without_anything_to_remove(seed: int) -> History:
    """Every key once, every transaction committed and still holding its data; all codecs, gaps and rolls."""
    chance, teller, key = random.Random(seed), Teller(), 0
    history = teller.history
    for _ in range(30):
        names = [f"k{key + i}" for i in range(chance.choice((1, 2, 5)))]
        key += len(names)
        kind = chance.choice(("N", "I1", "P2", "P3"))
        words = [f"{kind}[{','.join(names)}]@{TIME_START + key}/{chance.choice(CODECS)}{chance.choice(('', '/lat'))}"]
        words += [f"C{kind[1]}"] if kind[0] == "P" else []
        words += chance.choices(["", "|", "+7"], weights=[6, 2, 1])
        history.append(" ".join(words))
    history.append("| N[last]")
    return history


@pytest.mark.parametrize("path", ["whole", "shuffle"])
@pytest.mark.parametrize("seed", range(5))
def test_a_log_with_nothing_to_remove_keeps_its_bytes(seed: int, path: str) -> None:
    with quick_directory() as root:
        files = Files(root, path, in_place=False)
        history = log_without_anything_to_remove(seed)
        files.write(history)
        before = log_bytes(files.partition)
        settings = Pass(now_ms=TIME_START + DAY_MS, dirty_start=0, high_watermark=history.next_offset, segment_bytes=1)
        files.compact(settings)
        assert log_bytes(files.partition) == before
        files.compact(replace(settings, segment_bytes=2**30))
        assert b"".join(log_bytes(files.partition).values()) == b"".join(before.values())


def test_the_input_of_a_compaction_into_a_new_directory_is_left_as_it_was() -> None:
    with quick_directory() as root:
        files = Files(root, "whole", in_place=False)
        _, settings = told_until(story(11), files)
        source = files.partition
        before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in source.iterdir()}
        files.compact(settings)
        assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in source.iterdir()} == before
        assert files.partition.name == NAME
        assert batches(files.partition) != batches(source)


def test_a_data_key_equal_to_the_key_of_a_commit_marker_is_data() -> None:
    commit_key = "\0\0\0\1"
    with quick_directory() as root:
        files = Files(root, "whole", in_place=True)
        history = history_of(f"N[{commit_key}] P1[{commit_key},a] C1 N[{commit_key}] C1 | N[z]")
        files.write(history)
        files.compact(Pass(now_ms=10_000, dirty_start=0, high_watermark=history.next_offset))
        left = [(b.base_offset, b.control, [r.offset for r in b.records]) for b in batches(files.partition)]
        assert left == [(1, False, [2]), (3, True, [3]), (4, False, [4]), (5, True, [5]), (6, False, [6])]
        assert to_bytes(batches(files.partition)[1]) == to_bytes(history.segments[0].batches[2])
