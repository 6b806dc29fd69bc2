"""What a worker does when nothing is due: each in its turn, so much at a time, and one that fails stops no other."""

from __future__ import annotations

from pathlib import Path

from headstone.lake.erasure import Tools, request_erasure
from headstone.lake.erasures import REQUESTED, VALUES_LEFT, Erasures
from headstone.lake.lake import Lake
from headstone.lake.upkeep import Upkeep
from headstone.pipeline.inprocess import InProcess
from tests.lake.scene import AT, Scene


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
    assert [erasure.step for erasure in Erasures(scene.lake.metastore).all()] == [VALUES_LEFT]
    assert sum(extent.dead for extent in scene.lake.metastore.partition(AT).extents) == 0
    scene.lake.metastore.configure("t", {"cleanup.policy": "compact,delete", "retention.ms": "10"})
    upkeep(scene.lake, [2000]).look()
    assert scene.lake.metastore.partition(AT).start_offset == scene.lake.metastore.partition(AT).next_offset


def test_what_fails_is_told_and_stops_no_other(scene: Scene, tmp_path: Path) -> None:
    """An erasure whose object is damaged, beside retention of a topic that is well."""
    scene.write("N[a]", "T[a]")
    (path,) = (tmp_path / "objects" / "objects").rglob("*-*")
    path.write_bytes(b"\0" * path.stat().st_size)
    request_erasure(scene.lake, "t", [b"a"], deadline_ms=10**6, clock=lambda: 5)
    scene.lake.metastore.configure("t", {"cleanup.policy": "compact,delete", "retention.ms": "10"})
    told: list[str] = []
    assert upkeep(scene.lake, [5000], told).look() >= 1
    assert told[0].startswith("erasure in t: looking again later: ")
    assert scene.lake.metastore.partition(AT).start_offset == 2
    (erasure,) = Erasures(scene.lake.metastore).all()
    assert (erasure.step, erasure.not_before_ms, "wrong CRC-32C" in erasure.waits_for) == (REQUESTED, 605_000, True)
