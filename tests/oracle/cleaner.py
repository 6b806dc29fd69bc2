"""Owns the oracle of one cleaning pass: `clean` maps the dirty range, judges every record and builds the new segments.

Kafka's rules and the coordinated ones. Follows Kafka's `Cleaner` literally, in the numbers of docs/rules.md (K1, K2, R0 to
R7); time, producer state and limits are arguments. Knows nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from tests.oracle.batches import Batch, Record, changed, without_transactional_bit
from tests.oracle.producers import LastRecord, ProducerTable, wrap_int64
from tests.oracle.segments import AbortedTxn, Segment, make_segment
from tests.oracle.tracker import TransactionTracker, aborted_between

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

KEPT = (
    "newest",
    "unmapped",
    "producer's last batch",
    "end of range",
    "horizon not passed",
    "above MTRO",
    "above MXRO",
    "control",
)
DROPPED = ("superseded", "aborted", "expired tombstone", "expired marker", "keyless")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What one pass is told. `dirty_start` None = no checkpoint; `high_watermark` None = the log's end offset."""

    now_ms: int
    dirty_start: int | None = None
    log_start: int | None = None
    high_watermark: int | None = None
    lag_ms: int = 0
    delete_retention_ms: int = 86_400_000
    keys_max: int | None = None
    segment_bytes: int = 2**30
    segment_index_bytes: int = 10 * 2**20
    producer_expiration_ms: int = INT64_MAX
    rules: str = "kafka"
    mtro: int = INT64_MAX
    mxro: int = INT64_MAX
    plain_below: int = 0

    @property
    def coordinated(self) -> bool:
        return self.rules == "coordinated"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMap:
    offsets: dict[bytes, int]
    latest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    offset: int
    kept: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """`form`: copied, bit cleared, rebuilt, header only, removed. `held_by`: why the header may not go, if so."""

    base_offset: int
    last_offset: int
    form: str
    held_by: str | None
    output: Batch | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanResult:
    segments: list[Segment]
    dirty_start: int
    first_uncleanable: int
    next_dirty: int
    map: OffsetMap
    groups: list[list[int]]
    verdicts: list[Verdict]
    batches: list[BatchResult]
    invalid: int


def clean(segments: list[Segment], producers: ProducerTable, settings: Pass) -> CleanResult:
    """`segments` is the whole log, ascending, the active segment last. Expired producers leave `producers`."""
    assert settings.rules in ("kafka", "coordinated")
    producers.expire(settings.now_ms, settings.producer_expiration_ms)
    dirty_start = first_dirty(segments, settings)
    end = first_uncleanable(segments, producers, settings, dirty_start)
    offset_map = build_map(segments, settings, dirty_start, end)
    clean_end = offset_map.latest + 1
    sources = [segment for segment in segments if segment.base < clean_end]
    rewriter = Rewriter(segments, producers.last_records(), settings, offset_map, end)
    groups = group_segments(sources, settings, end)
    outputs = [rewriter.rewrite(group) for group in groups]
    return CleanResult(
        segments=outputs + segments[len(sources) :],
        dirty_start=dirty_start,
        first_uncleanable=end,
        next_dirty=clean_end if sources else dirty_start,
        map=offset_map,
        groups=[[segment.base for segment in group] for group in groups],
        verdicts=rewriter.verdicts,
        batches=rewriter.results,
        invalid=sum(verdict.reason == "keyless" for verdict in rewriter.verdicts),
    )


def log_start(segments: list[Segment], settings: Pass) -> int:
    return segments[0].base if settings.log_start is None else settings.log_start


def first_dirty(segments: list[Segment], settings: Pass) -> int:
    start = log_start(segments, settings)
    checkpoint = settings.dirty_start
    if checkpoint is None or checkpoint < start or checkpoint > segments[-1].next_offset:
        return start
    return checkpoint


def first_uncleanable(segments: list[Segment], producers: ProducerTable, settings: Pass, dirty_start: int) -> int:
    high_watermark = segments[-1].next_offset if settings.high_watermark is None else settings.high_watermark
    lso = max(producers.lso(high_watermark), log_start(segments, settings))
    bounds = [lso, segments[-1].base]
    if settings.lag_ms > 0:
        bounds += too_young(segments, settings, dirty_start)
    bound = max(min(bounds), dirty_start)
    return max((segment.base for segment in segments if segment.base <= bound), default=segments[0].base)


def too_young(segments: list[Segment], settings: Pass, dirty_start: int) -> list[int]:
    dirty = [segment for segment, later in pairwise(segments) if later.base > dirty_start]
    return [segment.base for segment in dirty if segment.largest_timestamp > settings.now_ms - settings.lag_ms]


def build_map(segments: list[Segment], settings: Pass, dirty_start: int, end: int) -> OffsetMap:
    offsets: dict[bytes, int] = {}
    latest = -1
    dirty = [
        (segment, later.base)
        for segment, later in pairwise(segments)
        if later.base > dirty_start and segment.base < end
    ]
    tracker = TransactionTracker()
    if dirty:
        tracker.load(aborted_between(segments, log_start(segments, settings), dirty_start, end))
    for segment, next_base in dirty:
        for batch in segment.batches_from(dirty_start):
            if batch.control:
                tracker.read_control(batch)
            elif not tracker.read_data(batch):
                for record in batch.records:
                    if record.key is None or record.offset < dirty_start:
                        continue
                    if settings.keys_max is not None and len(offsets) >= settings.keys_max:
                        return OffsetMap(offsets=offsets, latest=latest)
                    offsets[record.key] = record.offset
                    latest = record.offset
            if batch.last_offset >= dirty_start:
                latest = batch.last_offset
        latest = next_base - 1
    return OffsetMap(offsets=offsets, latest=latest)


def group_segments(sources: list[Segment], settings: Pass, end: int) -> list[list[Segment]]:
    groups: list[list[Segment]] = []
    for number, segment in enumerate(sources):
        last = sources[number + 1].base - 1 if number + 1 < len(sources) else end - 1
        if groups and fits(groups[-1], segment, last, settings):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups


def fits(group: list[Segment], segment: Segment, last_offset: int, settings: Pass) -> bool:
    together = [*group, segment]
    return (
        sum(member.size for member in together) <= settings.segment_bytes
        and sum(member.index_bytes for member in together) <= settings.segment_index_bytes
        and sum(member.time_index_bytes for member in together) <= settings.segment_index_bytes
        and (segment.size == 0 or last_offset - group[0].base <= INT32_MAX)
    )


class Rewriter:
    """Rewrites groups in order, with one transaction tracker for the whole pass, and collects every verdict."""

    def __init__(
        self,
        segments: list[Segment],
        active: dict[int, LastRecord],
        settings: Pass,
        offset_map: OffsetMap,
        end: int,
    ) -> None:
        self.segments = segments
        self.active = active
        self.settings = settings
        self.map = offset_map
        self.end = end
        self.tracker = TransactionTracker()
        self.verdicts: list[Verdict] = []
        self.results: list[BatchResult] = []

    def rewrite(self, group: list[Segment]) -> Segment:
        output: list[Batch] = []
        kept_aborts: list[AbortedTxn] = []
        start = log_start(self.segments, self.settings)
        for number, segment in enumerate(group):
            last = number + 1 == len(group)
            upper = segment.next_offset if last else group[number + 1].base
            self.tracker.load(aborted_between(self.segments, start, segment.base, upper))
            for batch in segment.batches:
                result = self.rewrite_batch(batch, kept_aborts)
                self.results.append(result)
                if result.output is not None:
                    output.append(result.output)
        return make_segment(base=group[0].base, batches=output, mtime_ms=group[-1].mtime_ms, aborted=kept_aborts)

    def rewrite_batch(self, batch: Batch, kept_aborts: list[AbortedTxn]) -> BatchResult:
        if batch.control:
            discardable, entry = self.tracker.read_control(batch)
            kept_aborts += [entry] if entry else []
        else:
            discardable = self.tracker.read_data(batch)
        verdicts = [self.judge(batch, record, discardable) for record in batch.records]
        self.verdicts += verdicts
        held_by = self.held_by(batch)
        kept = {verdict.offset for verdict in verdicts if verdict.kept}
        survivors = tuple(record for record in batch.records if record.offset in kept)
        form, output = self.build(batch, survivors, discardable, held_by)
        below = self.settings.coordinated and batch.last_offset < self.settings.plain_below
        if output is not None and below and is_committed(batch, discardable):
            form = "bit cleared" if form == "copied" else form
            output = without_transactional_bit(output)
        return BatchResult(
            base_offset=batch.base_offset,
            last_offset=batch.last_offset,
            form=form,
            held_by=held_by,
            output=output,
        )

    def held_by(self, batch: Batch) -> str | None:
        """K1, then K2."""
        last = self.active.get(batch.producer_id) if batch.producer_id >= 0 else None
        if last is not None:
            if last.last_data_offset is not None and batch.last_offset == last.last_data_offset:
                return "producer's last batch"
            if last.last_data_offset is None and batch.control and batch.producer_epoch == last.epoch:
                return "producer's last batch"
        return "end of range" if batch.next_offset == self.end else None

    def judge(self, batch: Batch, record: Record, discardable: bool) -> Verdict:
        if batch.control:
            reason = self.judge_marker(batch, record, discardable)
        elif discardable:
            reason = "aborted"
        else:
            reason = self.judge_data(batch, record)
        assert reason in KEPT or reason in DROPPED
        return Verdict(offset=record.offset, kept=reason in KEPT, reason=reason)

    def judge_marker(self, batch: Batch, record: Record, discardable: bool) -> str:
        if not discardable:
            return "control"
        if not self.horizon_passed(batch):
            return "horizon not passed"
        if self.settings.coordinated and record.offset >= self.settings.mxro:
            return "above MXRO"
        return "expired marker"

    def judge_data(self, batch: Batch, record: Record) -> str:
        """R2 to R7."""
        if record.offset > self.map.latest:
            return "unmapped"
        if record.key is None:
            return "keyless"
        if record.offset < self.map.offsets.get(record.key, -1):
            return "superseded"
        if record.value is not None:
            return "newest"
        if not self.horizon_passed(batch):
            return "horizon not passed"
        if self.settings.coordinated and record.offset >= self.settings.mtro:
            return "above MTRO"
        return "expired tombstone"

    def horizon_passed(self, batch: Batch) -> bool:
        return batch.horizon_ms is not None and batch.horizon_ms <= self.settings.now_ms

    def build(
        self, batch: Batch, survivors: tuple[Record, ...], discardable: bool, held_by: str | None
    ) -> tuple[str, Batch | None]:
        if not survivors:
            return ("header only", header_only(batch)) if held_by else ("removed", None)
        tombstone_left = any(record.value is None for record in survivors)
        stamp = batch.horizon_ms is None and (tombstone_left or (batch.control and discardable))
        if len(survivors) == batch.count and not stamp:
            return "copied", batch
        horizon_ms = batch.horizon_ms
        if stamp:
            horizon_ms = wrap_int64(self.settings.now_ms + self.settings.delete_retention_ms)
        return "rebuilt", rebuilt(batch, survivors, horizon_ms)


def is_committed(batch: Batch, discardable: bool) -> bool:
    return batch.transactional and not batch.control and not discardable


def rebuilt(batch: Batch, survivors: tuple[Record, ...], horizon_ms: int | None) -> Batch:
    if horizon_ms is not None and horizon_ms < 0:
        horizon_ms = None
    newest = max(record.timestamp for record in survivors)
    return changed(
        batch,
        records=survivors,
        count=len(survivors),
        horizon_ms=horizon_ms,
        base_timestamp=survivors[0].timestamp if horizon_ms is None else horizon_ms,
        max_timestamp=batch.max_timestamp if batch.log_append_time else newest,
    )


def header_only(batch: Batch) -> Batch:
    return changed(batch, records=(), count=0, codec="none", horizon_ms=None, base_timestamp=-1)
