"""What a compaction is told: tombstones go where they are due, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

from tests.lake.scene import RETENTION_MS, Scene
from tests.oracle.notation import parse_term


def test_a_tombstone_that_is_held_stays_though_its_extent_is_rewritten(scene: Scene) -> None:
    """Its horizon is over, and newer data is indexed above it: what decides is what is due, and nothing is."""
    scene.write("N[a]", "T[a]", "N[b]")
    scene.compact(now_ms=10)
    scene.write("N[b]")
    done = scene.compact(now_ms=10 + RETENTION_MS, held_from=0, dead_share_max=0.0)
    assert (done.extents_rewritten, [(offset, key) for offset, key, _ in scene.held()]) == (1, [(1, b"a"), (3, b"b")])


def test_of_two_ranges_only_the_one_that_is_due_loses_its_tombstones(scene: Scene) -> None:
    """The second is tracked later; the pass goes over both, because newer data concerns both."""
    scene.write("N[a]", "T[a]", "N[x]")
    scene.compact(now_ms=10)
    scene.write("N[b]", "T[b]", "N[y]")
    scene.compact(now_ms=500)
    scene.write("N[x]", "N[y]")
    scene.compact(now_ms=10 + RETENTION_MS, dead_share_max=0.0)
    assert [(offset, key) for offset, key, _ in scene.held()] == [(4, b"b"), (6, b"x"), (7, b"y")]


def test_a_horizon_of_kafkas_is_not_the_lakes(scene: Scene) -> None:
    """It came with a batch and was over long ago; readers of the lake have their own time, from when it was cleaned here."""
    scene.history.append("N[a]")
    batch = scene.history.make_batch(parse_term("T[a]"))
    scene.history.append_batch(replace(batch, base_timestamp=5, horizon_ms=5))
    scene.write("N[b]")
    scene.compact(now_ms=10**6)
    assert [(offset, key) for offset, key, _ in scene.held()] == [(1, b"a"), (2, b"b")]
    assert not scene.compact(now_ms=10**6 + RETENTION_MS - 1).committed
    scene.compact(now_ms=10**6 + RETENTION_MS)
    assert [(offset, key) for offset, key, _ in scene.held()] == [(2, b"b")]
