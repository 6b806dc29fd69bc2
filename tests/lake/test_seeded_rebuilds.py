"""Rebuilds of many histories, each drawn from its seed: a lake grows and shrinks, an old copy of its metastore is worked with
for a while and refused, then brought up to date. It is the lake then, whatever was done to it in the meantime.

The model is the lake that was never set back.
"""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.compaction import compact_partition
from headstone.lake.jobs.folding import fold
from headstone.lake.jobs.rebuild import rebuild
from headstone.lake.lake import Lake, create_lake, unchecked_lake
from headstone.lake.metastore.journal import SetBack
from headstone.lake.metastore.leader_epochs import known_leader_epochs, note_leader_epochs
from headstone.lake.topics import drop_topic
from headstone.lake.transfer.reading import records
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from headstone.storage.stores import MissingObject
from tests.lake.test_rebuild import another, back_up
from tests.lake.test_worker import put

SEEDS = 20
TOPICS = ("s", "t")
LATER_MS = 10**9


class Handyman:
    """Does one thing after the other to a lake, as its seed has it."""

    def __init__(self, lake: Lake, chance: random.Random) -> None:
        self.lake, self._chance, self._now_ms = lake, chance, 1

    def work(self, jobs: int) -> None:
        for _ in range(jobs):
            self._now_ms += 1
            self._chance.choice(
                (self.append, self.append, self.append, self.compact, self.start, self.create, self.drop, self.lead)
            )()

    def append(self) -> None:
        for name in self._some():
            put(self.lake, name, [(self._chance.choice((b"a", b"b")), b"%d" % self._now_ms)], now_ms=self._now_ms)

    def compact(self) -> None:
        for name in self._some():
            compact_partition(self.lake, name, InProcess(1), now_ms=self._now_ms)

    def start(self) -> None:
        for name in self._some():
            start, end = self.lake.metastore.log_ends([name])[name]
            self.lake.metastore.start_at(name, self._chance.randint(start, end), now_ms=self._now_ms)

    def create(self) -> None:
        """One that is there gets more partitions."""
        topic, partitions = self._chance.choice(TOPICS), self._chance.randint(1, 3)
        if topic in self.lake.metastore.topics():
            self.lake.metastore.add_partitions(topic, partitions)
        else:
            self.lake.metastore.create_topic(topic, partitions)

    def drop(self) -> None:
        for name in self._some():
            drop_topic(self.lake, name.topic, now_ms=self._now_ms)

    def lead(self) -> None:
        for name in self._some():
            note_leader_epochs(
                self.lake.metastore, name, [(self._now_ms, self.lake.metastore.log_ends([name])[name][1])]
            )

    def _some(self) -> list[TopicPartition]:
        """One, if there is any."""
        return self._chance.sample(self.lake.metastore.partitions(), 1) if self.lake.metastore.partitions() else []


def told(lake: Lake) -> tuple[object, ...]:
    """All that commits have made of it, and every record."""
    metastore, names = lake.metastore, lake.metastore.partitions()
    epochs = {name: known_leader_epochs(metastore, name) for name in names}
    return metastore.snapshot(), metastore.topics(), epochs, {name: list(records(lake, name)) for name in names}


def collect_all(lake: Lake) -> None:
    collect(lake, garbage(lake, now_ms=LATER_MS, grace_ms=0, upload_ms=0))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_old_copy_that_was_worked_with_is_the_lake_again(metastore_url: str, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    lake = create_lake(metastore_url, f"file://{tmp_path / 'objects'}", now_ms=0)
    handyman = Handyman(lake, chance)
    handyman.create()
    handyman.work(chance.randint(0, 8))
    back_up(lake, metastore_url)
    old = unchecked_lake(another(metastore_url))
    handyman.work(chance.randint(0, 8))
    lake.metastore.create_topic("ahead", 1)
    for upkeep in chance.sample((fold, collect_all), chance.randint(0, 2)):
        upkeep(lake)
    intruder = Handyman(old, chance)
    for _ in range(chance.randint(0, 6)):
        with suppress(SetBack, MissingObject):  # behind its commit; or what it would read was collected
            intruder.work(1)
    rebuild(old)
    assert (told(old), old.metastore.check(), rebuild(old).changed) == (told(lake), [], ())
    lake.close()
    before = told(old)
    for _ in range(2):
        old.metastore.give_clock(old.metastore.clock() + LATER_MS)
        collect(old, garbage(old, now_ms=old.metastore.clock()))
    assert told(old) == before
    Handyman(old, chance).work(3)
    assert old.metastore.check() == []
    old.close()
