"""What a worker does when nothing is due: each in its turn, so much at a time, and one that fails stops no other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headstone.errors import Unfinished
from headstone.lake.format.objects import object_path, write_once
from headstone.lake.format.spans import Span
from headstone.lake.jobs import folding, rewriting
from headstone.lake.jobs.compaction import compact_partition
from headstone.lake.jobs.erasure import Tools, request_erasure
from headstone.lake.jobs.job import JobControl
from headstone.lake.jobs.upkeep import Upkeep
from headstone.lake.jobs.worker import SOFT
from headstone.lake.lake import Lake
from headstone.lake.metastore.erasure_steps import ERASED, KEY_REMOVED, REQUESTED, VALUES_GONE, VALUES_REMOVED
from headstone.lake.metastore.erasures import RETRY_MS, RETRY_MS_MAX, Erasure, Erasures, patience_ms
from headstone.lake.metastore.holds import Holds
from headstone.lake.metastore.journal_names import BASE_PARTS
from headstone.lake.metastore.leases import COMMITTED, LEVELED, Leases
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from headstone.storage.stores import Listed, Store
from tests.lake.appending import log_of, put
from tests.lake.scene import AT, Said, Scene
from tests.lake.single import worker
from tests.oracle.notation import History

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
ORPHAN = "00000000-0000-4000-8000-000000000000"


def upkeep(lake: Lake, moment: list[int], told: list[str] | None = None, **options: int) -> Upkeep:
    tools = Tools(
        lake=lake, engine=InProcess(1), clock=lambda: moment[0], grace_ms=100, upload_ms=100,
        tell=(told if told is not None else []).append,
    )  # fmt: skip
    return Upkeep(tools=tools, gc_every_ms=50, **options)


def test_garbage_goes_now_and_then_and_so_much_at_a_time(scene: Scene) -> None:
    for _ in range(3):
        scene.write("N[a]")
        scene.compact(now_ms=10)
    moment = [20]
    care = upkeep(scene.lake, moment, objects_at_once=1)
    before = len(scene.lake.metastore.objects())
    left = []
    for moment[0] in (20, 200, 201, 249, 250, 300):
        care.look()
        left.append(before - len(scene.lake.metastore.objects()))
    assert left[:5] == [0, 1, 1, 1, 2]
    assert ([key for _, key, _ in scene.held()], scene.lake.metastore.check()) == ([b"a"], [])
    assert Upkeep(tools=care.tools, gc=False).look() == 0


def test_erasures_retention_and_dead_records_have_their_turn(scene: Scene) -> None:
    """Records are of 1000 ms and later."""
    scene.write(*(f"N[k{i}]" for i in range(20)))
    scene.compact(now_ms=1100)
    scene.write("N[k0]")
    scene.compact(now_ms=1200)
    scene.write("T[k1]")
    assert scene.lake.metastore.partition(AT).extents[0].dead == 1
    request_erasure(scene.lake, "t", [b"k1"], deadline_ms=10**6, clock=lambda: 1200)
    assert upkeep(scene.lake, [1300], dead_age_ms_max=100).look(lambda: False) == 0
    assert [erasure.step for erasure in Erasures(scene.lake.metastore).all()] == [REQUESTED]
    assert upkeep(scene.lake, [1300], dead_age_ms_max=100).look() > 0
    assert [erasure.step for erasure in Erasures(scene.lake.metastore).all()] == [VALUES_REMOVED]
    assert sum(extent.dead for extent in scene.lake.metastore.partition(AT).extents) == 0
    scene.lake.metastore.configure("t", {"cleanup.policy": "compact,delete", "retention.ms": "10"})
    upkeep(scene.lake, [2000]).look()
    assert scene.lake.metastore.partition(AT).start_offset == scene.lake.metastore.partition(AT).next_offset


def test_where_something_is_always_due_the_lake_is_looked_after_all_the_same(scene: Scene) -> None:
    """As often as the clock says: every third job here. Each commit brings more to compact."""
    lake, moment, jobs = scene.lake, [10_000], list[int]()
    scene.write("N[a]")
    lake.metastore.configure("t", {"min.cleanable.dirty.ratio": "0"})
    care = upkeep(lake, moment, objects_at_once=2)
    busy = worker(lake, clock=lambda: moment[0], upkeep=care, upkeep_every_ms=300)
    collected = []

    def more() -> None:
        moment[0] += 100
        jobs.append(len(jobs))
        scene.write("N[a]", now_ms=moment[0])
        collected.append(care.collected_ms)
        if len(jobs) == 10:
            busy.stop = SOFT

    busy.control = JobControl(before_commit=more)
    objects = len(lake.metastore.objects())
    assert busy.work() == 10
    assert collected == [-1] * 3 + [10_300] * 3 + [10_600] * 3 + [10_900]
    assert len(lake.metastore.objects()) < objects + 2 * 10
    assert lake.metastore.check() == []


def test_leveling_writes_so_many_bytes_and_then_looks_at_the_queue(scene: Scene) -> None:
    """Two partitions to level, a byte per turn: one each. What has become due meanwhile comes before the second."""
    lake, due = scene.lake, TopicPartition("due", 0)
    for topic in ("u", "due"):
        lake.metastore.create_topic(topic, 1, {})
    for name in (AT, TopicPartition("u", 0)):
        for keys in ("abcd", "abce", "f"):
            put(lake, name, [(key.encode(), b"1") for key in keys])
            if keys == "abce":
                compact_partition(lake, name, InProcess(1), now_ms=10)

    def tell(text: str) -> None:
        if text.endswith(": leveled") and not lake.metastore.partition(due).next_offset:
            put(lake, due, [(b"a", b"1"), (b"a", b"2")])

    moments = iter(range(20, 1000))
    assert worker(lake, clock=lambda: next(moments), tell=tell, bytes_at_once=1).work() == 1
    assert [row.outcome for row in Leases(lake.metastore).history()] == [LEVELED, COMMITTED, LEVELED]


def test_what_fails_is_told_and_stops_no_other(scene: Scene, tmp_path: Path) -> None:
    """An erasure whose object is damaged, beside retention of a topic that is well."""
    scene.write("N[a]", "T[a]")
    (path,) = (tmp_path / "objects" / "objects").rglob("*-*")
    path.write_bytes(b"\0" * path.stat().st_size)
    request_erasure(scene.lake, "t", [b"a"], deadline_ms=10**6, clock=lambda: 5)
    scene.lake.metastore.configure("t", {"cleanup.policy": "compact,delete", "retention.ms": "10"})
    told: list[str] = []
    assert upkeep(scene.lake, [5000], told).look() >= 1
    assert told[0].startswith("erasure in t: retrying later: ")
    assert scene.lake.metastore.partition(AT).start_offset == 2
    (erasure,) = Erasures(scene.lake.metastore).all()
    assert (erasure.step, erasure.not_before_ms, "wrong CRC-32C" in erasure.waits_for) == (REQUESTED, 605_000, True)


class Unfoldable(Store):
    """Takes everything but a base of the journal."""

    def put(self, path: str, content: bytes, *, create: bool = False) -> bool:
        if path.startswith(BASE_PARTS):
            raise Unfinished("no space left for it")
        return super().put(path, content, create=create)


def test_garbage_goes_also_while_the_journal_cannot_be_folded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "OBJECTS_MIN", 1)
    for _ in range(2):
        scene.write("N[a]")
        scene.compact(now_ms=10)
    told: list[str] = []
    store = Unfoldable(scene.lake.store.url, scene.lake.store._store)
    done = upkeep(Lake(metastore=scene.lake.metastore, store=store), [200], told).look()
    assert (done, told) == (1, ["journal: folding it again later: no space left for it"])
    assert len(scene.lake.store.list("objects")) == len(scene.lake.metastore.objects())


def ingested(root: Path, history: History, terms: str, told: Said) -> None:
    told("ingest", str(root / "lake"), str(log_of(root / "logs", "users", terms, history=history)))


def test_a_worker_goes_on_with_what_somebody_asked_for(tmp_path: Path, told: Said) -> None:
    """To the end: nobody runs `erase` again."""
    history, where = History(), str(tmp_path / "lake")
    told("init", where, "--now-ms", "1000")
    ingested(tmp_path, history, "N[alice] N[bob] T[alice]", told)
    told("topics", where, "alter", "users", "--conf", "delete.retention.ms=500")
    grace = ("--grace-ms", "10", "--upload-ms", "10")
    told("erase", where, "users", "--key", "alice", *grace, code=3)
    steps = []
    for now_ms in (1100, 2000, 2100):
        told("worker", where, *grace, "--now-ms", str(now_ms))
        steps += [one["step"] for one in told("status", where)["erasures"]]
    assert steps == [VALUES_GONE, KEY_REMOVED, ERASED]
    assert told("prove-erased", where, "users", "--key", "alice", "--anywhere")["verdict"] == "erased"


class Near(InProcess):
    """In the place of the process itself, where somebody forgot the engine."""

    def as_they_end(self, *given: Any, **options: Any) -> Iterator[tuple[int, Any]]:
        raise AssertionError("written without the engine")


def test_marked_records_go_by_the_age_that_compact_or_a_worker_is_told(
    tmp_path: Path, told: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written by the engine."""
    monkeypatch.setattr(rewriting, "InProcess", Near)
    history, where = History(), str(tmp_path / "lake")
    told("init", where, "--now-ms", "1000")
    ingested(tmp_path, history, " ".join(f"N[k{i}]" for i in range(20)), told)
    told("compact", where, "--all")

    def dead() -> int:
        return int(told("status", where)["topics"][0]["partitions"][0]["dead_records"])

    marked = []
    for key, verb in (("k1", ("compact",)), ("k2", ("worker",)), ("k3", ("compact", "--purge"))):
        ingested(tmp_path, history, f"N[{key}]", told)
        told("compact", where, "--all")
        marked.append(dead())
        now_ms = told("status", where)["now_ms"] + 100
        told(verb[0], where, "--now-ms", str(now_ms), "--dead-age-max-ms", "101")
        marked.append(dead())
        told(verb[0], where, *verb[1:], "--dead-age-max-ms", "100")
        marked.append(dead())
    assert marked == [1, 1, 0] * 3


def test_an_orphan_is_found_within_a_day_by_whichever_worker_looks(scene: Scene) -> None:
    """By those that live an hour, too, and not by each of them: to list the store is dear."""
    lake, store = scene.lake, Listing(scene.lake.store.url, scene.lake.store._store)
    watched = Lake(metastore=lake.metastore, store=store)
    scene.write("N[a]")
    upkeep(watched, [1000]).look()
    write_once(
        lake.store, ORPHAN, lake.metastore.lake_id,
        lambda writer: writer.add("t", 0, Span(0, 1), [], records=0, max_timestamp_ms=0),
    )  # fmt: skip
    assert store.listings == 1
    for hour in range(1, 26):
        upkeep(watched, [1000 + hour * HOUR_MS]).look()
    assert (store.listings, object_path(ORPHAN) in lake.store.list("objects")) == (2, False)
    assert ([key for _, key, _ in scene.held()], lake.metastore.check()) == ([b"a"], [])


def test_a_listing_that_fails_is_tried_again_and_what_is_known_goes_meanwhile(scene: Scene) -> None:
    """Within the day: nobody has listed the store."""
    lake, store = scene.lake, Listing(scene.lake.store.url, scene.lake.store._store)
    watched, told = Lake(metastore=lake.metastore, store=store), list[str]()
    scene.write("N[a]")
    lake.metastore.register(1, now_ms=1000)
    store.error = Unfinished("no answer")
    moment_ms = 2 * DAY_MS
    upkeep(watched, [moment_ms], told).look()
    store.error = None
    upkeep(watched, [moment_ms + HOUR_MS], told).look()
    assert (store.listings, told) == (2, ["gc: retrying later: no answer"])
    assert [row.state for row in lake.metastore.objects().values()] == ["committed"]


class Listing(Store):
    """Counts how often all objects were listed."""

    listings = 0
    error: Exception | None = None

    def entries(self, prefix: str = "") -> Iterator[Listed]:
        self.listings += prefix == ""
        if prefix == "" and self.error is not None:
            raise self.error
        return super().entries(prefix)


def test_killed_workers_and_expired_holds_are_forgotten_a_day_later(scene: Scene) -> None:
    """Not one that has a lease: its job takes long."""
    leases, holds = Leases(scene.lake.metastore), Holds(scene.lake.metastore)
    scene.write("N[a]")
    for name in ("killed", "busy"):
        leases.seen(name, "looking", now_ms=1000)
    leases.take(AT, "busy", now_ms=1000, lease_ms=10 * DAY_MS)
    holds.hold("gone", AT, 0, expires_ms=1000)
    holds.hold("there", AT, 0, expires_ms=2 * DAY_MS)
    for moment, left in ((DAY_MS, (["busy", "killed"], 2)), (1001 + DAY_MS, (["busy"], 1))):
        upkeep(scene.lake, [moment]).look()
        assert ([row.worker for row in leases.workers()], len(holds.all(now_ms=0))) == left


def test_who_waits_for_a_deletion_in_kafka_has_lists_read_less_and_less_often(scene: Scene) -> None:
    """A day of a worker that looks every ten minutes: six hours at most between two looks."""
    scene.write("N[a]")
    request_erasure(scene.lake, "t", [b"a"], deadline_ms=10 * DAY_MS, clock=lambda: 0)
    moment, looks, waits = [0], list[int](), 0
    care = upkeep(scene.lake, moment)
    for moment[0] in range(0, DAY_MS, RETRY_MS):
        care.look()
        (erasure,) = Erasures(scene.lake.metastore).all()
        if erasure.not_before_ms != waits:
            looks.append(moment[0] // RETRY_MS)
            waits = erasure.not_before_ms
    assert looks == [0, 1, 2, 4, 8, 16, 32, 64, 100, 136]


def test_a_deadline_that_is_near_is_looked_after_in_time() -> None:
    asked = Erasure(
        topic="t", key_digest="", requested_ms=0, deadline_ms=DAY_MS, step=REQUESTED, step_ms=0, not_before_ms=0, waits_for="",
        seen=True,
    )  # fmt: skip
    moments = (0, HOUR_MS, 16 * HOUR_MS, 23 * HOUR_MS, DAY_MS, 30 * DAY_MS)
    waits = [RETRY_MS, HOUR_MS, HOUR_MS, RETRY_MS, RETRY_MS_MAX, RETRY_MS_MAX]
    assert [patience_ms(asked, now_ms) for now_ms in moments] == waits
    again = replace(asked, requested_ms=16 * HOUR_MS)
    assert patience_ms(again, 16 * HOUR_MS) == RETRY_MS
