"""Writes simulated replicas as log directories, and audits them in this process.

One directory per broker, with the producer snapshot that it would load: what a stopped cluster leaves on its disks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headstone.divergence.findings import FROZEN
from headstone.log.checkpoints import HIGH_WATERMARK, LOG_START, write_offsets
from headstone.log.directory import LOG, TXN_INDEX, find_partitions, numbered
from headstone.log.indexes import aborted_bytes
from headstone.log.snapshots import ProducerEntry, write_snapshot
from headstone.pipeline.auditing import PartitionAudit, audit, replicas_of
from headstone.pipeline.inprocess import InProcess
from headstone.retention.producers import PRODUCER
from headstone.sim.partition_log import PartitionLog
from tests.divergence.judging import Said

NAME = "t-0"


def write_replica(log: PartitionLog, root: Path) -> Path:
    """The log directory of one broker."""
    partition = root / NAME
    partition.mkdir(parents=True)
    for segment in log.segments:
        content = b"".join(batch.raw for batch in segment.batches)
        (partition / numbered(segment.base, LOG)).write_bytes(content)
        if segment.aborted:
            (partition / numbered(segment.base, TXN_INDEX)).write_bytes(aborted_bytes(segment.aborted))
    entries = [ProducerEntry(**{name: int(row[name]) for name in PRODUCER.names or ()}) for row in log.producer_rows()]
    if log.log_end > log.segments[0].base:
        write_snapshot(partition / f"{log.log_end:020d}.snapshot", entries)
    write_offsets(root / HIGH_WATERMARK, {("t", 0): log.high_watermark})
    write_offsets(root / LOG_START, {("t", 0): log.log_start})
    return root


def audited(roots: Sequence[Path], *, keys: Sequence[bytes] = ()) -> PartitionAudit:
    found = [(root.name, find_partitions([root])) for root in roots]
    (one,) = audit(replicas_of(found), InProcess(1), wanted=keys)
    return one


def findings(one: PartitionAudit) -> list[tuple[str, str, bytes | None]]:
    """(class, replica, key) of everything that was found."""
    return sorted(
        [(FROZEN, frozen.replica, None) for result in one.results for frozen in result.frozen]
        + [
            (difference.kind, difference.replica, result.keys[difference.key, difference.key_high])
            for result in one.results
            for difference in result.compared.differences
        ],
        key=str,
    )


def said(one: PartitionAudit) -> list[Said]:
    """Everything that was found, as far as it is judged."""
    found = [Said(kind=FROZEN, replica=frozen.replica, key=None) for result in one.results for frozen in result.frozen]
    return found + [
        Said(
            kind=one.kind, replica=one.replica, key=result.keys[one.key, one.key_high], misleads=one.misleads, sure=one.sure,
            or_kind=one.or_kind, or_replica=one.or_replica, else_kind=one.else_kind,
        )
        for result in one.results for one in result.compared.differences
    ]  # fmt: skip


def audit_logs(logs: Mapping[str, PartitionLog], root: Path, **options: Any) -> PartitionAudit:
    return audited([write_replica(log, root / name) for name, log in logs.items()], **options)
