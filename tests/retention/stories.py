"""Random histories of one partition, told by seed: what was appended, rolled and cleaned, as data and as a live log.

A step means something after any other step, so a story stays a story when steps are left out of it. Knows the oracle
and how a compaction is started; compares nothing.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from headstone.pipeline.report import PartitionReport
from tests.logs import batch_of, compact_here
from tests.oracle.batches import Batch, Record
from tests.oracle.cleaner import Pass
from tests.oracle.compression import CODECS
from tests.oracle.files import read_partition, write_checkpoint
from tests.oracle.notation import History
from tests.policies import policy_of

DAY_MS = 86_400_000
FOREVER = 2**63 - 1
TIME_START = 1_700_000_000_000
COMMIT_KEY = bytes.fromhex("00000001")
KEYS = (b"a", b"b", b"c", b"d", b"e", b"", COMMIT_KEY)
PRODUCERS = (1, 2, 7_000_000_000)
MARKERS = {"ABORT": 0, "COMMIT": 1}
NAME = "t-0"
MEMORY_DISK = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """`kind`: plain, idempotent, transactional; `late_ms` is how much older than the clock each record is."""

    kind: str
    producer_id: int
    records: tuple[tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]], ...]
    codec: str
    log_append_time: bool
    timeless: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """`bump`: the marker carries the next epoch (KIP-890), not that of the data."""

    decision: str
    producer_id: int
    bump: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Roll:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    offsets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLeader:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """Offsets are shares of the log's end, so that they fit whatever came before; None: where the last one ended."""

    settings: Pass
    passes_ms: int
    dirty_share: float | None = None
    high_share: float | None = None
    mtro_share: float = 1.0
    mxro_share: float = 1.0
    plain_share: float = 1.0


Step = Data | Marker | Roll | Gap | NewLeader | Cleaning


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    snapshots: bool
    steps: tuple[Step, ...]


def story(seed: int, *, passes: int = 3) -> Story:
    """Each cleaning has its own settings, but for the expiration of producers; some come twice in a row."""
    chance = random.Random(seed)
    expiration_ms = chance.choice((FOREVER, DAY_MS, 60_000, 1))
    steps: list[Step] = []
    for _ in range(passes):
        steps += [_appended(chance) for _ in range(chance.randrange(4, 26))]
        if chance.random() < 0.75:
            steps += [replace(_marker(chance), producer_id=pid) for pid in open_in(steps)]
        steps.append(Roll())
        if chance.random() < 0.3:
            steps += [_appended(chance) for _ in range(chance.randrange(3))]
        cleaning = _cleaning(chance, expiration_ms)
        steps.append(cleaning)
        if chance.random() < 0.3:
            steps.append(replace(cleaning, dirty_share=0.0, passes_ms=chance.choice((0, 1, 999, 1000, DAY_MS))))
    return Story(snapshots=chance.random() < 0.5, steps=tuple(steps))


def open_in(steps: Sequence[Step]) -> list[int]:
    """Producers whose transaction no marker has ended."""
    is_open: dict[int, bool] = {}
    for step in steps:
        if isinstance(step, Marker) or (isinstance(step, Data) and step.kind == "transactional"):
            is_open[step.producer_id] = isinstance(step, Data)
    return [pid for pid, still in sorted(is_open.items()) if still]


def _appended(chance: random.Random) -> Step:
    kinds = (_data, _marker, lambda _: Roll(), lambda c: Gap(offsets=c.choice((1, 3, 500))), lambda _: NewLeader())
    return chance.choices(kinds, weights=(60, 18, 14, 3, 1))[0](chance)


def _data(chance: random.Random) -> Data:
    records = tuple(_record(chance) for _ in range(chance.choice((1, 1, 1, 2, 3, 5))))
    return Data(
        kind=chance.choices(("plain", "idempotent", "transactional"), weights=(3, 2, 5))[0],
        producer_id=chance.choice(PRODUCERS),
        records=records,
        codec=chance.choice(("none", "none", *CODECS)),
        log_append_time=chance.random() < 0.2,
        timeless=chance.random() < 0.03,
    )


def _record(chance: random.Random) -> tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]:
    key = None if chance.random() < 0.04 else chance.choice(KEYS)
    value = None if chance.random() < 0.25 else chance.randbytes(chance.choice((0, 1, 9, 140)))
    headers = (("source", chance.randbytes(3)), ("gone", None)) if chance.random() < 0.15 else ()
    return key, value, chance.choice((0, 0, 5, 70_000, -40)), headers


def _marker(chance: random.Random) -> Marker:
    return Marker(
        decision=chance.choice(("ABORT", "COMMIT")), producer_id=chance.choice(PRODUCERS), bump=chance.random() < 0.4
    )


def _cleaning(chance: random.Random, expiration_ms: int) -> Cleaning:
    settings = Pass(
        now_ms=0,
        delete_retention_ms=chance.choice((0, 1, 1000, DAY_MS, FOREVER)),
        keys_max=chance.choice((None, None, None, 1, 2, 4)),
        segment_bytes=chance.choice((1, 400, 2000, 2**30)),
        lag_ms=chance.choice((0, 0, 0, 1, 2000, DAY_MS)),
        producer_expiration_ms=expiration_ms,
        rules=chance.choice(("kafka", "coordinated")),
    )
    return Cleaning(
        settings=settings,
        passes_ms=chance.choice((0, 1, 500, 2000, DAY_MS, 3 * DAY_MS)),
        dirty_share=chance.choice((None, None, 0.0, chance.random())),
        high_share=chance.choice((None, None, None, chance.random())),
        mtro_share=chance.choice((0.0, 1.0, chance.random())),
        mxro_share=chance.choice((0.0, 1.0, chance.random())),
        plain_share=chance.choice((0.0, 1.0, 1.0, chance.random())),
    )


@dataclass(slots=True)
class Teller:
    """The partition while the story is told: clock, producers' epochs and sequences, and the oracle's live log."""

    history: History = field(default_factory=History)
    clock_ms: int = TIME_START
    epochs: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    high_watermark: int = 0
    next_dirty: int = 0

    def append(self, step: Step) -> None:
        if isinstance(step, Roll):
            self.history.roll()
        elif isinstance(step, Gap):
            self.history.next_offset += step.offsets
        elif isinstance(step, NewLeader):
            self.history.leader_epoch += 1
        elif isinstance(step, Marker):
            self.history.append_batch(self._marker_batch(step))
        elif isinstance(step, Data):
            self.history.append_batch(self._data_batch(step))
        self.clock_ms += 100

    def cleanings(self, made: Story) -> Iterator[Cleaning]:
        """Stops at each; whatever else happens is appended."""
        for step in made.steps:
            if isinstance(step, Cleaning):
                yield step
            else:
                self.append(step)

    def settings(self, step: Cleaning) -> Pass:
        """The pass of this moment. The clock moves on; the high watermark never goes back."""
        self.clock_ms += step.passes_ms
        end = self.history.segments[-1].next_offset
        self.high_watermark = max(self.high_watermark, end if step.high_share is None else int(step.high_share * end))
        coordinated = step.settings.coordinated
        return replace(
            step.settings,
            now_ms=self.clock_ms,
            dirty_start=self.next_dirty if step.dirty_share is None else int(step.dirty_share * end),
            high_watermark=self.high_watermark,
            mtro=int(step.mtro_share * end) if coordinated else FOREVER,
            mxro=int(step.mxro_share * end) if coordinated else FOREVER,
            plain_below=int(step.plain_share * end),
        )

    def _data_batch(self, step: Data) -> Batch:
        base = self.history.next_offset
        stamps = [-1 if step.timeless else self.clock_ms - late for _, _, late, _ in step.records]
        latest = self.clock_ms + 7 if step.log_append_time else max(stamps)
        seen = [latest] * len(stamps) if step.log_append_time else stamps
        records = tuple(
            Record(offset=base + i, timestamp=seen[i], key=key, value=value, headers=headers)
            for i, (key, value, _, headers) in enumerate(step.records)
        )
        batch = batch_of(
            *records,
            base_timestamp=stamps[0],
            max_timestamp=latest,
            leader_epoch=self.history.leader_epoch,
            codec=step.codec,
            log_append_time=step.log_append_time,
        )
        return batch if step.kind == "plain" else self._produced(step, batch)

    def _produced(self, step: Data, batch: Batch) -> Batch:
        pid = step.producer_id
        sequence = self.sequences.get(pid, 2**31 - 3)
        self.sequences[pid] = (sequence + batch.count) % 2**31
        return replace(
            batch,
            transactional=step.kind == "transactional" or pid in self.history.producers.open_transactions(),
            producer_id=pid,
            producer_epoch=self.epochs.setdefault(pid, 0),
            base_sequence=sequence,
        )

    def _marker_batch(self, step: Marker) -> Batch:
        pid, base = step.producer_id, self.history.next_offset
        epoch = self.epochs.get(pid, 0) + step.bump
        self.epochs[pid] = epoch
        if step.bump:
            self.sequences[pid] = 0
        key = struct.pack(">hh", 0, MARKERS[step.decision])
        record = Record(offset=base, timestamp=self.clock_ms, key=key, value=struct.pack(">hi", 0, 3))
        return batch_of(
            record,
            leader_epoch=self.history.leader_epoch,
            transactional=True,
            control=True,
            producer_id=pid,
            producer_epoch=epoch,
        )


@dataclass(slots=True)
class Files:
    """The same partition on disk, compacted by Headstone: in place, or into a new log directory each time."""

    root: Path
    path: str
    in_place: bool
    snapshots: bool = False
    generation: int = 0

    @property
    def logs(self) -> Path:
        return self.root / str(self.generation)

    @property
    def partition(self) -> Path:
        return self.logs / NAME

    def write(self, history: History) -> None:
        history.write_partition(self.logs, NAME, snapshots=self.snapshots)

    def compact(self, settings: Pass) -> PartitionReport:
        assert settings.high_watermark is not None
        high = write_checkpoint({("t", 0): settings.high_watermark})
        (self.logs / "replication-offset-checkpoint").write_text(high)
        source = self.logs
        self.generation += 0 if self.in_place else 1
        out = None if self.in_place else self.logs
        policy, dirty_from = policy_of(settings), settings.dirty_start
        return compact_here(source, out=out, policy=policy, path=self.path, dirty_from=dirty_from).partitions[0]

    def take_over(self, history: History) -> None:
        """The story goes on from what is on disk."""
        history.install(read_partition(self.partition))


@contextmanager
def quick_directory() -> Iterator[Path]:
    """In memory where the machine has such a disk: a compaction of nothing much is all fsync."""
    with TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None) as name:
        yield Path(name)


@contextmanager
def written(history: History, path: str = "whole") -> Iterator[Files]:
    """To be compacted in place."""
    with quick_directory() as root:
        files = Files(root, path, in_place=True)
        files.write(history)
        yield files
