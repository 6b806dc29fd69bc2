"""Owns the log notation of the acceptance cases and History, which grows a log from it and writes it as Kafka would.

One term per batch, terms separated by spaces:
`N[a,b]` plain; `T[a]` tombstones; `U` a keyless record; `I1[a]` idempotent and `P1[a]` transactional of producer 1;
`C1`/`A1` its COMMIT/ABORT marker; `|` rolls the segment; `+10` skips ten offsets. In brackets `~a` is a tombstone of a
and `_` is keyless. `P1e2[a]` gives the producer epoch; without it the producer's latest epoch goes on, at first 0.
Suffixes: `@123` timestamp (else 1000 + base offset), `/gzip /snappy /lz4 /zstd` codec, `/lat` LogAppendTime.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, replace
from pathlib import Path

from tests.oracle.batches import Batch, Record
from tests.oracle.compression import CODECS
from tests.oracle.files import (
    SnapshotEntry,
    segment_path,
    write_leader_epochs,
    write_partition_metadata,
    write_segment,
    write_snapshot,
)
from tests.oracle.producers import ProducerTable
from tests.oracle.segments import AbortedTxn, Segment, make_segment

TERM = re.compile(
    r"(?P<kind>[NTUIPCA])(?P<pid>\d+)?(?:e(?P<epoch>\d+))?(?:\[(?P<keys>[^\]]*)\])?"
    r"(?:@(?P<timestamp>-?\d+))?(?P<options>(?:/\w+)*)"
)
TIMESTAMP_START = 1000
COORDINATOR_EPOCH = 0
MARKER_TYPES = {"A": 0, "C": 1}
TOPIC_ID = "AAAAAAAAQACAAAAAAAAAAQ"


class BadNotation(ValueError):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    kind: str
    producer_id: int | None
    epoch: int | None
    keys: tuple[str, ...]
    timestamp: int | None
    codec: str
    log_append_time: bool


def parse_term(text: str) -> Term:
    match = TERM.fullmatch(text)
    if match is None:
        raise BadNotation(f"no batch: {text}")
    kind, pid, keys = match["kind"], match["pid"], match["keys"]
    options = [option for option in match["options"].split("/") if option]
    if any(option != "lat" and option not in CODECS for option in options):
        raise BadNotation(f"unknown option: {text}")
    if (pid is not None) != (kind in "IPCA") or (keys is not None) != (kind in "NTIP"):
        raise BadNotation(f"producer or keys missing or too many: {text}")
    return Term(
        kind=kind,
        producer_id=None if pid is None else int(pid),
        epoch=None if match["epoch"] is None else int(match["epoch"]),
        keys=("_",) if kind == "U" else tuple((keys or "").split(",")),
        timestamp=None if match["timestamp"] is None else int(match["timestamp"]),
        codec=next((option for option in options if option in CODECS), "none"),
        log_append_time="lat" in options,
    )


class History:
    """A log that grows. `install` takes over a cleaned log; `write_partition` writes what is new since it last ran."""

    def __init__(self, leader_epoch: int = 0) -> None:
        self.leader_epoch = leader_epoch
        self.next_offset = 0
        self.segments: list[Segment] = [make_segment(base=0, batches=[], mtime_ms=0)]
        self.producers = ProducerTable()
        self.snapshots: dict[int, list[SnapshotEntry]] = {}
        self._sequences: dict[tuple[int, int], int] = {}
        self._epochs: dict[int, int] = {}
        self._unwritten: set[int] = {0}

    def append(self, text: str) -> None:
        for word in text.split():
            if word == "|":
                self.roll()
            elif word.startswith("+"):
                self.next_offset += int(word[1:])
            else:
                self.append_batch(self.make_batch(parse_term(word)))

    def append_batch(self, batch: Batch) -> None:
        entry = self.producers.append(batch)
        active = self.segments[-1]
        aborted: list[AbortedTxn] = [*active.aborted, *([entry] if entry else [])]
        self.segments[-1] = make_segment(
            base=active.base,
            batches=[*active.batches, batch],
            mtime_ms=max(active.mtime_ms, batch.max_timestamp, 0),
            aborted=aborted,
        )
        self.next_offset = batch.next_offset
        self._unwritten.add(active.base)

    def roll(self) -> None:
        if self.segments[-1].base == self.next_offset:
            return
        mtime_ms = self.segments[-1].mtime_ms
        self.segments.append(make_segment(base=self.next_offset, batches=[], mtime_ms=mtime_ms))
        self.snapshots[self.next_offset] = self.producers.snapshot()
        self._unwritten.add(self.next_offset)

    def install(self, segments: list[Segment]) -> None:
        """Go on from a compacted log; producer state stays as a live broker has it."""
        self.segments = list(segments)

    def make_batch(self, term: Term) -> Batch:
        base = self.next_offset
        timestamp = TIMESTAMP_START + base if term.timestamp is None else term.timestamp
        records = self._records(term, base, timestamp)
        batch = Batch(
            base_offset=base,
            last_offset_delta=len(records) - 1,
            records=records,
            count=len(records),
            base_timestamp=timestamp,
            max_timestamp=timestamp,
            leader_epoch=self.leader_epoch,
            codec=term.codec,
            log_append_time=term.log_append_time,
            transactional=term.kind in "PCA",
            control=term.kind in "CA",
        )
        return batch if term.producer_id is None else self._produced(term, term.producer_id, batch)

    def _records(self, term: Term, base: int, timestamp: int) -> tuple[Record, ...]:
        if term.kind in "CA":
            key = struct.pack(">hh", 0, MARKER_TYPES[term.kind])
            value = struct.pack(">hi", 0, COORDINATOR_EPOCH)
            return (Record(offset=base, timestamp=timestamp, key=key, value=value),)
        records = []
        for offset, word in enumerate(term.keys, base):
            tombstone = term.kind == "T" or word.startswith("~")
            key_word = word.removeprefix("~")
            records.append(
                Record(
                    offset=offset,
                    timestamp=timestamp,
                    key=None if key_word == "_" else key_word.encode(),
                    value=None if tombstone else f"v{offset}".encode(),
                )
            )
        return tuple(records)

    def _produced(self, term: Term, pid: int, batch: Batch) -> Batch:
        epoch = self._epochs.get(pid, 0) if term.epoch is None else term.epoch
        self._epochs[pid] = epoch
        sequence = -1
        if not batch.control:
            sequence = self._sequences.get((pid, epoch), 0)
            self._sequences[pid, epoch] = (sequence + batch.count) % 2**31
        return replace(batch, producer_id=pid, producer_epoch=epoch, base_sequence=sequence)

    def write_partition(self, logdir: Path, name: str, *, snapshots: bool = False) -> Path:
        """Only segments touched since the last call are written, so files compacted meanwhile stay as they are."""
        directory = Path(logdir) / name
        directory.mkdir(parents=True, exist_ok=True)
        for segment in self.segments:
            if segment.base in self._unwritten:
                write_segment(directory, segment)
        if snapshots:
            for base in self._unwritten & self.snapshots.keys():
                segment_path(directory, base, "snapshot").write_bytes(write_snapshot(self.snapshots[base]))
        self._unwritten.clear()
        epochs = directory / "leader-epoch-checkpoint"
        if not epochs.exists():
            epochs.write_text(write_leader_epochs([(self.leader_epoch, 0)]))
        metadata = directory / "partition.metadata"
        if not metadata.exists():
            metadata.write_text(write_partition_metadata(TOPIC_ID))
        return directory
