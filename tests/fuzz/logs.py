"""Owns the small valid log directories that the fuzz mutates: every codec, transactions, tombstones, horizons, holes.

A log is a dictionary from file name to bytes, as it would lie on disk. Knows nothing of mutations or of `headstone`.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.oracle.batches import Batch, Record, changed
from tests.oracle.cleaner import Pass, clean
from tests.oracle.files import segment_path, write_checkpoint, write_segment, write_snapshot
from tests.oracle.notation import History, parse_term

Files = dict[str, bytes]

PARTITION = "t-0"
TOPIC_PARTITION = ("t", 0)
CODECS = ("", "", "/gzip", "/snappy", "/lz4", "/zstd")
KEYS = "abcdefg"
NOW_MS = 1_000_000
DELETE_RETENTION_MS = 1_000
IDEMPOTENT = (7, 8)
TRANSACTIONAL = (1, 2, 3)


@dataclass(slots=True, kw_only=True)
class _Writer:
    """Writes batches that a broker would take; knows which transactions are open."""

    chance: random.Random
    history: History
    open: set[int]

    def batch(self) -> None:
        kind = self.chance.choice("NNNTUIPPPM")
        if kind == "M":
            self._marker()
        elif kind == "P":
            pid = self.chance.choice(TRANSACTIONAL)
            self.open.add(pid)
            self._data(f"P{pid}")
        else:
            self._data(f"I{self.chance.choice(IDEMPOTENT)}" if kind == "I" else kind)

    def _marker(self) -> None:
        if not self.open:
            return
        pid = self.chance.choice(sorted(self.open))
        self.open.discard(pid)
        epoch = self.history.producers.producers[pid].epoch
        bumped = f"e{epoch + 1}" if self.chance.random() < 0.4 else ""
        self.history.append(f"{self.chance.choice('CA')}{pid}{bumped}")

    def _data(self, kind: str) -> None:
        keys = ""
        if kind != "U":
            words = [self._word() for _ in range(self.chance.randint(1, 4))]
            keys = "[" + ",".join(words) + "]"
        time = f"@{self.chance.randint(0, 5_000)}" if self.chance.random() < 0.2 else ""
        append_time = "/lat" if self.chance.random() < 0.1 else ""
        term = parse_term(kind + keys + time + self.chance.choice(CODECS) + append_time)
        self.history.append_batch(self._with_headers(self.history.make_batch(term)))

    def _word(self) -> str:
        return self.chance.choice(("", "", "", "~")) + self.chance.choice(KEYS + "_")

    def _with_headers(self, batch: Batch) -> Batch:
        if self.chance.random() < 0.7:
            return batch
        return changed(batch, records=tuple(self._decorated(record) for record in batch.records))

    def _decorated(self, record: Record) -> Record:
        names = [self.chance.choice(("h", "trace-id", "ü", "")) for _ in range(self.chance.randint(0, 2))]
        value = record.value
        if value is not None and self.chance.random() < 0.3:
            value = self.chance.choice((b"", b"x" * 70, bytes(200)))
        return Record(
            offset=record.offset,
            timestamp=record.timestamp + self.chance.randint(0, 3),
            key=record.key if self.chance.random() < 0.9 else b"",
            value=value,
            headers=tuple((name, self.chance.choice((None, b"", b"1"))) for name in names),
        )

    def finish_transactions(self) -> None:
        for pid in sorted(self.open):
            if self.chance.random() < 0.8:
                self.history.append(f"{self.chance.choice('CA')}{pid}")
                self.open.discard(pid)

    def segments(self, count: int) -> None:
        for _ in range(count):
            for _ in range(self.chance.randint(1, 6)):
                self.batch()
            if self.chance.random() < 0.1:
                self.history.append(f"+{self.chance.randint(1, 9)}")
            self.history.roll()


def small_log(seed: int) -> Files:
    """The same directory for the same seed; about half of them have been cleaned before, once or several times."""
    chance = random.Random(f"log {seed}")
    writer = _Writer(chance=chance, history=History(leader_epoch=chance.choice((0, 0, 3))), open=set())
    writer.segments(chance.randint(1, 3))
    writer.finish_transactions()
    offsets: dict[str, int] = {}
    now_ms = NOW_MS - 5_000
    for _ in range(chance.choice((0, 0, 1, 2, 3))):
        offsets["cleaner-offset-checkpoint"] = _clean(writer.history, chance, now_ms)
        now_ms += chance.choice((0, DELETE_RETENTION_MS))
        writer.segments(chance.randint(0, 1))
    writer.segments(1)
    writer.finish_transactions()
    if chance.random() < 0.5:
        writer.batch()
    if chance.random() < 0.2:
        offsets["replication-offset-checkpoint"] = chance.randint(0, writer.history.next_offset)
    if chance.random() < 0.1:
        offsets["log-start-offset-checkpoint"] = chance.randint(0, writer.history.next_offset)
    return _files(writer.history, offsets, with_snapshots=chance.random() < 0.5)


def _clean(history: History, chance: random.Random, now_ms: int) -> int:
    """One pass of the oracle under Kafka's rules; the first dirty offset after it."""
    settings = Pass(
        now_ms=now_ms, dirty_start=0, delete_retention_ms=DELETE_RETENTION_MS,
        segment_bytes=chance.choice((1, 400, 2**30)), keys_max=chance.choice((None, None, 2)),
    )  # fmt: skip
    result = clean(history.segments, history.producers, settings)
    history.install(result.segments)
    bases = {segment.base for segment in result.segments}
    history.snapshots = {offset: entries for offset, entries in history.snapshots.items() if offset in bases}
    return result.next_dirty


def _files(history: History, offsets: dict[str, int], *, with_snapshots: bool) -> Files:
    files: Files = {name: write_checkpoint({TOPIC_PARTITION: offset}).encode() for name, offset in offsets.items()}
    with tempfile.TemporaryDirectory() as name:
        directory = history.write_partition(Path(name), PARTITION)
        for segment in history.segments:
            write_segment(directory, segment)
        for offset, entries in history.snapshots.items() if with_snapshots else ():
            segment_path(directory, offset, "snapshot").write_bytes(write_snapshot(entries))
        bases = {segment.base for segment in history.segments}
        for path in sorted(directory.iterdir()):
            if path.suffix in (".snapshot", "") or path.name.startswith("partition") or int(path.stem) in bases:
                files[f"{PARTITION}/{path.name}"] = path.read_bytes()
    return files
