"""Which part of a log a compaction covers, whether the cleaner would choose it, and what retention deletes.

The cleaner's own arithmetic over segment facts: first dirty offset, first uncleanable offset, dirty ratio, lags, groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from headstone import units
from headstone.retention.choosing import Choice, Dirt, choose
from headstone.retention.policy import Policy
from headstone.retention.survey import PartitionSurvey, SegmentSurvey

INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRange:
    """[dirty_start, uncleanable) may be cleaned; `limit` says in words what ends it, `reset` why the start was moved."""

    dirty_start: int
    uncleanable: int
    limit: str
    reset: str | None

    @property
    def empty(self) -> bool:
        return self.dirty_start >= self.uncleanable


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligibility:
    """Whether the cleaner would choose this log now, and the number that decided."""

    eligible: bool
    reason: str
    clean_bytes: int
    cleanable_bytes: int
    dirty_ratio: float


def largest_timestamp(segment: SegmentSurvey) -> int:
    return segment.largest_timestamp if segment.largest_timestamp >= 0 else segment.file.mtime_ms


def first_dirty_offset(survey: PartitionSurvey, checkpoint: int | None) -> tuple[int, str | None]:
    """The checkpoint, or log start with the reason if there is no usable checkpoint."""
    if checkpoint is None:
        return survey.log_start, None
    if checkpoint < survey.log_start:
        return survey.log_start, f"checkpoint {checkpoint} is below log start {survey.log_start}"
    if checkpoint > survey.log_end:
        return survey.log_start, f"checkpoint {checkpoint} is above log end {survey.log_end}"
    return checkpoint, None


def clean_range(survey: PartitionSurvey, policy: Policy, *, checkpoint: int | None) -> CleanRange:
    """What a pass may clean: whole segments below the LSO, the active segment and min.compaction.lag.ms."""
    start, reset = first_dirty_offset(survey, checkpoint)
    limits = [(survey.lso, "LSO"), (survey.active.base, "active segment")]
    if policy.min_compaction_lag_ms > 0:
        young = policy.now_ms - policy.min_compaction_lag_ms
        too_young = [s.base for s in dirty_segments(survey, start) if largest_timestamp(s) > young]
        limits += [(too_young[0], "min.compaction.lag.ms")] if too_young else []
    bound, limit = min(limits)
    bound = max(bound, start)
    below = [segment.base for segment in survey.segments if segment.base <= bound]
    uncleanable = below[-1] if below else survey.segments[0].base
    return CleanRange(dirty_start=start, uncleanable=uncleanable, limit=f"{limit} {bound}", reset=reset)


def dirty_segments(survey: PartitionSurvey, dirty_start: int) -> list[SegmentSurvey]:
    """From the segment that contains dirty_start up to, not including, the active one."""
    inactive = survey.segments[:-1]
    ends = [segment.base for segment in survey.segments[1:]]
    return [segment for segment, end in zip(inactive, ends, strict=True) if end > dirty_start]


def eligibility(survey: PartitionSurvey, clean: CleanRange, policy: Policy) -> Eligibility:
    """Whether Kafka's cleaner would choose the log, for its dirty ratio or its overdue dirty data."""
    dirty = dirty_segments(survey, clean.dirty_start)
    stamps = [segment.first_batch_timestamp for segment in dirty if segment.first_batch_timestamp > 0]
    dirt = Dirt(
        clean_bytes=sum(segment.size for segment in survey.segments if segment.base < clean.dirty_start),
        dirty_bytes=sum(segment.size for segment in dirty if segment.base < clean.uncleanable),
        oldest_ms=min(stamps, default=-1),
    )
    choice = choose(
        dirt, now_ms=policy.now_ms, ratio_min=policy.min_cleanable_dirty_ratio, lag_ms_max=policy.max_compaction_lag_ms
    )
    return Eligibility(
        eligible=choice.chosen, reason=_reason(dirt, choice, clean, policy), clean_bytes=dirt.clean_bytes,
        cleanable_bytes=dirt.dirty_bytes, dirty_ratio=dirt.ratio,
    )  # fmt: skip


def _reason(dirt: Dirt, choice: Choice, clean: CleanRange, policy: Policy) -> str:
    if dirt.dirty_bytes == 0:
        where = f"first dirty offset {clean.dirty_start}, cleanable up to {clean.uncleanable} ({clean.limit})"
        return f"no cleanable bytes: {where}"
    if choice.dirty_enough:
        return f"dirty ratio {dirt.ratio:.3f} > min.cleanable.dirty.ratio {policy.min_cleanable_dirty_ratio}"
    if choice.overdue:
        waited_ms = policy.now_ms - dirt.oldest_ms
        waited, limit = units.exact_duration(waited_ms), units.exact_duration(policy.max_compaction_lag_ms)
        return f"oldest dirty record waited {waited} > max.compaction.lag.ms {limit}"
    return f"dirty ratio {dirt.ratio:.3f} <= min.cleanable.dirty.ratio {policy.min_cleanable_dirty_ratio}"


def group_segments(segments: Sequence[SegmentSurvey], policy: Policy, *, uncleanable: int) -> list[list[SegmentSurvey]]:
    """Consecutive segments that together become one output segment; the output has the first one's base."""
    groups: list[list[SegmentSurvey]] = []
    size = index_bytes = time_index_bytes = 0
    for i, segment in enumerate(segments):
        last_offset = segments[i + 1].base - 1 if i + 1 < len(segments) else uncleanable - 1
        size += segment.size
        index_bytes += segment.file.index_bytes
        time_index_bytes += segment.file.time_index_bytes
        if (
            groups
            and size <= policy.segment_bytes
            and max(index_bytes, time_index_bytes) <= policy.segment_index_bytes
            and (segment.size == 0 or last_offset - groups[-1][0].base <= INT32_MAX)
        ):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            size, index_bytes, time_index_bytes = segment.size, segment.file.index_bytes, segment.file.time_index_bytes
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedSegment:
    """The facts that deletion looks at, for old and new segments alike."""

    base: int
    size: int
    largest_timestamp: int


def deletable(
    segments: Sequence[RetainedSegment], policy: Policy, *, log_start: int, log_end: int, high_watermark: int
) -> list[int]:
    """Bases of the oldest segments to delete: always those below log start; by size and time if the policy has `delete`."""
    gone = 0

    def take_while(goes: Iterable[bool]) -> None:
        nonlocal gone
        for _ in takewhile(bool, goes):
            following = segments[gone + 1].base if gone + 1 < len(segments) else log_end
            last = gone + 1 == len(segments)
            if high_watermark < following or (last and segments[gone].size == 0):
                return
            gone += 1

    take_while([following.base <= log_start for following in segments[1:]])
    if policy.cleanup_delete and policy.retention_bytes >= 0:
        excess = sum(segment.size for segment in segments[gone:]) - policy.retention_bytes
        goes = []
        for segment in segments[gone:]:
            goes.append(excess - segment.size >= 0)
            excess -= segment.size if goes[-1] else 0
        take_while(goes)
    if policy.cleanup_delete and policy.retention_ms >= 0:
        take_while([policy.now_ms - segment.largest_timestamp > policy.retention_ms for segment in segments[gone:]])
    return [segment.base for segment in segments[:gone]]
