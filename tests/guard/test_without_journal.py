"""A journal that cannot be written, by SQLite's own refusal: what must be held is, it is told, and it is put back exactly."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from headstone.cli.guard_watch import status_lines
from headstone.cli.output import Output
from headstone.coordination.guard_values import HOLD, AlarmKind, Memory, SetHold, State
from headstone.errors import Unfinished, UsageError
from headstone.guard.acting.without_journal import LATER
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.lock import present, somebody_runs
from headstone.guard.looks.look import Look
from headstone.guard.loop.alarms import JOURNAL_LOST
from headstone.guard.loop.rounds import Round
from headstone.guard.loop.watcher import Watcher
from headstone.guard.monitoring.current_status import journal_status
from headstone.guard.monitoring.log_lines import news
from tests.guard.watching import ACTS, DRY, OWN, after, kinds, states, watcher
from tests.guard.world import CLUSTER_ID, DAY_MS, MARGINS, ClusterTwin, Topic

HOUR_MS = DAY_MS // 24


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


@pytest.fixture
def journal(file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    monkeypatch.setattr("headstone.guard.ledger.journal.BUSY_SECONDS", 0.05)
    with Journal.open(file, cluster_id=CLUSTER_ID) as opened:
        yield opened


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Somebody writes into it and does not end; it can still be read."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def tried(twin: ClusterTwin, guard: Watcher, wait_ms: int) -> Round:
    twin.now_ms += wait_ms
    return guard._tried(None)


def changed_behind_the_look(twin: ClusterTwin, topics: Sequence[str] | None) -> Look:
    """Somebody sets the ratio between the look and the hold: that is what goes back."""
    topic = twin.topics["orders"]
    if topic.overrides == dict(HOLD):
        return twin.look(topics)
    topic.overrides = dict(OWN)
    seen = twin.look(topics)
    topic.overrides = {"min.cleanable.dirty.ratio": "0.9"}
    return seen


def watched(twin: ClusterTwin, guard: Watcher) -> Round:
    """Broker 3 is away, and nothing is held yet."""
    guard._tried(None)
    twin.stop(3)
    result = guard._tried(None)
    assert states(result) == [State.WATCHED]
    return result


def test_what_must_be_held_is_held_without_the_journal_and_released_as_it_was_found_once_it_is_back(
    journal: Journal, file: Path
) -> None:
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN)), calm=Topic(replicas=(1, 2), isr=(1, 2)))
    guard = watcher(twin, journal)
    before = watched(twin, guard)
    with locked(file):
        for _ in range(10):
            result = tried(twin, guard, HOUR_MS)
            assert (twin.changes, result.unwritten, kinds(result)) == ([], True, [JOURNAL_LOST])
        guard._look = partial(changed_behind_the_look, twin)
        held = [tried(twin, guard, HOUR_MS) for _ in range(3)]
        assert twin.changes == [("topic orders", dict(HOLD))]
        said = [line for one in held for line in news(before, one, applies=True, poll_ms=MARGINS.poll_ms)]
        found = "found min.cleanable.dirty.ratio=0.9, min.compaction.lag.ms=(not set), max.compaction.lag.ms=(not set)"
        assert any(
            line.startswith("done: hold topic orders (behind: partition 0: broker 3)") and found in line
            for line in said
        )
        assert any(
            "to undo it by hand: kafka-configs.sh --bootstrap-server HOSTS --entity-type topics --entity-name orders --alter "
            "--add-config min.cleanable.dirty.ratio=0.9 --delete-config min.compaction.lag.ms,max.compaction.lag.ms"
            in line
            for line in said
        )
        twin.start(3)
        for _ in range(8):
            tried(twin, guard, HOUR_MS)
        assert len(twin.changes) == 1, "a release waits until it can be written down"
    assert journal.changes() == []
    result = tried(twin, guard, 1_000)
    assert "topic orders: the hold that was set without the journal is in it now" in result.problems
    (entry,) = [change for change in journal.changes() if change.new == HOLD]
    assert (dict(entry.old)["min.cleanable.dirty.ratio"], entry.outcome) == ("0.9", LATER)
    for _ in range(4):
        result = tried(twin, guard, 1_000)
    assert (states(result), kinds(result)) == ([State.FINE], [])
    assert twin.topics["orders"].overrides == {"min.cleanable.dirty.ratio": "0.9"}


def test_a_disk_that_is_full_does_not_keep_a_topic_from_being_held(journal: Journal, file: Path) -> None:
    """It has room for the lease, and none for what is decided: that ends the round in the middle."""
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN)))
    guard = watcher(twin, journal)
    watched(twin, guard)
    connection = journal._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    twin.topics |= {f"many-{number}": Topic(isr=(1, 2)) for number in range(40)}
    result = tried(twin, guard, DAY_MS // 2)
    assert (result.lost, result.unwritten) == (f"{file}: the journal cannot be written: database or disk is full", True)
    assert [topic.overrides for topic in twin.topics.values()] == [dict(HOLD)] * 41
    connection.execute(f"PRAGMA max_page_count = {1 << 20}")
    for number in range(3):
        result = tried(twin, guard, 1_000 + number)
    assert (result.lost, states(result)) == (None, [State.HELD])
    assert dict(journal.memory("orders").hold.found)["min.cleanable.dirty.ratio"] == "0.1"


@contextmanager
def no_room(connection: sqlite3.Connection) -> Iterator[None]:
    """As on a full disk: what is there can be read."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute("PRAGMA query_only = ON")
    connection.execute(f"PRAGMA max_page_count = {pages}")
    yield
    connection.execute("PRAGMA query_only = OFF")
    connection.execute(f"PRAGMA max_page_count = {1 << 20}")


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "killed"])
def test_a_guard_that_begins_with_a_full_disk_holds_what_is_due(journal: Journal, file: Path, ended: bool) -> None:
    """A machine with a full disk is started again; the lease of a guard that was killed must end first."""
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN)))
    earlier = watcher(twin, journal, replace(ACTS, name="before the restart"))
    watched(twin, earlier)
    if ended:
        journal.stand_down("before the restart")
    guard = watcher(twin, journal)
    with no_room(journal._connection):
        result = tried(twin, guard, 1_000)
        assert (result.unwritten, result.leads, twin.changes) == (True, ended, [])
        for _ in range(13):
            result = tried(twin, guard, HOUR_MS)
        assert (kinds(result), result.looked_ms) == ([JOURNAL_LOST], journal.looked_ms())
        assert twin.changes == [("topic orders", dict(HOLD))]
    result = tried(twin, guard, 1_000)
    assert "topic orders: the hold that was set without the journal is in it now" in result.problems
    twin.start(3)
    for _ in range(4):
        result = tried(twin, guard, 1_000)
    assert (twin.topics["orders"].overrides, states(result), kinds(result)) == (OWN, [State.FINE], [])


def test_who_begins_and_cannot_write_is_refused_where_it_would_not_hold_or_nothing_is_known(
    journal: Journal, file: Path
) -> None:
    twin = ClusterTwin()
    with locked(file):
        for settings in (ACTS, DRY):
            with pytest.raises(Unfinished, match="the journal cannot be written"):
                watcher(twin, journal, settings)._tried(None)
    earlier = watcher(twin, journal, replace(ACTS, name="before"))
    watched(twin, earlier)
    with locked(file):
        with pytest.raises(Unfinished, match="the journal cannot be written"):
            watcher(twin, journal, DRY)._tried(None)
        with pytest.raises(Unfinished, match="the journal cannot be written"):
            watcher(twin, journal).round()
        with pytest.raises(UsageError, match="watches every compacted topic; this one is configured to watch orders"):
            watcher(twin, journal, replace(ACTS, topics=("orders",)))._tried(None)
    assert twin.changes == []


def test_a_journal_beside_which_no_file_can_be_made_is_read_and_written_once_it_can_be(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite needs a file for its write-ahead log, and another for its index: a full disk has room for neither."""
    with Journal.open(file, cluster_id=CLUSTER_ID) as journal:
        journal.remember("orders", Memory(partitions=7))
    monkeypatch.setattr("headstone.guard.ledger.journal._connected", full)
    with Journal.open(file, cluster_id=CLUSTER_ID) as journal:
        assert (journal.names(), journal.memory("orders").partitions) == (["orders"], 7)
        with pytest.raises(Unfinished, match="cannot be written: disk I/O error"):
            journal.remember("more", Memory())
        monkeypatch.undo()
        journal.remember("more", Memory())
        assert journal.names() == ["more", "orders"]
        monkeypatch.setattr("headstone.guard.ledger.journal._connected", full)
        assert file.with_name(f"{file.name}-wal").stat().st_size > 0
        with pytest.raises(Unfinished, match="cannot be opened"):
            # What is in the file itself is not the newest.
            Journal.open(file, cluster_id=CLUSTER_ID)
    with pytest.raises(UsageError, match="the journal of cluster"):
        Journal.open(file, cluster_id="another")


def full(path: Path) -> sqlite3.Connection:
    raise sqlite3.OperationalError("disk I/O error")


def test_a_guard_that_took_over_meanwhile_adopts_the_hold(journal: Journal, file: Path) -> None:
    """It found the hold and took it for somebody else's; once the first one can write again, it is released."""
    twin = ClusterTwin(orders=Topic(overrides=dict(OWN)))
    guard = watcher(twin, journal)
    watched(twin, guard)
    with locked(file):
        for _ in range(13):
            tried(twin, guard, HOUR_MS)
    assert len(twin.changes) == 1
    with Journal.open(file, cluster_id=CLUSTER_ID) as other:
        second = watcher(twin, other, replace(ACTS, name="b"))
        assert after(twin, second, 1_000).leads
        assert AlarmKind.FOREIGN_HOLD in kinds(after(twin, second, 1_000))
        assert not tried(twin, guard, 1_000).leads
        assert (
            "topic orders: the hold that was set without the journal is in it now"
            in after(twin, second, 1_000).problems
        )
        twin.start(3)
        result = after(twin, second, 1_000, times=4)
    assert (twin.topics["orders"].overrides, states(result), kinds(result)) == (OWN, [State.FINE], [])


def test_who_only_watches_or_stands_by_holds_nothing_without_the_journal(journal: Journal, file: Path) -> None:
    twin = ClusterTwin()
    leader, dry = watcher(twin, journal), watcher(twin, journal, replace(DRY, name="dry"))
    stands_by = watcher(twin, journal, replace(ACTS, name="b"))
    watched(twin, leader)
    assert [guard._tried(None).leads for guard in (dry, stands_by)] == [False, False]
    with locked(file):
        twin.now_ms += DAY_MS
        # Whoever led is alive, as far as these know.
        stands_by._newest = replace(stands_by._newest, lease=replace(stands_by._newest.lease, until_ms=twin.now_ms + 1))
        assert [guard._tried(None).done for guard in (dry, stands_by)] == [(), ()]
        assert twin.changes == []
        twin.now_ms += 2
        (done,) = stands_by._tried(None).done
        assert isinstance(done.action, SetHold)
    assert twin.topics["orders"].overrides == dict(HOLD)


def test_a_guard_whose_cluster_is_lost_too_says_both(journal: Journal, file: Path) -> None:
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    watched(twin, guard)
    twin.lost = "no broker answers"
    with locked(file):
        result = tried(twin, guard, DAY_MS)
    assert result.problems[1:] == ("no look at the cluster either: no broker answers",)
    assert "database is locked" in result.problems[0]


def test_status_knows_a_guard_that_runs_and_cannot_write(journal: Journal, file: Path) -> None:
    twin = ClusterTwin()
    watcher(twin, journal).round()
    assert not somebody_runs(file)
    with present(file), present(file):
        assert somebody_runs(file)
        status = journal_status(journal, now_ms=twin.now_ms + DAY_MS, why="")
        assert list(status_lines(status, Output()))[1] == (
            "a guard runs here, but has not written to its journal since 2023-11-14 22:15:20 UTC at the latest: it cannot, or "
            "hangs. One that acts holds without it; its own output and metrics say more"
        )
    assert not somebody_runs(file)
    status = journal_status(journal, now_ms=twin.now_ms + DAY_MS, why="")
    assert list(status_lines(status, Output()))[1] == "no guard is running"
