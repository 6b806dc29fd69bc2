"""Owns what a log directory means, told by the oracle: the strict reading of its files, and one cleaning pass over it.

Knows nothing of `headstone`. `Refused` says why the directory cannot be read at all, `Unjudged` why the oracle has no
opinion although it can be read. A batch that is damaged behind its header is `Damage`: whoever looks there must refuse.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tests.fuzz.logs import PARTITION, TOPIC_PARTITION, Files
from tests.fuzz.sizes import DECOMPRESSION_ERRORS, check_size
from tests.oracle.batches import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL,
    HEADER,
    HEADER_BYTES,
    HORIZON,
    LENGTH_BEFORE,
    LOG_APPEND_TIME,
    PREFIX_BYTES,
    TRANSACTIONAL,
    BadLog,
    Batch,
    Record,
    crc32c,
    parse_batch,
    parse_record,
    read_varint,
)
from tests.oracle.cleaner import CleanResult, Pass, clean
from tests.oracle.compression import CODECS
from tests.oracle.files import SnapshotEntry, read_checkpoint, read_snapshot, read_txn_index
from tests.oracle.producers import InvalidTxnState, ProducerTable
from tests.oracle.segments import AbortedTxn, Segment, make_segment

LOG_NAME = re.compile(rf"{PARTITION}/(\d{{20}})\.log")
INDEX_NAME = re.compile(rf"{PARTITION}/(\d{{20}})\.(?:index|timeindex|txnindex)")
DELETED_NAME = re.compile(rf"{PARTITION}/(\d{{20}})\.log\.deleted")
UNFINISHED = (".cleaned", ".swap")
INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1
MTIME_MS = 1_000_000


class Refused(Exception):
    pass


class Unjudged(Exception):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """`wrong_crc`, or else the records are wrong under a right checksum."""

    segment: int
    batch: Batch
    wrong_crc: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A directory as its headers tell it, active segment last; `damage` is empty if it can be read whole."""

    segments: list[Segment]
    producers: ProducerTable
    settings: Pass
    aborted: list[AbortedTxn]
    damage: list[Damage] = field(default_factory=list)

    @property
    def batches(self) -> list[Batch]:
        return [batch for segment in self.segments for batch in segment.batches]

    def is_aborted(self, batch: Batch) -> bool:
        return batch.transactional and not batch.control and any(
            entry.producer_id == batch.producer_id and entry.first_offset <= batch.base_offset < entry.last_offset
            for entry in self.aborted
        )  # fmt: skip


def read(files: Files, settings: Pass) -> Reading:
    """`settings` with the offsets that the checkpoints say; raises Refused or Unjudged."""
    if any(name.endswith(UNFINISHED) for name in files):
        raise Refused("an interrupted swap")
    bases = sorted(int(match[1]) for match in map(LOG_NAME.fullmatch, files) if match)
    if not bases:
        raise Refused("no .log file")
    indexes = {int(match[1]) for match in map(INDEX_NAME.fullmatch, files) if match}
    deleted = {int(match[1]) for match in map(DELETED_NAME.fullmatch, files) if match}
    if indexes - deleted - set(bases):
        raise Refused("indexes without their .log")
    damage: list[Damage] = []
    segments = [read_segment(files, base, damage) for base in bases]
    offsets = {name: _checkpoint(files, name) for name in ("replication-offset", "log-start-offset", "cleaner-offset")}
    _check_order(segments)
    end = segments[-1].next_offset
    start = max(offsets["log-start-offset"] or 0, bases[0])
    high = offsets["replication-offset"]
    if high is None:
        high = start if "replication-offset-checkpoint" in files else end
    settings = replace(
        settings,
        high_watermark=min(high, end),
        log_start=start,
        dirty_start=offsets["cleaner-offset"],
    )
    everything = ProducerTable()
    _replay(everything, segments, 0)
    table = everything
    snapshot = _newest_snapshot(files, bases[0], end)
    if snapshot is not None:
        table = ProducerTable(snapshot[1])
        _replay(table, segments, snapshot[0])
        table.completed = everything.completed
    _check_index(segments, everything.aborted)
    segments = _with_lost_aborts(segments, everything.aborted)
    _check_sense(segments, settings)
    aborted = [entry for segment in segments for entry in segment.aborted]
    return Reading(segments=segments, producers=table, settings=settings, aborted=aborted, damage=damage)


def cleaned(reading: Reading) -> CleanResult:
    try:
        return clean(reading.segments, reading.producers, reading.settings)
    except (ValueError, struct.error, OverflowError) as error:
        raise Unjudged(f"the oracle does not clean it: {error}") from error


def after_retention(result: CleanResult, settings: Pass) -> list[Segment]:
    """Without the segments wholly below the log start offset."""
    segments = list(result.segments)
    start, high = settings.log_start or 0, settings.high_watermark or 0
    while len(segments) > 1 and segments[1].base <= start and high >= segments[1].base:
        segments.pop(0)
    return segments


def read_segment(files: Files, base: int, damage: list[Damage]) -> Segment:
    try:
        batches = list(_batches(files[f"{PARTITION}/{base:020d}.log"], base, damage))
    except BadLog as error:
        raise Refused(f"segment {base}: {error}") from error
    try:
        aborted = read_txn_index(files.get(f"{PARTITION}/{base:020d}.txnindex", b""))
    except struct.error as error:
        raise Refused(f"segment {base}: .txnindex: {error}") from error
    except BadLog as error:
        raise Unjudged(f"segment {base}: {error}") from error
    return make_segment(base=base, batches=batches, mtime_ms=MTIME_MS, aborted=list(aborted))


def _batches(data: bytes, segment: int, damage: list[Damage]) -> list[Batch]:
    batches, at = [], 0
    while at < len(data):
        if len(data) - at < PREFIX_BYTES:
            raise BadLog("a partial batch at the end")
        (length,) = struct.unpack_from(">i", data, at + 8)
        if length < HEADER_BYTES - LENGTH_BEFORE or len(data) - at < LENGTH_BEFORE + length:
            raise BadLog(f"batch length {length} at {at}")
        one = data[at : at + LENGTH_BEFORE + length]
        batches.append(_batch(one, segment, damage))
        at += len(one)
    return batches


def _batch(data: bytes, segment: int, damage: list[Damage]) -> Batch:
    try:
        codec = data[ATTRIBUTES_AT + 1] & CODEC_MASK
        if codec < len(CODECS):
            check_size(CODECS[codec], data[HEADER_BYTES:])
        batch = _wrapped(parse_batch(data))
        if batch.marker in ("ABORT", "COMMIT"):
            _ = batch.coordinator_epoch
    except MemoryError as error:
        raise Unjudged("more than fits into memory") from error
    except UnicodeDecodeError as error:
        raise Unjudged("a header name that is not UTF-8, which Kafka does not mind") from error
    except (*DECOMPRESSION_ERRORS, OverflowError) as error:
        batch = _from_header(data)
        wrong_crc = HEADER.unpack_from(data)[4] != crc32c(data[ATTRIBUTES_AT:])
        damage.append(Damage(segment=segment, batch=batch, wrong_crc=wrong_crc, why=str(error)))
    return batch


def _wrapped(batch: Batch) -> Batch:
    """Times as Java's longs, which the oracle's numbers are not: Kafka takes the low 64 bits of a delta's varint, in
    `ByteUtils.readVarlong`, and adds it to the base so that the sum wraps around."""
    if batch.log_append_time:
        return batch
    base = batch.base_timestamp
    times = [_as_long(base + _low_bits(record.timestamp - base)) for record in batch.records]
    if times == [record.timestamp for record in batch.records]:
        return batch
    records = (replace(record, timestamp=time) for record, time in zip(batch.records, times, strict=True))
    return replace(batch, records=tuple(records))


def _low_bits(delta: int) -> int:
    raw = (2 * delta if delta >= 0 else -2 * delta - 1) % 2**64
    return raw >> 1 ^ -(raw & 1)


def _as_long(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def _from_header(data: bytes) -> Batch:
    """What a walk over headers sees: no records but a marker's."""
    base, _, leader, magic, _, bits, delta, base_ts, max_ts, pid, epoch, seq, count = HEADER.unpack_from(data)
    if magic != 2 or bits & CODEC_MASK >= len(CODECS) or delta < 0 or count < 0:
        raise BadLog(f"header of batch {base} is wrong")
    records: tuple[Record, ...] = ()
    if bits & CONTROL and count:
        try:
            size, at = read_varint(data, HEADER_BYTES)
            records = (parse_record(data[at : at + size], base, base_ts, None),)
        except (ValueError, OverflowError, MemoryError) as error:
            raise BadLog(f"control batch {base} has no readable record") from error
    batch = Batch(
        base_offset=base, last_offset_delta=delta, records=records, count=count, base_timestamp=base_ts,
        max_timestamp=max_ts, leader_epoch=leader, codec=CODECS[bits & CODEC_MASK],
        log_append_time=bool(bits & LOG_APPEND_TIME), transactional=bool(bits & TRANSACTIONAL),
        control=bool(bits & CONTROL), horizon_ms=base_ts if bits & HORIZON else None, producer_id=pid,
        producer_epoch=epoch, base_sequence=seq, raw=data,
    )  # fmt: skip
    try:
        _ = batch.marker and batch.coordinator_epoch
    except struct.error as error:
        raise BadLog(f"control batch {base} has no readable record") from error
    return batch


def _check_order(segments: list[Segment]) -> None:
    batches = [(segment.base, batch) for segment in segments for batch in segment.batches]
    for base, batch in batches:
        if batch.base_offset < base:
            raise Refused(f"batch {batch.base_offset} lies below its segment {base}")
        if batch.last_offset > INT64_MAX:
            raise Refused(f"batch {batch.base_offset} ends beyond all offsets")
        if batch.last_offset - base > INT32_MAX:
            raise Refused(f"batch {batch.base_offset} lies beyond what the indexes of segment {base} can tell")
    for (_, earlier), (_, later) in pairwise(batches):
        if later.base_offset <= earlier.last_offset:
            raise Refused(f"batch {later.base_offset} begins inside or before batch {earlier.base_offset}")
    for segment, following in pairwise(segments):
        if segment.next_offset > following.base:
            raise Refused(f"segment {segment.base} reaches into segment {following.base}")


def _checkpoint(files: Files, name: str) -> int | None:
    try:
        return read_checkpoint(files.get(f"{name}-checkpoint", b"").decode()).get(TOPIC_PARTITION)
    except (ValueError, IndexError) as error:
        raise Refused(f"{name}-checkpoint: {error}") from error


def _newest_snapshot(files: Files, first: int, end: int) -> tuple[int, list[SnapshotEntry]] | None:
    offsets = sorted((int(name[-29:-9]) for name in files if re.search(r"/\d{20}\.snapshot$", name)), reverse=True)
    for offset in offsets:
        if not first < offset <= end:
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


def _check_index(segments: list[Segment], replayed: list[AbortedTxn]) -> None:
    """A `.txnindex` that contradicts its log has no right meaning: Kafka believes it, against the markers."""
    markers = [(batch, segment) for segment in segments for batch in segment.batches if batch.marker]
    firsts = {(entry.producer_id, entry.last_offset): entry.first_offset for entry in replayed}
    for segment in segments:
        for entry in segment.aborted:
            mine = [b for b, _ in markers if b.producer_id == entry.producer_id and entry.first_offset <= b.last_offset]
            ends = [
                b for b, s in markers if s is segment and b.last_offset == entry.last_offset and b.marker == "ABORT"
            ]
            first = firsts.get((entry.producer_id, entry.last_offset), entry.last_offset)
            told = 0 <= entry.first_offset <= first and entry.lso <= entry.last_offset + 1
            if not told or not ends or mine[:1] != ends:
                raise Unjudged("a .txnindex that contradicts its log")


def _check_sense(segments: list[Segment], settings: Pass) -> None:
    """What no broker writes, so that Kafka's rules were not made for it."""
    for batch in [batch for segment in segments for batch in segment.batches]:
        if batch.producer_id < 0 and (batch.transactional or batch.control):
            raise Unjudged("a transactional batch without a producer")
        if batch.marker and batch.records[0].timestamp != batch.max_timestamp:
            raise Unjudged("a marker of two times")
    aborted = [entry for segment in segments for entry in segment.aborted]
    if any(entry.last_offset < (settings.log_start or 0) for entry in aborted):
        raise Unjudged("aborted transactions below the log start, which nobody reads")


def _with_lost_aborts(segments: list[Segment], replayed: list[AbortedTxn]) -> list[Segment]:
    """Aborted transactions from the log itself where `.txnindex` does not tell of them."""
    known = {(entry.producer_id, entry.last_offset) for segment in segments for entry in segment.aborted}
    lost = [entry for entry in replayed if (entry.producer_id, entry.last_offset) not in known]
    whole = []
    for segment in segments:
        holds = {batch.last_offset for batch in segment.batches if batch.marker == "ABORT"}
        mine = [*segment.aborted, *(entry for entry in lost if entry.last_offset in holds)]
        whole.append(replace(segment, aborted=tuple(sorted(mine, key=lambda entry: entry.last_offset))))
    return whole
