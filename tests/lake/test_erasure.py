"""Erasure: after its deadline a search over every byte of the store finds nothing; with a step left out it does."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headstone.cli.main import main
from headstone.errors import UsageError
from headstone.lake.format.keyindex import section_bytes
from headstone.lake.format.objects import object_path, read_dead
from headstone.lake.jobs import key_search
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.erasure import (
    Tools,
    carry_on_erasures,
    earliest_end_ms,
    make_lakes_own,
    request_erasure,
    undeleted_keys,
)
from headstone.lake.jobs.folding import fold
from headstone.lake.jobs.key_search import KeyRecord, KeySearch, among, digest_of
from headstone.lake.jobs.purging import evacuate_idle
from headstone.lake.jobs.rebuild import open_for_rebuild, rebuild
from headstone.lake.lake import Lake, create_lake
from headstone.lake.metastore.commits import CommitRefused
from headstone.lake.metastore.erasure_steps import (
    CLOSED,
    ERASED,
    KEY_REMOVED,
    NEVER_SEEN,
    REQUESTED,
    VALUES_GONE,
    VALUES_REMOVED,
)
from headstone.lake.metastore.erasures import Erasures
from headstone.lake.metastore.holds import Holds
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.pins import Pins
from headstone.lake.transfer.reading import records, records_in, table
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline import progress
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import Board
from tests.lake.appending import log_of
from tests.lake.scene import AT, RETENTION_MS, Said, Scene
from tests.lake.single import level_partition
from tests.lake.town import GRACE_MS, ORDERS, PEOPLE, UPLOAD_MS, USERS, Town
from tests.oracle.notation import History

LATE = "abcd0000-0000-4000-8000-000000000000"


class ErasingTown(Town):
    """Two topics whose first extents lie in one object, with alice among 20 people; she is deleted later."""

    def __init__(self, lake: Lake, root: Path, codec: str = "") -> None:
        super().__init__(lake, root, codec=codec)
        for topic in ("orders", "users"):
            lake.metastore.create_topic(topic, 1, {"delete.retention.ms": RETENTION_MS})
        self.grow(orders="N[o1] N[o2]", users=f"{PEOPLE} N[alice]")
        self.compact(USERS)

    def request(self, *keys: bytes, deadline_ms: int = 10_000, write: bool = False) -> list[str]:
        return request_erasure(self.lake, "users", keys, deadline_ms=deadline_ms, clock=self.clock, write=write)

    def carry_on(self, now_ms: int) -> list[tuple[str, str]]:
        """(step, what it waits for) of all erasures then."""
        self.now_ms = now_ms
        carry_on_erasures(self.tools())
        return [(erasure.step, erasure.waits_for) for erasure in Erasures(self.lake.metastore).all()]

    def steps(self, *moments_ms: int) -> list[str]:
        """Of all erasures, at the last of these moments."""
        for now_ms in moments_ms:
            steps = [step for step, _ in self.carry_on(now_ms)]
        return steps

    def undeleted(self, *digests: str) -> list[KeyRecord]:
        return undeleted_keys(KeySearch(self.lake, InProcess()), "users", digests)


@pytest.fixture
def town(lake: Lake, tmp_path: Path) -> ErasingTown:
    return ErasingTown(lake, tmp_path)


@pytest.mark.parametrize("codec", ["", "/zstd"])
def test_after_its_deadline_no_byte_of_the_store_tells_of_the_key(lake: Lake, tmp_path: Path, codec: str) -> None:
    """The value goes first, the tombstone when it has had its time; others keep what they have."""
    town = ErasingTown(lake, tmp_path, codec)
    others = list(records(lake, ORDERS)), {key: entry.value for key, entry in table(lake, USERS).items()}
    town.grow(orders="N[o3]", users="T[alice]")
    assert len(town.search(b"alice")) == 2
    town.request(b"alice")
    for now_ms in (20, 100):
        ((step, waits_for),) = town.carry_on(now_ms)
        assert (step, waits_for.startswith("the time of grace, or readers' pins, of ")) == (VALUES_REMOVED, True)
    assert town.search(b"v20") != []
    assert town.carry_on(200) == [(VALUES_GONE, "the tombstone, which stays for delete.retention.ms")]
    assert town.search(b"v20") == []
    assert len(town.search(b"alice")) == 1
    (erasure,) = Erasures(lake.metastore).all()
    assert (erasure.requested_ms, erasure.deadline_ms, erasure.not_before_ms) == (5, 10_000, 20 + RETENTION_MS)
    assert town.carry_on(500) == [(VALUES_GONE, "the tombstone, which stays for delete.retention.ms")]
    assert town.steps(2000) == [KEY_REMOVED]
    assert town.search(b"alice") != []
    assert town.carry_on(2000 + GRACE_MS + 1) == [(ERASED, "")]
    assert town.search(b"alice", b"v20") == []
    assert len(town.search(b"person7")) == len(town.search(b"o1")) == 1
    others[1].pop(b"alice")
    assert {key: entry.value for key, entry in table(lake, USERS).items()} == others[1]
    assert list(records(lake, ORDERS))[:2] == others[0]
    assert lake.metastore.check() == []


def test_an_object_that_somebody_else_works_on_keeps_the_step_from_being_done(town: ErasingTown) -> None:
    """The other topic's partition, which shares the object that holds the value, cannot be moved out of it now."""

    def lease(topic_partition: TopicPartition) -> AbstractContextManager[object]:
        if topic_partition == ORDERS:
            raise CommitRefused("w2 works on it")
        return nullcontext()

    town.grow(orders="N[o3]", users="T[alice]")
    town.request(b"alice")
    tools = town.tools(working_on=lease)
    carry_on_erasures(tools, ["users"])
    (erasure,) = Erasures(town.lake.metastore).all()
    assert (erasure.step, "orders-0: w2 works on it" in erasure.waits_for) == (REQUESTED, True)
    carry_on_erasures(replace(tools, working_on=nullcontext), ["users"])
    assert [erasure.step for erasure in Erasures(town.lake.metastore).all()] == [VALUES_REMOVED]


STEPS: dict[str, Callable[[ErasingTown], object]] = {
    "dead records": lambda town: level_partition(town.lake, USERS, clock=town.clock, purge=True),
    "evacuation": lambda town: evacuate_idle(town.lake, ["users"], clock=town.clock),
    "collection": lambda town: collect(
        town.lake, garbage(town.lake, now_ms=town.now_ms + 1, grace_ms=0, upload_ms=UPLOAD_MS)
    ),
}


@pytest.mark.parametrize("left_out", ["", *STEPS])
def test_with_one_step_left_out_the_bytes_are_still_there(town: ErasingTown, left_out: str) -> None:
    town.grow(orders="N[o3]", users="T[alice]")
    for town.now_ms in (20, 2000):
        town.compact(USERS)
        for name, step in STEPS.items():
            if name != left_out:
                step(town)
    assert bool(town.search(b"alice")) == bool(left_out)


def test_a_key_that_is_not_deleted_waits_for_that(town: ErasingTown) -> None:
    """Its deadline runs all the same; when the deletion has come, workers go on."""
    (digest,) = town.request(b"alice")
    (waiting,) = town.carry_on(20)
    assert waiting == (REQUESTED, "a value in users-0 at offset 20: delete it in Kafka first, ingest, run again")
    assert [(found.partition, found.offset) for found in town.undeleted(digest)] == [(USERS, 20)]
    town.grow(users="T[alice]")
    assert town.steps(20 + 600_000) == [VALUES_REMOVED]
    assert town.undeleted(digest) == []


class Overtaken(KeySearch):
    """Something happens between its first answer and what is made of that."""

    def __init__(self, town: ErasingTown, meanwhile: Callable[[], object]) -> None:
        super().__init__(town.lake, InProcess(1))
        self._meanwhile: list[Callable[[], object]] = [meanwhile]

    def records(self, topic: str, digests: Collection[str]) -> list[KeyRecord]:
        answer = super().records(topic, digests)
        while self._meanwhile:
            self._meanwhile.pop()()
        return answer


@pytest.mark.parametrize("key", [b"person3", b"nobody"])
def test_a_key_that_is_asked_for_during_a_search_was_not_looked_for(any_lake: Lake, tmp_path: Path, key: bytes) -> None:
    """Nor one that the search was for because of another request, which somebody else has brought to its end."""
    town, lake = ErasingTown(any_lake, tmp_path), any_lake
    town.request(b"nobody")

    def ask() -> None:
        town.carry_on(6)
        town.grow(users="N[nobody]")
        town.request(key)

    carry_on_erasures(town.tools(search=Overtaken(town, ask)))
    digest = digest_of(key, lake.metastore.hash_key)
    (asked,) = (erasure for erasure in Erasures(lake.metastore).all() if erasure.key_digest == digest)
    assert (asked.step, asked.waits_for) == (REQUESTED, "")
    (waits_for,) = (waits_for for step, waits_for in town.carry_on(7) if step not in CLOSED)
    assert waits_for.startswith("a value in users-0")


def test_a_key_that_comes_again_and_is_asked_for_again_during_the_last_search_is_not_erased(
    town: ErasingTown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever has looked up what is to be erased before."""
    monkeypatch.setattr("headstone.lake.transfer.ingest.with_remembered", lambda lake, appends: appends)
    town.grow(users="T[alice]")
    town.request(b"alice")
    town.steps(20, 200, 2000)
    town.now_ms = 2000 + GRACE_MS + 1

    def ask() -> None:
        town.grow(users="N[alice]")
        town.now_ms += 1
        town.request(b"alice")

    carry_on_erasures(town.tools(search=Overtaken(town, ask)))
    assert [erasure.step for erasure in Erasures(town.lake.metastore).all()] == [KEY_REMOVED]
    assert town.steps(town.now_ms + 1) == [REQUESTED]


def test_several_keys_are_erased_together_and_told_apart(town: ErasingTown) -> None:
    town.grow(users="T[alice] T[person3]")
    digests = town.request(b"alice", b"person3", b"person4")
    assert [erasure.key_digest for erasure in Erasures(town.lake.metastore).all()] == sorted(digests)
    live = digest_of(b"person4", town.lake.metastore.hash_key)
    states = dict(zip(digests, town.carry_on(20), strict=True))
    assert [states.pop(live)[0], *(step for step, _ in states.values())] == [REQUESTED, VALUES_REMOVED, VALUES_REMOVED]


def test_a_key_that_comes_again_is_not_erased(town: ErasingTown) -> None:
    """Just before the last step: it begins anew, and waits for the deletion of what has come."""
    town.grow(users="T[alice]")
    town.request(b"alice")
    assert town.steps(20, 200, 2000) == [KEY_REMOVED]
    town.grow(users="N[alice]")
    assert town.steps(2000 + GRACE_MS + 1) == [REQUESTED]
    town.grow(users="T[alice]")
    steps = town.steps(10**6, 2 * 10**6, 3 * 10**6, 4 * 10**6)
    assert (steps, town.search(b"alice")) == ([ERASED], [])


@pytest.mark.parametrize("folded", [False, True])
def test_erasures_come_back_with_a_rebuilt_metastore_and_begin_again(
    town: ErasingTown, tmp_path: Path, folded: bool
) -> None:
    """What left the log is in objects whose age nobody knows any more: none of it counts as gone before it is."""
    town.grow(users="T[alice] T[person3]")
    town.request(b"nobody")
    town.carry_on(6)
    town.request(b"alice")
    town.request(b"person3", deadline_ms=20_000)
    town.request(b"alice", deadline_ms=9000)
    assert sorted(step for step, _ in town.carry_on(20)) == [NEVER_SEEN, VALUES_REMOVED, VALUES_REMOVED]
    before = {erasure.key_digest: erasure for erasure in Erasures(town.lake.metastore).all()}
    if folded:
        fold(town.lake)
    town.lake = open_for_rebuild(f"sqlite:///{tmp_path / 'again.db'}", town.lake.store.url)
    town.now_ms = town.lake.metastore.clock()
    assert rebuild(town.lake).erasures == 2
    begun_again = {"step": REQUESTED, "step_ms": town.now_ms, "not_before_ms": 0, "waits_for": ""}
    assert {erasure.key_digest: erasure for erasure in Erasures(town.lake.metastore).all()} == {
        digest: erasure if erasure.step in CLOSED else replace(erasure, **begun_again)
        for digest, erasure in before.items()
    }
    assert sorted(town.steps(town.now_ms + GRACE_MS)) == [NEVER_SEEN, VALUES_REMOVED, VALUES_REMOVED]
    assert town.search(b"v20") != []
    steps, ended = sorted(town.steps(1000, 3000, 5000)), [ERASED, ERASED, NEVER_SEEN]
    assert (steps, town.search(b"alice", b"v20", b"person3")) == (ended, [])


def test_an_upload_that_ends_after_it_was_given_up_is_waited_for(town: ErasingTown) -> None:
    """Nobody knows it, but it holds what it has read before: it goes in its own time, and only then the key is erased."""
    store = town.lake.store
    (late,) = (store.read(path, 0, store.size(path)) for path in store.list("objects"))
    town.grow(users="T[alice]")
    town.request(b"alice")
    assert town.steps(20, 200, 2000) == [KEY_REMOVED]
    store.put(object_path(LATE), late)
    town.lake.metastore.give_clock(2101)
    assert town.steps(2101) == [KEY_REMOVED]
    assert town.search(b"alice") == [LATE]
    town.lake.metastore.give_clock(3000)
    assert (town.steps(3000), town.search(b"alice")) == ([ERASED], [])


@pytest.mark.parametrize("kept", ["a reader's pin", "nothing"])
def test_what_a_reader_has_pinned_is_gone_when_the_pin_is(town: ErasingTown, kept: str) -> None:
    town.grow(users="T[alice]")
    town.request(b"alice")
    if kept != "nothing":
        Pins(town.lake.metastore).pin("query", for_ms=5000, now_ms=6)
    town.carry_on(20)
    assert town.steps(200) == [VALUES_GONE if kept == "nothing" else VALUES_REMOVED]
    assert town.steps(10**6 + 6000, 10**6 + 6500) == [ERASED]


def test_rows_of_erasures_are_changed_by_compare_and_set(metastore: Metastore) -> None:
    """On both databases: of two who take the same step one does it; what is done begins anew."""
    erasures = Erasures(metastore)
    erasures.request("t", ["aa", "bb"], deadline_ms=100, now_ms=5)
    first, second = erasures.open_of("t")
    assert erasures.open_topics(now_ms=5) == ["t"]
    assert [erasures.advance([(first, VALUES_REMOVED)], now_ms=7) for _ in range(2)] == [1, 0]
    erasures.wait([second], "something", until_ms=50)
    erasures.wait([first], "what was before", until_ms=90)
    rows = [(row.step, row.step_ms, row.not_before_ms, row.waits_for) for row in erasures.all()]
    assert rows == [(VALUES_REMOVED, 7, 0, ""), (REQUESTED, 5, 50, "something")]
    assert erasures.advance([(erasures.all()[0], ERASED)], now_ms=9) == 1
    assert ([row.key_digest for row in erasures.open_of("t")], erasures.open_topics(now_ms=49)) == (["bb"], [])
    assert erasures.open_topics(now_ms=50) == ["t"]
    erasures.request("t", ["aa", "bb"], deadline_ms=80, now_ms=60)
    assert [(row.step, row.requested_ms, row.deadline_ms) for row in erasures.all()] == [(REQUESTED, 60, 80)] * 2
    metastore.register(1, now_ms=10)
    assert [erasures.unused_objects().since(moment_ms) for moment_ms in (9, 10)] == [0, 1]


def test_a_step_of_before_is_not_the_same_step_again(metastore: Metastore) -> None:
    """It came back to where it was: whoever knows the first time of it knows of other objects."""
    erasures = Erasures(metastore)
    erasures.request("t", ["aa"], deadline_ms=100, now_ms=5)
    past = []
    for now_ms, step in ((6, KEY_REMOVED), (7, REQUESTED), (8, KEY_REMOVED)):
        past += erasures.all()
        assert erasures.advance([(past[-1], step)], now_ms=now_ms) == 1
    assert (past[1].step, erasures.advance([(past[1], ERASED)], now_ms=9)) == (KEY_REMOVED, 0)
    assert [(row.step, row.step_ms) for row in erasures.all()] == [(KEY_REMOVED, 8)]


def test_what_a_long_job_has_registered_is_as_old_as_ever(metastore: Metastore) -> None:
    """It may have uploaded it before it renewed it. Garbage it is later, and once it is committed nothing of that is left."""
    (object_id,) = metastore.register(1, now_ms=10)
    for now_ms in (500, 900):
        metastore.keep_registered([object_id], now_ms=now_ms)
    unused = Erasures(metastore).unused_objects()
    assert [unused.since(moment_ms) for moment_ms in (9, 10)] == [0, 1]
    for before_ms, garbage_ids in ((900, []), (901, [object_id])):
        rows = metastore.collectable(unreferenced_before_ms=0, registered_before_ms=before_ms, now_ms=1000)
        assert [(row.object_id, row.size) for row in rows] == [(each, 0) for each in garbage_ids]


def test_more_keys_than_a_statement_has_parameters(metastore: Metastore) -> None:
    """PostgreSQL takes 65,535 of them."""
    digests = [f"{number:032x}" for number in range(70_000)]
    for _ in range(2):
        Erasures(metastore).request("t", digests, deadline_ms=100, now_ms=5)
    assert [erasure.key_digest for erasure in Erasures(metastore).open_of("t")] == digests


def test_asking_again_keeps_the_earlier_deadline_and_what_was_done(town: ErasingTown) -> None:
    town.grow(users="T[alice]")
    town.request(b"alice", deadline_ms=9000)
    town.carry_on(20)
    for deadline_ms in (20_000, 8000):
        town.request(b"alice", deadline_ms=deadline_ms)
    (erasure,) = Erasures(town.lake.metastore).all()
    assert (erasure.step, erasure.requested_ms, erasure.deadline_ms) == (VALUES_REMOVED, 20, 8000)


def test_a_reader_that_holds_the_tombstone_holds_the_erasure(town: ErasingTown) -> None:
    town.grow(users="T[alice]")
    town.request(b"alice")
    Holds(town.lake.metastore).hold("warehouse", USERS, 0, expires_ms=10**9)
    town.steps(20, 200)
    waits_for = "the tombstone, which a reader holds or which has dirty data below it"
    assert town.carry_on(2000) == [(VALUES_GONE, waits_for)]
    Holds(town.lake.metastore).release("warehouse")
    town.carry_on(2000 + 600_000)
    assert town.carry_on(2000 + 700_000) == [(ERASED, "")]


def test_a_tombstone_is_written_where_the_key_is_and_ingest_knows(lake: Lake, tmp_path: Path) -> None:
    """Offsets of the lake's own are not Kafka's: what Kafka has at them would be lost without a word."""
    town = ErasingTown(lake, tmp_path)
    next_offset = lake.metastore.partition(USERS).next_offset
    town.request(b"alice", b"nobody", write=True)
    written = list(records(lake, USERS, offset_start=next_offset))
    assert [(entry.offset, entry.key, entry.value) for entry in written] == [(next_offset, b"alice", None)]
    with pytest.raises(UsageError, match="offsets are no longer those of any Kafka topic"):
        town.grow(users="N[bob]")
    assert b"alice" not in table(lake, USERS)
    town.request(b"alice", write=True)
    assert lake.metastore.partition(USERS).next_offset == next_offset + 1
    town.steps(20, 200, 2000, 2200)
    assert town.search(b"alice") == []


def test_keys_of_a_topic_that_is_not_compacted_are_not_erased(town: ErasingTown) -> None:
    town.lake.metastore.configure("users", {"cleanup.policy": "delete"})
    with pytest.raises(UsageError, match="the records of a key stay until retention deletes them"):
        town.request(b"alice")
    with pytest.raises(UsageError, match="no topic nosuch"):
        request_erasure(town.lake, "nosuch", [b"a"], deadline_ms=1, clock=town.clock)
    assert Erasures(town.lake.metastore).all() == []


def test_the_earliest_end_counts_the_tombstone() -> None:
    settings = {"delete.retention.ms": 1000, "min.compaction.lag.ms": 50}
    assert earliest_end_ms(settings, now_ms=7, grace_ms=100) == 7 + 50 + 1000 + 200


def test_the_command_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: Said, told: Said
) -> None:
    """Asked for, waiting for Kafka, waiting for its time, done; `status` tells of it, and never the key."""
    history, where, logs = History(), str(tmp_path / "lake"), str(tmp_path / "logs")
    log_of(tmp_path / "logs", "users", "N[alice] N[bob]", history=history)
    told("init", where, "--now-ms", "1000")
    conf = ("--topic-conf", "users:delete.retention.ms=500")
    told("ingest", where, logs, *conf, "--now-ms", "1000")
    (tmp_path / "keys").write_text(f'alice\n{{"hex": "{b"bob".hex()}"}}\n')
    erase = ("erase", where, "users", "--deadline", "1h", "--grace-ms", "10", "--upload-ms", "10")
    asked = told(*erase, "--keys-file", str(tmp_path / "keys"), code=1)["erasures"]
    assert [(one["step"], one["deadline_ms"]) for one in asked] == [(REQUESTED, 3_601_000)] * 2
    log_of(tmp_path / "logs", "users", "T[alice] T[bob]", history=history)
    told("ingest", where, logs)
    for now_ms, code in ((1000, 3), (1100, 3), (2000, 3), (2100, 0)):
        done = told(*erase, "--key", "alice", "--key-hex", b"bob".hex(), "--now-ms", str(now_ms), code=code)
    assert [one["step"] for one in done["erasures"]] == [ERASED, ERASED]
    assert told("status", where)["erasures"] == done["erasures"]
    status = said("status", where).out
    assert ("alice" in status, status.count(": erased at 1970-01-01 00:00:02 UTC (2100)")) == (False, 2)
    assert main(["lake", "erase", where, "users"]) == 2
    assert main(["lake", "erase", where, "users", "--key-hex", "xyz"]) == 2
    capsys.readouterr()
    assert main(["lake", "erase", where, "users", "--key", "a", "--deadline", "1s", "--grace-ms", "9999"]) == 1
    assert "the deadline cannot be met" in capsys.readouterr().err


def test_an_erasure_that_is_late_is_told(scene: Scene, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    scene.write("N[a]")
    request_erasure(scene.lake, "t", [b"a"], deadline_ms=50, clock=lambda: 10)
    assert main(["lake", "status", f"sqlite:///{tmp_path / 'lake.db'}", "--now-ms", "60"]) == 0
    assert "requested, LATE by 10 ms; waits for a worker" in capsys.readouterr().out
    assert main(["lake", "erase", f"sqlite:///{tmp_path / 'lake.db'}", "t", "--key", "a", "--deadline", "30d"]) == 1
    assert main(["lake", "status", f"sqlite:///{tmp_path / 'lake.db'}", "--now-ms", "5400050"]) == 0
    assert "LATE by 1 h 30 min; waits for a value in t-0 at offset 0" in capsys.readouterr().out
    assert scene.lake.metastore.partition(AT).next_offset == 1


def test_a_topic_of_the_lakes_own_gets_its_tombstones_unasked(town: ErasingTown, tmp_path: Path) -> None:
    make_lakes_own(town.lake, "users")
    where = f"sqlite:///{tmp_path / 'lake.db'}"
    assert main(["lake", "erase", where, "users", "--key", "alice", "--now-ms", "20"]) == 3
    assert b"alice" not in table(town.lake, USERS)
    assert main(["lake", "erase", where, "orders", "--key", "o1", "--now-ms", "20"]) == 1
    assert b"o1" in table(town.lake, ORDERS)


Found = list[tuple[bytes | None, int, bool, bool]]


def digests_of(lake: Lake, keys: Collection[bytes]) -> dict[str, bytes]:
    return {digest_of(key, lake.metastore.hash_key): key for key in keys}


def found_by(lake: Lake, search: KeySearch, keys: Collection[bytes]) -> Found:
    digests = digests_of(lake, keys)
    return [
        (digests[record.digest], record.offset, record.tombstone, record.shown)
        for record in search.records("t", digests)
    ]


def read_of_all(lake: Lake, keys: Collection[bytes]) -> Found:
    """From the batches: the dead are read as if nobody had marked them."""
    partition = lake.metastore.partition(AT)
    hits: Found = []
    for extent in partition.extents:
        dead = set(read_dead(lake.store, extent).tolist())
        bare = replace(extent, dead=0, dead_object=None, records=extent.records + extent.dead)
        for entry in records_in(lake.store, [bare], 0):
            if entry.key in keys:
                shown = entry.offset >= partition.start_offset and entry.offset not in dead
                hits.append((entry.key, entry.offset, entry.value is None, shown))
    return hits


@pytest.mark.parametrize("seed", range(3))
def test_one_who_searches_again_finds_what_is_there_now(
    scene: Scene, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After writes, marks, rewriting and a new log start, for all of the keys or for some; in tasks of one list each."""
    chance, names = random.Random(seed), "abcdefghijkl"
    monkeypatch.setattr(key_search, "SHARE_BYTES", 1)
    search, keys = KeySearch(scene.lake, InProcess(2)), [name.encode() for name in names[:6]]
    for step in range(1, 6):
        scene.write(*(f"N[{','.join(chance.choices(names, k=4))}]" for _ in range(3)), f"T[{chance.choice(names)}]")
        assert found_by(scene.lake, search, keys) == read_of_all(scene.lake, keys)
        if step % 2 == 0:
            scene.compact(now_ms=step * RETENTION_MS // 2, dead_share_max=chance.choice([0.0, 0.9]))
        if step == 4:
            scene.lake.metastore.start_at(AT, 6, now_ms=step)
        some = chance.sample(keys, 2)
        assert found_by(scene.lake, search, some) == read_of_all(scene.lake, some)
    others = [b"k", b"a"]
    assert found_by(scene.lake, search, others) == read_of_all(scene.lake, others)
    assert (search.records("t", []), search.records("nosuch", ["0" * 32])) == ([], [])


def test_a_list_is_read_once_and_only_its_first_half_if_it_holds_no_key(scene: Scene) -> None:
    scene.write("N[a,b]")
    scene.write("N[c,d]")
    lake, search = scene.lake, KeySearch(scene.lake, InProcess())
    reads = []
    for step in range(4):
        if step == 2:
            scene.write("N[c]")
        before = lake.store.traffic.reads
        found_by(lake, search, [b"a", b"z"])
        reads.append(lake.store.traffic.reads - before)
    assert reads == [3, 0, 1, 0]


def test_who_erases_sees_how_far_the_search_is(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.write("N[a,b]")
    scene.write("N[c,d]")
    board = Board()
    monkeypatch.setattr(progress, "Board", lambda: board)
    found_by(scene.lake, KeySearch(scene.lake, InProcess(), progress=True), [b"a"])
    lists = sum(section_bytes(extent.keys) for extent in scene.lake.metastore.partition(AT).extents)
    assert (board.expected, board.total()) == (lists, (lists, 1))


def test_digests_that_share_their_first_half_are_told_apart() -> None:
    wanted = np.array([[7, 1], [7, 2], [5, 1]], dtype=np.uint64)
    digests = np.array([[7, 2], [7, 3], [5, 1], [1, 1], [7, 1]], dtype=np.uint64)
    assert among(digests, wanted).tolist() == [1, -1, 2, -1, 0]
    assert among(digests, wanted[:0]).tolist() == [-1] * 5


def requests_to_erase(root: Path, keys: int) -> tuple[int, int, int]:
    """Requests that it takes to erase so many of a thousand deleted keys: (reads, writes, extents of the log)."""
    root.mkdir()
    lake = create_lake(f"sqlite:///{root / 'lake.db'}", f"file://{root / 'objects'}", now_ms=0)
    scene, clock = Scene(lake, root), [20]
    names = [f"k{i}" for i in range(1000)]
    for start in range(0, 1000, 250):
        scene.write(*(f"N[{','.join(names[i : i + 50])}]" for i in range(start, start + 250, 50)))
    scene.write(*(f"T[{','.join(names[i : i + 50])}]" for i in range(0, 1000, 50)), "N[other]")
    extents, traffic = len(lake.metastore.partition(AT).extents), lake.store.traffic
    reads, writes = traffic.reads, traffic.writes
    chosen = [name.encode() for name in names[:keys]]
    request_erasure(lake, "t", chosen, deadline_ms=10**6, clock=lambda: clock[0])
    tools = Tools(lake=lake, engine=InProcess(2), clock=lambda: clock[0], grace_ms=100, upload_ms=100)
    steps = []
    for clock[0] in (20, 200, 5000, 5200):
        carry_on_erasures(tools, ["t"])
        steps.append({erasure.step for erasure in Erasures(lake.metastore).all()})
    assert (steps[0], steps[-1]) == ({VALUES_REMOVED}, {ERASED})
    cost = traffic.reads - reads, traffic.writes - writes, extents
    lake.close()
    return cost


def test_a_thousand_keys_are_erased_for_about_what_one_takes(tmp_path: Path) -> None:
    """Of the lists that hold none of the keys the second half is not read; that is all the difference."""
    one_reads, one_writes, extents = requests_to_erase(tmp_path / "one", 1)
    all_reads, all_writes, _ = requests_to_erase(tmp_path / "all", 1000)
    assert all_writes == one_writes
    assert all_reads - one_reads <= 2 * extents
