"""The audit of log directories: reads every replica of a partition in one task, compares, and names what was found.

Digests are compared where they are made; only findings travel. If a partition has more records than fit, the rows go into
temporary files by shares of the keys, and one share is compared after the other. The verb `audit` calls this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from headstone.divergence.comparison import Compared, compare
from headstone.divergence.findings import Difference
from headstone.divergence.frozen import Frozen, frozen_transactions
from headstone.divergence.verdicts import Finding, Placement, of_difference, of_frozen, with_repairs
from headstone.divergence.views import (
    MARKER,
    ROW,
    SPAN,
    STAMP,
    ProducerSaid,
    ReplicaFacts,
    ReplicaRows,
    by_key,
    fill_rows,
    visible,
)
from headstone.errors import CorruptLog, UsageError
from headstone.log.checkpoints import CLEANER, HIGH_WATERMARK, read_offsets
from headstone.log.columns import KEY_AT, KEY_SIZE, OFFSET, VALUE_SIZE, decode
from headstone.log.directory import METADATA_TOPIC, PartitionDir
from headstone.log.layout import ABORT, COMMIT, DELETE_HORIZON, EMPTIED, TRANSACTIONAL
from headstone.log.reading import Payloads, batch_at
from headstone.pipeline.engine import Engine
from headstone.pipeline.inputs import bytes_of
from headstone.pipeline.planning import Surveyed, survey_each
from headstone.pipeline.progress import Board, Meter
from headstone.pipeline.replica_ids import broker_of, ids_differ
from headstone.pipeline.row_spool import RowSpool
from headstone.pipeline.runner import Runner
from headstone.retention.keys import HashKey, siphash_spans
from headstone.retention.passes import PieceReader
from headstone.retention.survey import PartitionSurvey
from headstone.retention.transactions import ABORTED, CONTROL_NEEDED, OPEN

TASK_BYTES = 1 << 30
TOO_FEW = "nothing could be compared: fewer than two replicas could be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaToAudit:
    """One replica of one partition: where it is, and what its headers say."""

    name: str
    directory: PartitionDir
    survey: PartitionSurvey
    high_watermark: int | None
    first_dirty: int | None
    """The cleaner checkpoint; None if there is none, as when read over the wire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCounts:
    """Exact counts of one replica."""

    records: int = 0
    live_keys: int = 0
    tombstones: int = 0
    aborted: int = 0
    open: int = 0
    control: int = 0
    keyless: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditWork:
    replicas: tuple[ReplicaToAudit, ...]
    hash_key: HashKey
    shares: int
    wanted: tuple[bytes, ...] = ()
    """Keys to prove."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareResult:
    compared: Compared
    frozen: tuple[Frozen, ...]
    facts: tuple[ReplicaFacts, ...]
    counts: tuple[ReplicaCounts, ...]
    below: int
    keys: Mapping[tuple[int, int], bytes]
    """Keys of the differences, by their digests."""
    keyed: frozenset[str]
    """Replicas that have records with keys that are certainly replicated."""
    proofs: tuple[tuple[bytes, Mapping[str, str]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTaskResult:
    """One partition: its shares, and replicas that could not be read, with the reason."""

    shares: tuple[ShareResult, ...]
    unread: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAudit:
    partition: str
    replicas: tuple[ReplicaToAudit, ...] = ()
    results: tuple[ShareResult, ...] = ()
    problems: tuple[str, ...] = ()
    """Why all or part of it could not be compared."""
    unread: tuple[str, ...] = ()
    """Replicas that could not be read: nothing is known about them."""
    brokers: Mapping[str, int | None] = field(default_factory=dict)
    """For all replicas, including unreadable ones: from the replica's name, if that is a number, or from its log directory;
    None if neither says."""
    producers: Mapping[str, tuple[ProducerSaid, ...]] = field(default_factory=dict)
    """By replica, if it was asked: what its broker says about producers."""
    different: str | None = None
    """Why, by their ids, these are logs of different partitions: then nothing was compared."""


Groups = Mapping[str, Sequence[tuple[str, PartitionDir]]]
"""Partitions by name, each with its replicas: (name, directory)."""


def audit_by(runner: Runner, groups: Groups, *, wanted: Sequence[bytes] = ()) -> tuple[PartitionAudit, ...]:
    """With an engine that suits their size. `wanted`: keys to prove."""
    size = bytes_of([directory for members in groups.values() for _, directory in members])
    with runner.engine(size) as engine, runner.progress() as progress:
        engine.begin()
        return audit(groups, engine, wanted=wanted, board=progress.board)


def audit(
    groups: Groups, engine: Engine, *, wanted: Sequence[bytes] = (), board: Board | None = None
) -> tuple[PartitionAudit, ...]:
    """`wanted`: keys to prove."""
    hash_key = HashKey.random()
    directories = [directory for _, members in sorted(groups.items()) for _, directory in members]
    surveys = dict(zip(directories, survey_each(directories, engine), strict=True))
    audits = [_before_reading(partition, members, surveys) for partition, members in sorted(groups.items())]
    works = {
        audited.partition: AuditWork(
            replicas=audited.replicas, hash_key=hash_key, shares=_shares(audited.replicas), wanted=tuple(wanted)
        )
        for audited in audits
        if audited.different is None and len(audited.replicas) > 1
    }
    if board is not None:
        board.expect(
            sum(s.size for work in works.values() for replica in work.replicas for s in replica.survey.segments)
        )
    results = dict(zip(works, engine.each(audit_partition, list(works.values()), board), strict=True))
    return tuple(
        _with_result(audited, results[audited.partition]) if audited.partition in results else audited
        for audited in audits
    )


def _before_reading(
    partition: str,
    members: Sequence[tuple[str, PartitionDir]],
    surveys: Mapping[PartitionDir, Surveyed | Exception],
) -> PartitionAudit:
    """What ids and headers say, and why the records must not be compared, if so."""
    different = ids_differ(members)
    replicas, unread = _surveyed(members, surveys)
    problems = [f"{name}: {why}" for name, why in unread.items()]
    if len(members) < 2:
        problems.append(f"{partition}: only {members[0][0]} has it, there is nothing to compare it with")
    if different is not None:
        problems.append(different)
    elif len(replicas) < 2 <= len(members):
        problems.append(TOO_FEW)
    return PartitionAudit(
        partition=partition, replicas=replicas, problems=tuple(problems), unread=tuple(unread), different=different,
        brokers={name: int(name) if name.isdigit() else broker_of(directory) for name, directory in members},
    )  # fmt: skip


def _with_result(audited: PartitionAudit, result: AuditTaskResult) -> PartitionAudit:
    problems = [f"{name}: {why}" for name, why in result.unread.items()]
    missing = dict.fromkeys(uncompared(result.shares).values()) if result.shares else (TOO_FEW,)
    return replace(
        audited, results=result.shares, unread=(*audited.unread, *result.unread),
        problems=(*audited.problems, *problems, *missing),
    )  # fmt: skip


def findings_of(audited: PartitionAudit) -> list[Finding]:
    """Everything that was found about a partition, with what to do about it."""
    places = {replica.name: replica.survey.segments for replica in audited.replicas}
    findings: list[Finding] = []
    doubtful: set[str] = set()
    for result in audited.results:
        findings += [of_frozen(one, audited.producers.get(one.replica)) for one in result.frozen]
        for difference in result.compared.differences:
            holder, file, _ = difference.place
            key = result.keys[difference.key, difference.key_high]
            findings.append(of_difference(difference, key, str(places[holder][file].file.path)))
            doubtful.update(difference.doubtful)
    if not findings:
        return []
    partition = audited.replicas[0].directory.topic_partition
    placement = Placement(partition=partition, brokers=audited.brokers, unread=tuple(audited.unread))
    return with_repairs(findings, doubtful, placement)


def uncompared(shares: Sequence[ShareResult]) -> dict[str, str]:
    """Replicas that were compared with no other one, and why. All of them if fewer than two have anything certainly replicated;
    otherwise those whose keys and offsets could not be compared with another's."""
    if not shares:
        return {}
    facts = shares[0].facts
    reached = [one.name for one in facts if one.trusted_end > one.log_start]
    if len(reached) < 2 and any(one.log_end > one.log_start for one in facts):
        who = f"only {reached[0]}" if reached else "no replica"
        return dict.fromkeys(
            (one.name for one in facts), f"nothing could be compared: {who} has records below its high watermark"
        )
    taking_part = set[str]().union(*(share.compared.taking_part for share in shares))
    keyed = set[str]().union(*(share.keyed for share in shares))
    return {
        name: f"{name}: nothing of it could be compared: no other replica has a record at the same offset, or can say "
        "something about the same key; if it only lags, audit again when it has caught up"
        for name in reached
        if name in keyed - taking_part
    }


def _surveyed(
    members: Sequence[tuple[str, PartitionDir]], surveys: Mapping[PartitionDir, Surveyed | Exception]
) -> tuple[tuple[ReplicaToAudit, ...], dict[str, str]]:
    """The readable replicas, and why the others could not be read."""
    replicas: list[ReplicaToAudit] = []
    unread: dict[str, str] = {}
    for name, directory in members:
        surveyed = surveys[directory]
        if isinstance(surveyed, Exception):
            unread[name] = str(surveyed)
            continue
        try:
            high, clean = (
                read_offsets(directory.log_dir / file).get(directory.topic_partition)
                for file in (HIGH_WATERMARK, CLEANER)
            )
        except UsageError as error:
            unread[name] = str(error)
            continue
        replicas.append(
            ReplicaToAudit(
                name=name, directory=directory, survey=surveyed[0], high_watermark=high, first_dirty=clean,
            )
        )  # fmt: skip
    return tuple(replicas), unread


def _shares(replicas: tuple[ReplicaToAudit, ...]) -> int:
    records = sum(segment.records for replica in replicas for segment in replica.survey.segments)
    return max(1, -(-records * ROW.itemsize * 2 // TASK_BYTES))


def audit_partition(work: AuditWork, meter: Meter) -> AuditTaskResult:
    """All replicas of one partition, share by share. An unreadable one is left out, and the others are compared."""
    unread: dict[str, str] = {}
    with ExitStack() as files:
        read = []
        for replica in work.replicas:
            spool = files.enter_context(RowSpool(work.shares))
            try:
                facts, tally = _read(replica, work.hash_key, spool, meter)
            except (CorruptLog, OSError) as error:
                unread[replica.name] = str(error)
                continue
            read.append((facts, tally, spool))
        shares = [_audit_share(work, share, read) for share in range(work.shares)] if len(read) > 1 else []
    return AuditTaskResult(shares=tuple(shares), unread=unread)


def _audit_share(
    work: AuditWork, share: int, read: Sequence[tuple[ReplicaFacts, dict[str, int], RowSpool]]
) -> ShareResult:
    facts = tuple(one for one, _, _ in read)
    rows = [by_key(one, spool.of_share(share)) for one, _, spool in read]
    compared = compare(rows)
    names = {replica.name: replica for replica in work.replicas}
    keys = {(one.key, one.key_high): _key_of(names, one) for one in compared.differences}
    counts = tuple(ReplicaCounts(**tally, live_keys=_live(one)) for (_, tally, _), one in zip(read, rows, strict=True))
    proofs = []
    for key in work.wanted:
        low, high = (int(part) for part in _digest(key, work.hash_key))
        if high % work.shares == share:
            proofs.append((key, {replica.facts.name: _state(replica, low, high) for replica in rows}))
    return ShareResult(
        compared=compared, frozen=tuple(frozen_transactions(facts)) if share == 0 else (), facts=facts, counts=counts,
        below=sorted(replica.stable_end for replica in facts)[-2], keys=keys, proofs=tuple(proofs),
        keyed=frozenset(one.facts.name for one in rows if (one.rows["offset"] < one.facts.trusted_end).any()),
    )  # fmt: skip


def _digest(key: bytes, hash_key: HashKey) -> Any:
    data = np.frombuffer(key or b"\0", dtype=np.uint8)
    return siphash_spans(data, np.zeros(1, np.int64), np.full(1, len(key), np.int64), hash_key)[0]


def _state(replica: ReplicaRows, low: int, high: int) -> str:
    """Uses its own last stable offset, as a consumer of this replica would."""
    rows = replica.of_key(low, high)
    shown = rows[(rows["role"] != ABORTED) & (rows["role"] != OPEN) & (rows["offset"] < replica.facts.lso)]
    if not shown.size:
        return (
            "absent" if not rows.size else f"not visible, on disk at {', '.join(str(int(o)) for o in rows['offset'])}"
        )
    older = f"; {rows.size - 1} more on disk" if rows.size > 1 else ""
    return f"{'deleted' if shown[-1]['tombstone'] else 'present'} at {int(shown[-1]['offset'])}{older}"


def _key_of(replicas: dict[str, ReplicaToAudit], difference: Difference) -> bytes:
    """Reads the key again from where it was found."""
    name, file, position = difference.place
    segment = replicas[name].survey.segments[file].file
    chunk = batch_at(segment, position)
    for content, spans in decode(chunk, np.arange(chunk.batches.size), Payloads()):
        for span in spans[spans[:, OFFSET] == difference.offset]:
            return bytes(content[span[KEY_AT] : span[KEY_AT] + span[KEY_SIZE]])
    raise AssertionError(f"{segment.path} has changed while it was read")


def _read(
    replica: ReplicaToAudit, hash_key: HashKey, spool: RowSpool, meter: Meter
) -> tuple[ReplicaFacts, dict[str, int]]:
    markers, bare, spans, stamps = ([np.zeros(0, dtype=kind)] for kind in (MARKER, MARKER, SPAN, STAMP))
    tally = {"records": 0, "tombstones": 0, "aborted": 0, "open": 0, "control": 0, "keyless": 0}
    reader, payloads = PieceReader(may_grow=True), Payloads()
    for number, segment in enumerate(replica.survey.segments):
        for piece in reader.pieces(segment, backwards=False):
            batches, roles = piece.chunk.batches, piece.roles
            counts, data = batches["count"], roles < CONTROL_NEEDED
            control = np.isin(batches["control_type"], (ABORT, COMMIT)) & (counts > 0)
            markers.append(_markers(batches[control]))
            bare.append(_markers(batches[batches["control_type"] == EMPTIED]))
            spans.append(_spans(batches, data))
            for name, chosen in (
                ("records", data),
                ("aborted", roles == ABORTED),
                ("open", roles == OPEN),
                ("control", ~data),
            ):
                tally[name] += int(counts[chosen].sum())
            stamped = batches[(batches["attributes"] & DELETE_HORIZON != 0) & (counts > 0)]
            stamp = np.zeros(stamped.size, dtype=STAMP)
            stamp["offset"], stamp["horizon_ms"] = stamped["last_offset"], stamped["base_timestamp"]
            stamps.append(stamp)
            for content, record_spans in decode(piece.chunk, np.flatnonzero(data & (counts > 0)), payloads):
                tally["tombstones"] += int((record_spans[:, VALUE_SIZE] < 0).sum())
                tally["keyless"] += int((record_spans[:, KEY_SIZE] < 0).sum())
                spool.add(_rows(number, piece, content, record_spans, hash_key))
            meter.add(piece.chunk.data.size, piece.records)
    survey = replica.survey
    facts = ReplicaFacts(
        name=replica.name, log_start=survey.log_start, log_end=survey.log_end, high_watermark=replica.high_watermark,
        lso=survey.lso, open_txns=survey.open_txns, aborted=survey.aborted, markers=np.concatenate(markers),
        bare=np.concatenate(bare), spans=np.concatenate(spans), stamps=np.concatenate(stamps),
    )  # fmt: skip
    return facts, tally


def _markers(batches: Any) -> Any:
    made = np.zeros(batches.size, dtype=MARKER)
    made["offset"], made["producer_id"] = batches["base_offset"], batches["producer_id"]
    made["producer_epoch"], made["commit"] = batches["producer_epoch"], batches["control_type"] == COMMIT
    return made


def _spans(batches: Any, data: Any) -> Any:
    """`data`: which of the batches are not control batches."""
    span = np.zeros(batches.size, dtype=SPAN)
    span["base"], span["last"] = batches["base_offset"], batches["last_offset"]
    span["producer_id"] = np.where(data, batches["producer_id"], -1)
    span["epoch"] = batches["producer_epoch"]
    span["transactional"] = data & (batches["attributes"] & TRANSACTIONAL != 0)
    span["complete"] = batches["count"] == span["last"] - span["base"] + 1
    return span


def _live(replica: ReplicaRows) -> int:
    rows = replica.rows
    shown = np.flatnonzero(visible(rows, replica.facts.lso))
    if not shown.size:
        return 0
    key, high = rows["key"][shown], rows["key_high"][shown]
    last = np.append((key[1:] != key[:-1]) | (high[1:] != high[:-1]), True)
    return int((rows["tombstone"][shown[last]] == 0).sum())


def _rows(number: int, piece: Any, content: Any, spans: Any, hash_key: HashKey) -> Any:
    """The keyed records of one run."""
    rows = np.empty(len(spans), dtype=ROW)
    filled = fill_rows(
        content, spans, piece.chunk.batches, piece.roles, number, piece.chunk.position, np.uint64(hash_key.k0),
        np.uint64(hash_key.k1), rows,
    )  # fmt: skip
    return rows[:filled]


def replicas_of(directories: Sequence[tuple[str, Sequence[PartitionDir]]]) -> dict[str, list[tuple[str, PartitionDir]]]:
    """Partitions by name, with the replicas that have them."""
    groups: dict[str, list[tuple[str, PartitionDir]]] = {}
    for name, partitions in directories:
        for directory in partitions:
            if directory.topic != METADATA_TOPIC:
                groups.setdefault(directory.name, []).append((name, directory))
    return groups
