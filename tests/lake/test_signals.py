"""Verbs that get a signal: what is in hand ends, and the same command goes on there. Whoever waits for SQLite's write lock can
be interrupted, and waits no longer than was said."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from headstone.api.stopping import GRACE_S
from headstone.cli import engines
from headstone.cli.main import main
from headstone.cluster import live
from headstone.errors import Unfinished
from headstone.interruption import Interrupted, Request, heard_as, sleep, until_asked
from headstone.lake.jobs import collection, erasure, folding
from headstone.lake.jobs.erasure import carry_on_erasures
from headstone.lake.jobs.job import JobControl
from headstone.lake.lake import Lake, open_lake
from headstone.lake.metastore import database
from headstone.lake.metastore.erasure_steps import ERASED, KEY_REMOVED, REQUESTED, VALUES_GONE, VALUES_REMOVED
from headstone.lake.metastore.erasures import Erasures
from headstone.lake.metastore.journal import base_number
from headstone.lake.metastore.journal_names import BASE_PARTS
from headstone.lake.metastore.leases import Leases
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.pins import Pins
from headstone.lake.transfer import export
from headstone.lake.transfer.ingest import ingest
from headstone.lake.transfer.reading import table
from headstone.log.directory import find_partitions
from headstone.log.listing import RecordEntry
from headstone.log.topic_partition import TopicPartition
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from headstone.storage.stores import Store
from tests.lake.appending import log_of
from tests.lake.scene import Scene
from tests.lake.test_erasure import ErasingTown
from tests.lake.test_export_interrupted import command, story, tree
from tests.lake.town import UPLOAD_MS, USERS
from tests.lake.twin import TwinCluster

__all__ = ["story"]


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> Callable[[object, str], None]:
    """From now on the first call of what is named ends with a SIGTERM. Tasks run on the verb's thread."""
    monkeypatch.setattr(engines, "cores", lambda: 1)

    def arrange(owner: object, name: str) -> None:
        before: Callable[..., Any] = getattr(owner, name)

        def then_a_signal(*given: Any, **more: Any) -> Any:
            monkeypatch.setattr(owner, name, before)
            answer = before(*given, **more)
            signal.raise_signal(signal.SIGTERM)
            assert until_asked(60)  # the main thread hears it
            return answer

        monkeypatch.setattr(owner, name, then_a_signal)

    return arrange


def test_a_collection_keeps_to_its_batch_and_says_what_is_left(
    scene: Scene, signalled: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(4):
        scene.write("N[a]")
        scene.compact(now_ms=10)
    monkeypatch.setattr(collection, "BATCH", 1)
    signalled(Store, "delete")
    url = str(scene.lake.metastore._engine.url)
    words = ["lake", "gc", url, "--apply", "--grace-ms", "0", "--now-ms", "9000"]
    assert main(words) == 3
    out, err = capfd.readouterr()
    assert "stopping: parts in hand are finished and committed; a second signal gives them up" in err
    assert "stopped by a signal, 2 objects left; run the same command again" in err
    assert "1 object, " in out
    assert main(words) == 0
    assert "2 objects, " in capfd.readouterr().out
    assert scene.lake.metastore.check() == []


def test_a_journal_that_is_being_folded_stays_as_it_was(
    scene: Scene, signalled: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    scene.write("N[a]")
    monkeypatch.setattr(folding, "OBJECTS_MIN", 1)
    monkeypatch.setattr(folding, "ENTRIES_PER_PART", 1)
    signalled(folding, "content_of")
    words = ["lake", "gc", str(scene.lake.metastore._engine.url), "--apply"]
    assert main(words) == 3
    assert "stopped by a signal, 0 objects left and the journal is not folded; run the" in capfd.readouterr().err
    assert (base_number(scene.lake.store), scene.lake.store.list(BASE_PARTS)) == (0, [])
    assert main(words) == 0
    assert "the journal is folded up to number" in capfd.readouterr().out


def test_an_export_keeps_partitions_that_are_whole_and_goes_on_with_the_others(
    story: Scene, signalled: Callable[..., None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The signal comes in the first of two segments; the partitions before it are empty."""
    assert main(command(story, tmp_path / "whole")) == 0
    signalled(export, "write_segments")
    words = command(story, tmp_path / "cut")
    assert main(words) == 3
    assert "stopped: 2 of 3 partitions" in capfd.readouterr().err
    assert sorted(folder.name for folder in (tmp_path / "cut").glob("*-?")) == ["u-0", "u-1"]
    story.write("N[z]", now_ms=5)
    assert main(words) == 0
    assert tree(tmp_path / "cut") == tree(tmp_path / "whole")


def test_a_signal_in_the_last_part_of_an_export_stops_nothing(
    story: Scene, signalled: Callable[..., None], tmp_path: Path
) -> None:
    assert main(command(story, tmp_path / "whole")) == 0
    signalled(export, "_exported")
    assert main(command(story, tmp_path / "other")) == 0
    assert tree(tmp_path / "other") == tree(tmp_path / "whole")


class Slow(TwinCluster):
    """Two partitions are being sent, by two threads, when the signals come; both wait until these are heard."""

    def __init__(self, signals: int) -> None:
        super().__init__()
        self.signals, self._begun = signals, threading.Barrier(2)

    def send(self, partition: TopicPartition, entries: Iterable[RecordEntry], *, offset: int) -> None:
        def slowly() -> Iterator[RecordEntry]:
            for number, entry in enumerate(entries):
                yield entry
                if self.signals and number == 3:
                    self._begun.wait()
                    if partition.number == 0:
                        signal.raise_signal(signal.SIGTERM)
                        assert until_asked(60)
                    if partition.number == 0 and self.signals > 1:
                        signal.raise_signal(signal.SIGINT)
                        self._wait_until_given_up()
                    self._begun.wait()

        super().send(partition, slowly(), offset=offset)

    def _wait_until_given_up(self) -> None:
        with suppress(Interrupted):
            sleep(60)


@pytest.mark.parametrize("signals", [1, 2])
def test_a_restore_sends_nothing_behind_its_end_and_goes_on_with_the_same_command(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], signals: int
) -> None:
    lake = scene.lake
    lake.metastore.create_topic("many", 2)
    for number in range(2):
        log_of(tmp_path / "logs", "many", " ".join(f"N[k{i}]" for i in range(200)), number)
    ingest(lake, find_partitions([tmp_path / "logs"]), clock=lambda: 1)
    lake.metastore.give_clock(1)
    cluster = Slow(signals)
    monkeypatch.setattr(engines, "cores", lambda: 2)
    monkeypatch.setattr(live, "LiveCluster", lambda connection, given_up: cluster)
    words = ["lake", "restore", str(lake.metastore._engine.url), "many", "--bootstrap", "x:1", "--engine", "process"]
    words += ["--to-topic", "again", "--offset-map", str(tmp_path / "map.json")]
    assert main(words) == 3
    there = [len(log) for log in cluster.topics["again"].logs]
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("ThreadPool")]
    assert (there, threads, Pins(lake.metastore).all()) == ([4, 4], [], [])
    err = capfd.readouterr().err
    assert "stopping: what was sent is acknowledged first; a second signal gives that up" in err
    assert ("stopped: 0 of 2 partitions restored; run the same" if signals == 1 else "interrupted;") in err
    cluster.signals = 0
    assert main(words) == 0
    assert [len(log) for log in cluster.topics["again"].logs] == [200, 200]


def test_an_erasure_keeps_the_step_that_it_has_done(
    lake: Lake, tmp_path: Path, signalled: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    town = ErasingTown(lake, tmp_path)
    town.grow(orders="N[o3]", users="T[alice]")
    signalled(erasure, "compact_partition")
    words = ["lake", "erase", str(lake.metastore._engine.url), "users", "--key", "alice", "--now-ms", "20"]
    assert main(words) == 3
    assert "stopped by a signal, 1 key left; run the same command again, or let workers go on" in (
        capfd.readouterr().err
    )
    (asked,) = Erasures(lake.metastore).all()
    assert (asked.not_before_ms, asked.waits_for) == (0, "")
    assert main(words) == 3
    assert "stopped" not in capfd.readouterr().err
    assert town.steps(20) == [VALUES_REMOVED]


def test_a_worker_in_an_erasure_ends_behind_the_partition_in_hand(
    lake: Lake, tmp_path: Path, signalled: Callable[..., None]
) -> None:
    """The next one goes on there, and does not have to wait."""
    town = ErasingTown(lake, tmp_path)
    town.grow(orders="N[o3]", users="T[alice]")
    town.request(b"alice")
    signalled(erasure, "compact_partition")
    words = ["lake", "worker", str(lake.metastore._engine.url), "--every-ms", "60000", "--now-ms", "20"]
    assert main(words) == 0
    (asked,) = Erasures(lake.metastore).all()
    assert (asked.step, asked.not_before_ms, asked.waits_for) == (REQUESTED, 0, "")
    leases = Leases(lake.metastore)
    assert (leases.held(now_ms=20), leases.workers(), lake.metastore.check()) == ({}, [], [])
    assert town.steps(20) == [VALUES_REMOVED]


def test_an_erasure_that_is_stopped_anywhere_is_finished_by_the_next_run(lake: Lake, tmp_path: Path) -> None:
    """It is stopped when it asks for the first time, then for the second, until it asks no more; each time it goes on.

    Objects that a stopped compaction did not come to write count as on their way."""
    town = ErasingTown(lake, tmp_path)
    town.grow(orders="N[o3]", users="T[alice]")
    town.request(b"alice")
    asked = 0
    steps = []
    for town.now_ms in (20, 20 + UPLOAD_MS + 1, 2000, 2000 + UPLOAD_MS + 1):
        patience, stopped = 0, True
        while stopped:
            asked, patience = 0, patience + 1

            def stop(patience: int = patience) -> bool:
                nonlocal asked
                asked += 1
                return asked >= patience

            carry_on_erasures(town.tools(control=JobControl(stop=stop)), ["users"])
            stopped = asked >= patience
            assert lake.metastore.check() == []
        steps.append(Erasures(lake.metastore).all()[0].step)
    assert steps == [VALUES_REMOVED, VALUES_GONE, KEY_REMOVED, ERASED]
    assert town.search(b"alice", b"v20") == []
    assert len(table(lake, USERS)) == 20


PARTITIONS = 8
PAUSED = """
import os, sys
if hasattr(os, "sched_setaffinity"):  # one core: one thread for tasks
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from headstone.cli import engines
from headstone.cli.start import start
from headstone.interruption import sleep, until_asked
from headstone.lake.jobs import job

engines.cores = lambda: 1
end = job.Job.end

def paused(*given):
    # the first partition that has ended waits for the signals, and says so
    end(*given)
    job.Job.end = end
    print("paused", flush=True)
    until_asked(600) if WAITS_FOR_ONE else sleep(600)

job.Job.end = paused
start()
"""
COMPACTED = "SELECT count(*) FROM partitions WHERE compaction_epoch > 0"


@pytest.fixture
def sixty(tmp_path: Path) -> str:
    settings = SampleSettings(topic="orders", partitions=PARTITIONS, records=800, keys=100)
    write_sample(tmp_path / "sample", settings)
    where = str(tmp_path / "lake")
    assert main(["lake", "init", where]) == 0
    assert main(["lake", "ingest", where, str(tmp_path / "sample")]) == 0
    return where


@pytest.fixture
def compacted_rows(sixty: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"{sixty}/metastore.db", isolation_level=None, timeout=60)) as connection:
        yield connection


def count(compacted_rows: sqlite3.Connection) -> int:
    return int(compacted_rows.execute(COMPACTED).fetchone()[0])


@pytest.mark.parametrize("signals", [1, 2])
def test_a_compaction_that_is_told_to_stop_keeps_what_is_committed_and_the_next_finishes(
    sixty: str, compacted_rows: sqlite3.Connection, signals: int
) -> None:
    """Both are heard before its second partition ends: however slow the machine is, it does not get past that."""
    program = PAUSED.replace("WAITS_FOR_ONE", str(signals == 1))
    child = subprocess.Popen(
        [sys.executable, "-c", program, "lake", "compact", sixty], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "paused\n"
        committed = count(compacted_rows)
        for number in (signal.SIGTERM, signal.SIGINT)[:signals]:
            child.send_signal(number)
        _, err = child.communicate(timeout=120)
    finally:
        child.kill()
    metastore = Metastore.open(f"sqlite:///{sixty}/metastore.db")
    left = PARTITIONS - count(compacted_rows)
    assert (child.returncode, committed > 0, 0 < left <= PARTITIONS - committed) == (3, True, True), err
    assert "stopping: parts in hand are finished" in err
    if signals == 1:
        assert f"stopped by a signal, {left} partitions left; run the same command again" in err
    assert (Leases(metastore).held(now_ms=0), metastore.check()) == ({}, [])
    assert main(["lake", "compact", sixty]) == 0
    cleaned = [metastore.partition(TopicPartition("orders", number)).cleaned for number in range(PARTITIONS)]
    assert [number for number, spans in enumerate(cleaned) if not spans] == []
    metastore.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    assert main(["lake", "init", str(tmp_path / "lake")]) == 0
    assert main(["lake", "topics", str(tmp_path / "lake"), "create", "t"]) == 0
    return tmp_path / "lake"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_TRY_SECONDS", 0.01)


@pytest.fixture
def lock(place: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(place / "metastore.db", isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield connection


@pytest.mark.usefixtures("impatient")
def test_a_wait_for_the_lock_ends_at_once_when_it_is_given_up(place: Path, lock: sqlite3.Connection) -> None:
    request = Request()
    request.give_up()
    lock.execute("COMMIT")
    with open_lake(f"sqlite:///{place / 'metastore.db'}") as opened:
        lock.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        with heard_as(request), pytest.raises(Interrupted):
            opened.metastore.create_topic("new", 1)
        assert time.monotonic() - began < database.BUSY_SECONDS / 2
        lock.execute("COMMIT")
        opened.metastore.create_topic("new", 1)


@pytest.mark.usefixtures("impatient")
def test_a_lock_that_is_let_go_is_taken_after_several_tries(
    place: Path, lock: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = threading.Semaphore(0)
    is_busy = database._is_busy
    monkeypatch.setattr(database, "_is_busy", lambda error: (tries.release(), is_busy(error))[1])

    def let_go() -> None:
        for _ in range(3):
            tries.acquire()
        lock.execute("COMMIT")

    thread = threading.Thread(target=let_go)
    thread.start()
    assert main(["lake", "topics", str(place), "alter", "t", "--conf", "retention.ms=1d"]) == 0
    thread.join()


@pytest.mark.usefixtures("impatient")
def test_a_lock_that_stays_is_given_up_in_the_end(
    place: Path, lock: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    with pytest.raises(Unfinished, match="does not answer: database is locked"):
        open_lake(f"sqlite:///{place / 'metastore.db'}")


def test_ctrl_c_while_the_database_is_locked_ends_the_verb(place: Path, lock: sqlite3.Connection) -> None:
    words = ["lake", "topics", str(place), "alter", "t", "--conf", "retention.ms=1d"]
    program = "from headstone.lake.metastore import database\n" \
        "tried = database._is_busy\n" \
        "database._is_busy = lambda error: (print('busy', flush=True), tried(error))[1]\n" \
        "from headstone.cli.start import start\n" \
        "start()"  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "busy\n"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 3
    assert time.monotonic() - began < GRACE_S
    assert "interrupted" in said
    assert "in the middle" not in said
