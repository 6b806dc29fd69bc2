"""Somebody else holds SQLite's write lock: who waits for it can be interrupted, and waits no longer than was said."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headstone.api.stopping import GRACE_S
from headstone.cli.main import main
from headstone.errors import Unfinished
from headstone.interruption import Interrupted, Request, heard_as
from headstone.lake.lake import open_lake
from headstone.lake.metastore import database


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    assert main(["lake", "init", str(tmp_path / "lake")]) == 0
    assert main(["lake", "topics", str(tmp_path / "lake"), "create", "t"]) == 0
    return tmp_path / "lake"


@pytest.fixture
def lock(lake: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(lake / "metastore.db", isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield connection


def test_a_wait_for_the_lock_ends_at_once_when_it_is_given_up(
    lake: Path, lock: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TRY_SECONDS", 0.01)
    request = Request()
    request.give_up()
    lock.execute("COMMIT")
    with open_lake(f"sqlite:///{lake / 'metastore.db'}") as opened:
        lock.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        with heard_as(request), pytest.raises(Interrupted):
            opened.metastore.create_topic("new", 1)
        assert time.monotonic() - began < database.BUSY_SECONDS / 2
        lock.execute("COMMIT")
        opened.metastore.create_topic("new", 1)


def test_a_lock_that_is_let_go_is_taken_after_several_tries(
    lake: Path, lock: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TRY_SECONDS", 0.01)
    tries = threading.Semaphore(0)
    is_busy = database._is_busy
    monkeypatch.setattr(database, "_is_busy", lambda error: (tries.release(), is_busy(error))[1])

    def let_go() -> None:
        for _ in range(3):
            tries.acquire()
        lock.execute("COMMIT")

    thread = threading.Thread(target=let_go)
    thread.start()
    assert main(["lake", "topics", str(lake), "alter", "t", "--conf", "retention.ms=1d"]) == 0
    thread.join()


def test_a_lock_that_stays_is_given_up_in_the_end(
    lake: Path, lock: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TRY_SECONDS", 0.01)
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    with pytest.raises(Unfinished, match="does not answer: database is locked"):
        open_lake(f"sqlite:///{lake / 'metastore.db'}")


def test_ctrl_c_while_the_database_is_locked_ends_the_verb(lake: Path, lock: sqlite3.Connection) -> None:
    words = ["lake", "topics", str(lake), "alter", "t", "--conf", "retention.ms=1d"]
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
