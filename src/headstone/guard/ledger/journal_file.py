"""The journal's file: its usual place, its tables, and whether an existing file may be used.

Refuses a file that is damaged, of another cluster, of another version, or not a journal, and says what to do. `journal.py` owns
the contents of the tables.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from headstone.errors import Unfinished, UsageError
from headstone.log.directory import refuse_broker_directory
from headstone.storage.durable import make_directories

VERSION = 3
SUFFIX = ".sqlite"
WRITE_AHEAD = "-wal"
MAGIC, FORMAT_AT, ROLLBACK_FORMAT = b"SQLite format 3\0", 18, b"\1\1"
"""SQLite's file format: its magic bytes, and the write and read versions at FORMAT_AT (1 with a rollback journal, 2 with a
write-ahead log)."""
SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE memory (topic TEXT PRIMARY KEY, memory TEXT NOT NULL, statuses TEXT NOT NULL, looked_ms INTEGER NOT NULL);
CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT, resource TEXT NOT NULL, topic TEXT, old TEXT NOT NULL, new TEXT NOT NULL,
    reason TEXT NOT NULL, evidence TEXT NOT NULL, began_ms INTEGER NOT NULL, ended_ms INTEGER, outcome TEXT,
    times INTEGER NOT NULL DEFAULT 1, last_ms INTEGER
);
CREATE TABLE lease (
    one INTEGER PRIMARY KEY CHECK (one = 1), holder TEXT NOT NULL, until_ms INTEGER NOT NULL, applies INTEGER NOT NULL
);
CREATE TABLE alarms (
    topic TEXT NOT NULL, kind TEXT NOT NULL, partition INTEGER NOT NULL, broker INTEGER NOT NULL, detail TEXT NOT NULL,
    first_ms INTEGER NOT NULL, PRIMARY KEY (topic, kind, partition, broker)
);
CREATE TABLE readings (
    topic TEXT NOT NULL, partition INTEGER NOT NULL, broker INTEGER NOT NULL, verdict TEXT NOT NULL, read_ms INTEGER NOT NULL,
    detail TEXT NOT NULL, PRIMARY KEY (topic, partition, broker)
);
CREATE TABLE held_sizes (topic TEXT NOT NULL, broker INTEGER NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (topic, broker));
CREATE TABLE released (topic TEXT PRIMARY KEY, released_ms INTEGER NOT NULL);
CREATE TABLE temporary_changes (
    number INTEGER NOT NULL, setting TEXT NOT NULL, topic TEXT, topic_id TEXT, broker INTEGER, old TEXT, new TEXT,
    reason TEXT NOT NULL, began_ms INTEGER NOT NULL, UNIQUE (number, setting)
);
CREATE TABLE readmissions (
    topic TEXT NOT NULL, partition INTEGER NOT NULL, broker INTEGER NOT NULL, replicas TEXT NOT NULL, expelled INTEGER NOT NULL,
    was_away INTEGER NOT NULL, verified INTEGER NOT NULL, tries INTEGER NOT NULL, began_ms INTEGER NOT NULL, topic_id TEXT,
    by_guard INTEGER NOT NULL, added_ms INTEGER NOT NULL, UNIQUE (topic, partition, broker)
);
CREATE TABLE longest_outage (
    one INTEGER PRIMARY KEY CHECK (one = 1), topic TEXT NOT NULL, broker INTEGER NOT NULL, from_ms INTEGER NOT NULL,
    until_ms INTEGER NOT NULL
);
CREATE TABLE absent (topic TEXT PRIMARY KEY, since_ms INTEGER NOT NULL);
CREATE TABLE failing (what TEXT PRIMARY KEY, looks INTEGER NOT NULL, since_ms INTEGER NOT NULL);
"""


def usual_journal(cluster_id: str, environment: Mapping[str, str]) -> Path:
    return usual_directory(environment) / f"{quote(cluster_id, safe='')}{SUFFIX}"


def usual_directory(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "headstone" / "guard"


def make_private(path: Path) -> None:
    """Creates the file for its owner only, because names of topics and settings are private. Leaves an existing file alone: its
    disk may be broken."""
    if path.exists():
        return
    if not path.parent.is_dir():
        refuse_broker_directory(path.parent, instead="name another file with --journal")
    make_directories(path.parent, mode=0o700)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


def copy_in_memory(path: Path) -> sqlite3.Connection | None:
    """A read-only copy, for a file beside which SQLite can create no other, as on a full disk. None if the newest data is in
    the write-ahead log, or if this is no database."""
    try:
        log = path.with_name(path.name + WRITE_AHEAD)
        if log.exists() and log.stat().st_size:
            return None
        content = bytearray(path.read_bytes())
    except OSError:
        return None
    if not content.startswith(MAGIC):
        return None
    # Mark it as having no write-ahead log: a database in memory cannot have one.
    content[FORMAT_AT : FORMAT_AT + len(ROLLBACK_FORMAT)] = ROLLBACK_FORMAT
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.deserialize(bytes(content))
    connection.execute("PRAGMA query_only = ON")
    return connection


def checked(path: Path, connection: sqlite3.Connection, cluster_id: str | None) -> str:
    """Returns the cluster's id; writes tables and id into a new file."""
    if connection.execute("PRAGMA quick_check").fetchone() != ("ok",):
        raise damaged(path, "SQLite's integrity check failed")
    if cluster_id is not None and _is_empty(connection):
        # Locks only an empty file: one that cannot be written can still be read.
        connection.execute("BEGIN IMMEDIATE")
        if _is_empty(connection):
            for statement in filter(str.strip, SCHEMA.split(";\n")):
                connection.execute(statement)
            facts = [("version", str(VERSION)), ("cluster_id", cluster_id)]
            connection.executemany("INSERT INTO facts VALUES (?, ?)", facts)
        connection.execute("COMMIT")
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        raise Unfinished(
            f"{path}: the journal is empty: a guard has just begun it, or was ended before it wrote anything. Ask again; if it "
            "stays empty, check --journal and the topics' overrides"
        )
    if "facts" not in tables:
        raise UsageError(f"{path}: not a journal of the guard; name another file with --journal")
    header = dict(
        connection.execute("SELECT name, value FROM facts WHERE name IN ('version', 'cluster_id')").fetchall()
    )
    if header.get("version") != str(VERSION):
        raise UsageError(
            f"{path}: the journal has version {header.get('version')}, this program supports version {VERSION}: release its "
            "holds with the program that wrote it, then name another file with --journal"
        )
    cluster_id_kept = header.get("cluster_id")
    if not isinstance(cluster_id_kept, str):
        raise damaged(path, "it does not say which cluster it belongs to")
    if cluster_id not in (None, cluster_id_kept):
        raise UsageError(
            f"{path}: the journal of cluster {cluster_id_kept}, but this is cluster {cluster_id}: nothing was changed; check "
            "--bootstrap, or name another file with --journal"
        )
    return cluster_id_kept


def _is_empty(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,))


def damaged(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path}: the journal is damaged: {why}. Nothing was changed. Keep the file: it may still show what is held. Restore a "
        "copy; or check the topics' overrides, undo holds by hand (docs/guard.md) and start with a new --journal"
    )
