"""A topic that is dropped while others are at work: what was to be done for it is nobody's any more, and the rest is done."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import SQLAlchemyError

from headstone.cli.main import main
from headstone.errors import HeadstoneError, Unfinished
from headstone.lake.jobs import compact_run, worker
from headstone.lake.jobs.compaction import compact_partition
from headstone.lake.jobs.leased_jobs import compact_leased, level_leased
from headstone.lake.jobs.leveling import Leveled, level_partitions
from headstone.lake.jobs.purging import purge_aged
from headstone.lake.lake import Lake, create_lake
from headstone.lake.metastore import catalog, schema
from headstone.lake.metastore.leases import COMMITTED, Leases
from headstone.lake.metastore.rows import located
from headstone.lake.metastore.schema import UNLEVELED_BYTES_MIN
from headstone.lake.topics import drop_topic
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from tests.lake.test_leveling import MERGED, leveling_worker, spans, to_level
from tests.lake.test_purging import grow
from tests.lake.test_worker import put
from tests.oracle.notation import History

KEPT, DROPPED = TopicPartition("kept", 0), TopicPartition("dropped", 0)


@pytest.fixture
def lake(metastore_url: str, tmp_path: Path) -> Iterator[Lake]:
    made = create_lake(metastore_url, f"file://{tmp_path / 'objects'}", now_ms=0)
    for name in (KEPT, DROPPED):
        made.metastore.create_topic(name.topic, 1, {"delete.retention.ms": 0})
    yield made
    made.close()


class Aside(threading.Thread):
    """Does something meanwhile; `outcome` is what it answered or met."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act
        self.outcome: object = None

    def run(self) -> None:
        try:
            self.outcome = self._act()
        except (HeadstoneError, SQLAlchemyError) as error:
            self.outcome = error


def test_a_job_that_ends_while_its_topic_is_dropped_waits_and_is_not_remembered(lake: Lake) -> None:
    leases = Leases(lake.metastore)
    aside = Aside(lambda: leases.done(DROPPED, "w", COMMITTED, {}, started_ms=1, now_ms=1) or "went on")
    with lake.metastore.transaction() as connection:
        catalog.forget_topic(connection, "dropped")
        aside.start()
        aside.join(0.3)
        assert aside.is_alive()
    aside.join()
    assert (aside.outcome, leases.history()) == ("went on", [])
    leases.done(KEPT, "w", COMMITTED, {}, started_ms=1, now_ms=1)
    assert [row.partition for row in leases.history()] == [KEPT]


@pytest.mark.parametrize("metastore_url", ["postgresql"], indirect=True)
def test_a_request_waits_for_another_one_and_for_a_drop(lake: Lake) -> None:
    leases = Leases(lake.metastore)
    asides = [Aside(lambda: leases.request(DROPPED, now_ms=1) or "asked") for _ in range(2)]
    with lake.metastore.transaction() as connection:
        located(connection, DROPPED, lock=True)
        for aside in asides:
            aside.start()
            aside.join(0.2)
    for aside in asides:
        aside.join()
    assert ([aside.outcome for aside in asides], [*leases.requested()]) == (["asked", "asked"], [DROPPED])
    late = Aside(lambda: leases.request(DROPPED, now_ms=2))
    with lake.metastore.transaction() as connection:
        catalog.forget_topic(connection, "dropped")
        late.start()
        late.join(0.3)
    late.join()
    assert str(late.outcome) == "the lake has no partition dropped-0"


@pytest.mark.parametrize("metastore_url", ["postgresql"], indirect=True)
def test_a_request_is_not_answered_while_its_topic_is_dropped_and_nobody_waits(lake: Lake) -> None:
    """The drop waits for the lease that is looked at: who waited for the drop would wait for ever."""
    leases = Leases(lake.metastore)
    for name in (KEPT, DROPPED):
        leases.request(name, now_ms=1)
    aside = Aside(lambda: leases.take_due("w", 10, now_ms=2))
    with lake.metastore.transaction() as connection:
        of_topic = select(schema.partitions).join(schema.topics).where(schema.topics.c.name == "dropped")
        connection.execute(of_topic.with_for_update(of=schema.partitions)).all()
        aside.start()
        aside.join(60)
        assert (aside.is_alive(), aside.outcome) == (False, [])
        assert leases.requested() == {DROPPED: 1}
        catalog.forget_topic(connection, "dropped")
    assert [row.partition for row in leases.history()] == [KEPT]


@pytest.mark.parametrize("purge", [False, True])
def test_leveling_goes_on_without_a_topic_that_was_dropped(lake: Lake, purge: bool) -> None:
    """Before its leases are taken, and behind that."""
    drop_topic(lake, "dropped", now_ms=1)
    leased = level_leased(lake, [DROPPED, KEPT], InProcess(1), worker="w", purge=purge)
    assert isinstance(leased[KEPT], Leveled)
    assert str(leased[DROPPED]) == "another worker had it until now, or the topic was dropped"
    told: list[TopicPartition] = []
    leveled = level_partitions(
        lake, [DROPPED, KEPT], clock=lambda: 2, purge=purge, done=lambda name, outcome: told.append(name)
    )
    assert isinstance(leveled[KEPT], Leveled)
    assert (str(leveled[DROPPED]), told) == ("the lake has no partition dropped-0", [DROPPED, KEPT])


@pytest.mark.parametrize("flag", ["--level", "--purge"])
def test_a_drop_during_a_compaction_does_not_end_what_comes_behind(
    lake: Lake, metastore_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    for name in (KEPT, DROPPED):
        put(lake, name, [(b"a", b"1"), (b"a", b"2")])

    def then_a_drop(*given: Any, **options: Any) -> object:
        outcomes = compact_leased(*given, **options)
        drop_topic(lake, "dropped", now_ms=10)
        return outcomes

    monkeypatch.setattr(compact_run, "compact_leased", then_a_drop)
    assert main(["lake", "compact", metastore_url, flag, "--now-ms", "10", "--output", "json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert sorted(one["partition"] for one in answer["partitions"]) == ["dropped-0", "kept-0"]
    assert [one["partition"] for one in answer["leveled"]] == ["kept-0"]
    assert [one["partition"] for one in answer["failed"]] == ["dropped-0"]


@pytest.mark.parametrize("metastore_url", ["sqlite"], indirect=True)
def test_what_a_compaction_did_is_told_though_a_purge_fails(
    lake: Lake, metastore_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(lake, KEPT, [(b"a", b"1"), (b"a", b"2")])

    def fails(*given: Any, **options: Any) -> object:
        raise Unfinished("the store does not answer")

    monkeypatch.setattr(compact_run, "evacuate_idle", fails)
    assert main(["lake", "compact", metastore_url, "--purge", "--now-ms", "10", "--output", "json"]) == 3
    out, err = capsys.readouterr()
    assert [one["partition"] for one in json.loads(out)["partitions"]] == ["kept-0"]
    assert "the store does not answer" in err


def test_what_is_dead_of_others_moves_though_a_topic_is_dropped(lake: Lake, tmp_path: Path) -> None:
    """Between the look at what there is and the move."""
    histories = {name.topic: History() for name in (DROPPED, KEPT)}
    for text in (" ".join(f"N[k{number}]" for number in range(20)), "N[k3]"):
        grow(lake, tmp_path, {topic: (history, text) for topic, history in histories.items()})
        for name in (DROPPED, KEPT):
            compact_partition(lake, name, InProcess(1), now_ms=10)

    @contextmanager
    def dropping(name: TopicPartition) -> Iterator[None]:
        if name == KEPT:
            drop_topic(lake, "dropped", now_ms=11)
        yield

    purged = purge_aged(lake, clock=lambda: 12, age_ms_max=0, working_on=dropping)
    assert (purged.extents, purged.complete) == (1, True)


@pytest.mark.parametrize("moment", ["with_small_extents", "level_partitions"])
def test_a_worker_levels_others_though_a_topic_is_dropped(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Before their small extents are looked at, or while those of others are merged: of `dropped` there is nothing to merge."""
    names = to_level(lake, 2)
    put(lake, DROPPED, [(b"a", b"1" * 10)])
    with lake.metastore.transaction() as connection:
        connection.execute(update(schema.partitions).values(unleveled_bytes=UNLEVELED_BYTES_MIN, ripe_ms=1000))
    before: Callable[..., Any] = getattr(worker, moment)

    def dropping(*given: Any, **options: Any) -> object:
        monkeypatch.setattr(worker, moment, before)
        drop_topic(lake, "dropped", now_ms=15)
        return before(*given, **options)

    monkeypatch.setattr(worker, moment, dropping)
    assert leveling_worker(lake, InProcess(1)).work() == 0
    assert spans(lake, names) == dict.fromkeys(names, MERGED)
    assert lake.metastore.unleveled(limit=10) == {}
