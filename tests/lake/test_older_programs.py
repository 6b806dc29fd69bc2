"""A program that has opened a lake changes nothing of it once the tables are of another version, whatever it tries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine, update

import headstone.lake
from headstone.errors import UsageError
from headstone.lake.format.objects import object_path
from headstone.lake.format.spans import Span
from headstone.lake.jobs.collection import Garbage, collect, garbage
from headstone.lake.jobs.folding import fold
from headstone.lake.jobs.rebuild import rebuild
from headstone.lake.lake import Lake
from headstone.lake.metastore import schema
from headstone.lake.metastore.commits import Append, Claim
from headstone.lake.metastore.erasure_steps import VALUES_REMOVED
from headstone.lake.metastore.erasures import Erasure, Erasures
from headstone.lake.metastore.holds import Holds
from headstone.lake.metastore.leader_epochs import note_leader_epochs
from headstone.lake.metastore.leases import COMMITTED, Leases
from headstone.lake.metastore.listeners import Listeners
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.pins import Pin, Pins, pinned
from headstone.lake.topics import drop_topic
from headstone.log.topic_partition import TopicPartition
from tests.lake.appending import SIZE, append, extent
from tests.lake.test_metastore import everything

AT = TopicPartition("t", 0)
NOW_MS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """With all that its verbs are about: everything would succeed but for the version."""

    lake: Lake
    engine: Engine
    registered: str
    collectable: Garbage
    condemned: str
    pin: Pin
    erasure: Erasure

    @property
    def metastore(self) -> Metastore:
        return self.lake.metastore

    def everything(self) -> object:
        return everything(self.engine), sorted(self.lake.store.list())

    def outdate(self) -> None:
        with self.engine.begin() as connection:
            connection.execute(update(schema.lakes).values(version=schema.VERSION + 1))


@pytest.fixture
def program(any_lake: Lake, engine: Engine) -> Program:
    lake, metastore = any_lake, any_lake.metastore
    metastore.create_topic("t", 1, {"cleanup.policy": "compact"})
    append(metastore, AT, 0, 10)
    collected, condemned, lost = (metastore.register(1, now_ms=1)[0] for _ in range(3))
    for object_id in (collected, condemned, lost):
        lake.store.put(object_path(object_id), b"lost")
    limits = {"unreferenced_before_ms": 2, "registered_before_ms": 2, "now_ms": 2}
    assert metastore.condemn([condemned], **limits) == [condemned]
    metastore.give_clock(NOW_MS)
    (registered,) = metastore.register(1, now_ms=NOW_MS)
    Leases(metastore).take(AT, "me", now_ms=NOW_MS)
    Leases(metastore).seen("me", "nothing", now_ms=NOW_MS)
    Holds(metastore).hold("reader", AT, 5, expires_ms=2 * NOW_MS)
    Erasures(metastore).request("t", ["00" * 16], deadline_ms=2 * NOW_MS, now_ms=NOW_MS)
    return Program(
        lake=lake, engine=engine, registered=registered, condemned=condemned,
        collectable=garbage(lake, now_ms=NOW_MS), pin=Pins(metastore).pin("reader", now_ms=NOW_MS),
        erasure=Erasures(metastore).all()[0],
    )  # fmt: skip


LIMITS = {"unreferenced_before_ms": NOW_MS, "registered_before_ms": NOW_MS - 1, "now_ms": NOW_MS}

VERBS: dict[str, Callable[[Program], object]] = {
    "append": lambda old: old.metastore.append(
        {AT: Append(expected_next=10, extents=(extent(10, 20, old.registered),))}, {old.registered: SIZE}, now_ms=NOW_MS
    ),
    "replace": lambda old: old.metastore.replace(
        AT, 0, [extent(0, 10, old.registered)], Claim(processed=Span(0, 10), cleaned=(Span(0, 10),)),
        {old.registered: SIZE}, now_ms=NOW_MS,
    ),
    "level": lambda old: old.metastore.level(
        AT, 0, [extent(0, 10, old.registered)], {old.registered: SIZE}, worker="me", now_ms=NOW_MS
    ),
    "start_at": lambda old: old.metastore.start_at(AT, 10, now_ms=NOW_MS),
    "looked_for_small": lambda old: old.metastore.looked_for_small(AT, 100),
    "create_topic": lambda old: old.metastore.create_topic("new", 1),
    "add_partitions": lambda old: old.metastore.add_partitions("t", 2),
    "configure": lambda old: old.metastore.configure("t", {"cleanup.policy": "delete"}),
    "identify": lambda old: old.metastore.identify("t", "id"),
    "drop_topic": lambda old: drop_topic(old.lake, "t", now_ms=NOW_MS),
    "leader epochs": lambda old: note_leader_epochs(old.metastore, AT, [(0, 0)]),
    "register": lambda old: old.metastore.register(1, now_ms=NOW_MS),
    "keep_registered": lambda old: old.metastore.keep_registered([old.registered], now_ms=NOW_MS + 1),
    "unregister": lambda old: old.metastore.unregister([old.registered]),
    "condemn": lambda old: old.metastore.condemn([row.object_id for row in old.collectable.rows], **LIMITS),
    "forget": lambda old: old.metastore.forget([old.condemned]),
    "collect": lambda old: collect(old.lake, old.collectable),
    "fold": lambda old: fold(old.lake),
    "rebuild": lambda old: rebuild(old.lake),
    "give_clock": lambda old: old.metastore.give_clock(NOW_MS + 1),
    "request of an erasure": lambda old: Erasures(old.metastore).request("t", ["01" * 16], deadline_ms=NOW_MS, now_ms=NOW_MS),
    "advance of an erasure": lambda old: Erasures(old.metastore).advance([(old.erasure, VALUES_REMOVED)], now_ms=NOW_MS),
    "wait of an erasure": lambda old: Erasures(old.metastore).wait([old.erasure], "time", until_ms=NOW_MS),
    "take a lease": lambda old: Leases(old.metastore).take(AT, "me", now_ms=NOW_MS + 1),
    "take_due": lambda old: Leases(old.metastore).take_due("me", 1, now_ms=NOW_MS * 2),
    "renew a lease": lambda old: Leases(old.metastore).renew(AT, "me", now_ms=NOW_MS + 1),
    "release a lease": lambda old: Leases(old.metastore).release(AT, "me"),
    "request": lambda old: Leases(old.metastore).request(AT, now_ms=NOW_MS),
    "done": lambda old: Leases(old.metastore).done(AT, "me", COMMITTED, {}, started_ms=NOW_MS, now_ms=NOW_MS),
    "seen": lambda old: Leases(old.metastore).seen("me", "more", now_ms=NOW_MS),
    "pause": lambda old: Leases(old.metastore).pause("me", paused=True),
    "left": lambda old: Leases(old.metastore).left("me"),
    "hold": lambda old: Holds(old.metastore).hold("reader", AT, 6, expires_ms=2 * NOW_MS),
    "release a hold": lambda old: Holds(old.metastore).release("reader"),
    "pin": lambda old: Pins(old.metastore).pin("other", now_ms=NOW_MS),
    "renew a pin": lambda old: Pins(old.metastore).renew(old.pin, now_ms=NOW_MS + 1),
    "release a pin": lambda old: Pins(old.metastore).release(old.pin),
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_an_older_program_changes_nothing(program: Program, verb: str) -> None:
    program.outdate()
    before = program.everything()
    with pytest.raises(UsageError, match="use the headstone that created the lake"):
        VERBS[verb](program)
    assert program.everything() == before


@pytest.mark.parametrize("metastore_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("verb", VERBS)
def test_it_would_have_changed_something_before(program: Program, verb: str) -> None:
    before = program.everything()
    VERBS[verb](program)
    assert program.everything() != before


def test_an_older_reader_ends_without_its_pin(program: Program) -> None:
    """What it has read, it has read. The pin expires."""
    with pinned(program.metastore, "slow"):
        program.outdate()
    assert "slow" in {row[1] for row in everything(program.engine)["pins"]}


def test_a_commit_is_made_though_the_version_changes_before_the_journal_is_told(program: Program) -> None:
    program.metastore.after_commit = Listeners(program.outdate, program.metastore.after_commit.tell)
    program.metastore.create_topic("new", 1)
    assert "new" in {row[1] for row in everything(program.engine)["topics"]}


def test_no_transaction_is_made_elsewhere() -> None:
    """Only the metastore's package has any; those that know no version yet are of whoever makes or opens a lake."""
    sources = {path: path.read_text() for path in Path(headstone.lake.__file__).parent.rglob("*.py")}
    beginning = {path.name for path, text in sources.items() if ".begin()" in text or ".connect()" in text}
    any_version = {path.name for path, text in sources.items() if "any_version" in text}
    transactions = {path.parent.name for path, text in sources.items() if ".transaction(" in text}
    assert (beginning, any_version, transactions) == ({"database.py"}, {"metastore.py"}, {"metastore"})
