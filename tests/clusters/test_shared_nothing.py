"""The cluster of these tests shares no file with its driver, and loses, halts and gains machines in the middle of a job."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from headstone.spark.engine import OnSpark
from headstone.storage.access import Access
from headstone.storage.stores import store_of
from testbed.faulty_s3 import FaultyS3
from testbed.s3 import BUCKET
from testbed.spark_cluster import SparkCluster
from tests.clusters.bodies import MACHINES, ReadObject, read_file, read_object, this_machine
from tests.clusters.moments import in_the_middle

STORE = f"s3://{BUCKET}"
OBJECTS = ".numbers"
CONTENTS = {f"{number:02}{OBJECTS}": str(number).encode() * 1000 for number in range(12)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A job that reads objects of a folder of its own."""

    engine: OnSpark
    access: Access
    folder: str

    def __call__(self) -> list[bytes]:
        for name, content in CONTENTS.items():
            store_of(STORE, self.access).put(f"{self.folder}/{name}", content)
        place = {"access": self.access, "bucket": STORE, "folder": self.folder}
        tasks = [ReadObject(**place, name=name, size=len(content)) for name, content in CONTENTS.items()]
        answers: list[bytes] = self.engine.each(read_object, tasks)
        return answers

    def machines(self) -> list[str]:
        found = store_of(STORE, self.access).list(f"{self.folder}/{MACHINES}")
        return [path.rpartition("/")[2] for path in found]


@pytest.fixture
def reading(engine: OnSpark, access: Access) -> Reading:
    return Reading(engine=engine, access=access, folder=uuid.uuid4().hex)


def test_a_task_does_not_see_the_drivers_files(engine: OnSpark, driver_file: Path) -> None:
    (error,) = engine.outcomes(read_file, [str(driver_file)])
    assert isinstance(error, FileNotFoundError)
    assert str(driver_file) in str(error)


def test_every_worker_is_another_machine(reading: Reading, cluster: SparkCluster, proxy: FaultyS3) -> None:
    with in_the_middle(proxy, reading, suffix=OBJECTS) as (gate, finish):
        gate.wait_for(cluster.workers)
        assert finish() == list(CONTENTS.values())
    assert len(reading.machines()) == cluster.workers
    assert this_machine() not in reading.machines()


def test_a_job_survives_a_killed_executor(reading: Reading, cluster: SparkCluster, proxy: FaultyS3) -> None:
    with in_the_middle(proxy, reading, suffix=OBJECTS) as (gate, finish):
        gate.wait_for(cluster.workers)
        assert cluster.kill_executors(1) == 1
        assert finish() == list(CONTENTS.values())


def test_a_task_that_does_not_move_is_overtaken(reading: Reading, cluster: SparkCluster, proxy: FaultyS3) -> None:
    with in_the_middle(proxy, reading, suffix=OBJECTS) as (gate, finish):
        gate.wait_for(cluster.workers)
        with cluster.halted(0):
            assert finish() == list(CONTENTS.values())


def test_a_worker_that_is_added_takes_its_share(reading: Reading, cluster: SparkCluster, proxy: FaultyS3) -> None:
    with in_the_middle(proxy, reading, suffix=OBJECTS) as (gate, finish):
        gate.wait_for(cluster.workers)
        cluster.add_worker()
        gate.wait_for(cluster.workers)
        assert finish() == list(CONTENTS.values())
    assert len(reading.machines()) == cluster.workers
