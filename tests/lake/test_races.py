"""Races with kill -9: processes compact, level, erase, collect and fold the journal while we append, hold, follow and export.

    HEADSTONE_RACE_ROUNDS=1000 python -m pytest tests/lake/test_races.py -s

Three worker processes (`racing.py`) with leases and a grace that are too short, and uploads that break off; now and then one is
killed. What every reader gets is compared with what was appended, and what the journal tells in the end with the metastore.
Readers pin what they read: with a grace of a moment nothing else keeps it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headstone.lake.format.objects import object_path
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.erasure import Tools, carry_on_erasures, request_erasure
from headstone.lake.jobs.rebuild import rebuild
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import CommitRefused
from headstone.lake.metastore.erasures import Erasures
from headstone.lake.metastore.holds import Holds
from headstone.lake.metastore.journal import base_number
from headstone.lake.metastore.leases import COMMITTED, Leases
from headstone.lake.metastore.pins import Pins
from headstone.lake.transfer.export_cluster import brokers_of
from headstone.lake.transfer.export_run import requested, run_export
from headstone.lake.transfer.reading import records, records_in, snapshot, table
from headstone.log.directory import PartitionDir, find_partitions, list_segments
from headstone.log.listing import list_batches
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from tests.lake.appending import put
from tests.lake.scene import ANYWHERE
from tests.lake.single import worker

ROOT = Path(__file__).resolve().parent.parent.parent
RACE_ROUNDS = int(os.environ.get("HEADSTONE_RACE_ROUNDS", "60"))
PARTITIONS = tuple(TopicPartition("t", number) for number in range(6))
HOUR_MS = 3_600_000
COMMITS_MIN = 6
APPENDS_MAX = 20
READER = "follower"

Table = dict[bytes, bytes | None]


class Racers:
    """Worker processes that are killed and started again."""

    def __init__(self, url: str, settings: dict[str, str], count: int) -> None:
        self._url = url
        self._settings = settings
        self._next = 0
        self.processes = [self._start() for _ in range(count)]

    def _start(self) -> subprocess.Popen[str]:
        self._next += 1
        command = [sys.executable, "-m", "tests.lake.racing", self._url, str(self._next), json.dumps(self._settings)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def kill_one(self, chance: random.Random) -> None:
        number = chance.randrange(len(self.processes))
        self._kill(self.processes[number])
        self.processes[number] = self._start()

    def stop(self) -> None:
        for process in self.processes:
            self._kill(process)

    def _kill(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


class Race:
    """What was appended, what a follower who holds its tombstones has read of it, and the keys that were to be erased."""

    def __init__(self, lake: Lake, folder: Path) -> None:
        self.lake = lake
        self.chance = random.Random(1)
        self.appended: dict[TopicPartition, Table] = {partition: {} for partition in PARTITIONS}
        self.counts: Counter[str] = Counter()
        self.erased: list[bytes] = []
        self.seen: set[str] = set()
        """Objects that the log was made of at some time."""
        self._folder = folder
        self._followed: dict[TopicPartition, Table] = {partition: {} for partition in PARTITIONS}
        self._positions = dict.fromkeys(PARTITIONS, 0)
        for partition in PARTITIONS:
            Holds(lake.metastore).hold(READER, partition, 0, expires_ms=now_ms() + HOUR_MS)

    def append(self, partition: TopicPartition) -> None:
        drawn = [(b"k%d" % self.chance.randrange(12), self._value()) for _ in range(self.chance.randint(1, 6))]
        self._put(partition, drawn)

    def _value(self) -> bytes | None:
        return None if self.chance.random() < 0.3 else b"%d" % self.chance.getrandbits(30)

    def _put(self, partition: TopicPartition, pairs: list[tuple[bytes, bytes | None]]) -> None:
        """An upload that took too long was collected before its commit, which is refused: it is made again."""
        for _ in range(APPENDS_MAX):
            try:
                put(self.lake, partition, pairs, now_ms=now_ms())
            except CommitRefused:
                self.counts["appends refused"] += 1
            else:
                self.appended[partition].update(pairs)
                return
        raise AssertionError(f"{partition}: refused {APPENDS_MAX} times")

    def erase(self, partition: TopicPartition) -> None:
        """A key of its own, with a value that can be searched for."""
        key = b"erased-%d" % len(self.erased)
        self.erased.append(key)
        self._put(partition, [(key, b"secret of " + key)])
        self._put(partition, [(key, None)])
        request_erasure(self.lake, "t", [key], deadline_ms=now_ms() + HOUR_MS, clock=now_ms)
        self.counts["erasures"] += 1

    def follow(self, partition: TopicPartition) -> None:
        """Reads on where it was, and holds from there on."""
        followed, position = self._followed[partition], self._positions[partition]
        with self._pinned():
            state = snapshot(self.lake, partition)
            followed.update({entry.key: entry.value for entry in records_in(self.lake.store, state.extents, position)})
        assert live(followed) == live(self.appended[partition])
        self._positions[partition] = state.next_offset
        Holds(self.lake.metastore).hold(READER, partition, state.next_offset, expires_ms=now_ms() + HOUR_MS)
        self.counts["followed"] += 1

    def export(self) -> None:
        out = self._folder / f"export-{self.counts['exports']}"
        brokers = brokers_of([out])
        with self._pinned():
            run_export(self.lake, requested(brokers, ["t"], topic_ids={}), brokers, InProcess(1), reader="exporter")
        assert {directory.topic_partition: logged(directory) for directory in find_partitions([str(out)])} == {
            partition: live(expected) for partition, expected in self.appended.items()
        }
        self.counts["exports"] += 1

    def look(self, partition: TopicPartition) -> None:
        with self._pinned():
            self.seen |= {object_path(extent.object_id) for extent in snapshot(self.lake, partition).extents}
            shown = {key: entry.value for key, entry in table(self.lake, partition).items()}
        assert shown == live(self.appended[partition])

    def collected(self) -> int:
        return len(self.seen - set(self.lake.store.list("objects")))

    @contextmanager
    def _pinned(self) -> Iterator[None]:
        pins = Pins(self.lake.metastore)
        pin = pins.pin(READER, now_ms=now_ms)
        yield
        pins.release(pin)

    def step(self, number: int) -> None:
        partition = self.chance.choice(PARTITIONS)
        self.append(partition)
        if number % (1 + RACE_ROUNDS // 200) == 0:
            self.look(partition)
        drawn = self.chance.random()
        if drawn < 0.1:
            self.follow(partition)
        elif drawn < 0.16:
            self.erase(partition)
        elif drawn < 0.2:
            self.export()


def now_ms() -> int:
    return int(time.time() * 1000)


def live(values: Table) -> Table:
    return {key: value for key, value in values.items() if value is not None}


def logged(directory: PartitionDir) -> Table:
    newest: Table = {}
    for file in list_segments(directory):
        for batch in list_batches(file, with_records=True):
            newest.update({entry.key: entry.value for entry in batch.records or () if entry.key is not None})
    return live(newest)


@pytest.fixture
def lake(lake_anywhere: Lake) -> Lake:
    lake_anywhere.metastore.create_topic("t", len(PARTITIONS), {"delete.retention.ms": 0})
    return lake_anywhere


@ANYWHERE
def test_races_lose_nothing(metastore_url: str, lake: Lake, moto_settings: dict[str, str], tmp_path: Path) -> None:
    race, racers = Race(lake, tmp_path), Racers(metastore_url, dict(moto_settings), 3)
    try:
        for number in _rounds(race):
            race.step(number)
            if race.chance.random() < 0.05:
                racers.kill_one(race.chance)
                race.counts["kills"] += 1
    finally:
        racers.stop()
    assert lake.metastore.check() == []
    race.counts["collected"] = race.collected()
    assert race.counts["collected"], "nobody has collected garbage"
    race.export()
    for partition in PARTITIONS:
        race.follow(partition)
    Holds(lake.metastore).release(READER)
    later_ms = _settle(race)
    outcomes = Counter(row.outcome for row in Leases(lake.metastore).history(limit=100_000))
    print(RACE_ROUNDS, "rounds", dict(race.counts), dict(outcomes))
    assert outcomes[COMMITTED] >= COMMITS_MIN
    collect(lake, garbage(lake, now_ms=later_ms, grace_ms=0, upload_ms=1))
    extents = [extent for partition in PARTITIONS for extent in lake.metastore.partition(partition).extents]
    used = {name for extent in extents for name in (extent.object_id, extent.dead_object) if name is not None}
    assert set(lake.store.list("objects")) == {object_path(object_id) for object_id in used}
    assert lake.metastore.check() == []
    for object_id in used:
        path = object_path(object_id)
        assert b"secret of " not in lake.store.read(path, 0, lake.store.size(path))
    assert base_number(lake.store) > 0, "nobody has folded the journal"
    assert rebuild(lake).changed == ()


def _rounds(race: Race) -> Iterator[int]:
    """At least so many; on a busy machine more, until the workers have taken part in everything."""
    yield from range(RACE_ROUNDS)
    for number in range(RACE_ROUNDS, 20 * RACE_ROUNDS):
        history = Leases(race.lake.metastore).history(limit=100_000)
        commits = sum(row.outcome == COMMITTED for row in history)
        if commits >= COMMITS_MIN and race.collected() and base_number(race.lake.store) > 0:
            return
        yield number


def _settle(race: Race) -> int:
    """Compacts what is left and finishes the erasures. A little dirt alone is no reason: somebody has to ask."""
    lake, later_ms = race.lake, now_ms() + 10 * HOUR_MS
    tools = Tools(lake=lake, engine=InProcess(1), clock=lambda: later_ms, grace_ms=0, upload_ms=1)
    for _ in range(3):
        later_ms += HOUR_MS
        for partition in PARTITIONS:
            Leases(lake.metastore).request(partition, now_ms=later_ms)
        worker(lake, "last", now_ms=later_ms).work()
        carry_on_erasures(tools)
    assert Erasures(lake.metastore).open_of("t") == []
    for partition, appended in race.appended.items():
        left = list(records(lake, partition))
        assert {record.key: record.value for record in left} == live(appended)
        assert len(left) == len(live(appended))
    return later_ms + HOUR_MS
