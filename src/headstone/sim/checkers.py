"""Is anything corrupt? Pure functions from logs, readers and the truth to findings; the four corruptions by name.

Independent of what they check: uses no rule of `retention/` and no watermark arithmetic, only what a client would get and what
really happened.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headstone.coordination.watermarks import GroupWatermarks
from headstone.sim.batches import ABORT, COMMIT, Batch, Record
from headstone.sim.partition_log import PartitionLog
from headstone.sim.readers import Reader, read, table_of
from headstone.sim.truth import AcceptedRecord, Truth, Txn

DELETED_REAPPEARS = "deleted-reappears"
ABORTED_AS_COMMITTED = "aborted-as-committed"
COMMITTED_HIDDEN = "committed-hidden"
FROZEN = "read-committed-frozen"
WATERMARK_FELL = "watermark-fell"
WATERMARK_UNTRUE = "watermark-untrue"
REMOVED_EARLY = "removed-early"
NOT_CONVERGED = "not-converged"
CORRUPTIONS = (DELETED_REAPPEARS, ABORTED_AS_COMMITTED, COMMITTED_HIDDEN, FROZEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckerFinding:
    kind: str
    where: str
    text: str


def check_log(name: str, log: PartitionLog, truth: Truth) -> list[CheckerFinding]:
    """What this replica would serve to a read_committed consumer, against the truth below its LSO."""
    end = log.last_stable_offset()
    served, _ = read(log, log.log_start, committed=True)
    findings = [finding for record in served for finding in _undeserved(name, record, truth)]
    table = table_of(served)
    for key in truth.known_keys():
        expected = truth.newest(key, end)
        if expected is None or expected.record.offset < log.log_start:
            continue
        if not _told(table.get(key), expected) and not truth.superseded_from(key, end):
            findings.append(_missing(name, log, table.get(key), expected))
    return findings + _frozen(name, log, truth)


def _undeserved(name: str, record: Record, truth: Truth) -> list[CheckerFinding]:
    entry = truth.entries.get(record.offset)
    if entry is not None and entry.committed:
        return []
    what = "aborted" if entry is not None and entry.refused else "undecided"
    text = f"serves {_show(record)}, which is {what}"
    return [CheckerFinding(kind=ABORTED_AS_COMMITTED, where=name, text=text)]


def _told(got: Record | None, expected: AcceptedRecord) -> bool:
    if expected.record.value is None:
        return got is None or got.value is None
    return got is not None and got.offset == expected.record.offset


def _missing(name: str, log: PartitionLog, got: Record | None, expected: AcceptedRecord) -> CheckerFinding:
    """A record that is in the log but not served is hidden; a deletion that is nowhere leaves the deleted value."""
    wanted = _show(expected.record)
    instead = f"serves {_show(got)}" if got else "serves nothing"
    if any(expected.record in batch.records for batch in log.batches(expected.record.offset)):
        text = f"{instead} and hides {wanted}, which is committed"
        return CheckerFinding(kind=COMMITTED_HIDDEN, where=name, text=text)
    if expected.record.value is None:
        return CheckerFinding(kind=DELETED_REAPPEARS, where=name, text=f"{instead}, deleted by {wanted}")
    return CheckerFinding(kind=COMMITTED_HIDDEN, where=name, text=f"{instead} and has lost {wanted}")


def _frozen(name: str, log: PartitionLog, truth: Truth) -> list[CheckerFinding]:
    findings = []
    for producer_id, first in log.open.items():
        txn = truth.txn_at(first, producer_id)
        if txn is not None and txn.marker is not None and txn.marker < min(log.high_watermark, log.log_end):
            text = f"LSO is held at {first} by a transaction that was {txn.outcome} at offset {txn.marker}"
            findings.append(CheckerFinding(kind=FROZEN, where=name, text=text))
    return findings


def check_reader(
    reader: Reader, start: int, records: Sequence[Record], truth: Truth, *, now_ms: int, grace_ms: int
) -> list[CheckerFinding]:
    """After a poll from `start`: did the reader get what is not committed, or pass a tombstone without getting it?

    A reader has delete.retention.ms (less the clocks' skew: `grace_ms`) from the moment a deletion became visible; one whose
    hold was granted has as long as it takes.
    """
    findings = []
    if reader.committed:
        findings = [finding for record in records for finding in _undeserved(reader.name, record, truth)]
    for entry in truth.between(start, reader.position):
        record = entry.record
        believed_record = reader.table.get(record.key)
        if (
            record.value is not None
            or not entry.committed
            or believed_record is None
            or believed_record.offset >= record.offset
        ):
            continue
        if believed_record.value is None or truth.superseded_from(record.key, record.offset + 1):
            continue
        believed = truth.entries.get(believed_record.offset)
        held = reader.held_from is not None and record.offset >= reader.held_from
        if believed is not None and believed.committed and (held or now_ms < entry.visible_ms + grace_ms):
            text = f"passed the deletion {_show(record)} without seeing it and still believes {_show(believed_record)}"
            findings.append(CheckerFinding(kind=DELETED_REAPPEARS, where=reader.name, text=text))
        del reader.table[record.key]
    return findings


def check_watermarks(group: GroupWatermarks, members: Iterable[tuple[str, PartitionLog]]) -> list[CheckerFinding]:
    """No member may hold below MTRO a record that a newer one below it supersedes, nor transactional data below MXRO."""
    findings = []
    for name, log in members:
        newest: dict[bytes, int] = {}
        for batch in log.batches(log.log_start):
            if batch.base >= max(group.mtro, group.mxro):
                break
            if batch.is_data and batch.transactional and batch.base < group.mxro:
                text = f"MXRO is {group.mxro}, but transactional data is at offset {batch.base}"
                findings.append(CheckerFinding(kind=WATERMARK_UNTRUE, where=name, text=text))
            for record in batch.records:
                if record.offset < log.log_start or record.offset >= group.mtro:
                    continue
                if record.key in newest:
                    text = f"MTRO is {group.mtro}, but offset {newest[record.key]} is superseded by {record.offset}"
                    findings.append(CheckerFinding(kind=WATERMARK_UNTRUE, where=name, text=text))
                newest[record.key] = record.offset
    return findings


def check_removals(members: Sequence[tuple[str, PartitionLog]], truth: Truth) -> list[CheckerFinding]:
    """Whatever protects must outlive, on every member, what it protects from, before it goes on any.

    A tombstone that is gone somewhere while an older value is left anywhere, or a marker while data of its transaction is left:
    nothing needs to be corrupt yet, but a copy made from both would be.
    """
    findings = []
    for entry in truth.standing_deletions():
        gone = next(
            (name for name, log in members if _passed(log, entry.record.offset) and not _holds(log, entry)), None
        )
        if gone is not None:
            findings += [
                CheckerFinding(
                    kind=REMOVED_EARLY, where=name, text=f"holds {old}, but {gone} has removed {_show(entry.record)}"
                )
                for name, log in members
                for old in _older(log, entry, truth)
            ]
    for txn in truth.txns:
        marker = txn.marker
        if marker is None:
            continue
        gone = next((name for name, log in members if _passed(log, marker) and not _has_marker(log, marker)), None)
        if gone is not None:
            findings += [
                CheckerFinding(
                    kind=REMOVED_EARLY, where=name, text=f"holds data at {base}, but {gone} has removed marker {marker}"
                )
                for name, log in members
                for base in _undecided(log, txn)
            ]
    return findings


def _passed(log: PartitionLog, offset: int) -> bool:
    return log.log_start <= offset < log.high_watermark


def _holds(log: PartitionLog, entry: AcceptedRecord) -> bool:
    return any(entry.record in batch.records for batch in _around(log, entry.record.offset))


def _has_marker(log: PartitionLog, offset: int) -> bool:
    return any(batch.base == offset and batch.kind in (COMMIT, ABORT) for batch in _around(log, offset))


def _around(log: PartitionLog, offset: int) -> list[Batch]:
    return [batch for batch in itertools.islice(log.batches(offset), 1) if batch.base <= offset]


def _older(log: PartitionLog, deletion: AcceptedRecord, truth: Truth) -> list[str]:
    key, offset = deletion.record.key, deletion.record.offset
    records = (record for batch in log.batches(log.log_start) if batch.base < offset for record in batch.records)
    values = (r for r in records if r.key == key and log.log_start <= r.offset < offset and r.value is not None)
    kept = ((r, truth.entries.get(r.offset)) for r in values)
    return [_show(r) for r, entry in kept if entry is not None and entry.record == r and entry.committed]


def _undecided(log: PartitionLog, txn: Txn) -> list[int]:
    return [
        batch.base for batch in log.batches(log.log_start)
        if batch.transactional and batch.is_data and batch.producer_id == txn.producer_id
        and txn.data.get(batch.base) == batch.leader_epoch
    ]  # fmt: skip


def _show(record: Record) -> str:
    value = "null" if record.value is None else record.value.decode()
    return f"{record.key.decode()}={value} at offset {record.offset}"
