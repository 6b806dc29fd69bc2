"""Erasure: after its deadline a search over every byte of the store finds nothing; with a step left out it does."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from headstone.cli.main import main
from headstone.errors import UsageError
from headstone.lake.format.objects import object_path
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.compaction import compact_partition
from headstone.lake.jobs.erasure import (
    Tools,
    carry_on_erasures,
    earliest_end_ms,
    make_lakes_own,
    request_erasure,
    undeleted_keys,
)
from headstone.lake.jobs.folding import fold
from headstone.lake.jobs.key_search import KeyRecord, KeySearch, digest_of
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
from headstone.lake.transfer.ingest import ingest
from headstone.lake.transfer.reading import records, table
from headstone.log.directory import find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from tests.lake.scene import AT, Scene
from tests.lake.single import level_partition
from tests.oracle.notation import History

ORDERS, USERS = TopicPartition("orders", 0), TopicPartition("users", 0)
RETENTION_MS, GRACE_MS, UPLOAD_MS = 1000, 100, 500
ZSTD_FRAME = b"\x28\xb5\x2f\xfd"
PEOPLE = tuple(f"N[person{i}]" for i in range(20))


LATE = "abcd0000-0000-4000-8000-000000000000"


class Town:
    """Two topics whose first extents lie in one object, with alice among 20 people; she is deleted later."""

    def __init__(self, lake: Lake, root: Path, codec: str = "") -> None:
        self.lake, self.now_ms = lake, 5
        self._root, self._codec = root, codec
        self._histories = {"orders": History(), "users": History()}
        for topic in self._histories:
            lake.metastore.create_topic(topic, 1, {"delete.retention.ms": RETENTION_MS})
        self.ingest(orders="N[o1] N[o2]", users=" ".join((*PEOPLE, "N[alice]")))
        self.compact()

    def ingest(self, **terms: str) -> None:
        for topic, text in terms.items():
            history = self._histories[topic]
            history.append(" ".join(term + self._codec for term in text.split()))
            history.roll()
            history.write_partition(self._root / "logs", f"{topic}-0")
        ingest(self.lake, find_partitions([self._root / "logs"]), clock=self.clock)

    def compact(self) -> None:
        compact_partition(self.lake, USERS, InProcess(1), now_ms=self.now_ms)

    def clock(self) -> int:
        return self.now_ms

    def request(self, *keys: bytes, deadline_ms: int = 10_000, write: bool = False) -> list[str]:
        return request_erasure(self.lake, "users", keys, deadline_ms=deadline_ms, clock=self.clock, write=write)

    def carry_on(self, now_ms: int) -> list[tuple[str, str]]:
        """(step, what it waits for) of all erasures then."""
        self.now_ms = now_ms
        tools = Tools(
            lake=self.lake, engine=InProcess(1), clock=self.clock, grace_ms=GRACE_MS, upload_ms=UPLOAD_MS
        )  # fmt: skip
        carry_on_erasures(tools)
        return [(erasure.step, erasure.waits_for) for erasure in Erasures(self.lake.metastore).all()]

    def undeleted(self, *digests: str) -> list[KeyRecord]:
        return undeleted_keys(KeySearch(self.lake, InProcess()), "users", digests)

    def search(self, *needles: bytes) -> list[str]:
        """Names of files that hold one of them, as they are or in what is compressed there. Knows no format of the lake's."""
        files = [path for path in (self._root / "objects").rglob("*") if path.is_file()]
        return sorted(path.name for path in files if any(map(holds(path.read_bytes()), needles)))


def holds(content: bytes) -> Callable[[bytes], bool]:
    pieces = [content, *unpacked(content)]
    return lambda needle: any(needle in piece for piece in pieces)


def unpacked(content: bytes) -> Iterator[bytes]:
    start = content.find(ZSTD_FRAME)
    while start >= 0:
        yield zstandard.ZstdDecompressor().decompressobj().decompress(content[start:])
        start = content.find(ZSTD_FRAME, start + 1)


@pytest.fixture
def town(lake: Lake, tmp_path: Path) -> Town:
    return Town(lake, tmp_path)


@pytest.mark.parametrize("codec", ["", "/zstd"])
def test_after_its_deadline_no_byte_of_the_store_tells_of_the_key(lake: Lake, tmp_path: Path, codec: str) -> None:
    """The value goes first, the tombstone when it has had its time; others keep what they have."""
    town = Town(lake, tmp_path, codec)
    others = list(records(lake, ORDERS)), {key: entry.value for key, entry in table(lake, USERS).items()}
    town.ingest(orders="N[o3]", users="T[alice]")
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
    assert [step for step, _ in town.carry_on(2000)] == [KEY_REMOVED]
    assert town.search(b"alice") != []
    assert town.carry_on(2000 + GRACE_MS + 1) == [(ERASED, "")]
    assert town.search(b"alice", b"v20") == []
    assert len(town.search(b"person7")) == len(town.search(b"o1")) == 1
    others[1].pop(b"alice")
    assert {key: entry.value for key, entry in table(lake, USERS).items()} == others[1]
    assert list(records(lake, ORDERS))[:2] == others[0]
    assert lake.metastore.check() == []


def test_an_object_that_somebody_else_works_on_keeps_the_step_from_being_done(town: Town) -> None:
    """The other topic's partition, which shares the object that holds the value, cannot be moved out of it now."""

    def lease(topic_partition: TopicPartition) -> AbstractContextManager[object]:
        if topic_partition == ORDERS:
            raise CommitRefused("w2 works on it")
        return nullcontext()

    town.ingest(orders="N[o3]", users="T[alice]")
    town.request(b"alice")
    tools = Tools(
        lake=town.lake, engine=InProcess(1), clock=town.clock, grace_ms=GRACE_MS, upload_ms=UPLOAD_MS, working_on=lease
    )  # fmt: skip
    carry_on_erasures(tools, ["users"])
    (erasure,) = Erasures(town.lake.metastore).all()
    assert (erasure.step, "orders-0: w2 works on it" in erasure.waits_for) == (REQUESTED, True)
    carry_on_erasures(replace(tools, working_on=nullcontext), ["users"])
    assert [erasure.step for erasure in Erasures(town.lake.metastore).all()] == [VALUES_REMOVED]


STEPS: dict[str, Callable[[Town], object]] = {
    "dead records": lambda town: level_partition(town.lake, USERS, clock=town.clock, purge=True),
    "evacuation": lambda town: evacuate_idle(town.lake, ["users"], clock=town.clock),
    "collection": lambda town: collect(
        town.lake, garbage(town.lake, now_ms=town.now_ms + 1, grace_ms=0, upload_ms=UPLOAD_MS)
    ),
}


@pytest.mark.parametrize("left_out", ["", *STEPS])
def test_with_one_step_left_out_the_bytes_are_still_there(town: Town, left_out: str) -> None:
    town.ingest(orders="N[o3]", users="T[alice]")
    for town.now_ms in (20, 2000):
        town.compact()
        for name, step in STEPS.items():
            if name != left_out:
                step(town)
    assert bool(town.search(b"alice")) == bool(left_out)


def test_a_key_that_is_not_deleted_waits_for_that(town: Town) -> None:
    """Its deadline runs all the same; when the deletion has come, workers go on."""
    (digest,) = town.request(b"alice")
    (waiting,) = town.carry_on(20)
    assert waiting == (REQUESTED, "a value in users-0 at offset 20: delete it in Kafka first, ingest, run again")
    assert [(found.partition, found.offset) for found in town.undeleted(digest)] == [(USERS, 20)]
    town.ingest(users="T[alice]")
    assert [step for step, _ in town.carry_on(20 + 600_000)] == [VALUES_REMOVED]
    assert town.undeleted(digest) == []


def test_a_key_that_the_log_never_had_is_gone_when_the_objects_of_its_past_are(town: Town) -> None:
    town.request(b"nobody")
    assert [step for step, _ in town.carry_on(20)] == [NEVER_SEEN]


class Overtaken(KeySearch):
    """Something happens between its first answer and what is made of that."""

    def __init__(self, town: Town, meanwhile: Callable[[], object]) -> None:
        super().__init__(town.lake, InProcess(1))
        self._meanwhile: list[Callable[[], object]] = [meanwhile]

    def records(self, topic: str, digests: Collection[str]) -> list[KeyRecord]:
        answer = super().records(topic, digests)
        while self._meanwhile:
            self._meanwhile.pop()()
        return answer


@pytest.mark.parametrize("key", [b"person3", b"nobody"])
def test_a_key_that_is_asked_for_during_a_search_was_not_looked_for(
    metastore_url: str, tmp_path: Path, key: bytes
) -> None:
    """Nor one that the search was for because of another request, which somebody else has brought to its end."""
    lake = create_lake(metastore_url, f"file://{tmp_path / 'objects'}", now_ms=0)
    town = Town(lake, tmp_path)
    town.request(b"nobody")

    def ask() -> None:
        town.carry_on(6)
        town.ingest(users="N[nobody]")
        town.request(key)

    tools = Tools(lake=lake, engine=InProcess(1), clock=town.clock, grace_ms=GRACE_MS, upload_ms=UPLOAD_MS)
    carry_on_erasures(replace(tools, search=Overtaken(town, ask)))
    digest = digest_of(key, lake.metastore.hash_key)
    (asked,) = (erasure for erasure in Erasures(lake.metastore).all() if erasure.key_digest == digest)
    assert (asked.step, asked.waits_for) == (REQUESTED, "")
    (waits_for,) = (waits_for for step, waits_for in town.carry_on(7) if step not in CLOSED)
    assert waits_for.startswith("a value in users-0")
    lake.close()


def test_a_key_that_comes_again_and_is_asked_for_again_during_the_last_search_is_not_erased(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever has looked up what is to be erased before."""
    monkeypatch.setattr("headstone.lake.transfer.ingest.with_remembered", lambda lake, appends: appends)
    town.ingest(users="T[alice]")
    town.request(b"alice")
    for now_ms in (20, 200, 2000):
        town.carry_on(now_ms)
    town.now_ms = 2000 + GRACE_MS + 1

    def ask() -> None:
        town.ingest(users="N[alice]")
        town.now_ms += 1
        town.request(b"alice")

    tools = Tools(lake=town.lake, engine=InProcess(1), clock=town.clock, grace_ms=GRACE_MS, upload_ms=UPLOAD_MS)
    carry_on_erasures(replace(tools, search=Overtaken(town, ask)))
    assert [erasure.step for erasure in Erasures(town.lake.metastore).all()] == [KEY_REMOVED]
    assert [step for step, _ in town.carry_on(town.now_ms + 1)] == [REQUESTED]


def test_several_keys_are_erased_together_and_told_apart(town: Town) -> None:
    town.ingest(users="T[alice] T[person3]")
    digests = town.request(b"alice", b"person3", b"person4")
    assert [erasure.key_digest for erasure in Erasures(town.lake.metastore).all()] == sorted(digests)
    live = digest_of(b"person4", town.lake.metastore.hash_key)
    states = dict(zip(digests, town.carry_on(20), strict=True))
    assert [states.pop(live)[0], *(step for step, _ in states.values())] == [REQUESTED, VALUES_REMOVED, VALUES_REMOVED]


def test_a_key_that_comes_again_is_not_erased(town: Town) -> None:
    """Just before the last step: it begins anew, and waits for the deletion of what has come."""
    town.ingest(users="T[alice]")
    town.request(b"alice")
    for now_ms in (20, 200, 2000):
        steps = town.carry_on(now_ms)
    assert [step for step, _ in steps] == [KEY_REMOVED]
    town.ingest(users="N[alice]")
    assert [step for step, _ in town.carry_on(2000 + GRACE_MS + 1)] == [REQUESTED]
    town.ingest(users="T[alice]")
    for now_ms in (10**6, 2 * 10**6, 3 * 10**6, 4 * 10**6):
        steps = town.carry_on(now_ms)
    assert (steps, town.search(b"alice")) == ([(ERASED, "")], [])


@pytest.mark.parametrize("folded", [False, True])
def test_erasures_come_back_with_a_rebuilt_metastore_and_begin_again(town: Town, tmp_path: Path, folded: bool) -> None:
    """What left the log is in objects whose age nobody knows any more: none of it counts as gone before it is."""
    town.ingest(users="T[alice] T[person3]")
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
    assert sorted(step for step, _ in town.carry_on(town.now_ms + GRACE_MS)) == [
        NEVER_SEEN,
        VALUES_REMOVED,
        VALUES_REMOVED,
    ]
    assert town.search(b"v20") != []
    for now_ms in (1000, 3000, 5000):
        steps = town.carry_on(now_ms)
    ended = [(ERASED, ""), (ERASED, ""), (NEVER_SEEN, "")]
    assert (sorted(steps), town.search(b"alice", b"v20", b"person3")) == (ended, [])


def test_an_upload_that_ends_after_it_was_given_up_is_waited_for(town: Town) -> None:
    """Nobody knows it, but it holds what it has read before: it goes in its own time, and only then the key is erased."""
    store = town.lake.store
    (late,) = (store.read(path, 0, store.size(path)) for path in store.list("objects"))
    town.ingest(users="T[alice]")
    town.request(b"alice")
    for now_ms in (20, 200, 2000):
        steps = town.carry_on(now_ms)
    assert [step for step, _ in steps] == [KEY_REMOVED]
    store.put(object_path(LATE), late)
    town.lake.metastore.give_clock(2101)
    assert [step for step, _ in town.carry_on(2101)] == [KEY_REMOVED]
    assert town.search(b"alice") == [LATE]
    town.lake.metastore.give_clock(3000)
    assert ([step for step, _ in town.carry_on(3000)], town.search(b"alice")) == ([ERASED], [])


@pytest.mark.parametrize("kept", ["a reader's pin", "nothing"])
def test_what_a_reader_has_pinned_is_gone_when_the_pin_is(town: Town, kept: str) -> None:
    town.ingest(users="T[alice]")
    town.request(b"alice")
    if kept != "nothing":
        Pins(town.lake.metastore).pin("query", for_ms=5000, now_ms=6)
    town.carry_on(20)
    assert [step for step, _ in town.carry_on(200)] == [VALUES_GONE if kept == "nothing" else VALUES_REMOVED]
    for now_ms in (6000, 6500):
        steps = town.carry_on(10**6 + now_ms)
    assert [step for step, _ in steps] == [ERASED]


def test_rows_of_erasures_are_changed_by_compare_and_set(metastore: Metastore) -> None:
    """On both databases: of two who take the same step one does it; what is done begins anew."""
    erasures = Erasures(metastore)
    erasures.request("t", ["aa", "bb"], deadline_ms=100, now_ms=5)
    first, second = erasures.open_of("t")
    assert erasures.open_topics(now_ms=5) == ["t"]
    assert [erasures.advance([(first, VALUES_REMOVED)], now_ms=7) for _ in range(2)] == [1, 0]
    erasures.wait([second], "something", until_ms=50)
    erasures.wait([first], "what was before", until_ms=90)
    assert [(row.step, row.step_ms, row.not_before_ms, row.waits_for) for row in erasures.all()] == [
        (VALUES_REMOVED, 7, 0, ""),
        (REQUESTED, 5, 50, "something"),
    ]
    assert erasures.advance([(erasures.all()[0], ERASED)], now_ms=9) == 1
    assert ([row.key_digest for row in erasures.open_of("t")], erasures.open_topics(now_ms=49)) == (["bb"], [])
    assert erasures.open_topics(now_ms=50) == ["t"]
    erasures.request("t", ["aa", "bb"], deadline_ms=80, now_ms=60)
    assert [(row.step, row.requested_ms, row.deadline_ms) for row in erasures.all()] == [
        (REQUESTED, 60, 80),
        (REQUESTED, 60, 80),
    ]
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


def test_asking_again_keeps_the_earlier_deadline_and_what_was_done(town: Town) -> None:
    town.ingest(users="T[alice]")
    town.request(b"alice", deadline_ms=9000)
    town.carry_on(20)
    for deadline_ms in (20_000, 8000):
        town.request(b"alice", deadline_ms=deadline_ms)
    (erasure,) = Erasures(town.lake.metastore).all()
    assert (erasure.step, erasure.requested_ms, erasure.deadline_ms) == (VALUES_REMOVED, 20, 8000)


def test_a_reader_that_holds_the_tombstone_holds_the_erasure(town: Town) -> None:
    town.ingest(users="T[alice]")
    town.request(b"alice")
    Holds(town.lake.metastore).hold("warehouse", USERS, 0, expires_ms=10**9)
    for now_ms in (20, 200):
        town.carry_on(now_ms)
    waits_for = "the tombstone, which a reader holds or which has dirty data below it"
    assert town.carry_on(2000) == [(VALUES_GONE, waits_for)]
    Holds(town.lake.metastore).release("warehouse")
    town.carry_on(2000 + 600_000)
    assert town.carry_on(2000 + 700_000) == [(ERASED, "")]


def test_a_tombstone_is_written_where_the_key_is_and_ingest_knows(lake: Lake, tmp_path: Path) -> None:
    """Offsets of the lake's own are not Kafka's: what Kafka has at them would be lost without a word."""
    town = Town(lake, tmp_path)
    next_offset = lake.metastore.partition(USERS).next_offset
    town.request(b"alice", b"nobody", write=True)
    written = list(records(lake, USERS, offset_start=next_offset))
    assert [(entry.offset, entry.key, entry.value) for entry in written] == [(next_offset, b"alice", None)]
    with pytest.raises(UsageError, match="offsets are no longer those of any Kafka topic"):
        town.ingest(users="N[bob]")
    assert b"alice" not in table(lake, USERS)
    town.request(b"alice", write=True)
    assert lake.metastore.partition(USERS).next_offset == next_offset + 1
    for now_ms in (20, 200, 2000, 2200):
        town.carry_on(now_ms)
    assert town.search(b"alice") == []


def test_keys_of_a_topic_that_is_not_compacted_are_not_erased(town: Town) -> None:
    town.lake.metastore.configure("users", {"cleanup.policy": "delete"})
    with pytest.raises(UsageError, match="the records of a key stay until retention deletes them"):
        town.request(b"alice")
    with pytest.raises(UsageError, match="no topic nosuch"):
        request_erasure(town.lake, "nosuch", [b"a"], deadline_ms=1, clock=town.clock)
    assert Erasures(town.lake.metastore).all() == []


def test_the_earliest_end_counts_the_tombstone() -> None:
    settings = {"delete.retention.ms": 1000, "min.compaction.lag.ms": 50}
    assert earliest_end_ms(settings, now_ms=7, grace_ms=100) == 7 + 50 + 1000 + 200


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert main(["lake", *arguments, "--output", "json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_command_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked for, waiting for Kafka, waiting for its time, done; `status` tells of it, and never the key."""
    history, where, logs = History(), str(tmp_path / "lake"), str(tmp_path / "logs")
    history.append("N[alice] N[bob] |")
    history.write_partition(tmp_path / "logs", "users-0")
    told(capsys, "init", where, "--now-ms", "1000")
    conf = ("--topic-conf", "users:delete.retention.ms=500")
    told(capsys, "ingest", where, logs, *conf, "--now-ms", "1000")
    (tmp_path / "keys").write_text(f'alice\n{{"hex": "{b"bob".hex()}"}}\n')
    erase = ("erase", where, "users", "--deadline", "1h", "--grace-ms", "10", "--upload-ms", "10")
    asked = told(capsys, *erase, "--keys-file", str(tmp_path / "keys"), code=1)["erasures"]
    assert [(one["step"], one["deadline_ms"]) for one in asked] == [(REQUESTED, 3_601_000)] * 2
    history.append("T[alice] T[bob] |")
    history.write_partition(tmp_path / "logs", "users-0")
    told(capsys, "ingest", where, logs)
    for now_ms, code in ((1000, 3), (1100, 3), (2000, 3), (2100, 0)):
        done = told(capsys, *erase, "--key", "alice", "--key-hex", b"bob".hex(), "--now-ms", str(now_ms), code=code)
    assert [one["step"] for one in done["erasures"]] == [ERASED, ERASED]
    assert told(capsys, "status", where)["erasures"] == done["erasures"]
    assert main(["lake", "status", where]) == 0
    said = capsys.readouterr().out
    assert ("alice" in said, said.count(": erased at 1970-01-01 00:00:02 UTC (2100)")) == (False, 2)
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


def test_a_topic_of_the_lakes_own_gets_its_tombstones_unasked(town: Town, tmp_path: Path) -> None:
    make_lakes_own(town.lake, "users")
    where = f"sqlite:///{tmp_path / 'lake.db'}"
    assert main(["lake", "erase", where, "users", "--key", "alice", "--now-ms", "20"]) == 3
    assert b"alice" not in table(town.lake, USERS)
    assert main(["lake", "erase", where, "orders", "--key", "o1", "--now-ms", "20"]) == 1
    assert b"o1" in table(town.lake, ORDERS)
