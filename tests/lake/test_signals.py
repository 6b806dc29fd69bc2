"""`lake gc`, `erase`, `export` and `restore` that get a signal: what is in hand ends, and the same command goes on there."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headstone.cli import engines
from headstone.cli.main import main
from headstone.cluster import live
from headstone.interruption import Interrupted, sleep, until_asked
from headstone.lake.jobs import collection, erasure, folding
from headstone.lake.jobs.erasure import Tools, carry_on_erasures
from headstone.lake.jobs.job import JobControl
from headstone.lake.lake import Lake
from headstone.lake.metastore.erasure_steps import ERASED, KEY_REMOVED, REQUESTED, VALUES_GONE, VALUES_REMOVED
from headstone.lake.metastore.erasures import Erasures
from headstone.lake.metastore.journal import base_number
from headstone.lake.metastore.journal_names import BASE_PARTS
from headstone.lake.metastore.leases import Leases
from headstone.lake.metastore.pins import Pins
from headstone.lake.transfer import export
from headstone.lake.transfer.ingest import ingest
from headstone.lake.transfer.reading import table
from headstone.log.directory import find_partitions
from headstone.log.listing import RecordEntry
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from headstone.storage.stores import Store
from tests.lake.scene import Scene
from tests.lake.test_erasure import GRACE_MS, UPLOAD_MS, USERS, Town
from tests.lake.test_export_interrupted import command, story, tree
from tests.lake.twin import TwinCluster
from tests.oracle.notation import History

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
        history = History()
        history.append(" ".join(f"N[k{i}]" for i in range(200)))
        history.write_partition(tmp_path / "logs", f"many-{number}")
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
    town = Town(lake, tmp_path)
    town.ingest(orders="N[o3]", users="T[alice]")
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
    assert [step for step, _ in town.carry_on(20)] == [VALUES_REMOVED]


def test_a_worker_in_an_erasure_ends_behind_the_partition_in_hand(
    lake: Lake, tmp_path: Path, signalled: Callable[..., None]
) -> None:
    """The next one goes on there, and does not have to wait."""
    town = Town(lake, tmp_path)
    town.ingest(orders="N[o3]", users="T[alice]")
    town.request(b"alice")
    signalled(erasure, "compact_partition")
    words = ["lake", "worker", str(lake.metastore._engine.url), "--every-ms", "60000", "--now-ms", "20"]
    assert main(words) == 0
    (asked,) = Erasures(lake.metastore).all()
    assert (asked.step, asked.not_before_ms, asked.waits_for) == (REQUESTED, 0, "")
    leases = Leases(lake.metastore)
    assert (leases.held(now_ms=20), leases.workers(), lake.metastore.check()) == ({}, [], [])
    assert [step for step, _ in town.carry_on(20)] == [VALUES_REMOVED]


def test_an_erasure_that_is_stopped_anywhere_is_finished_by_the_next_run(lake: Lake, tmp_path: Path) -> None:
    """It is stopped when it asks for the first time, then for the second, until it asks no more; each time it goes on.

    Objects that a stopped compaction did not come to write count as on their way."""
    town = Town(lake, tmp_path)
    town.ingest(orders="N[o3]", users="T[alice]")
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

            tools = Tools(
                lake=lake, engine=InProcess(1), clock=town.clock, grace_ms=GRACE_MS, upload_ms=UPLOAD_MS,
                control=JobControl(stop=stop),
            )  # fmt: skip
            carry_on_erasures(tools, ["users"])
            stopped = asked >= patience
            assert lake.metastore.check() == []
        steps.append(Erasures(lake.metastore).all()[0].step)
    assert steps == [VALUES_REMOVED, VALUES_GONE, KEY_REMOVED, ERASED]
    assert town.search(b"alice", b"v20") == []
    assert len(table(lake, USERS)) == 20
