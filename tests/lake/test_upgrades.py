"""Tables are brought up to date when somebody asks for it, wholly or not at all; programs of other versions are
refused (`test_older_programs`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, create_engine, inspect, select, text, update

from headstone.cli.main import main
from headstone.errors import Unfinished, UsageError
from headstone.lake import schema
from headstone.lake.metastore import Metastore
from headstone.lake.upgrades import Step, Upgrade, upgrade
from headstone.log.topic_partition import TopicPartition
from tests.lake.test_metastore import append, everything

NEXT = schema.VERSION + 1
AT = TopicPartition("t", 0)


def add_owner(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE topics ADD COLUMN owner TEXT"))
    connection.execute(text("UPDATE topics SET owner = 'us'"))


def steps(change: Callable[[Connection], None] = lambda connection: None) -> list[Step]:
    return [
        Step(version=NEXT, about="topics have owners", change=add_owner),
        Step(version=NEXT + 1, about="and more", change=change),
    ]  # fmt: skip


@pytest.fixture
def store(metastore: Metastore) -> Metastore:
    metastore.create_topic("t", 1)
    append(metastore, AT, 0, 10)
    return metastore


def test_an_upgrade_is_shown_then_done_and_done_once(metastore_url: str, store: Metastore) -> None:
    engine = create_engine(metastore_url.replace("postgresql://", "postgresql+psycopg://"))
    before = everything(engine)
    wanted = Upgrade(
        version_before=schema.VERSION, version_after=NEXT + 1, steps=("topics have owners", "and more")
    )  # fmt: skip
    told = list[str]()
    assert upgrade(metastore_url, apply=False, steps=steps(), tell=told.append) == wanted
    assert told == []
    assert everything(engine) == before
    assert "owner" not in {column["name"] for column in inspect(engine).get_columns("topics")}
    assert upgrade(metastore_url, apply=True, steps=steps(), tell=told.append) == wanted
    assert told == [
        "waiting for those who use the metastore now",
        f"step 1 of 2, to version {NEXT}: topics have owners",
        f"step 2 of 2, to version {NEXT + 1}: and more",
    ]
    with engine.connect() as connection:
        assert connection.execute(text("SELECT name, owner FROM topics")).all() == [("t", "us")]
        assert connection.execute(select(schema.lakes.c.version)).scalar_one() == NEXT + 1
    assert upgrade(metastore_url, apply=True, steps=steps()).steps == ()
    engine.dispose()
    with pytest.raises(UsageError, match="use a newer headstone"):
        Metastore.open(metastore_url)
    with pytest.raises(UsageError, match="use a newer headstone"):
        append(store, AT, 10, 20)


def test_an_upgrade_that_fails_has_changed_nothing(metastore_url: str, store: Metastore) -> None:
    def fail(connection: Connection) -> None:
        raise Unfinished("the disk is full")

    with pytest.raises(Unfinished, match="the disk is full"):
        upgrade(metastore_url, apply=True, steps=steps(fail))
    append(store, AT, 10, 20)
    with store.transaction() as connection:
        assert "owner" not in {column["name"] for column in inspect(connection).get_columns("topics")}
    assert store.check() == []


VERSION_5 = (
    "UPDATE objects SET size = -registered_ms WHERE state = 'registered' AND changed_ms > registered_ms",
    "ALTER TABLE objects DROP COLUMN registered_ms",
    "DROP TABLE past_starts",
    "ALTER TABLE lakes DROP COLUMN listed_ms",
    "UPDATE lakes SET version = 5",
)
"""What leads back to the tables of that version."""


def shape(engine: Engine) -> dict[str, object]:
    """Tables with their columns, keys and indexes, whoever made them."""
    tables = inspect(engine)
    return {
        table: (
            sorted((c["name"], str(c["type"]), c["nullable"]) for c in tables.get_columns(table)),
            tables.get_pk_constraint(table)["constrained_columns"],
            sorted((k["constrained_columns"], k["referred_table"]) for k in tables.get_foreign_keys(table)),
            sorted((i["name"], i["column_names"]) for i in tables.get_indexes(table)),
        )
        for table in sorted(tables.get_table_names())
    }


def test_a_lake_of_version_5_is_brought_up_to_date(metastore_url: str, store: Metastore) -> None:
    """Its log began elsewhere before, and nobody has written down until when: that past is not told any more."""
    append(store, AT, 10, 20)
    store.start_at(AT, 5, now_ms=100)
    store.create_topic("whole", 1)
    append(store, TopicPartition("whole", 0), 0, 10)
    renewed, fresh = store.register(1, now_ms=200)[0], store.register(1, now_ms=201)[0]
    store.keep_registered([renewed], now_ms=300)
    engine = create_engine(metastore_url.replace("postgresql://", "postgresql+psycopg://"))
    now = shape(engine)
    with engine.begin() as connection:
        for statement in VERSION_5:
            connection.execute(text(statement))
    with pytest.raises(UsageError, match="`headstone lake upgrade` brings it up to date"):
        store.partition(AT)
    done = upgrade(metastore_url, apply=True)
    assert (done.version_before, done.version_after, len(done.steps)) == (5, schema.VERSION, 1)
    assert shape(engine) == now
    with engine.connect() as connection:
        columns = schema.objects.c
        registered = select(columns.object_id, columns.size, columns.changed_ms, columns.registered_ms)
        rows = connection.execute(registered.where(columns.state == "registered")).all()
    assert sorted(tuple(row) for row in rows) == sorted([(renewed, 0, 300, 200), (fresh, 0, 201, 201)])
    with pytest.raises(UsageError, match="collected as garbage"):
        store.partition_as_of(AT, 99)
    assert store.partition_as_of(TopicPartition("whole", 0), 99).next_offset == 10
    store.start_at(AT, 7, now_ms=400)
    assert [store.partition_as_of(AT, moment_ms).start_offset for moment_ms in (100, 399, 400)] == [5, 5, 7]
    assert store.check() == []
    engine.dispose()


def test_an_older_lake_asks_for_the_upgrade(
    metastore_url: str, store: Metastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    del store
    monkeypatch.setattr(schema, "VERSION", NEXT)
    with pytest.raises(UsageError, match="`headstone lake upgrade` brings it up to date"):
        Metastore.open(metastore_url)


def test_no_upgrade_leads_from_a_newer_version_or_from_before_the_first_release(
    metastore_url: str, store: Metastore
) -> None:
    for version, why in ((schema.VERSION_FIRST - 1, "make a new lake"), (NEXT, "use a newer headstone")):
        with store.any_version() as connection:
            connection.execute(update(schema.lakes).values(version=version))
        with pytest.raises(UsageError, match=why):
            upgrade(metastore_url, apply=True)


def test_the_command_shows_what_there_is_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = str(tmp_path / "lake")
    assert main(["lake", "init", lake]) == 0
    capsys.readouterr()
    assert main(["lake", "upgrade", lake, "--apply", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "applied": True, "version_before": schema.VERSION, "version_after": schema.VERSION, "steps": [],
    }  # fmt: skip
    assert main(["lake", "upgrade", lake]) == 0
    assert capsys.readouterr().out == f"version {schema.VERSION}: nothing to do\n"
