"""Races of the lake, each replayed exactly by its seed: two workers compact many partitions in one job and a loner one, two
append, one levels, one collects garbage, one erases keys, one folds the journal, one exports, and readers who are slow, resume,
or hold tombstones see the right table of every log end, whoever is killed when.

    python -m tests.lake.test_seeded_races --seeds 1000              # counts, and the seeds that fail
    python -m tests.lake.test_seeded_races --first 17 --seeds 1 --trace   # one of them, turn by turn

The model is the log itself: what its records below an offset come to is what a reader of a lake that ends there must get.
`tests/lake/baton.py` owns the turns; nothing here waits for real time.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from sqlalchemy import insert

from headstone.errors import HeadstoneError, Unfinished, UsageError
from headstone.lake.format.objects import object_path
from headstone.lake.jobs.collection import Garbage, collect, garbage
from headstone.lake.jobs.compaction import compact_partition
from headstone.lake.jobs.erasure import Tools, carry_on_erasures, request_erasure
from headstone.lake.jobs.folding import fold
from headstone.lake.jobs.job import JobControl
from headstone.lake.jobs.job_plan import JobSettings
from headstone.lake.jobs.keeping import KeptLeases
from headstone.lake.jobs.key_search import digest_of
from headstone.lake.jobs.proof import prove_erased
from headstone.lake.jobs.worker import Worker
from headstone.lake.lake import Lake
from headstone.lake.metastore import pins, schema
from headstone.lake.metastore.clock import GIVEN
from headstone.lake.metastore.commits import CommitRefused, Partition
from headstone.lake.metastore.erasures import RETRY_MS, Erasure, Erasures
from headstone.lake.metastore.holds import Holds
from headstone.lake.metastore.journal import record
from headstone.lake.metastore.leases import FAILED, Leases
from headstone.lake.metastore.pins import Pins
from headstone.lake.metastore.replay import replayed
from headstone.lake.transfer import export as lake_export
from headstone.lake.transfer.export_cluster import brokers_of
from headstone.lake.transfer.export_plan import PLAN_FILE
from headstone.lake.transfer.export_run import requested, run_export
from headstone.lake.transfer.ingest import LogIngestSettings, ingest
from headstone.lake.transfer.reading import record_batches, snapshot
from headstone.log.checkpoints import HIGH_WATERMARK, read_offsets
from headstone.log.directory import find_partitions, list_segments
from headstone.log.listing import list_batches
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from headstone.retention.policy import NO_LIMIT
from headstone.storage.stores import MissingObject
from tests.lake.baton import CONNECTION_LOST, Baton, BatonMetastore, BatonStore, Odds
from tests.lake.single import level_partition, table_batches
from tests.oracle.notation import History

FIRST, SEEDS = 16, 30
"""Whatever changes how often the store is asked changes what each seed plays: these together have all of `RARE`."""
ROUNDS, ROUND_STEPS = 5, 65
KEYS = "abcdef"
PARTITIONS = (1, 1, 2, 6)
"""How many there may be."""
RETENTION_MS, GRACE_MS, UPLOAD_MS, LEASE_MS, HOLD_MS = 1300, 900, 700, 60, 2500
JOB_MS = 600
TOLD = 0.7
"""Of the commits, those that tell the store themselves."""
WAIT_MS = 5
"""After a failure, and twice as long after the next."""
NIGHT_MS = 1400
"""In which nothing runs, after some of the rounds."""
LATER_MS = 100_000
"""Longer than all of them."""
RARE = ("replace refused", "level refused", "append refused", "kills", "uploads broken off", "level committed",
        "objects collected", "tombstones removed", "follower resumed", "holder resumed", "extents marked",
        "steps of erasures", "keys erased", "journals folded", "exports", "exports resumed", "jobs of many")  # fmt: skip
"""What must have happened over the seeds together, or they were no races."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is asked of the lake."""

    job_ms: int | None = None
    """Nobody takes longer, by being killed. None: jobs are as slow as they like."""
    grace_ms: int = GRACE_MS
    """So long after it looked up its extents, a reader finds their objects."""
    retention_ms: int = RETENTION_MS
    """So long after it came into the lake, a tombstone is served."""
    tick: float = 0.15
    """How often the clock moves."""
    steps: int = ROUND_STEPS
    others: int = 1
    """So many turns of those who change the lake come on one that a reader would have."""


HURRIED = Terms(job_ms=JOB_MS, tick=0.03)
"""The clock hardly moves, and whoever is slow is killed: conflicts of quick jobs."""
STINGY = Terms(grace_ms=20, tick=0.3, steps=200, others=6)
"""Objects go while others read them: a pin is all that keeps them."""


class Row(NamedTuple):
    offset: int
    key: bytes
    value: bytes | None


Table = dict[bytes, Row]


class Log:
    """A log directory that grows, and what it comes to."""

    def __init__(self, root: Path, at: TopicPartition) -> None:
        self.directory = root / str(at)
        self.rows: list[Row] = []
        self._history = History()

    def grow(self, chance: random.Random) -> None:
        for _ in range(chance.randint(1, 4)):
            words = [chance.choice(("", "~")) + chance.choice(KEYS) for _ in range(chance.randint(1, 3))]
            self._history.append(f"N[{','.join(words)}]" + chance.choice(("", "", "/lz4")))
        self._history.roll()
        self._history.write_partition(self.directory.parent, self.directory.name)
        batches = [batch for segment in self._history.segments for batch in segment.batches]
        self.rows = [Row(one.offset, one.key or b"", one.value) for batch in batches for one in batch.records]

    def newest(self, end: int) -> Table:
        """The newest record of each key below `end`, tombstones too."""
        return {row.key: row for row in self.rows if row.offset < end}

    def table(self, end: int) -> Table:
        return living(self.newest(end))


def living(newest: Table) -> Table:
    return {key: row for key, row in newest.items() if row.value is not None}


class WithoutHeartbeat(Worker):
    """Its lease expires under it, when the clock says so and not when a thread comes to run."""

    def _heartbeat(self, leases: Leases, names: Collection[TopicPartition]) -> AbstractContextManager[KeptLeases]:
        del leases
        return nullcontext(KeptLeases(names))


@dataclass(slots=True)
class Progress:
    """What a reader that resumes has on its own disk."""

    table: Table = field(default_factory=dict)
    position: int = 0
    until_ms: int = 0
    """When what it relies on (its hold, or delete.retention.ms) is over."""


class Race:
    """One lake, its logs, and everybody who is at work on it."""

    def __init__(self, seed: int, root: Path, terms: Terms) -> None:
        shape = random.Random(f"shape {seed}")
        self.terms = terms
        partitions = [TopicPartition("t", number) for number in range(shape.choice(PARTITIONS))]
        self.logs = {at: Log(root / "log", at) for at in partitions}
        roles = {
            "appender-1": (2, self.append), "appender-2": (1, self.append), "worker-1": (5, self.work),
            "worker-2": (5, self.work), "loner": (4, self.compact), "leveler": (2, self.level),
            "collector": (2, self.collect), "eraser": (1, self.erase), "folder": (1, self.fold), "exporter": (1, self.export),
            "reader": (1, self.read), "follower": (2, self.follow), "holder": (2, self.hold),
        }  # fmt: skip
        readers = ("reader", "follower", "holder", "exporter")
        roles = {
            name: (share if name in readers else share * terms.others, body) for name, (share, body) in roles.items()
        }
        self.baton = Baton(
            seed, Odds(stay=shape.choice((0.2, 0.6, 0.85)), tick=terms.tick, age_ms_max=terms.job_ms), roles
        )
        self.chance, self.counts = self.baton.chance, self.baton.counts
        self.metastore = BatonMetastore(self.baton, root / "lake.db")
        self.lake = Lake(metastore=self.metastore, store=BatonStore(self.baton))
        self.metastore.after_commit.add(self.tell_store)
        with self.metastore.any_version() as connection:
            schema.metadata.create_all(connection)
            row = {"lake_id": "race", "version": schema.VERSION, "location": self.lake.store.url, "created_ms": 0}
            connection.execute(insert(schema.lakes).values(**row, hash_key="2a", clock=GIVEN))
        settings = {"delete.retention.ms": RETENTION_MS, "min.cleanable.dirty.ratio": 0}
        self.metastore.create_topic("t", len(self.logs), settings)
        self.progress = {(name, at): Progress() for name in ("follower", "holder") for at in self.logs}
        self.removed: set[tuple[TopicPartition, int]] = set()
        self.asked: dict[str, dict[TopicPartition, int]] = {}
        """Of each key that somebody asked to erase, where the logs ended then."""
        self._exports = root / "exports"
        self._exporting: Path | None = None
        """Where an export was begun that has not ended."""
        self._exporter_lives = False

    def close(self) -> None:
        self.baton.close()
        self.lake.close()

    def append(self) -> None:
        grown = [log for log in self.logs.values() if self.chance.random() < 0.7] or list(self.logs.values())
        for log in grown:
            log.grow(self.chance)
        directories = find_partitions([log.directory for log in grown])
        extent_bytes, object_bytes = self.chance.choice((1, 150, 400)), self.chance.choice((1, 400, 2000))
        sizes = LogIngestSettings(extent_bytes=extent_bytes, object_bytes=object_bytes)
        with self._refusals():
            ingest(self.lake, directories, clock=self.baton.clock, settings=sizes, engine=InProcess(1))

    def work(self) -> None:
        name = f"worker-{uuid.uuid4()}"
        worker = WithoutHeartbeat(
            name=name, lake=self.lake, engine=InProcess(1), clock=self.baton.clock, tell=self._tell, lease_ms=LEASE_MS,
            wait_ms=WAIT_MS, settings=self._settings(), control=self._control,
            partitions_at_once=self.chance.choice((1, 2, 6)),
        )  # fmt: skip
        worker.work()

    def compact(self) -> None:
        """Without a lease."""
        with self._refusals():
            compact_partition(
                self.lake, self._any(), InProcess(1), now_ms=self.baton.now_ms, settings=self._settings(),
                control=replace(self._control, tell=self._tell),
            )  # fmt: skip

    def level(self) -> None:
        with self._refusals():
            name, extent_bytes = self._any(), self.chance.choice((200, 500, 1500))
            level_partition(self.lake, name, clock=self.baton.clock, extent_bytes=extent_bytes, engine=InProcess(1))

    def collect(self) -> None:
        if self.chance.random() < 0.5:
            self._expire_pins()
        with self._refusals():
            self.counts["objects collected"] += len(collect(self.lake, self._garbage()))

    def _garbage(self) -> Garbage:
        return garbage(self.lake, now_ms=self.baton.now_ms, grace_ms=self.terms.grace_ms, upload_ms=UPLOAD_MS)

    def tell_store(self) -> None:
        """Behind a commit; some are killed before they come to it."""
        if self.baton.chance.random() < TOLD:
            with suppress(Unfinished):
                record(self.metastore, self.lake.store)

    def fold(self) -> None:
        with self._refusals():
            self.counts["journals folded"] += fold(self.lake) > 0

    def export(self) -> None:
        """Anew, or what somebody began who was killed; the pin of the dead may have expired, and what it kept be gone."""
        self._exporter_lives = True
        try:
            self._export()
        finally:
            self._exporter_lives = False

    def _export(self) -> None:
        resumes = self._exporting is not None and self.chance.random() < 0.7
        if self._exporting is None or not resumes:
            self._exporting = self._exports / str(self.counts["exports begun"])
            self.counts["exports begun"] += 1
        out = self._exporting
        out.mkdir(parents=True, exist_ok=True)
        brokers = brokers_of([out])
        request = requested(brokers, ["t"], topic_ids={"t": "AAAAAAAAQACAAAAAAAAAAQ"})
        try:
            ended = run_export(self.lake, request, brokers, InProcess(1), reader="exporter", tell=self._tell)
        except UsageError as error:
            is_whole = not (out / PLAN_FILE).exists() and "already exists" in str(error)
            if not resumes or ("removed by gc since then" not in str(error) and not is_whole):
                raise
            # Killed behind its end, when only its pin was left to be given back: what is whole is not written again.
            self.counts["exports whole" if is_whole else "exports given up"] += 1
            if is_whole:
                self._check_export(out, read_offsets(out / HIGH_WATERMARK))
        else:
            self.counts["exports"] += 1
            self.counts["exports resumed"] += resumes
            self._check_export(out, {each.partition: each.next_offset for each in ended.exported})
        self._exporting = None

    def _expire_pins(self) -> None:
        """Of whoever was killed."""
        kept = Pins(self.metastore)
        with self.baton.alone():
            for pin in [] if self._exporter_lives else kept.all():
                kept.release(pin)

    def _check_export(self, out: Path, ends: Mapping[TopicPartition, int]) -> None:
        assert ends.keys() == self.logs.keys()
        for directory in find_partitions([out]):
            log, end = self.logs[directory.topic_partition], ends[directory.topic_partition]
            rows = [
                Row(entry.offset, entry.key or b"", entry.value)
                for file in list_segments(directory)
                for batch in list_batches(file, with_records=True)
                for entry in batch.records or ()
            ]
            offsets = [row.offset for row in rows]
            assert offsets == sorted(set(offsets))
            assert set(rows) <= set(log.rows), "a record that nobody wrote"
            assert living({row.key: row for row in rows}) == log.table(end)

    def erase(self) -> None:
        """One key, and those that were asked for before. Whoever is slow or killed leaves the rest to the next."""
        key = self.chance.choice(KEYS)
        done = [erasure for erasure in Erasures(self.metastore).all() if not erasure.is_open]
        ends = {at: snapshot(self.lake, at).next_offset for at in self.logs}
        (digest,) = request_erasure(self.lake, "t", [key.encode()], deadline_ms=LATER_MS, clock=self.baton.clock)
        if digest not in self.asked or digest in {erasure.key_digest for erasure in done}:
            self.asked[digest] = ends
        self._carry_on()

    def _carry_on(self) -> None:
        tools = Tools(
            lake=self.lake, engine=InProcess(1), clock=self.baton.clock, grace_ms=self.terms.grace_ms,
            upload_ms=UPLOAD_MS,
        )  # fmt: skip
        self.counts["steps of erasures"] += carry_on_erasures(tools)

    def _key_of(self, erasure: Erasure) -> bytes:
        keys = {digest_of(key.encode(), self.metastore.hash_key): key.encode() for key in KEYS}
        return keys[erasure.key_digest]

    def read(self) -> None:
        """From the start; all records, or the table."""
        at = self._any()
        partition, taken_ms = snapshot(self.lake, at), self.baton.now_ms
        as_table = self.chance.random() < 0.3
        batches = (
            table_batches(self.lake, at, partition)
            if as_table
            else record_batches(self.lake.store, at, partition.extents, 0)
        )
        rows = self._rows(batches, taken_ms)
        if rows is not None and as_table:
            assert {row.key: row for row in rows} == self.logs[at].table(partition.next_offset)
        elif rows is not None:
            self.check_log(at, partition, rows, taken_ms)

    def follow(self) -> None:
        """Comes back within delete.retention.ms, or begins anew."""
        at = self._any()
        before = self.progress["follower", at]
        partition, taken_ms = snapshot(self.lake, at), self.baton.now_ms
        if taken_ms >= before.until_ms:
            before = Progress()
        self._resume("follower", at, before, partition, taken_ms, taken_ms + self.terms.retention_ms)

    def hold(self) -> None:
        """Comes back while its hold lasts, or begins anew. A hold is taken before the first look, and moved up after."""
        at = self._any()
        before, holds = self.progress["holder", at], Holds(self.metastore)
        if self.baton.now_ms >= before.until_ms:
            self.progress["holder", at] = before = Progress(until_ms=self.baton.now_ms + HOLD_MS)
            holds.hold("holder", at, 0, expires_ms=before.until_ms)
        partition, taken_ms = snapshot(self.lake, at), self.baton.now_ms
        if taken_ms < before.until_ms and self._resume("holder", at, before, partition, taken_ms, before.until_ms):
            until_ms = self.baton.now_ms + HOLD_MS
            holds.hold("holder", at, partition.next_offset, expires_ms=until_ms)
            self.progress["holder", at].until_ms = until_ms

    def _resume(
        self, name: str, at: TopicPartition, before: Progress, partition: Partition, taken_ms: int, until_ms: int
    ) -> bool:
        rows = self._rows(record_batches(self.lake.store, at, partition.extents, before.position), taken_ms)
        if rows is None:
            return False
        table = living(before.table | {row.key: row for row in rows})
        assert table == self.logs[at].table(partition.next_offset), f"{name} from {before.position} on"
        self.progress[name, at] = Progress(table=table, position=partition.next_offset, until_ms=until_ms)
        self.counts[f"{name} resumed"] += 0 < before.position < partition.next_offset
        return True

    def _rows(self, batches: Iterator[Any], taken_ms: int) -> list[Row] | None:
        """None if the reader was too slow for the time of grace."""
        try:
            rows = [Row(*row) for batch in batches for row in rows_of(batch)]
        except MissingObject:
            age_ms = self.baton.now_ms - taken_ms
            assert age_ms > self.terms.grace_ms, f"objects of a reader are gone after {age_ms} ms"
            self.counts["readers too slow"] += 1
            return None
        self.counts["readings"] += 1
        return rows

    def check_log(self, at: TopicPartition, partition: Partition, rows: Sequence[Row], taken_ms: int) -> None:
        log, end = self.logs[at], partition.next_offset
        offsets = [row.offset for row in rows]
        assert offsets == sorted(set(offsets)), "offsets are not strictly increasing"
        assert set(rows) <= set(log.rows), "a record that nobody wrote"
        assert living({row.key: row for row in rows}) == log.table(end)
        served = set(rows)
        for row in log.newest(end).values():
            if row.value is None and row not in served:
                self.removed.add((at, row.offset))
                age_ms = taken_ms - self._appended_ms(at, row.offset)
                assert age_ms >= self.terms.retention_ms, f"the tombstone {row} is gone after {age_ms} ms"

    def check(self) -> None:
        """Between turns, by somebody who never waits."""
        assert self.metastore.check() == []
        for at in self.logs:
            partition = snapshot(self.lake, at)
            batches = record_batches(self.lake.store, at, partition.extents, 0)
            rows = [Row(*row) for batch in batches for row in rows_of(batch)]
            self.check_log(at, partition, rows, self.baton.now_ms)
            check_claims(partition, rows)

    def check_erased(self) -> None:
        """Of a key that is erased no object holds a record that was there when somebody asked."""
        for erasure in Erasures(self.metastore).all():
            if erasure.is_open or erasure.key_digest not in self.asked:
                continue
            self.counts["keys erased"] += 1
            ends = self.asked[erasure.key_digest]
            sightings = prove_erased(self.lake, "t", self._key_of(erasure)).sightings
            assert [one for one in sightings if one.offset < ends[TopicPartition("t", one.partition)]] == [], erasure

    def settle_erasures(self) -> None:
        """In the end those of deleted keys are done, whatever came in between."""
        for _ in range(4):
            self.baton.now_ms += LATER_MS + RETRY_MS
            self._carry_on()
        for erasure in Erasures(self.metastore).all():
            key = self._key_of(erasure)
            assert not erasure.is_open or any(key in log.table(NO_LIMIT) for log in self.logs.values()), erasure
        self.check_erased()
        self.check()

    def settle(self) -> None:
        """Nobody else is there any more: the log shrinks to its table, and the store to what is referenced."""
        self.check()
        self._expire_pins()
        self.counts["tombstones removed"] += len(self.removed)
        self.check_failures()
        for log in (log for log in self.logs.values() if log.rows):
            directories = find_partitions([log.directory])
            assert ingest(self.lake, directories, clock=self.baton.clock, engine=InProcess(1))
        for _ in range(2):
            self.baton.now_ms += LATER_MS
            for at in self.logs:
                compact_partition(self.lake, at, InProcess(1), now_ms=self.baton.now_ms)
        self.check()
        for at, log in self.logs.items():
            left = list(record_batches(self.lake.store, at, snapshot(self.lake, at).extents, 0))
            assert sum(batch.num_rows for batch in left) == len(log.table(NO_LIMIT))
        for _ in range(2):  # an orphan goes when its grace is over since it was found
            self.baton.now_ms += LATER_MS
            collect(self.lake, self._garbage())
        extents = [extent for at in self.logs for extent in self.metastore.partition(at).extents]
        used = {name for extent in extents for name in (extent.object_id, extent.dead_object) if name is not None}
        stored, wanted = set(self.lake.store.list("objects")), {object_path(object_id) for object_id in used}
        assert stored == wanted, f"left over: {sorted(stored - wanted)}; missing: {sorted(wanted - stored)}"
        assert set(self.metastore.objects()) == used
        self.check()

    def check_journal(self) -> None:
        """What the store alone tells is what the metastore knows."""
        record(self.metastore, self.lake.store)
        rebuilt = replayed(self.lake.store, self.metastore.lake_id)
        assert {at: log.partition() for at, log in rebuilt.logs.items()} == {
            at: partition for at, partition in self.metastore.snapshot().items() if partition.next_offset
        }
        steps = {(one.topic, one.key_digest): one.step for one in Erasures(self.metastore).all()}
        assert {name: change["step"] for name, change in rebuilt.erasures.items()} == steps

    def check_failures(self) -> None:
        """A worker says why it failed: an upload that we broke off, or it was too slow for the time of grace."""
        for row in Leases(self.metastore).history(limit=100_000):
            self.counts[f"jobs {row.outcome}"] += 1
            why = str(row.details.get("why", ""))
            if row.outcome == FAILED and CONNECTION_LOST not in why:
                assert "no such object" in why
                assert row.finished_ms - row.started_ms > self.terms.grace_ms, why

    def _any(self) -> TopicPartition:
        return self.chance.choice(sorted(self.logs))

    @property
    def _control(self) -> JobControl:
        return JobControl(clock=self.baton.clock, before_commit=lambda: self.baton.pause("only the commit left"))

    def _settings(self) -> JobSettings:
        chance = self.chance
        held_from = chance.choice((NO_LIMIT, NO_LIMIT, chance.randrange(60)))
        map_bytes = chance.choice((None, None, 80, 160))
        return JobSettings(
            commit_bytes=chance.choice((1, 1, 300)), map_bytes=map_bytes, dead_share_max=chance.choice((0.3, 1.0, 10.0)),
            path=chance.choice(("auto", "whole", "shuffle")) if map_bytes is None else "auto",
            held_from=held_from,
        )  # fmt: skip

    def _tell(self, text: str) -> None:
        self.counts["jobs of many"] += text.startswith("compacting ") and ", " in text
        self.baton.pause(text)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """What may come in between: somebody faster, an upload that we broke off, the end of the time of grace."""
        started_ms = self.baton.now_ms
        try:
            yield
        except CommitRefused:
            self.counts["gave up: refused"] += 1
        except MissingObject:
            assert self.baton.now_ms - started_ms > self.terms.grace_ms
            self.counts["gave up: too slow"] += 1
        except Unfinished as error:
            if CONNECTION_LOST not in str(error):
                raise
            self.counts["gave up: broken off"] += 1

    def _appended_ms(self, at: TopicPartition, offset: int) -> int:
        return next(moment_ms for end, moment_ms in self.metastore.appended[at] if offset < end)


def check_claims(partition: Partition, rows: Sequence[Row]) -> None:
    """What is said to be clean is, and tombstones in it are known: nobody would look at it again."""
    for span in partition.cleaned:
        inside = {row.key: row.offset for row in rows if span.start <= row.offset < span.end}
        superseded = [row for row in rows if row.offset < inside.get(row.key, 0)]
        assert superseded == [], f"superseded in {span}, which is clean"
        tombstones = [row for row in rows if row.value is None and span.start <= row.offset < span.end]
        known = [found.span for found in partition.tombstones]
        lost = [row for row in tombstones if not any(one.start <= row.offset < one.end for one in known)]
        assert lost == [], f"in {span}, in no range of tombstones"


def rows_of(batch: Any) -> Iterator[tuple[int, bytes, bytes | None]]:
    columns = (batch.column(name).to_pylist() for name in ("offset", "key", "value"))
    yield from zip(*columns, strict=True)


def seeded_ids(seed: int) -> Callable[[], uuid.UUID]:
    """For the lake and these tests. Others draw their own: Numba does for each kernel that it compiles and keeps."""
    ids, anybodys = random.Random(f"ids {seed}"), uuid.uuid4

    def drawn() -> uuid.UUID:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        if caller.partition(".")[0] not in ("headstone", "tests", "__main__"):
            return anybodys()
        return uuid.UUID(int=ids.getrandbits(128), version=4)

    return drawn


def run(seed: int, root: Path, terms: Terms, *, trace: bool = False) -> Baton:
    """What came of it, and its turns."""
    fresh_id = patch.object(uuid, "uuid4", seeded_ids(seed))
    # A commit is one step here, at its own time: a pin need not look back farther, and keeps no more than it has to.
    # And every partition of an export is a wave of its own.
    with fresh_id, patch.object(pins, "UNDERWAY_MS", 0), patch.object(lake_export, "WAVE_PARTITIONS", 1):
        root.mkdir(exist_ok=True)
        race = Race(seed, root, terms)
        try:
            for _ in range(ROUNDS):
                race.baton.run(terms.steps)
                race.check()
                if race.baton.chance.random() < 0.6:
                    race.baton.chance.choice((race.baton.finish, race.baton.power_failure))()
                    race.baton.now_ms += NIGHT_MS
            race.baton.finish()
            race.settle()
            race.settle_erasures()
            race.check_journal()
        finally:
            race.close()
            if trace:
                print("\n".join(race.baton.trace))
    return race.baton


def turns(baton: Baton) -> list[str]:
    """Without the names of files that nobody else would have chosen."""
    return [re.sub(r"-[0-9a-f]{8}/", "-any/", line) for line in baton.trace]


def test_a_seed_is_one_race(tmp_path: Path) -> None:
    seed = next(seed for seed in range(100) if random.Random(f"shape {seed}").choice(PARTITIONS) == max(PARTITIONS))
    first, second = (turns(run(seed, tmp_path / name, Terms())) for name in ("first", "second"))
    assert first == second


def test_races_of_many_seeds_keep_every_promise(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + SEEDS):
        print(f"seed {seed}")
        counts += run(seed, tmp_path / str(seed), Terms()).counts
    assert [name for name in RARE if not counts[name]] == []


def test_races_of_quick_jobs(tmp_path: Path) -> None:
    for seed in range(8):
        run(seed, tmp_path / str(seed), HURRIED)


def test_races_in_which_only_a_pin_keeps_what_is_read(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for seed in range(16, 24):
        print(f"seed {seed}")
        counts += run(seed, tmp_path / str(seed), STINGY).counts
    assert [name for name in ("exports", "objects collected") if not counts[name]] == []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--hurried", action="store_true", help="quick jobs on a clock that hardly moves")
    parser.add_argument("--stingy", action="store_true", help="no grace to speak of: only pins keep objects")
    given = parser.parse_args()
    terms = HURRIED if given.hurried else STINGY if given.stingy else Terms()
    counts: Counter[str] = Counter()
    failed: list[int] = []
    for seed in range(given.first, given.first + given.seeds):
        with tempfile.TemporaryDirectory() as root:
            try:
                counts += run(seed, Path(root), terms, trace=given.trace).counts
            except (AssertionError, HeadstoneError) as error:
                failed.append(seed)
                print(f"seed {seed}: {type(error).__name__}: {error}".splitlines()[0], flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:9,} {name}")
    print(f"{given.seeds} seeds, {len(failed)} failed: {failed[:20]}")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
