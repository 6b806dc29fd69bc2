"""Brings the tables of an older version up to date, step by step, all or nothing; only when somebody asks for it.

A program of an older version is refused from then on, at its next transaction at the latest: each of them reads the version
first (`Metastore.transaction`), and an upgrade begins when none of those that have read it is under way. Knows the steps; what
the tables look like now is `schema`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select, text, update

from headstone.errors import UsageError
from headstone.lake import schema
from headstone.lake.database import connected
from headstone.lake.metastore import Metastore
from headstone.storage.redaction import address


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`version` is that of the tables afterwards. `change` works on those of the version before, by plain SQL."""

    version: int
    about: str
    change: Callable[[Connection], None]


def _remember_starts(connection: Connection) -> None:
    """When the starts of before moved is not known: the past before the upgrade is told of logs only that still begin at 0."""
    number = "SERIAL" if connection.dialect.name == "postgresql" else "INTEGER NOT NULL"
    for statement in (
        f"CREATE TABLE past_starts (past_id {number} PRIMARY KEY, "
        "partition_id INTEGER NOT NULL REFERENCES partitions (partition_id), "
        "start_offset BIGINT NOT NULL, removed_ms BIGINT NOT NULL)",
        "CREATE INDEX past_starts_by_partition ON past_starts (partition_id, removed_ms)",
        "UPDATE partitions SET known_from_ms = changed_ms WHERE start_offset > 0 AND known_from_ms < changed_ms",
    ):
        connection.execute(text(statement))


def _tell_registration(connection: Connection) -> None:
    """It was told as a negative size of objects that a long job kept registered."""
    for statement in (
        "ALTER TABLE objects ADD COLUMN registered_ms BIGINT NOT NULL DEFAULT 0",
        "UPDATE objects SET registered_ms = CASE WHEN size < 0 THEN -size ELSE changed_ms END WHERE state = 'registered'",
        "UPDATE objects SET size = 0 WHERE size < 0",
    ):
        connection.execute(text(statement))


def _to_version_6(connection: Connection) -> None:
    _remember_starts(connection)
    _tell_registration(connection)
    connection.execute(text("ALTER TABLE lakes ADD COLUMN listed_ms BIGINT NOT NULL DEFAULT 0"))


STEPS: Sequence[Step] = (
    Step(
        version=6,
        about="where logs began is remembered, for readers of the past; when objects were registered, and last listed",
        change=_to_version_6,
    ),
)
"""From version to version, each one higher than the last. None is left out when a newer one is added: a lake may be old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    version_before: int
    version_after: int
    steps: tuple[str, ...]


def upgrade(
    url: str, *, apply: bool, steps: Sequence[Step] = STEPS, tell: Callable[[str], None] = lambda text: None
) -> Upgrade:  # fmt: skip
    """What is to be done, in its order; with `apply` it is done, and each step told before. Nothing to do is no error."""
    metastore = Metastore(connected(url))
    wanted = steps[-1].version if steps else schema.VERSION
    with metastore.any_version() as connection:
        if not schema.exists(connection):
            raise UsageError(f"{address(url)} holds no lake; `headstone lake init` makes one")
        if apply:
            tell("waiting for those who use the metastore now")
            _keep_others_out(connection)
        before = connection.execute(select(schema.lakes.c.version).with_for_update()).scalar_one()
        schema.refuse_foreign(before, wanted)
        todo = [step for step in steps if step.version > before]
        for number, step in enumerate(todo if apply else (), start=1):
            tell(f"step {number} of {len(todo)}, to version {step.version}: {step.about}")
            step.change(connection)
            connection.execute(update(schema.lakes).values(version=step.version))
    metastore.close()
    return Upgrade(version_before=before, version_after=wanted, steps=tuple(step.about for step in todo))


def _keep_others_out(connection: Connection) -> None:
    """Whoever has read the version keeps a lock on its table, to the end of its transaction; whoever is about to read it waits.

    SQLite lets in nobody else anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE lakes IN ACCESS EXCLUSIVE MODE"))
