"""Opens the SQL database of a metastore: SQLite or PostgreSQL, each with the transactions that commits rely on.

SQLite takes its write lock when a transaction begins, PostgreSQL locks rows; nothing else differs. A server that does not
answer is given up after a few seconds.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from os.path import realpath
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError, ProgrammingError, TimeoutError

from headstone import interruption
from headstone.errors import Unfinished, UsageError, not_installed
from headstone.lake.format.prefixes import ANEW
from headstone.storage.redaction import address, first_line

BUSY_SECONDS = 30
"""How long a writer waits for another's SQLite transaction."""
BUSY_TRY_SECONDS = 0.5
"""Length of one try of that wait: SQLite can't be interrupted."""
CONNECT_SECONDS = 10
SILENCE_MS = 10_000
"""How long a server may be silent on an open connection, at the level of TCP. A statement may take as long as it likes."""
SUPPORTED = "metastores are sqlite:///PATH or postgresql://USER@HOST:PORT/DATABASE"


def connected(url: str, *, make: bool = False) -> Engine:
    """`make`: creates a missing SQLite file. Otherwise it is refused, and a mere look does not create it."""
    parsed = _parsed(url)
    backend = parsed.drivername.partition("+")[0]
    if backend == "sqlite":
        file = _sqlite_file(parsed)
        if file is None or make:
            engine = create_engine(parsed, connect_args={"timeout": BUSY_SECONDS})
        else:
            _expect_one_file(file, url)
            engine = create_engine(parsed, creator=partial(_open_sqlite, file))
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    if backend == "postgresql":
        patience = {"connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": SILENCE_MS}
        given = {name: value for name, value in patience.items() if name not in parsed.query}
        try:
            return create_engine(parsed.set(drivername="postgresql+psycopg"), pool_pre_ping=True, connect_args=given)
        except ImportError as error:
            raise not_installed("psycopg, which reaches PostgreSQL, is", "postgresql") from error
    raise UsageError(f"{address(url)}: {SUPPORTED}")


@contextmanager
def begun(engine: Engine) -> Iterator[Connection]:
    """A transaction. Unfinished if the database does not answer."""
    try:
        with engine.begin() as connection:
            yield connection
    except DBAPIError as error:
        if isinstance(error, IntegrityError | ProgrammingError):
            raise
        raise Unfinished(f"the metastore {_where(engine)} does not answer: {first_line(error.orig)}") from error
    except TimeoutError as error:  # all connections of the pool are in use
        raise Unfinished(f"no metastore connection is free: {first_line(error)}") from error


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:  # ValueError: a port that is not a number
        raise UsageError(f"{address(url)!r} is not a metastore: {SUPPORTED}") from error
    if parsed.port is not None and not 0 < parsed.port < 1 << 16:
        raise UsageError(f"{address(url)!r} is not a metastore: invalid port {parsed.port}")
    if url.partition("?")[0].count("@") > 1:  # where the password ends would be a guess, and its rest would be shown
        raise UsageError(f"{address(url)!r} is not a metastore: write @ in a name or password as %40")
    return parsed


def _where(engine: Engine) -> str:
    """What an engine is connected to, without secrets."""
    shown = engine.url.set(drivername=engine.url.get_backend_name()).render_as_string(hide_password=True)
    return address(shown)


def file_of(url: str) -> Path | None:
    """As `sqlite_file`, before a connection exists."""
    parsed = _parsed(url)
    return _sqlite_file(parsed) if parsed.get_backend_name() == "sqlite" else None


def sqlite_file(engine: Engine) -> Path | None:
    """The metastore's file, with links resolved; None if it is on a server, or in memory."""
    return _sqlite_file(engine.url) if engine.dialect.name == "sqlite" else None


def _sqlite_file(url: URL) -> Path | None:
    path = url.database
    return None if path in (None, "", ":memory:") or path.startswith("file:") else Path(realpath(path))


def _expect_one_file(file: Path, url: str) -> None:
    if not file.exists():
        raise UsageError(f"{address(url)} has no lake; create one with {ANEW}")
    if (names := file.stat().st_nlink) > 1:
        raise UsageError(
            f"{file} has {names} names (hard links): SQLite destroys a database that is used by two of them. Copy it with "
            "`cp`, and remove the other names"
        )


def _open_sqlite(file: Path) -> sqlite3.Connection:
    """If the file was moved away meanwhile, no empty one is created."""
    return sqlite3.connect(f"{file.as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS, check_same_thread=False)


def _begin_sqlite(connection: Connection) -> None:
    """Waits for the write lock in short tries, so that a run that is stopped can end."""
    raw: Any = connection.connection.dbapi_connection
    deadline = time.monotonic() + BUSY_SECONDS
    raw.execute(f"PRAGMA busy_timeout = {round(min(BUSY_TRY_SECONDS, BUSY_SECONDS) * 1000)}")
    try:
        while True:
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                return
            except OperationalError as error:
                if not _is_busy(error) or time.monotonic() >= deadline:
                    raise
            interruption.check()
    finally:
        raw.execute(f"PRAGMA busy_timeout = {round(BUSY_SECONDS * 1000)}")


def _is_busy(error: OperationalError) -> bool:
    """Compares the low byte; SQLite gives details in the others."""
    return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _prepare_sqlite(raw: Any, record: object) -> None:
    """The driver begins no transactions by itself: ours take the write lock at once, so that none fails half-way."""
    del record
    raw.isolation_level = None
    raw.execute("PRAGMA journal_mode=WAL")
    raw.execute("PRAGMA synchronous=FULL")
    raw.execute("PRAGMA foreign_keys=ON")
