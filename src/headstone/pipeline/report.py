"""What a compaction did, as numbers: the JSON of `compact` and the lines a cleaner operator recognises.

Owns what each count covers. Reads results; decides and writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headstone import units
from headstone.pipeline.commit import Finished, deleted_by_retention
from headstone.pipeline.planning import Candidate
from headstone.pipeline.work import TaskResult
from headstone.retention import keys, verdicts

RATED_BYTES_MIN = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """Counts are of the whole partition (carried-over segments included); records include control records."""

    partition: str
    chosen: bool
    reason: str
    dirty_ratio: float
    dirty_start: int
    dirty_end: int
    log_start: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    bytes_rewritten: int
    segments_before: int
    segments_after: int
    keys: int
    index_utilisation: float
    reasons: dict[str, int]
    tombstones_lost: int
    mtro: int
    mxro: int
    plain_below: int
    seconds: float
    dirty_planned: tuple[int, int] | None = None
    """Only in a dry run: the range that would be cleaned, if there is one."""

    def as_json(self) -> dict[str, Any]:
        count = self.reasons.get
        removed = count("tombstones before", 0) + self.tombstones_lost - count("tombstones after", 0)
        return {
            "partition": self.partition,
            "chosen": self.chosen,
            "reason": self.reason,
            "dirty_ratio": round(self.dirty_ratio, 6),
            "dirty_start": self.dirty_start,
            "dirty_end": self.dirty_end,
            "log_start": self.log_start,
            "records_before": self.records_before,
            "records_after": self.records_after,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "segments_before": self.segments_before,
            "segments_after": self.segments_after,
            "keys": self.keys,
            "index_utilisation": round(self.index_utilisation, 4),
            "tombstones_kept": count("tombstones after", 0),
            "tombstones_removed": removed,
            "markers_kept": count("markers after", 0),
            "markers_removed": count("markers before", 0) - count("markers after", 0),
            "aborted_removed": count("aborted", 0),
            "reasons": {
                name: n for name, n in self.reasons.items() if n and " before" not in name and " after" not in name
            },
            "tombstones_below": self.mtro,
            "markers_below": self.mxro,
            "plain_below": self.plain_below,
            "seconds": round(self.seconds, 3),
        }

    def as_line(self) -> str:
        if self.dirty_planned is not None:
            start, end = self.dirty_planned
            what = f"would clean [{start}, {end})" if self.chosen else "not chosen"
            return f"{self.partition}: {what}: {self.reason}"
        if self.bytes_rewritten == 0:
            again = (
                f"; --dirty-from {self.log_start} goes over the clean part again"
                if self.dirty_start > self.log_start
                else ""
            )
            return f"{self.partition}: nothing to clean: {self.reason}{again}"
        less = 100 * (1 - self.bytes_after / self.bytes_before) if self.bytes_before else 0.0
        return (
            f"{self.partition}: cleaned [{self.dirty_start}, {self.dirty_end}) "
            f"{read_in(self.bytes_rewritten, self.seconds)}, "
            f"{units.count(self.keys, 'key')}, index {100 * self.index_utilisation:.1f} % used, "
            f"{self.records_before:,} -> {units.count(self.records_after, 'record')}, "
            f"{units.size(self.bytes_before)} -> {units.size(self.bytes_after)} ({less:.1f} % size reduction)"
            f"\n  {self._removals()}"
        )

    def _removals(self) -> str:
        facts = self.as_json()
        count = self.reasons.get
        waiting = count("tombstone: above MTRO", 0) + count("marker: above MXRO", 0)
        held = f"; {waiting:,} past their time wait for MTRO {self.mtro} or MXRO {self.mxro}" if waiting else ""
        return (
            f"tombstones: {count('expired tombstone', 0):,} expired, {facts['tombstones_kept']:,} kept; "
            f"markers: {facts['markers_removed']:,} expired, {facts['markers_kept']:,} kept{held}"
        )


def read_in(size: int, seconds: float) -> str:
    """With the rate if it is meaningful: for a small log the time is mostly starting and compiling."""
    rate = f" ({units.size(size / seconds)}/s)" if size >= RATED_BYTES_MIN and seconds else ""
    return f"{units.size(size)} read in {seconds:.1f} s{rate}"


def partition_report(
    candidate: Candidate, done: Finished | None, tasks: tuple[TaskResult, ...], log_start: int, *, chosen: bool
) -> PartitionReport:
    """`done` is None for a dry run: then everything is unchanged."""
    survey = candidate.survey
    before = sum(segment.size for segment in survey.segments)
    records = sum(segment.records for segment in survey.segments)
    groups = done.groups if done else ()
    gone = set(deleted_by_retention(done)) if done else set()
    sizes = {s.base: (s.size, s.records) for s in (survey.segments if done is None else done.carried)}
    sizes.update({output.base: (output.size, output.records) for output in (done.outputs if done else ())})
    left = [size for base, size in sizes.items() if base not in gone]
    found_keys = sum(task.keys for task in tasks)
    room = candidate.policy.index_keys_max or (keys.slots_for(done.work.dirty_records) if done and done.work else 1)
    reasons = [sum(group.reasons[i] for group in groups) for i in range(len(verdicts.REASONS))] if groups else []
    return PartitionReport(
        partition=candidate.directory.name,
        chosen=chosen,
        reason=candidate.eligibility.reason,
        dirty_ratio=candidate.eligibility.dirty_ratio,
        dirty_start=candidate.range.dirty_start,
        dirty_end=max(done.dirty_end if done else candidate.range.dirty_start, log_start),
        log_start=log_start,
        bytes_before=before,
        bytes_after=sum(size for size, _ in left),
        records_before=records,
        records_after=sum(count for _, count in left),
        bytes_rewritten=sum(group.bytes_read for group in groups),
        segments_before=len(survey.segments),
        segments_after=max(len(left), 1),
        keys=found_keys,
        index_utilisation=found_keys / room,
        reasons=dict(zip(verdicts.REASONS, reasons, strict=False)),
        tombstones_lost=sum(task.tombstones_lost for task in tasks),
        mtro=candidate.policy.tombstones_below,
        mxro=candidate.policy.markers_below,
        plain_below=candidate.policy.plain_below,
        seconds=sum(task.seconds for task in tasks),
        dirty_planned=(candidate.range.dirty_start, candidate.range.uncleanable)
        if done is None and not candidate.range.empty
        else None,
    )
