"""Owns what a log directory means, told by the oracle: the strict reading of its files, and one cleaning pass over it.

Knows nothing of `headstone`. `Refused` carries why the directory cannot be read whole; `Unjudged` why the oracle has no
opinion although it can be read.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, replace
from itertools import pairwise

from tests.fuzz.logs import PARTITION, TOPIC_PARTITION, Files
from tests.fuzz.mutations import DECOMPRESSION_ERRORS
from tests.oracle.batches import Batch, parse_log, to_bytes
from tests.oracle.cleaner import CleanResult, Pass, clean
from tests.oracle.files import SnapshotEntry, read_checkpoint, read_snapshot, read_txn_index
from tests.oracle.producers import InvalidTxnState, ProducerTable
from tests.oracle.segments import AbortedTxn, Segment, make_segment

LOG_NAME = re.compile(rf"{PARTITION}/(\d{{20}})\.log")
UNFINISHED = (".cleaned", ".swap")
INT64_MAX = 2**63 - 1
MTIME_MS = 1_000_000


class Refused(Exception):
    pass


class Unjudged(Exception):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A directory that was read whole, active segment last."""

    segments: list[Segment]
    producers: ProducerTable
    settings: Pass
    indexed: list[AbortedTxn]
    replayed: list[AbortedTxn]

    @property
    def batches(self) -> list[Batch]:
        return [batch for segment in self.segments for batch in segment.batches]


def read(files: Files, settings: Pass) -> Reading:
    """`settings` with the offsets that the checkpoints say; raises Refused or Unjudged."""
    if any(name.endswith(UNFINISHED) for name in files):
        raise Refused("an interrupted swap")
    bases = sorted(int(match[1]) for match in map(LOG_NAME.fullmatch, files) if match)
    if not bases:
        raise Refused("no .log file")
    segments = [_segment(files, base) for base in bases]
    _check_order(segments)
    offsets = {name: _checkpoint(files, name) for name in ("replication-offset", "log-start-offset", "cleaner-offset")}
    end = segments[-1].next_offset
    high = offsets["replication-offset"]
    start = offsets["log-start-offset"]
    settings = replace(
        settings,
        high_watermark=end if high is None else min(high, end),
        log_start=bases[0] if start is None else max(start, bases[0]),
        dirty_start=offsets["cleaner-offset"],
    )
    everything = ProducerTable()
    _replay(everything, segments, 0)
    table = everything
    snapshot = _newest_snapshot(files, bases[0], high)
    if snapshot is not None:
        table = ProducerTable(snapshot[1])
        _replay(table, segments, snapshot[0])
        table.completed = everything.completed
    indexed = [entry for segment in segments for entry in segment.aborted]
    return Reading(
        segments=segments, producers=table, settings=settings, indexed=indexed, replayed=everything.aborted
    )  # fmt: skip


def cleaned(reading: Reading) -> CleanResult:
    """One pass, aborted transactions taken from the log itself where `.txnindex` does not tell of them."""
    segments = _with_lost_aborts(reading)
    try:
        return clean(segments, reading.producers, reading.settings)
    except (ValueError, struct.error, OverflowError) as error:
        raise Unjudged(f"the oracle does not clean it: {error}") from error


def after_retention(result: CleanResult, settings: Pass) -> list[Segment]:
    """Without the segments wholly below the log start offset."""
    segments = list(result.segments)
    start, high = settings.log_start or 0, settings.high_watermark or 0
    while len(segments) > 1 and segments[1].base <= start and high >= segments[1].base:
        segments.pop(0)
    return segments


def _segment(files: Files, base: int) -> Segment:
    data = files[f"{PARTITION}/{base:020d}.log"]
    try:
        batches = parse_log(data)
        aborted = read_txn_index(files.get(f"{PARTITION}/{base:020d}.txnindex", b""))
        for batch in batches:
            if batch.marker in ("ABORT", "COMMIT"):
                _ = batch.coordinator_epoch
    except (*DECOMPRESSION_ERRORS, MemoryError, OverflowError) as error:
        raise Refused(f"segment {base}: {error}") from error
    if sum(len(to_bytes(batch)) for batch in batches) != len(data):
        raise Refused(f"segment {base} ends in a partial batch")
    return make_segment(base=base, batches=batches, mtime_ms=MTIME_MS, aborted=list(aborted))


def _check_order(segments: list[Segment]) -> None:
    batches = [(segment.base, batch) for segment in segments for batch in segment.batches]
    for base, batch in batches:
        if batch.base_offset < base:
            raise Refused(f"batch {batch.base_offset} lies below its segment {base}")
        if batch.last_offset > INT64_MAX:
            raise Refused(f"batch {batch.base_offset} ends beyond all offsets")
        if any(not -(2**63) <= record.timestamp <= INT64_MAX for record in batch.records):
            raise Unjudged("a timestamp that wraps around")
    for (_, earlier), (_, later) in pairwise(batches):
        if later.base_offset <= earlier.last_offset:
            raise Refused(f"batch {later.base_offset} begins inside or before batch {earlier.base_offset}")


def _checkpoint(files: Files, name: str) -> int | None:
    try:
        return read_checkpoint(files.get(f"{name}-checkpoint", b"").decode()).get(TOPIC_PARTITION)
    except (ValueError, IndexError) as error:
        raise Refused(f"{name}-checkpoint: {error}") from error


def _newest_snapshot(files: Files, first: int, high: int | None) -> tuple[int, list[SnapshotEntry]] | None:
    offsets = sorted((int(name[-29:-9]) for name in files if re.search(r"/\d{20}\.snapshot$", name)), reverse=True)
    for offset in offsets:
        if offset <= first or (high is not None and offset > high):
            continue
        try:
            return offset, read_snapshot(files[f"{PARTITION}/{offset:020d}.snapshot"])
        except (ValueError, struct.error):
            continue
    return None


def _replay(table: ProducerTable, segments: list[Segment], start: int) -> None:
    batches = [batch for segment in segments for batch in segment.batches if batch.base_offset >= start]
    try:
        table.replay(batches)
    except InvalidTxnState as error:
        raise Unjudged(f"a leader would refuse it: {error}") from error


def _with_lost_aborts(reading: Reading) -> list[Segment]:
    known = {(entry.producer_id, entry.last_offset) for entry in reading.indexed}
    lost = [entry for entry in reading.replayed if (entry.producer_id, entry.last_offset) not in known]
    segments = []
    for segment in reading.segments:
        holds = {batch.last_offset for batch in segment.batches if batch.marker == "ABORT"}
        mine = [*segment.aborted, *(entry for entry in lost if entry.last_offset in holds)]
        segments.append(replace(segment, aborted=tuple(sorted(mine, key=lambda entry: entry.last_offset))))
    return segments
