"""Opens the SQL database of a metastore: SQLite or PostgreSQL, each with the transactions that commits rely on.

SQLite takes its write lock when a transaction begins, PostgreSQL locks rows; nothing else differs.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from headstone.errors import UsageError

BUSY_SECONDS = 30
"""How long a writer waits for another one's SQLite transaction."""


def connected(url: str) -> Engine:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise UsageError(f"{url!r} is not a metastore: sqlite:///PATH or postgresql://USER@HOST/DATABASE") from error
    if parsed.get_backend_name() == "sqlite":
        engine = create_engine(parsed, connect_args={"timeout": BUSY_SECONDS})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        return engine
    if parsed.get_backend_name() == "postgresql":
        return create_engine(parsed.set(drivername="postgresql+psycopg"), pool_pre_ping=True)
    raise UsageError(f"{url!r}: metastores are sqlite:///PATH or postgresql://USER@HOST/DATABASE")


def _prepare_sqlite(raw: Any, record: object) -> None:
    """The driver begins no transactions by itself: ours take the write lock at once, so that none fails half-way."""
    del record
    raw.isolation_level = None
    raw.execute("PRAGMA journal_mode=WAL")
    raw.execute("PRAGMA synchronous=FULL")
    raw.execute("PRAGMA foreign_keys=ON")
