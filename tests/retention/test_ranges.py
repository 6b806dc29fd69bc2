"""The cleaner's arithmetic: range, dirty ratio, lags, groups, what retention deletes. M1 to M14, A19, A22 of the facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headstone.log.reading import SegmentFile
from headstone.retention.policy import NO_LIMIT, Policy, horizon_after, kafka_rules
from headstone.retention.producers import ProducerState
from headstone.retention.ranges import (
    CleanRange,
    Eligibility,
    RetainedSegment,
    clean_range,
    deletable,
    dirty_segments,
    eligibility,
    first_dirty_offset,
    group_segments,
)
from headstone.retention.survey import CUT, PartitionSurvey, SegmentSurvey
from tests.logs import compact_here, write_log
from tests.oracle.files import read_checkpoint, read_partition, write_checkpoint
from tests.retention.stories import quick_directory

HOUR_MS = 3_600_000
T0 = 1_700_000_000_000
INT32_MAX = 2**31 - 1


def segment(
    base: int, *, size: int = 100, timestamp: int = T0, mtime_ms: int = 0, index: int = 0, times: int = 0
) -> SegmentSurvey:
    file = SegmentFile(base=base, path="", size=size, mtime_ms=mtime_ms, index_bytes=index, time_index_bytes=times)
    return SegmentSurvey(
        file=file, records=1, batches=1, record=0, first_batch_timestamp=timestamp, largest_timestamp=timestamp,
        next_offset=base + 1, header_only=0, codecs=(0,), cuts=np.zeros(0, dtype=CUT),
    )  # fmt: skip


def partition(
    segments: list[SegmentSurvey], *, end: int, start: int | None = None, lso: int | None = None
) -> PartitionSurvey:
    return PartitionSurvey(
        segments=tuple(segments), log_start=segments[0].base if start is None else start, log_end=end, high_watermark=end,
        lso=end if lso is None else lso, producers=ProducerState(high_watermark=end), open_txns=(), aborted=(),
        aborted_seen=(), aborted_lost=0, first_transactional=None,
    )  # fmt: skip


def bases(*starts: int) -> list[SegmentSurvey]:
    return [segment(start) for start in starts]


def bounds(survey: PartitionSurvey, policy: Policy, checkpoint: int | None) -> tuple[int, int]:
    found = clean_range(survey, policy, checkpoint=checkpoint)
    return found.dirty_start, found.uncleanable


NOW = Policy(now_ms=T0)


@pytest.mark.parametrize(
    ("checkpoint", "start", "end", "expected"),
    [
        (None, 5, 20, (5, None)),
        (15, 10, 20, (15, None)),
        (20, 10, 20, (20, None)),
        (21, 10, 20, (10, "checkpoint 21 is above log end 20")),
        (9, 10, 20, (10, "checkpoint 9 is below log start 10")),
        (200, 0, 20, (0, "checkpoint 200 is above log end 20")),
        (0, 10, 20, (10, "checkpoint 0 is below log start 10")),
        (15, 20, 30, (20, "checkpoint 15 is below log start 20")),
        (25, 10, 20, (10, "checkpoint 25 is above log end 20")),
    ],
)
def test_a_checkpoint_outside_the_log_is_reset_to_its_start(
    checkpoint: int | None, start: int, end: int, expected: tuple[int, str | None]
) -> None:
    """M3, M4, M7, M13."""
    assert first_dirty_offset(partition(bases(start), end=end), checkpoint) == expected


def test_a_log_of_one_segment_is_never_eligible() -> None:
    """M5, M6: log start, then checkpoint, inside the only segment."""
    for survey, checkpoint in [(partition(bases(0), end=5, start=2), None), (partition(bases(0), end=5), 3)]:
        found = clean_range(survey, NOW, checkpoint=checkpoint)
        assert eligibility(survey, found, NOW).eligible is False
        assert eligibility(survey, found, NOW).cleanable_bytes == 0


def test_the_range_ends_at_the_segment_that_holds_the_high_watermark() -> None:
    """M9, with Kafka's rounding down."""
    survey = partition(bases(0, 15, 30, 45, 60), end=75, lso=50)
    assert clean_range(survey, NOW, checkpoint=None) == CleanRange(
        dirty_start=0, uncleanable=45, limit="LSO 50", reset=None
    )


def test_the_range_ends_at_the_active_segment() -> None:
    """M10."""
    survey = partition(bases(0, 15, 30), end=40)
    expected = CleanRange(dirty_start=0, uncleanable=30, limit="active segment 30", reset=None)
    assert clean_range(survey, NOW, checkpoint=None) == expected


def test_min_compaction_lag_ends_the_range_at_the_first_segment_that_is_too_young() -> None:
    """M11, M12; the limit is strict, and everything after a young segment waits with it."""
    lag = Policy(now_ms=T0 + HOUR_MS + 1, min_compaction_lag_ms=HOUR_MS)
    old, young = segment(0, timestamp=T0), segment(10, timestamp=T0 + HOUR_MS + 1)
    survey = partition([old, young, segment(20, timestamp=T0), segment(30)], end=40)
    assert bounds(survey, lag, None) == (0, 10)
    assert clean_range(survey, lag, checkpoint=None).limit == "min.compaction.lag.ms 10"
    all_old = partition([segment(base, timestamp=T0) for base in (0, 10, 20, 30)], end=40)
    assert bounds(all_old, lag, None) == (0, 30)
    just_reached = replace(lag, now_ms=T0 + HOUR_MS)
    assert bounds(all_old, just_reached, None) == (0, 30)
    assert bounds(all_old, replace(lag, now_ms=T0 + HOUR_MS - 1), None) == (0, 0)


def test_a_young_segment_below_the_first_dirty_offset_does_not_count() -> None:
    lag = Policy(now_ms=T0 + HOUR_MS, min_compaction_lag_ms=HOUR_MS)
    survey = partition([segment(0, timestamp=T0 + 1), segment(10), segment(20), segment(30)], end=40)
    assert bounds(survey, lag, 10) == (10, 30)
    assert bounds(survey, lag, 9) == (9, 0)


def test_a_segment_without_timestamps_is_as_old_as_its_file() -> None:
    lag = Policy(now_ms=T0 + HOUR_MS, min_compaction_lag_ms=HOUR_MS)
    old, young = (segment(0, timestamp=-1, mtime_ms=T0 + late) for late in (0, 1))
    assert bounds(partition([old, segment(10)], end=20), lag, None) == (0, 10)
    assert bounds(partition([young, segment(10)], end=20), lag, None) == (0, 0)


def test_the_whole_of_a_pause_by_lag_cleans_nothing() -> None:
    pause = Policy(now_ms=T0, min_compaction_lag_ms=NO_LIMIT, max_compaction_lag_ms=NO_LIMIT)
    for checkpoint in (None, 5, 10, 25):
        survey = partition(bases(0, 10, 20), end=30)
        found = clean_range(survey, pause, checkpoint=checkpoint)
        assert (found.empty, eligibility(survey, found, pause).eligible) == (True, False)


def test_undecided_data_is_not_cleaned() -> None:
    """M14: open at 0; then decided but the marker is in a later segment; then all of it."""
    survey = partition(bases(0, 3, 4), end=5)
    ends = {lso: bounds(replace(survey, lso=lso), NOW, None) for lso in (0, 2, 3, 4, 5)}
    assert ends == {0: (0, 0), 2: (0, 0), 3: (0, 3), 4: (0, 4), 5: (0, 4)}


def test_the_range_never_ends_below_the_first_dirty_offset() -> None:
    survey = partition(bases(0, 10, 20, 30), end=40, lso=5)
    assert bounds(survey, NOW, 25) == (25, 20)
    assert clean_range(survey, NOW, checkpoint=25).empty


def test_the_segment_that_holds_the_first_dirty_offset_is_dirty() -> None:
    survey = partition(bases(0, 10, 20, 30), end=40)
    dirty = {start: [s.base for s in dirty_segments(survey, start)] for start in (0, 9, 10, 29, 30, 40)}
    assert dirty == {0: [0, 10, 20], 9: [0, 10, 20], 10: [10, 20], 29: [20], 30: [], 40: []}


def six(checkpoint: int, lso: int) -> Eligibility:
    """A19: six segments whose sizes tell them apart."""
    survey = partition([segment(base, size=2**base) for base in range(6)], end=6, lso=lso)
    return eligibility(survey, clean_range(survey, NOW, checkpoint=checkpoint), NOW)


def test_the_dirty_ratio_is_of_cleanable_bytes_to_all_that_would_be_rewritten() -> None:
    half_clean = six(checkpoint=2, lso=4)
    assert (half_clean.clean_bytes, half_clean.cleanable_bytes) == (1 + 2, 4 + 8)
    assert half_clean.dirty_ratio == 12 / 15
    all_clean = six(checkpoint=5, lso=5)
    assert (all_clean.clean_bytes, all_clean.cleanable_bytes, all_clean.dirty_ratio) == (31, 0, 0.0)


def test_a_segment_across_the_first_dirty_offset_counts_as_clean_and_as_dirty() -> None:
    survey = partition([segment(0, size=10), segment(10, size=30), segment(20, size=1)], end=30)
    found = eligibility(survey, clean_range(survey, NOW, checkpoint=15), NOW)
    assert (found.clean_bytes, found.cleanable_bytes, found.dirty_ratio) == (40, 30, 30 / 70)


def test_the_dirty_ratio_must_be_above_the_limit() -> None:
    """Strictly: 1.0 is therefore a pause."""
    survey = partition([segment(0), segment(10), segment(20)], end=30)
    found = clean_range(survey, NOW, checkpoint=10)
    answers = [eligibility(survey, found, replace(NOW, min_cleanable_dirty_ratio=limit)) for limit in (0.49, 0.5, 0.51)]
    assert [answer.eligible for answer in answers] == [True, False, False]
    assert answers[0].reason == "dirty ratio 0.500 > min.cleanable.dirty.ratio 0.49"
    everything = clean_range(survey, NOW, checkpoint=0)
    assert eligibility(survey, everything, replace(NOW, min_cleanable_dirty_ratio=1.0)).eligible is False


def test_max_compaction_lag_makes_a_log_eligible_whatever_its_ratio() -> None:
    survey = partition([segment(0, timestamp=T0), segment(10, timestamp=T0 + 5), segment(20)], end=30)
    policy = Policy(now_ms=T0 + HOUR_MS, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=HOUR_MS)
    found = clean_range(survey, policy, checkpoint=None)
    assert eligibility(survey, found, policy).eligible is False
    overdue = eligibility(survey, found, replace(policy, now_ms=policy.now_ms + 1))
    assert overdue.eligible is True
    assert overdue.reason == "oldest dirty record waited 1 h (3600001 ms) > max.compaction.lag.ms 1 h"
    clean_up_to = clean_range(survey, policy, checkpoint=10)
    assert eligibility(survey, clean_up_to, replace(policy, now_ms=policy.now_ms + 5)).eligible is False


def test_the_filthiest_log_is_taken_first() -> None:
    """M1, M8: by ratio, and the invalid checkpoint of the other is reset."""
    with quick_directory() as root:
        for number, tail in enumerate(("", "N[x] ", "N[x] N[x] ")):
            write_log(root, "N[a] N[b] N[c] | " + tail + "| N[z]", f"t-{number}")
        (root / "cleaner-offset-checkpoint").write_text(write_checkpoint({("t", 0): 99, ("t", 1): 3, ("t", 2): 3}))
        told: list[str] = []
        policy = kafka_rules(Policy(now_ms=10**6, min_cleanable_dirty_ratio=0.05))
        ranked = compact_here(root, tell=told.append, policy=policy, eligible_only=True, dry_run=True).partitions
    assert [report.partition for report in ranked] == ["t-0", "t-2", "t-1"]
    assert [report.dirty_start for report in ranked] == [0, 3, 3]
    assert "t-0: checkpoint 99 is above log end 4" in told


def grouped(segments: list[SegmentSurvey], policy: Policy, *, uncleanable: int) -> list[list[int]]:
    return [[s.base for s in group] for group in group_segments(segments, policy, uncleanable=uncleanable)]


def test_groups_are_filled_up_to_the_limits_of_a_segment() -> None:
    """A22."""
    segments = [segment(base, size=10 + base, index=8, times=12) for base in range(6)]
    assert grouped(segments, NOW, uncleanable=6) == [[0, 1, 2, 3, 4, 5]]
    alone = [[0], [1], [2], [3], [4], [5]]
    assert grouped(segments, replace(NOW, segment_bytes=1), uncleanable=6) == alone
    assert grouped(segments, replace(NOW, segment_index_bytes=1), uncleanable=6) == alone
    assert grouped(segments, replace(NOW, segment_bytes=33), uncleanable=6) == [[0, 1, 2], [3, 4], [5]]
    assert grouped(segments, replace(NOW, segment_bytes=32), uncleanable=6) == [[0, 1], [2, 3], [4, 5]]
    assert grouped(segments, replace(NOW, segment_index_bytes=24), uncleanable=6) == [[0, 1], [2, 3], [4, 5]]
    small_times = [replace(s, file=replace(s.file, time_index_bytes=0)) for s in segments]
    assert grouped(small_times, replace(NOW, segment_index_bytes=24), uncleanable=6) == [[0, 1, 2], [3, 4, 5]]


def test_a_group_spans_no_more_offsets_than_an_index_can_tell() -> None:
    """A22: relative offsets are 32 bits; the last offset is bounded by the next segment's base."""
    pair = [segment(0), segment(10)]
    assert grouped(pair, NOW, uncleanable=INT32_MAX + 1) == [[0, 10]]
    assert grouped(pair, NOW, uncleanable=INT32_MAX + 2) == [[0], [10]]
    assert grouped([*pair, segment(INT32_MAX + 1)], NOW, uncleanable=INT32_MAX + 9) == [[0, 10], [INT32_MAX + 1]]
    empty = segment(10, size=0)
    assert grouped([segment(0), empty], NOW, uncleanable=INT32_MAX + 2) == [[0, 10]]


def retained(*rows: tuple[int, int, int]) -> list[RetainedSegment]:
    return [RetainedSegment(base=base, size=size, largest_timestamp=stamp) for base, size, stamp in rows]


LOG = retained((0, 100, T0), (10, 100, T0 + 1), (20, 100, T0 + 2), (30, 50, T0 + 3))
DELETE = Policy(now_ms=T0, cleanup_delete=True, retention_ms=-1, retention_bytes=-1)


def gone(policy: Policy, *, log_start: int = 0, log_end: int = 40, high_watermark: int = 40) -> list[int]:
    return deletable(LOG, policy, log_start=log_start, log_end=log_end, high_watermark=high_watermark)


def test_segments_wholly_below_the_log_start_go_under_any_policy() -> None:
    starts = {0: [], 9: [], 10: [0], 29: [0, 10], 30: [0, 10, 20], 40: [0, 10, 20]}
    assert {start: gone(NOW, log_start=start) for start in starts} == starts


def test_retention_by_time_takes_the_oldest_segments_whole() -> None:
    """Strictly older than the limit; the first one that is young enough stops it."""
    late = {0: [], 1: [0], 2: [0, 10], 3: [0, 10, 20], 4: [0, 10, 20, 30]}
    assert {ms: gone(replace(DELETE, retention_ms=1000, now_ms=T0 + 1000 + ms)) for ms in late} == late
    mixed = retained((0, 1, T0), (10, 1, T0 + 9), (20, 1, T0), (30, 1, T0))
    policy = replace(DELETE, retention_ms=0, now_ms=T0 + 5)
    assert deletable(mixed, policy, log_start=0, log_end=40, high_watermark=40) == [0]


def test_retention_by_size_deletes_no_more_than_the_excess() -> None:
    sizes = {350: [], 349: [], 251: [], 250: [0], 151: [0], 150: [0, 10], 50: [0, 10, 20], 0: [0, 10, 20, 30]}
    assert {limit: gone(replace(DELETE, retention_bytes=limit)) for limit in sizes} == sizes


def test_retention_without_delete_in_the_policy_is_off() -> None:
    assert gone(Policy(now_ms=NO_LIMIT, retention_ms=0, retention_bytes=0)) == []
    assert gone(replace(DELETE, now_ms=NO_LIMIT)) == []


def test_nothing_at_or_above_the_high_watermark_is_deleted() -> None:
    aged = replace(DELETE, retention_ms=0, now_ms=T0 + HOUR_MS)
    highs = {9: [], 10: [0], 25: [0, 10], 39: [0, 10, 20], 40: [0, 10, 20, 30]}
    assert {high: gone(aged, high_watermark=high) for high in highs} == highs


def test_a_horizon_that_overflows_is_none() -> None:
    assert horizon_after(5, 10) == 15
    assert horizon_after(NO_LIMIT - 10, 10) == NO_LIMIT
    assert horizon_after(NO_LIMIT - 9, 10) == -1


def kept_by_retention(
    root: Path, policy: Policy, log_start: int | None
) -> tuple[list[int], int, dict[str, dict[tuple[str, int], int]]]:
    write_log(root, f"N[a]@{T0} | N[b]@{T0 + 10} | N[a]@{T0 + 20} | N[c]@{T0 + 30}")
    if log_start is not None:
        (root / "log-start-offset-checkpoint").write_text(write_checkpoint({("t", 0): log_start}))
    report = compact_here(root, policy=policy).partitions[0]
    names = ("cleaner-offset-checkpoint", "log-start-offset-checkpoint")
    files = {name: read_checkpoint((root / name).read_text()) for name in names if (root / name).exists()}
    return [s.base for s in read_partition(root / "t-0")], report.log_start, files


def test_compact_and_delete_compacts_then_deletes_what_is_too_old() -> None:
    """The first segment lost its record and so its time: it is as old as its file."""
    policy = kafka_rules(Policy(now_ms=T0 + 1015, cleanup_delete=True, retention_ms=1000, segment_bytes=1))
    with quick_directory() as root:
        bases_left, start, files = kept_by_retention(root, policy, None)
    assert (bases_left, start) == ([2, 3], 2)
    assert files["cleaner-offset-checkpoint"] == {("t", 0): 3}


def test_when_everything_is_too_old_one_empty_segment_is_left_at_the_end() -> None:
    policy = kafka_rules(Policy(now_ms=T0 + HOUR_MS, cleanup_delete=True, retention_ms=1000))
    with quick_directory() as root:
        bases_left, start, files = kept_by_retention(root, policy, None)
    assert (bases_left, start) == ([4], 4)
    assert files["cleaner-offset-checkpoint"] == {("t", 0): 4}


def test_the_log_start_takes_whole_segments_and_stays_where_it_is() -> None:
    policy = kafka_rules(Policy(now_ms=T0, segment_bytes=1))
    with quick_directory() as root:
        bases_left, start, files = kept_by_retention(root, policy, 1)
    assert (bases_left, start) == ([1, 2, 3], 1)
    assert files["cleaner-offset-checkpoint"] == {("t", 0): 3}
    assert files["log-start-offset-checkpoint"] == {}


def test_a_log_start_inside_a_segment_stays_in_its_checkpoint() -> None:
    with quick_directory() as root:
        write_log(root, "N[a,b,c] N[d] | N[z]")
        (root / "log-start-offset-checkpoint").write_text(write_checkpoint({("t", 0): 2}))
        report = compact_here(root, policy=kafka_rules(NOW)).partitions[0]
        starts = read_checkpoint((root / "log-start-offset-checkpoint").read_text())
    assert (report.dirty_start, report.log_start, starts) == (2, 2, {("t", 0): 2})
