"""Erasure: after a purge and a collection no object holds what nobody is shown, and a proof that reads them all says so."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headstone.errors import CorruptLog
from headstone.lake.format.objects import object_path, read_extent, writing_object
from headstone.lake.format.spans import Span
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.keeping import leased
from headstone.lake.jobs.proof import Sighting, prove_erased
from headstone.lake.jobs.purging import aged_behind, evacuate_idle, objects_to_leave, purge_aged
from headstone.lake.jobs.turns import Turn
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Append
from headstone.lake.topics import drop_topic
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from tests.lake.damage import flip
from tests.lake.scene import AT, Scene
from tests.lake.single import level_partition
from tests.lake.town import ORDERS, PEOPLE, USERS, Town, collect_all
from tests.oracle.notation import parse_term

CALM = TopicPartition("calm", 0)


@pytest.fixture
def town(lake: Lake, tmp_path: Path) -> Town:
    return Town(lake, tmp_path)


def shared(lake: Lake, root: Path, codec: str = "") -> Town:
    """Two topics whose first extents lie in one object; in a second one, a key of `users` is deleted."""
    town = Town(lake, root, codec=codec)
    town.grow(orders="N[o1] N[o2]", users="N[alice] N[bob]")
    town.grow(orders="N[o3]", users="T[alice]")
    return town


@pytest.fixture
def compacted(lake: Lake, tmp_path: Path) -> Town:
    """Of `users`, by which an object that `orders` is in holds what is over."""
    town = shared(lake, tmp_path)
    town.compact(USERS, now_ms=10, dead_share_max=0)
    return town


@pytest.mark.parametrize("codec", ["", "/zstd"])
def test_what_is_purged_is_in_no_object_though_others_shared_it(lake: Lake, tmp_path: Path, codec: str) -> None:
    town = shared(lake, tmp_path, codec)
    (before,) = values_of(lake, "users", b"alice")
    others = town.held(ORDERS)
    town.compact(USERS, now_ms=10, dead_share_max=0)
    level_partition(lake, USERS, clock=lambda: 20, purge=True)
    town.collect()
    assert [one.state for one in values_of(lake, "users", b"alice")] == ["unreferenced"]
    done = evacuate_idle(lake, ["users"], clock=lambda: 30)
    assert (done.objects, done.extents, town.collect()) == ((before.object_id,), 1, [before.object_id])
    proof = prove_erased(lake, "users", b"alice")
    assert (proof.verdict, [(one.offset, one.tombstone, one.state) for one in proof.sightings]) == (
        "erased", [(2, True, "live")],
    )  # fmt: skip
    stored = {path.name for path in (tmp_path / "objects" / "objects").rglob("*-*")}
    assert {one.object_id for one in proof.searched} == stored
    assert (town.held(ORDERS), lake.metastore.check(), objects_to_leave(lake, ["users"])) == (others, [], set())
    assert town.search(b"alice") == [one.object_id for one in proof.sightings]


def values_of(lake: Lake, topic: str, key: bytes) -> list[Sighting]:
    """Not of its deletions."""
    return [one for one in prove_erased(lake, topic, key).sightings if not one.tombstone]


def test_an_object_that_holds_only_what_is_in_use_stays(lake: Lake, tmp_path: Path) -> None:
    """Of another topic nothing moves either, unless it is asked for."""
    town = shared(lake, tmp_path)
    assert objects_to_leave(lake, ["orders", "users"]) == set()
    town.compact(USERS, now_ms=10, dead_share_max=0)
    assert objects_to_leave(lake, ["orders"]) == set()
    assert len(objects_to_leave(lake, ["users"])) == 1


@pytest.mark.parametrize("seed", range(3))
def test_the_metastore_explains_objects_without_their_indexes(lake: Lake, town: Town, seed: int) -> None:
    """Of shared objects that were compacted, marked, leveled and partly collected: the answer of their indexes, unread."""
    chance, left = random.Random(seed), set[str]()

    def drawn(step: int) -> str:
        return " ".join(f"{chance.choice('NNT')}[{chance.choice('abcdefgh')}{step % 3}]" for _ in range(12))

    for step in range(8):
        town.grow(orders=drawn(step), users=drawn(step))
        at, now_ms = chance.choice([ORDERS, USERS]), 10 * (step + 1)
        town.compact(at, now_ms=now_ms, dead_share_max=chance.choice([0.0, 0.6, 1.0]))
        if step % 3 == 2:
            level_partition(lake, at, clock=partial(int, now_ms), purge=chance.random() < 0.5)
            collect(lake, garbage(lake, now_ms=now_ms, grace_ms=15))
        for topics in (["orders"], ["users"], ["orders", "users"]):
            reads = lake.store.traffic.reads
            by_rows = objects_to_leave(lake, topics, indexes=False)
            assert lake.store.traffic.reads == reads
            assert by_rows == objects_to_leave(lake, topics)
            left |= by_rows
    assert left != set()


def test_an_object_that_holds_a_dropped_topic_is_asked_itself(lake: Lake, tmp_path: Path) -> None:
    """The rows of the topic are gone, and its batches are not: whoever believed the rows would leave them for ever."""
    shared(lake, tmp_path)
    drop_topic(lake, "users", now_ms=lambda: 20)
    assert objects_to_leave(lake, ["users"], indexes=False) == objects_to_leave(lake, ["users"]) != set()


def test_an_empty_range_hides_nothing_that_begins_where_it_does(scene: Scene) -> None:
    """Both begin at one place of the object; the log is made of the empty one alone."""
    scene.write("N[a]", "N[b]")
    lake, (extent,) = scene.lake, scene.lake.metastore.partition(AT).extents
    (object_id,) = lake.metastore.register(1, now_ms=5)
    with writing_object(lake.store, object_id, lake.metastore.lake_id) as writer:
        for span, batches in ((Span(2, 3), []), (Span(3, 5), [read_extent(lake.store, extent)])):
            writer.add("t", 0, span, batches, records=2 * len(batches), max_timestamp_ms=9)
    empty, full = (listed.extent for listed in writer.ranges)
    assert empty.position == full.position
    append = Append(expected_next=2, extents=(empty,))
    lake.metastore.append({AT: append}, {object_id: writer.size}, now_ms=lambda: 6)
    assert objects_to_leave(lake, ["t"]) == objects_to_leave(lake, ["t"], indexes=False) == {object_id}


@pytest.mark.usefixtures("compacted")
def test_evacuation_moves_an_extent_as_it_is(lake: Lake) -> None:
    """Span, records, timestamps and keys; its epoch and its clean ranges are those of its log."""
    before = lake.metastore.partition(ORDERS)
    evacuate_idle(lake, ["users"], clock=lambda: 30)
    after = lake.metastore.partition(ORDERS)
    elsewhere = [
        replace(old, object_id=new.object_id, position=new.position)
        for old, new in zip(before.extents, after.extents, strict=True)
    ]
    assert (after, elsewhere != list(before.extents)) == (replace(before, extents=tuple(elsewhere)), True)


def test_evacuation_that_was_overtaken_changes_nothing(
    lake: Lake, compacted: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = lake.metastore.register

    def overtaken(count: int, *, now_ms: int) -> list[str]:
        monkeypatch.undo()
        compacted.compact(ORDERS, now_ms=20, dead_share_max=0)
        return register(count, now_ms=now_ms)

    monkeypatch.setattr(lake.metastore, "register", overtaken)
    (refusal,) = evacuate_idle(lake, ["users"], clock=lambda: 30).busy
    assert refusal.startswith("orders-0: ")
    assert (len(compacted.held(ORDERS)), lake.metastore.check()) == (3, [])
    evacuate_idle(lake, ["users"], clock=lambda: 40)
    compacted.collect()
    assert (prove_erased(lake, "users", b"alice").verdict, len(compacted.held(ORDERS))) == ("erased", 3)


def test_an_extent_whose_dead_are_listed_where_it_must_leave_is_written_again(scene: Scene) -> None:
    """One job rewrites an extent and marks another, into one object; then the first is rewritten once more."""
    for number in range(3):
        scene.write(*(f"N[k{number}x{i}]" for i in range(10)))
    scene.compact(now_ms=10)
    scene.write(*(f"N[k0x{i}]" for i in range(5)), "N[k1x0]")
    assert scene.compact(now_ms=20).extents_marked == 1
    marked = scene.lake.metastore.partition(AT).extents[1]
    assert marked.dead_object == scene.lake.metastore.partition(AT).extents[0].object_id
    scene.write(*(f"N[k0x{i}]" for i in range(5, 10)))
    scene.compact(now_ms=30)
    before = scene.held()
    assert marked.dead_object in evacuate_idle(scene.lake, ["t"], clock=lambda: 40).objects
    assert marked.dead_object in collect_all(scene.lake)
    assert (scene.held(), scene.lake.metastore.check()) == (before, [])


def test_records_that_are_dead_for_too_long_leave_the_store(lake: Lake, town: Town) -> None:
    """By the topic's setting, or by what the caller says of topics without one; others keep what they have."""
    town.grow(orders="N[o1] N[o2]", users=PEOPLE)
    mark(town, USERS)
    before = town.held(USERS), town.held(ORDERS)
    assert purge_aged(lake, clock=lambda: 10**9).extents == 0
    assert purge_aged(lake, clock=lambda: 119, age_ms_max=100).extents == 0
    assert purge_aged(lake, clock=lambda: 10**9, age_ms_max=100, topics=["orders"]).extents == 0
    lake.metastore.configure("users", {"headstone.dead.age.max.ms": "-1"})
    assert purge_aged(lake, clock=lambda: 10**9, age_ms_max=100).extents == 0
    lake.metastore.configure("users", {"headstone.dead.age.max.ms": "100"})
    assert town.search(b"v3") != []
    assert purge_aged(lake, clock=lambda: 120).extents == 2
    town.collect()
    assert town.search(b"v3") == []
    assert ((town.held(USERS), town.held(ORDERS)), lake.metastore.check()) == (before, [])
    assert purge_aged(lake, clock=lambda: 10**9).extents == 0


def mark(town: Town, *names: TopicPartition) -> None:
    """person3 comes again in each of these clean logs: its first record is dead since 20."""
    town.compact(*names, now_ms=10)
    town.grow(**{name.topic: "N[person3]" for name in names})
    assert [done.extents_marked for done in town.compact(*names, now_ms=20)] == [1] * len(names)


def aged(town: Town) -> dict[TopicPartition, list[Any]]:
    """Two topics, each with a record that is dead since 20, and one without, all in the same object; what they hold."""
    town.grow(orders=PEOPLE, users=PEOPLE, calm="N[x]")
    mark(town, ORDERS, USERS)
    return held(town)


def held(town: Town) -> dict[TopicPartition, list[Any]]:
    return {name: town.held(name) for name in (ORDERS, USERS, CALM)}


def dead(lake: Lake) -> dict[TopicPartition, int]:
    return {name: sum(extent.dead for extent in lake.metastore.partition(name).extents) for name in (ORDERS, USERS)}


def test_a_busy_partition_keeps_none_behind_it_from_being_purged(lake: Lake, town: Town) -> None:
    before = aged(town)
    with leased(lake, ORDERS, "somebody"):
        purged = purge_aged(
            lake, clock=lambda: 120, age_ms_max=100, worker="me", working_on=partial(leased, lake, worker="me")
        )
    assert (dead(lake), purged.complete) == ({ORDERS: 1, USERS: 0}, False)
    assert {text.split(";")[0] for text in purged.busy} == {"orders-0: somebody works on it"}
    assert purge_aged(lake, clock=lambda: 120, age_ms_max=100).complete
    assert (dead(lake), held(town)) == ({ORDERS: 0, USERS: 0}, before)


def test_purging_in_several_turns_leaves_what_one_leaves(any_lake: Lake, tmp_path: Path) -> None:
    """A byte per turn: an extent each, and each by somebody who knows of no other. Objects are evacuated at last."""
    lake, town, turns = any_lake, Town(any_lake, tmp_path), list[int]()
    before = aged(town)
    while True:
        purged = purge_aged(lake, clock=lambda: 120, age_ms_max=100, turn=Turn(bytes_left=1))
        turns.append(purged.extents)
        if purged.complete:
            break
    assert turns == [1, 1, 1]
    town.collect()
    assert (town.search(b"v3"), held(town), lake.metastore.check()) == ([], before, [])


def test_objects_are_evacuated_for_the_age_of_what_is_left_behind_and_for_nothing_else(lake: Lake, town: Town) -> None:
    """Of a topic whose time has come; not because extents were marked, which lie where they lay."""
    before = aged(town)
    for name in (ORDERS, USERS):
        purge_aged(lake, clock=lambda: 120, age_ms_max=100, topics=[name.topic], turn=Turn(bytes_left=1))
    lake.metastore.configure("users", {"headstone.dead.age.max.ms": "-1"})
    assert purge_aged(lake, clock=lambda: 119, age_ms_max=100).extents == 0
    assert purge_aged(lake, clock=lambda: 120, topics=["users"], age_ms_max=100).extents == 0
    assert purge_aged(lake, clock=lambda: 120, age_ms_max=100).extents == 1
    assert purge_aged(lake, clock=lambda: 120, age_ms_max=100).objects == ()
    assert held(town) == before


def test_an_extent_that_is_marked_again_has_left_nothing_behind(scene: Scene) -> None:
    scene.write(*(f"N[k{i}]" for i in range(20)))
    for i, now_ms in enumerate((10, 20, 30)):
        scene.compact(now_ms=now_ms)
        scene.write(f"N[k{i}]", now_ms=now_ms)
    first = scene.lake.metastore.partition(AT).extents[0]
    assert (first.dead, first.dead_since_ms) == (2, 20)
    assert aged_behind(scene.lake.metastore, 10**9, {"t": 0}) == []
    purge_aged(scene.lake, clock=lambda: 40, age_ms_max=0)
    assert aged_behind(scene.lake.metastore, 10**9, {"t": 0}) == []


def test_a_damaged_index_may_hide_anything(scene: Scene) -> None:
    """Its extents move, since they can be read; as long as it is there nothing is proven."""
    scene.write("N[a]", "N[b]")
    (extent,) = scene.lake.metastore.partition(AT).extents
    flip(scene.lake, extent.object_id, -20)
    proof = prove_erased(scene.lake, "t", b"nobody")
    assert (proof.verdict, [one.path for one in proof.unread]) == ("unproven", [object_path(extent.object_id)])
    assert evacuate_idle(scene.lake, ["t"], clock=lambda: 30).objects == (extent.object_id,)
    collect_all(scene.lake)
    assert (prove_erased(scene.lake, "t", b"nobody").verdict, len(scene.held())) == ("never seen here", 2)


def test_what_lies_below_the_log_start_is_purged(scene: Scene) -> None:
    scene.write("N[a,b]", "N[c]")
    scene.lake.metastore.start_at(AT, 1, now_ms=5)
    assert [one.state for one in prove_erased(scene.lake, "t", b"a").sightings] == ["live"]
    assert level_partition(scene.lake, AT, clock=lambda: 6, extent_bytes=1, purge=True).extents_purged == 1
    collect_all(scene.lake)
    offsets = [offset for offset, _, _ in scene.held()]
    assert (prove_erased(scene.lake, "t", b"a").verdict, offsets) == ("never seen here", [1, 2])
    (extent,) = scene.lake.metastore.partition(AT).extents
    assert (extent.records, extent.keys, scene.lake.metastore.check()) == (2, 2, [])
    assert level_partition(scene.lake, AT, clock=lambda: 6, extent_bytes=1, purge=True).extents_purged == 0


def test_a_proof_tells_where_a_value_is(scene: Scene) -> None:
    """In the log, dead, and in an object that is no part of it any more; other topics' keys are not this one's."""
    scene.write("N[a]", *(f"N[k{i}]" for i in range(9)))
    live = prove_erased(scene.lake, "t", b"a")
    assert (live.verdict, [(one.offset, one.state) for one in live.sightings]) == ("not erased", [(0, "live")])
    scene.compact(now_ms=5)
    scene.write("T[a]")
    assert scene.compact(now_ms=10).extents_marked == 1
    assert [(one.offset, one.state) for one in values_of(scene.lake, "t", b"a")] == [(0, "dead")]
    level_partition(scene.lake, AT, clock=lambda: 20, extent_bytes=1, purge=True)
    assert [(one.offset, one.state) for one in values_of(scene.lake, "t", b"a")] == [(0, "unreferenced")]
    gone = prove_erased(scene.lake, "t", b"a")
    assert sum(one.digests for one in gone.searched) == len(gone.sightings) == 2
    collect_all(scene.lake)
    assert prove_erased(scene.lake, "t", b"a").verdict == "erased"
    assert prove_erased(scene.lake, "t", b"").verdict == "never seen here"


@pytest.mark.parametrize("value", [b"", b"1"])
def test_a_short_value_is_a_value(scene: Scene, value: bytes) -> None:
    batch = scene.history.make_batch(parse_term("N[a]"))
    scene.history.append_batch(replace(batch, records=(replace(batch.records[0], value=value),)))
    scene.write("T[b]")
    found = [prove_erased(scene.lake, "t", key) for key in (b"a", b"b", b"")]
    assert [proof.verdict for proof in found] == ["not erased", "erased", "never seen here"]
    assert [len(proof.sightings) for proof in found] == [1, 1, 0]


def test_bytes_that_an_index_does_not_tell_about_prove_nothing(scene: Scene) -> None:
    """An object with a range that its index has lost."""
    scene.write("N[a]", "N[b]")
    lake, (extent,) = scene.lake, scene.lake.metastore.partition(AT).extents
    (object_id,) = lake.metastore.register(1, now_ms=5)
    with writing_object(lake.store, object_id, lake.metastore.lake_id) as writer:
        for number in range(2):
            writer.add("t", number, extent.span, [read_extent(lake.store, extent)], records=2, max_timestamp_ms=9)
        writer.ranges.pop()
    proof = prove_erased(lake, "t", b"nobody")
    assert (proof.verdict, [one.path for one in proof.unread]) == ("unproven", [object_path(object_id)])
    assert "are not in its index" in proof.unread[0].why


@pytest.mark.parametrize("name", ["strange", "objects/ab/ab-strange", "objects/ab/abc#1"])
def test_what_can_not_be_read_proves_nothing(scene: Scene, tmp_path: Path, name: str) -> None:
    """An upload that was killed, or something that is no object of a lake."""
    scene.write("N[a]")
    path = tmp_path / "objects" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"HEADST\x00\x03 and the value of somebody")
    proof = prove_erased(scene.lake, "t", b"nobody")
    assert (proof.verdict, [one.path for one in proof.unread]) == ("unproven", [name])


def test_an_object_that_comes_while_others_are_read_is_searched(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that is made just before its original is deleted."""
    scene.write("N[a]", "N[b]")
    store, (extent,) = scene.lake.store, scene.lake.metastore.partition(AT).extents
    listed = store.list

    def moved(prefix: str = "") -> list[str]:
        monkeypatch.undo()
        paths = listed(prefix)
        scene.lake.metastore.start_at(AT, 1, now_ms=5)
        level_partition(scene.lake, AT, clock=lambda: 6, extent_bytes=1, purge=True)
        collect_all(scene.lake)
        return paths

    monkeypatch.setattr(store, "list", moved)
    proof = prove_erased(scene.lake, "t", b"b")
    assert (proof.verdict, [one.object_id == extent.object_id for one in proof.sightings]) == ("not erased", [False])


def test_many_partitions_are_purged_in_one_job_and_one_that_fails_stops_no_other(lake: Lake, town: Town) -> None:
    """What it met is raised when the others had their turn, whichever job they are in."""
    aged(town)
    (extent,) = [extent for extent in lake.metastore.partition(ORDERS).extents if extent.dead]
    sizes: list[int] = []

    class Watched(InProcess):
        def as_they_end(self, body: Any, tasks: Any, *given: Any, **options: Any) -> Iterator[tuple[int, Any]]:
            sizes.append(len(tasks))
            return super().as_they_end(body, tasks, *given, **options)

    flip(lake, extent.object_id, extent.position + 30)
    with pytest.raises(CorruptLog):
        purge_aged(lake, clock=lambda: 120, age_ms_max=100, engine=Watched(1))
    assert (sizes, dead(lake)) == ([2, 2], {ORDERS: 1, USERS: 0})  # what is aged leaves the log, then its objects


def test_a_damaged_partition_keeps_no_object_from_being_left(any_lake: Lake, tmp_path: Path) -> None:
    """Of other topics what is dead for too long goes from objects too, those included that others share."""
    lake, town, name = any_lake, Town(any_lake, tmp_path), TopicPartition("broken", 0)
    town.grow(orders="N[o1] N[o2]", users=PEOPLE)
    town.grow(broken=PEOPLE)
    mark(town, USERS, name)
    (extent,) = [extent for extent in lake.metastore.partition(name).extents if extent.dead]
    flip(lake, extent.object_id, extent.position + 30)
    with pytest.raises(CorruptLog):
        purge_aged(lake, clock=lambda: 120, age_ms_max=100)
    assert aged_behind(lake.metastore, 120, {"users": 100}) == []
    town.collect()
    assert town.search(b"v3") == [extent.object_id]


@pytest.mark.usefixtures("compacted")
def test_objects_that_a_damaged_partition_is_in_are_not_told_as_left(lake: Lake) -> None:
    """An erasure would take its step for done."""
    (left,) = objects_to_leave(lake, ["users"])
    (extent,) = [extent for extent in lake.metastore.partition(ORDERS).extents if extent.object_id == left]
    flip(lake, extent.object_id, extent.position + 30)
    with pytest.raises(CorruptLog):
        evacuate_idle(lake, ["users"], clock=lambda: 30)
