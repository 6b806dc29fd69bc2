"""Exact facts of partitions: a full read with every checksum and record checked. The verb `inspect` calls this.

A partition with more keys than fit into memory is read several times, each time for a share of the key digests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headstone import units
from headstone.errors import UsageError
from headstone.log import codecs
from headstone.log.directory import PartitionDir
from headstone.log.layout import DELETE_HORIZON
from headstone.pipeline.engine import Engine
from headstone.pipeline.failed_partition import FailedPartition
from headstone.pipeline.machine import TASK_MEMORY_BYTES
from headstone.pipeline.planning import Candidate, Surveyed, as_candidate, survey_each
from headstone.pipeline.progress import Board, Meter
from headstone.retention import keys
from headstone.retention.keys import CODE_MASK, KEYLESS, NEWEST, TOMBSTONE, HashKey
from headstone.retention.passes import CleaningPass, Indexer, Piece, PieceReader
from headstone.retention.policy import NO_LIMIT, Policy
from headstone.retention.producers import PRODUCER
from headstone.retention.survey import SegmentSurvey
from headstone.retention.transactions import ABORTED, COMMITTED, DATA, OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectWork:
    """A whole partition, for the keys of one of `shares` shares; share 0 also counts everything else."""

    segments: tuple[SegmentSurvey, ...]
    lso: int
    hash_key: HashKey
    share: int
    shares: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCounts:
    keys: int
    tombstones: int
    keyless: int
    markers: int
    aborted_records: int
    open_records: int
    horizons: int
    horizon_min: int | None
    horizon_max: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    candidate: Candidate
    counts: RecordCounts

    def as_json(self) -> dict[str, Any]:
        survey, counts = self.candidate.survey, self.counts
        used = sorted({codec for segment in survey.segments for codec in segment.codecs})
        return {
            "partition": self.candidate.directory.name,
            "directory": str(self.candidate.directory.path),
            "log_start": survey.log_start,
            "log_end": survey.log_end,
            "high_watermark": survey.high_watermark,
            "lso": survey.lso,
            "records": sum(segment.records for segment in survey.segments),
            "keys": counts.keys,
            "tombstones": counts.tombstones,
            "markers": counts.markers,
            "aborted_records": counts.aborted_records,
            "open_records": counts.open_records,
            "keyless_records": counts.keyless,
            "header_only_batches": sum(segment.header_only for segment in survey.segments),
            "batches": sum(segment.batches for segment in survey.segments),
            "segments": len(survey.segments),
            "bytes": sum(segment.size for segment in survey.segments),
            "codecs": [codecs.NAMES[codec] for codec in used],
            "open_transactions": len(survey.open_txns),
            "open_transaction_list": [
                {"producer_id": txn.producer_id, "first_offset": txn.first_offset} for txn in survey.open_txns
            ],
            "aborted_transactions": len(survey.aborted),
            "producers": int(survey.producers.rows.size),
            "first_dirty": self.candidate.range.dirty_start,
            "cleanable_to": self.candidate.range.uncleanable,
            "dirty_ratio": round(self.candidate.eligibility.dirty_ratio, 6),
            "horizons": {"batches": counts.horizons, "first_ms": counts.horizon_min, "last_ms": counts.horizon_max},
            "notes": list(self.candidate.notes),
        }

    def as_lines(self) -> list[str]:
        """The first is the heading."""
        fact = self.as_json()
        transactions = ", ".join(
            f"producer {t['producer_id']} since offset {t['first_offset']}" for t in fact["open_transaction_list"]
        )
        horizons = fact["horizons"]
        stamped = (
            f"{units.count(horizons['batches'], 'batch', 'batches')}, "
            f"{units.exact_moment(horizons['first_ms'])} to {units.exact_moment(horizons['last_ms'])}"
            if horizons["batches"]
            else "none"
        )
        return [
            f"{fact['partition']}  ({fact['directory']})",
            f"  offsets     [{fact['log_start']}, {fact['log_end']}), high watermark {fact['high_watermark']}, "
            f"LSO {fact['lso']}",
            f"  size        {units.size(fact['bytes'])}, {units.count(fact['segments'], 'segment')}, "
            f"{units.count(fact['batches'], 'batch', 'batches')} "
            f"({fact['header_only_batches']} header-only), codecs {', '.join(fact['codecs']) or 'none'}",
            f"  records     {fact['records']:,}: {units.count(fact['tombstones'], 'tombstone')}, "
            f"{units.count(fact['markers'], 'marker')}, "
            f"{fact['aborted_records']:,} aborted, {fact['open_records']:,} undecided, {fact['keyless_records']:,} keyless",
            f"  live keys   {fact['keys']:,}",
            f"  cleaner     first dirty offset {fact['first_dirty']}, cleanable to {fact['cleanable_to']}, "
            f"dirty ratio {fact['dirty_ratio']:.3f}",
            f"  horizons    {stamped}",
            f"  open txns   {transactions or 'none'}",
            *(f"  note        {note}" for note in fact["notes"]),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Every partition is in one of the two, in the order given."""

    facts: tuple[PartitionFacts, ...]
    failed: tuple[FailedPartition, ...]


def inspect(
    directories: Sequence[PartitionDir], policy: Policy, engine: Engine, board: Board | None
) -> list[PartitionFacts]:
    """For callers that need all of them: raises the first bad partition's error."""
    inspection = inspect_each(directories, policy, engine, board)
    if inspection.failed:
        raise inspection.failed[0].error
    return list(inspection.facts)


def inspect_each(
    directories: Sequence[PartitionDir], policy: Policy, engine: Engine, board: Board | None
) -> Inspection:
    """Errors of bad partitions come beside the facts of the others."""
    candidates = [
        _candidate(directory, surveyed, policy)
        for directory, surveyed in zip(directories, survey_each(directories, engine), strict=True)
    ]
    hash_key = HashKey.random()
    works = [() if isinstance(c, Exception) else tuple(inspect_works(c, hash_key)) for c in candidates]
    if board is not None:
        board.expect(sum(segment.size for some in works for work in some for segment in work.segments))
    counted = iter(engine.outcomes(count_partition, [work for some in works for work in some], board))
    facts, failed = [], []
    for directory, c, some in zip(directories, candidates, works, strict=True):
        outcome = c if isinstance(c, Exception) else _facts_of(c, [next(counted) for _ in some])
        if isinstance(outcome, Exception):
            failed.append(FailedPartition(partition=directory.name, error=outcome))
        else:
            facts.append(outcome)
    return Inspection(facts=tuple(facts), failed=tuple(failed))


def _candidate(directory: PartitionDir, surveyed: Surveyed | Exception, policy: Policy) -> Candidate | Exception:
    if isinstance(surveyed, Exception):
        return surveyed
    try:
        return as_candidate(directory, surveyed, policy, dirty_from=None, peers=())
    except (UsageError, OSError) as error:  # from a checkpoint file
        return error


def _facts_of(candidate: Candidate, shares: Sequence[RecordCounts | Exception]) -> PartitionFacts | Exception:
    """The error of a share that could not be read: then nothing is known about the partition."""
    counts: list[RecordCounts] = []
    for share in shares:
        if isinstance(share, Exception):
            return share
        counts.append(share)
    return PartitionFacts(candidate=candidate, counts=_with_keys(counts))


def inspect_works(candidate: Candidate, hash_key: HashKey) -> list[InspectWork]:
    records = sum(segment.records for segment in candidate.survey.segments)
    shares = max(1, -(-keys.table_bytes(records) // TASK_MEMORY_BYTES))
    return [
        InspectWork(
            segments=candidate.survey.segments, lso=candidate.survey.lso, hash_key=hash_key, share=share, shares=shares
        )
        for share in range(shares)
    ]


def _with_keys(shares: Sequence[RecordCounts]) -> RecordCounts:
    values = {name: getattr(shares[0], name) for name in RecordCounts.__slots__}
    return RecordCounts(**{**values, "keys": sum(share.keys for share in shares)})


def count_partition(work: InspectWork, meter: Meter) -> RecordCounts:
    """The newest committed record of a key makes it live if it has a value: newest first, below LSO."""
    cleaning = CleaningPass(
        policy=Policy(now_ms=0, tombstones_below=NO_LIMIT), hash_key=work.hash_key, dirty_start=0,
        dirty_end=NO_LIMIT, uncleanable=NO_LIMIT, active=np.zeros(0, dtype=PRODUCER),
    )  # fmt: skip
    tally = _PartitionTally()
    records = -(-sum(segment.records for segment in work.segments) // work.shares)
    # Digests spread evenly over shares, and there is more than one share only with many millions of records.
    table = keys.new_table(records if work.shares == 1 else records + records // 8)
    reader, indexer = PieceReader(may_grow=True), Indexer(cleaning)
    for segment in reversed(work.segments):
        for piece in reader.pieces(segment, backwards=True):
            states = np.zeros(piece.records, dtype=np.uint8)
            indexer.index(piece, states, chosen=np.flatnonzero((piece.roles == ABORTED) | (piece.roles == OPEN)))
            entries = indexer.index(
                piece, states, chosen=np.flatnonzero((piece.roles == DATA) | (piece.roles == COMMITTED))
            )
            counted = entries.offsets < work.lso
            if work.shares > 1:
                counted &= (entries.digests[:, 1] % np.uint64(work.shares)) == work.share
            digests, ordinals = entries.digests[counted], entries.ordinals[counted]
            keys.mark_newest(table, digests, np.ones(ordinals.size, dtype=np.bool_), ordinals, states)
            tally.add(piece, states)
            meter.add(piece.chunk.data.size, piece.records)
    return tally.counts()


class _PartitionTally:
    def __init__(self) -> None:
        self.keys = self.tombstones = self.keyless = self.markers = self.aborted = self.open = self.horizons = 0
        self.horizon_min: int | None = None
        self.horizon_max: int | None = None

    def add(self, piece: Piece, states: Any) -> None:
        batches = piece.chunk.batches
        code = states & CODE_MASK
        dead = states & TOMBSTONE != 0
        self.keys += int(np.count_nonzero((code == NEWEST) & ~dead))
        self.tombstones += int(np.count_nonzero(dead & (code != KEYLESS)))
        self.keyless += int(np.count_nonzero(code == KEYLESS))
        self.markers += int(batches["count"][batches["control_type"] >= 0].sum())
        self.aborted += int(batches["count"][piece.roles == ABORTED].sum())
        self.open += int(batches["count"][piece.roles == OPEN].sum())
        stamped = batches["base_timestamp"][batches["attributes"] & DELETE_HORIZON != 0]
        if stamped.size:
            self.horizons += stamped.size
            low, high = int(stamped.min()), int(stamped.max())
            self.horizon_min = low if self.horizon_min is None else min(low, self.horizon_min)
            self.horizon_max = high if self.horizon_max is None else max(high, self.horizon_max)

    def counts(self) -> RecordCounts:
        return RecordCounts(
            keys=self.keys, tombstones=self.tombstones, keyless=self.keyless, markers=self.markers,
            aborted_records=self.aborted, open_records=self.open, horizons=self.horizons,
            horizon_min=self.horizon_min, horizon_max=self.horizon_max,
        )  # fmt: skip
