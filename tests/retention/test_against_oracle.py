"""Random histories through `compact`, compared pass by pass with the oracle: batches, bytes, indexes, counts.

The seed is in the id of each test, which replays it.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from headstone.log import reading
from headstone.pipeline import buckets, splitting, work
from headstone.pipeline.report import PartitionReport
from headstone.retention import rewrite, survey
from tests.oracle.batches import Batch, to_bytes
from tests.oracle.cleaner import BatchResult, CleanResult, Pass, clean
from tests.oracle.files import read_checkpoint, read_partition
from tests.oracle.segments import Segment, make_segment
from tests.retention.stories import Cleaning, Data, Files, Roll, Step, Story, Teller, quick_directory, story

SEEDS = range(60)
CHECKPOINT = "cleaner-offset-checkpoint"
WAYS = [("whole", False), ("whole", True), ("shuffle", False), ("shuffle", True)]
IDS = ["whole-out", "whole-in-place", "shuffle-out", "shuffle-in-place"]

REASONS = {
    "control": "marker: data not gone",
    "marker horizon not passed": "marker: horizon not passed",
    "above MXRO": "marker: above MXRO",
    "horizon not passed": "tombstone: horizon not passed",
    "above MTRO": "tombstone: above MTRO",
    "producer's last batch": "header: producer's last batch",
    "end of range": "header: end of range",
}


def is_bytewise(result: BatchResult) -> bool:
    """Rebuilt compressed batches hold the same records, but two writers may compress them differently."""
    assert result.output is not None
    return result.form != "rebuilt" or result.output.codec == "none"


def batch_differences(expected: CleanResult, segments: list[Segment]) -> list[str]:
    wanted = [result for result in expected.batches if result.output is not None]
    rest = [batch for segment in expected.segments[len(expected.groups) :] for batch in segment.batches]
    actual = [batch for segment in segments for batch in segment.batches]
    outputs: list[Batch] = [*(result.output for result in wanted if result.output), *rest]
    if actual != outputs:
        pairs = zip(outputs, actual, strict=False)
        first = next((f"\n  {theirs}\n  {ours}" for theirs, ours in pairs if theirs != ours), "one has more batches")
        return [f"batches differ, oracle's first: {first}"]
    bytewise = [*(is_bytewise(result) for result in wanted), *(True for _ in rest)]
    return [
        f"bytes of batch {theirs.base_offset} differ:\n  {to_bytes(theirs).hex()}\n  {to_bytes(ours).hex()}"
        for theirs, ours, same in zip(outputs, actual, bytewise, strict=True)
        if same and to_bytes(theirs) != to_bytes(ours)
    ]


def segment_differences(expected: CleanResult, segments: list[Segment]) -> list[str]:
    """Which segments there are, with their abort entries and times; and indexes that fit the bytes they index."""
    wanted = [(s.base, s.mtime_ms, s.aborted) for s in expected.segments]
    actual = [(s.base, s.mtime_ms, s.aborted) for s in segments]
    problems = [f"segments differ:\n  {wanted}\n  {actual}"] if wanted != actual else []
    for s in segments:
        rebuilt = make_segment(base=s.base, batches=list(s.batches), mtime_ms=s.mtime_ms, aborted=list(s.aborted))
        problems += [f"indexes differ:\n  {rebuilt}\n  {s}"] if rebuilt != s else []
    return problems


def without_filler(segments: list[Segment], expected: CleanResult, in_place: bool) -> list[Segment]:
    """In place an empty segment may stand at the last old base, so that a broker's recovery finds every old file."""
    wanted = {segment.base for segment in expected.segments}
    last_old = expected.groups[-1][-1] if expected.groups else None
    is_filler = [in_place and s.base == last_old and s.base not in wanted and s.size == 0 for s in segments]
    return [segment for segment, filler in zip(segments, is_filler, strict=True) if not filler]


def expected_reasons(result: CleanResult, sources: list[Batch]) -> dict[str, int]:
    """What the report should count, from the oracle's verdicts on records and batches."""
    controls = {batch.last_offset for batch in sources if batch.control}
    counts: Counter[str] = Counter()
    for verdict in result.verdicts:
        young_marker = verdict.reason == "horizon not passed" and verdict.offset in controls
        name = "marker horizon not passed" if young_marker else verdict.reason
        counts[REASONS.get(name, name)] += 1
    for source, batch in zip(sources, result.batches, strict=True):
        if batch.output is None:
            continue
        if batch.form == "header only":
            counts[REASONS[batch.held_by or ""]] += 1
        counts["made plain"] += source.transactional and not batch.output.transactional
        counts["stamped"] += source.horizon_ms is None and batch.output.horizon_ms is not None
    return {name: count for name, count in counts.items() if count}


def expected_report(result: CleanResult, segments: list[Segment]) -> dict[str, object]:
    sources = [batch for segment in segments for batch in segment.batches][: len(result.batches)]
    after = [record for segment in result.segments for batch in segment.batches for record in batch.records]
    kept = {verdict.offset: verdict for verdict in result.verdicts if verdict.kept}
    aborted = {verdict.offset for verdict in result.verdicts if verdict.reason == "aborted"}
    data = [record for batch in sources if not batch.control for record in batch.records]
    graves = [record.offset for record in data if record.value is None and record.offset not in aborted]
    markers = [record.offset for batch in sources if batch.control for record in batch.records]
    return {
        "dirty_start": result.dirty_start,
        "dirty_end": result.next_dirty,
        "records_before": sum(batch.count for segment in segments for batch in segment.batches),
        "records_after": len(after),
        "bytes_before": sum(segment.size for segment in segments),
        "segments_before": len(segments),
        "segments_after": len(result.segments),
        "keys": len(result.map.offsets),
        "tombstones_kept": sum(offset in kept for offset in graves),
        "tombstones_removed": sum(offset not in kept for offset in graves),
        "markers_kept": sum(offset in kept for offset in markers),
        "markers_removed": sum(offset not in kept for offset in markers),
        "aborted_removed": len(aborted),
        "reasons": expected_reasons(result, sources),
    }


def report_differences(wanted: dict[str, object], report: PartitionReport) -> list[str]:
    actual = {name: value for name, value in report.as_json().items() if name in wanted}
    return [] if wanted == actual else [f"reports differ:\n  {wanted}\n  {actual}"]


def trusted_checkpoint(files: Files, segments: list[Segment]) -> int:
    """Below it the log is known to be clean; a pass that begins above it does not raise it."""
    path = files.logs / CHECKPOINT
    known = read_checkpoint(path.read_text()).get(("t", 0), 0) if path.exists() else 0
    return known if segments[0].base <= known <= segments[-1].next_offset else segments[0].base


def check_pass(teller: Teller, files: Files, settings: Pass) -> list[str]:
    """The producers are copied because a stopped broker's files tell of expired ones, whom a running one forgets."""
    history = teller.history
    expected = clean(history.segments, deepcopy(history.producers), settings)
    trusted = trusted_checkpoint(files, history.segments)
    report = files.compact(settings)
    found = without_filler(read_partition(files.partition), expected, files.in_place)
    problems = batch_differences(expected, found) + segment_differences(expected, found)
    problems += report_differences(expected_report(expected, history.segments), report)
    checkpoint = read_checkpoint((files.logs / CHECKPOINT).read_text())
    cleaned = bool(expected.groups) and expected.dirty_start <= trusted
    wanted = expected.next_dirty if cleaned else trusted
    if checkpoint != {("t", 0): wanted}:
        problems.append(f"the checkpoint is {checkpoint}, expected {wanted}")
    teller.next_dirty = report.dirty_end
    files.take_over(history)
    return problems


def tell(told: Story, root: Path, path: str, in_place: bool) -> list[str]:
    teller, files = Teller(), Files(root, path, in_place, told.snapshots)
    for number, step in enumerate(teller.cleanings(told)):
        files.write(teller.history)
        settings = teller.settings(step)
        problems = check_pass(teller, files, settings)
        if problems:
            return [f"cleaning {number}, {settings}", *problems]
    return []


@pytest.mark.parametrize(("path", "in_place"), WAYS, ids=IDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_pass_leaves_what_the_oracle_leaves(seed: int, path: str, in_place: bool) -> None:
    with quick_directory() as root:
        problems = tell(story(seed), root, path, in_place)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(("path", "in_place"), WAYS, ids=IDS)
@pytest.mark.parametrize("seed", range(1000, 1012))
def test_where_the_work_is_cut_changes_nothing(
    seed: int, path: str, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of a few batches, index tasks of a few chunks, header tables and lots of five rows; groups small and huge."""
    monkeypatch.setattr(survey, "CHUNK_BYTES", 300)
    monkeypatch.setattr(survey, "CHUNK_RECORDS", 3)
    monkeypatch.setattr(survey, "REPLAY_BATCHES", 5)
    monkeypatch.setattr(splitting, "BUCKET_BYTES", 70)
    monkeypatch.setattr(reading, "ARENA_BYTES", 200)
    monkeypatch.setattr(rewrite, "BUFFER_BYTES", 100)
    monkeypatch.setattr(work, "UNIT_BYTES", 700)
    monkeypatch.setattr(work, "UNIT_RECORDS", 7)
    monkeypatch.setattr(buckets, "SURVIVORS_MAX", 4)
    monkeypatch.setattr(reading, "TABLE_ROWS", 5)
    with quick_directory() as root:
        problems = tell(story(seed), root, path, in_place)
    assert not problems, "\n".join(problems)


def with_large_values(step: Step) -> Step:
    """Segments of many index entries. The first dirty offset stays at a segment's base: in mid-segment Kafka starts at an
    index position and overlooks the markers before it, which Headstone does not."""
    if isinstance(step, Data):
        records = tuple((key, value and value * 50, late, headers) for key, value, late, headers in step.records)
        return replace(step, records=records)
    if isinstance(step, Cleaning):
        return replace(step, settings=replace(step.settings, keys_max=None), dirty_share=step.dirty_share and 0.0)
    return step


@pytest.mark.parametrize("path", ["whole", "shuffle"])
@pytest.mark.parametrize("seed", range(2000, 2008))
def test_segments_with_index_entries_are_what_the_oracle_leaves(seed: int, path: str) -> None:
    made = story(seed)
    large = replace(made, steps=tuple(with_large_values(step) for step in made.steps if not isinstance(step, Roll)))
    steps = [s for step in large.steps for s in ((Roll(), step) if isinstance(step, Cleaning) else (step,))]
    with quick_directory() as root:
        problems = tell(replace(large, steps=tuple(steps)), root, path, in_place=False)
    assert not problems, "\n".join(problems)
