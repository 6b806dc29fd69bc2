"""Opens the SQL database of a metastore: SQLite or PostgreSQL, each with the transactions that commits rely on.

SQLite takes its write lock when a transaction begins, PostgreSQL locks rows; nothing else differs. A server that does not
answer is given up after a few seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, ProgrammingError, TimeoutError

from headstone.errors import Unfinished, UsageError
from headstone.storage.redaction import address, first_line

BUSY_SECONDS = 30
"""How long a writer waits for another one's SQLite transaction."""
CONNECT_SECONDS = 10
SILENCE_MS = 10_000
"""Of a server in the middle of a connection, at the level of TCP; a statement may take as long as it likes."""
SUPPORTED = "metastores are sqlite:///PATH or postgresql://USER@HOST:PORT/DATABASE"


def connected(url: str) -> Engine:
    parsed = _parsed(url)
    backend = parsed.drivername.partition("+")[0]
    if backend == "sqlite":
        engine = create_engine(parsed, connect_args={"timeout": BUSY_SECONDS})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        return engine
    if backend == "postgresql":
        patience = {"connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": SILENCE_MS}
        given = {name: value for name, value in patience.items() if name not in parsed.query}
        return create_engine(parsed.set(drivername="postgresql+psycopg"), pool_pre_ping=True, connect_args=given)
    raise UsageError(f"{address(url)}: {SUPPORTED}")


@contextmanager
def begun(engine: Engine) -> Iterator[Connection]:
    """A transaction. A database that does not answer is Unfinished."""
    try:
        with engine.begin() as connection:
            yield connection
    except DBAPIError as error:
        if isinstance(error, IntegrityError | ProgrammingError):
            raise
        raise Unfinished(f"the metastore {_where(engine)} does not answer: {first_line(error.orig)}") from error
    except TimeoutError as error:  # all connections of the pool are in use
        raise Unfinished(f"the metastore has no connection left: {first_line(error)}") from error


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:  # ValueError: a port that is no number
        raise UsageError(f"{address(url)!r} is not a metastore: {SUPPORTED}") from error
    if parsed.port is not None and not 0 < parsed.port < 1 << 16:
        raise UsageError(f"{address(url)!r} is not a metastore: there is no port {parsed.port}")
    if url.partition("?")[0].count("@") > 1:  # where the password ends would be a guess, and the rest of it shown
        raise UsageError(f"{address(url)!r} is not a metastore: an @ in a name or password is written %40")
    return parsed


def _where(engine: Engine) -> str:
    """What an engine is connected to, as it may be shown."""
    shown = engine.url.set(drivername=engine.url.get_backend_name()).render_as_string(hide_password=True)
    return address(shown)


def _prepare_sqlite(raw: Any, record: object) -> None:
    """The driver begins no transactions by itself: ours take the write lock at once, so that none fails half-way."""
    del record
    raw.isolation_level = None
    raw.execute("PRAGMA journal_mode=WAL")
    raw.execute("PRAGMA synchronous=FULL")
    raw.execute("PRAGMA foreign_keys=ON")
