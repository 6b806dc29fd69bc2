"""`headstone lake compact` that gets a signal in the middle of its work."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headstone.cli.main import main
from headstone.lake.metastore.leases import Leases
from headstone.lake.metastore.metastore import Metastore
from headstone.log.topic_partition import TopicPartition
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample

PARTITIONS = 60
PAUSED = """
import os, sys
if hasattr(os, "sched_setaffinity"):  # one core: one thread for tasks
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from headstone.cli import engines
from headstone.cli.start import start
from headstone.interruption import sleep, until_asked
from headstone.lake.jobs import compaction

engines.cores = lambda: 1
end = compaction._Job.end

def paused(*given):
    # the first partition that has ended waits for the signals, and says so
    end(*given)
    compaction._Job.end = end
    print("paused", flush=True)
    until_asked(600) if WAITS_FOR_ONE else sleep(600)

compaction._Job.end = paused
start()
"""
COMPACTED = "SELECT count(*) FROM partitions WHERE compaction_epoch > 0"


@pytest.fixture
def lake(tmp_path: Path) -> str:
    settings = SampleSettings(topic="orders", partitions=PARTITIONS, records=3000, keys=400)
    write_sample(tmp_path / "sample", settings)
    where = str(tmp_path / "lake")
    assert main(["lake", "init", where]) == 0
    assert main(["lake", "ingest", where, str(tmp_path / "sample")]) == 0
    return where


@pytest.fixture
def database(lake: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"{lake}/metastore.db", isolation_level=None, timeout=60)) as connection:
        yield connection


def count(database: sqlite3.Connection) -> int:
    return int(database.execute(COMPACTED).fetchone()[0])


@pytest.mark.parametrize("signals", [1, 2])
def test_a_compaction_that_is_told_to_stop_keeps_what_is_committed_and_the_next_finishes(
    lake: str, database: sqlite3.Connection, signals: int
) -> None:
    """Both are heard before its second partition ends: however slow the machine is, it does not get past that."""
    program = PAUSED.replace("WAITS_FOR_ONE", str(signals == 1))
    child = subprocess.Popen(
        [sys.executable, "-c", program, "lake", "compact", lake], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "paused\n"
        committed = count(database)
        for number in (signal.SIGTERM, signal.SIGINT)[:signals]:
            child.send_signal(number)
        _, err = child.communicate(timeout=120)
    finally:
        child.kill()
    metastore = Metastore.open(f"sqlite:///{lake}/metastore.db")
    left = PARTITIONS - count(database)
    assert (child.returncode, committed > 0, 0 < left <= PARTITIONS - committed) == (3, True, True), err
    assert "stopping: parts in hand are finished" in err
    if signals == 1:
        assert f"stopped by a signal, {left} partitions left; run the same command again" in err
    assert (Leases(metastore).held(now_ms=0), metastore.check()) == ({}, [])
    assert main(["lake", "compact", lake]) == 0
    cleaned = [metastore.partition(TopicPartition("orders", number)).cleaned for number in range(PARTITIONS)]
    assert [number for number, spans in enumerate(cleaned) if not spans] == []
    metastore.close()
