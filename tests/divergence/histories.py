"""Random histories of one partition with all that really happened: several replicas, each as Kafka's own rules leave it.

A leader's log grows; replicas that are in sync copy every batch, those that are away copy what is left of them when they come
back. Every replica rolls and cleans alone, by the oracle's cleaner. Nothing of the audit is used here: which replica tells
readers something wrong, and of what class that is, follows from what happened to each record on each replica.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.oracle.batches import Batch, Record, encode, to_bytes
from tests.oracle.cleaner import INT64_MAX, Pass, clean
from tests.oracle.files import segment_path, write_checkpoint, write_snapshot, write_txn_index
from tests.oracle.producers import ProducerTable
from tests.oracle.reader import read_committed, view
from tests.oracle.segments import AbortedTxn, Segment

REAPPEARS, ABORTED_SERVED, HIDDEN, FROZEN = (
    "deleted-reappears", "aborted-as-committed", "committed-hidden", "read-committed-frozen",
)  # fmt: skip
RETENTION_MS = 10
TOPIC = "t"


@dataclass(slots=True, kw_only=True)
class Copy:
    """One replica's log, and what became of every record on it. `views`: how its transaction ended, as this replica sees it."""

    name: str
    segments: list[Segment] = field(default_factory=lambda: [Segment(base=0, batches=(), mtime_ms=0)])
    producers: ProducerTable = field(default_factory=ProducerTable)
    log_end: int = 0
    log_start: int = 0
    away: bool = False
    behind: bool = False
    """Away, and until then it had everything."""
    checkpoint: int = 0
    got: set[int] = field(default_factory=set)
    views: dict[int, bool] = field(default_factory=dict)
    """Offset of a transactional record to whether it was aborted; open ones have none."""
    pending: dict[int, list[int]] = field(default_factory=dict)

    def append(self, batch: Batch) -> None:
        entry = self.producers.append(batch)
        active = self.segments[-1]
        aborted: tuple[AbortedTxn, ...] = (*active.aborted, entry) if entry else active.aborted
        self.segments[-1] = replace(
            active, batches=(*active.batches, batch), aborted=aborted, mtime_ms=batch.max_timestamp
        )
        self.log_end = batch.next_offset
        if batch.control:
            if batch.records:
                for offset in self.pending.pop(batch.producer_id, []):
                    self.views[offset] = batch.marker == "ABORT"
            return
        offsets = [record.offset for record in batch.records]
        self.got.update(offsets)
        if batch.transactional:
            self.pending.setdefault(batch.producer_id, []).extend(offsets)

    def roll(self) -> None:
        if self.segments[-1].batches:
            self.segments.append(Segment(base=self.log_end, batches=(), mtime_ms=0))

    def clean(self, now_ms: int, *, dirty_start: int, expiration_ms: int) -> None:
        settings = Pass(
            now_ms=now_ms, dirty_start=dirty_start, high_watermark=self.log_end, delete_retention_ms=RETENTION_MS,
            producer_expiration_ms=expiration_ms, log_start=self.log_start,
        )  # fmt: skip
        result = clean(self.segments, self.producers, settings)
        self.segments = [
            replace(segment, batches=tuple(b if b.raw else replace(b, raw=encode(b)) for b in segment.batches))
            for segment in result.segments
        ]
        self.checkpoint = result.next_dirty

    def catch_up(self, leader: Copy) -> None:
        for segment in leader.segments:
            for batch in segment.batches:
                if batch.base_offset >= self.log_end:
                    self.append(batch)

    def offsets(self) -> set[int]:
        """Of all records that are left."""
        return {record.offset for segment in self.segments for batch in segment.batches for record in batch.records}

    @property
    def lso(self) -> int:
        return self.producers.lso(self.log_end)

    def table(self) -> dict[bytes, int]:
        """Key to the offset of the value that a read_committed consumer ends with."""
        found: dict[bytes, int] = {}
        records, _ = read_committed(view(self.segments, self.producers, self.log_end))
        for record in records:
            assert record.key is not None
            if record.value is None:
                found.pop(record.key, None)
            else:
                found[record.key] = record.offset
        return found

    def write(self, root: Path) -> Path:
        """As the log directory of a stopped broker."""
        directory = root / f"{TOPIC}-0"
        directory.mkdir(parents=True)
        for segment in self.segments:
            segment_path(directory, segment.base, "log").write_bytes(b"".join(to_bytes(b) for b in segment.batches))
            if segment.aborted:
                segment_path(directory, segment.base, "txnindex").write_bytes(write_txn_index(segment.aborted))
        segment_path(directory, self.log_end, "snapshot").write_bytes(write_snapshot(self.producers.snapshot()))
        (root / "replication-offset-checkpoint").write_text(write_checkpoint({(TOPIC, 0): self.log_end}))
        if self.log_start > self.segments[0].base:
            (root / "log-start-offset-checkpoint").write_text(write_checkpoint({(TOPIC, 0): self.log_start}))
        return root


@dataclass(slots=True, kw_only=True)
class Writer:
    """A transactional producer. Version 2 gives every transaction its own epoch."""

    producer_id: int
    version: int
    epoch: int = 0
    open: bool = False
    sequence: int = 0


@dataclass(slots=True, kw_only=True)
class Happened:
    """A record as it was accepted; `aborted` None: plain, or its transaction is still open (`open`)."""

    offset: int
    key: bytes
    tombstone: bool
    producer_id: int = -1
    aborted: bool | None = None
    open: bool = False

    @property
    def counts(self) -> bool:
        return not self.open and not self.aborted


class Cluster:
    """`copies[0]` leads and is never away: its log is what happened, cleaned."""

    def __init__(self, chance: random.Random, replicas: int) -> None:
        self.chance = chance
        self.copies = [Copy(name=str(number)) for number in range(replicas)]
        self.records: dict[int, Happened] = {}
        self.now_ms = 1000
        self.expiration_ms = chance.choice((INT64_MAX, INT64_MAX, 40))
        self.keys = [f"k{n}" for n in range(chance.choice((3, 4, 6)))]
        self.writers = [
            Writer(producer_id=number, version=chance.choice((1, 2)))
            for number in range(1, chance.choice((1, 2, 3)) + 1)
        ]
        self.deletions = 1
        self.told: list[str] = []
        self._markers: dict[int, list[int]] = {}

    def markers_after(self, producer_id: int, offset: int) -> int | None:
        """Where the transaction with this record really ended."""
        return next((marker for marker in self._markers.get(producer_id, []) if marker > offset), None)

    @property
    def leader(self) -> Copy:
        return self.copies[0]

    def _spread(self, batch: Batch) -> None:
        batch = replace(batch, raw=encode(batch))
        for copy in self.copies:
            if not copy.away:
                copy.append(batch)
        self.now_ms += self.chance.choice((0, 1, 3))

    def _batch(self, records: tuple[Record, ...], **fields: object) -> Batch:
        return Batch(
            base_offset=records[0].offset, last_offset_delta=len(records) - 1, records=records, count=len(records),
            base_timestamp=self.now_ms, max_timestamp=self.now_ms, **fields,  # type: ignore[arg-type]
        )  # fmt: skip

    def data(self, words: list[str], writer: Writer | None = None) -> None:
        """Words are keys; `~k` is a tombstone."""
        base, made = self.leader.log_end, []
        for offset, word in enumerate(words, base):
            key, value = word.lstrip("~").encode(), None if word.startswith("~") else b"v%d" % offset
            made.append(Record(offset=offset, timestamp=self.now_ms, key=key, value=value))
            self.records[offset] = Happened(
                offset=offset, key=key, tombstone=value is None, producer_id=writer.producer_id if writer else -1,
                open=writer is not None,
            )  # fmt: skip
        if writer is None:
            self._spread(self._batch(tuple(made)))
            self.told.append(f"N[{','.join(words)}]")
            return
        writer.open = True
        self._spread(self._batch(
            tuple(made), transactional=True, producer_id=writer.producer_id, producer_epoch=writer.epoch,
            base_sequence=writer.sequence,
        ))  # fmt: skip
        writer.sequence += len(words)
        self.told.append(f"P{writer.producer_id}e{writer.epoch}[{','.join(words)}]")

    def end(self, writer: Writer, *, commit: bool, fenced: bool = False) -> None:
        offset = self.leader.log_end
        writer.open = False
        self._markers.setdefault(writer.producer_id, []).append(offset)
        bump = writer.version == 2 or fenced
        record = Record(
            offset=offset, timestamp=self.now_ms, key=struct.pack(">hh", 0, int(commit)), value=struct.pack(">hi", 0, 0)
        )
        self._spread(self._batch(
            (record,), transactional=True, control=True, producer_id=writer.producer_id,
            producer_epoch=writer.epoch + bump,
        ))  # fmt: skip
        self.told.append(f"{'C' if commit else 'A'}{writer.producer_id}e{writer.epoch + bump}")
        if bump:
            # A fenced producer of version 1 comes back with an epoch of its own.
            writer.epoch, writer.sequence = writer.epoch + (1 if writer.version == 2 else 2), 0
        for happened in self.records.values():
            if happened.producer_id == writer.producer_id and happened.open:
                happened.open, happened.aborted = False, not commit

    def leave(self, copy: Copy) -> None:
        copy.away = True
        self.told.append(f"<{copy.name} leaves>")

    def come_back(self, copy: Copy) -> None:
        copy.away = False
        copy.catch_up(self.leader)
        self.told.append(f"<{copy.name} is back>")

    def roll(self, copy: Copy) -> None:
        copy.roll()
        self.told.append(f"<{copy.name} rolls>")

    def clean(self, copy: Copy) -> None:
        self.now_ms += self.chance.choice((1, RETENTION_MS, RETENTION_MS + 1))
        dirty = copy.checkpoint if self.chance.random() < 0.3 else 0
        copy.clean(self.now_ms, dirty_start=dirty, expiration_ms=self.expiration_ms)
        self.told.append(f"<{copy.name} cleans>")

    def words(self) -> list[str]:
        count = self.chance.choice((1, 1, 2, 3))
        marks = ("", "", *["~"] * self.deletions)
        return [self.chance.choice(marks) + self.chance.choice(self.keys) for _ in range(count)]

    def traffic(self, batches: int) -> None:
        for _ in range(batches):
            writer = self.chance.choice(self.writers)
            kind = self.chance.random()
            if kind < 0.35:
                self.data(self.words())
            elif kind < 0.68 or not writer.open:
                self.data(self.words(), writer)
            else:
                fenced = self.chance.random() < 0.15
                self.end(writer, commit=not fenced and self.chance.random() < 0.5, fenced=fenced)

    def cleaning(self, copies: list[Copy], passes: int, *, hurry: bool = False) -> None:
        """Every pass has something new to clean: else a broker does not choose the log."""
        for _ in range(passes):
            for copy in copies:
                if copy.away:
                    continue
                if self.chance.random() < 0.9:
                    self.roll(copy)
                self.clean(copy)
            if hurry:
                self.now_ms += RETENTION_MS
            if hurry or self.chance.random() < 0.5:
                self.data(["filler"])

    def finish(self, share: float = 0.8) -> None:
        for writer in self.writers:
            if writer.open and self.chance.random() < share:
                self.end(writer, commit=self.chance.random() < 0.5)


def generate(seed: int) -> Cluster:
    """Traffic; some replicas go away; traffic and cleaning without them; they come back; more of both, and uneven.

    Three of four histories are rough: replicas are away for long, so that much is lost to them."""
    chance = random.Random(seed)
    rough = seed % 4 != 0
    cluster = Cluster(chance, chance.choice((3, 3, 5)))
    most = (len(cluster.copies) - 1) // 2
    travellers = chance.sample(cluster.copies[1:], chance.choice((int(rough), *range(1, most + 1), 1, 1)))
    cluster.traffic(chance.randint(2, 10))
    cluster.cleaning(cluster.copies, chance.choice((0, 0, 1)))
    victim = chance.choice(cluster.writers)
    deletes = rough and chance.random() < 0.35
    if deletes:
        # A committed deletion goes together with its marker; what hides it then is a later ABORT.
        if victim.open:
            cluster.end(victim, commit=True)
        cluster.data([f"~{word.lstrip('~')}" for word in cluster.words()], victim)
    elif rough and chance.random() < 0.7:
        cluster.data(cluster.words(), victim)
    for copy in travellers:
        cluster.leave(copy)
        if chance.random() < 0.3:
            cluster.traffic(chance.randint(1, 3))
    cluster.deletions = chance.choice((1, 2))
    if deletes:
        cluster.end(victim, commit=chance.random() < 0.8)
    cluster.traffic(chance.randint(1, 5))
    if rough or chance.random() < 0.5:
        cluster.finish(0.97)
        if chance.random() < 0.4:
            cluster.data(cluster.words(), victim)
            cluster.end(victim, commit=chance.random() < 0.5)
    for _ in range(chance.choice((4, 5, 6, 7) if rough else (0, 1, 2))):
        some = [copy for copy in cluster.copies if copy is cluster.leader or chance.random() < 0.6]
        cluster.cleaning(some, 1, hurry=rough)
        if chance.random() < 0.15:
            cluster.traffic(1)
    cluster.keys, cluster.deletions = chance.sample(cluster.keys, chance.choice((1, 2))), 1
    for copy in travellers:
        if chance.random() < 0.95:
            cluster.come_back(copy)
        if chance.random() < 0.3:
            cluster.traffic(chance.randint(1, 3))
    if rough and chance.random() < 0.7:
        cluster.data(cluster.words(), victim)
        cluster.end(victim, commit=chance.random() < (0.2 if deletes else 0.6))
    cluster.traffic(chance.randint(0, 6))
    if chance.random() < 0.8:
        cluster.finish()
    cluster.data(["end"])
    for copy in cluster.copies:
        if chance.random() < 0.7:
            cluster.cleaning([copy], chance.choice((0, 1, 2, 3)), hurry=chance.random() < 0.5)
    cluster.data(["end"])
    if chance.random() < 0.4:
        _fall_behind(cluster, travellers, chance)
    return cluster


def _fall_behind(cluster: Cluster, travellers: list[Copy], chance: random.Random) -> None:
    """Those that were away miss a little more: mostly what was aborted, which takes nothing from what they serve."""
    for copy in travellers:
        if not copy.away and chance.random() < 0.8:
            cluster.leave(copy)
            copy.behind = True
    for writer in cluster.writers:
        if not writer.open:
            keys = sorted({happened.key.decode() for happened in cluster.records.values()})
            cluster.data(chance.sample(keys, chance.randint(1, len(keys))), writer)
            cluster.end(writer, commit=chance.random() < 0.1)
