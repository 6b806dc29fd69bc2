"""Leveling: what it keeps of the extents that it makes one."""

from __future__ import annotations

from headstone.lake.leases import LEVELED, Leases
from headstone.lake.leveling import level_partition
from headstone.lake.spans import Span
from headstone.lake.worker import Worker
from headstone.pipeline.inprocess import InProcess
from tests.lake.oracle import eligibility_of
from tests.lake.scene import AT, Scene


def test_leveling_does_not_make_data_younger(scene: Scene) -> None:
    """max.compaction.lag.ms counts from the oldest: the data of a small extent may not wait for that of its neighbour."""
    scene.write("N[a]@1000", "N[b]@1200")
    scene.write("N[c]@5000")
    before = [extent.oldest_timestamp_ms for extent in scene.lake.metastore.partition(AT).extents]
    level_partition(scene.lake, AT, clock=lambda: 10, extent_bytes=300)
    partition = scene.lake.metastore.partition(AT)
    assert (before, len(partition.extents), partition.extents[0].oldest_timestamp_ms) == ([1000, 5000], 1, 1000)
    assert eligibility_of(partition, {"max.compaction.lag.ms": 500}, now_ms=1400).deadline_ms == 1500
    scene.write("N[a]@1300")
    scene.compact(now_ms=20)
    assert [one.oldest_timestamp_ms for one in scene.lake.metastore.partition(AT).extents] == [1200, 1300]


def test_an_extent_knows_its_newest_and_its_oldest_timestamp(scene: Scene) -> None:
    """Whichever segment they are in; of a batch its newest counts, and none that has no timestamp."""
    scene.write("N[a]@500", "|", "N[b]@900", "N[c]@200", "|", "N[d]@-1", "N[e]@600")
    (extent,) = scene.lake.metastore.partition(AT).extents
    assert (extent.records, extent.max_timestamp_ms, extent.oldest_timestamp_ms) == (5, 900, 200)


def test_a_worker_merges_what_compactions_left_small_when_nothing_is_due(scene: Scene) -> None:
    """And looks once: a log to which nothing has come since is not read again."""
    scene.write("N[a]", "N[b]", "N[c]", "N[d]")
    scene.write("N[a]", "N[b]", "N[c]", "N[e]")
    scene.compact(now_ms=10)
    scene.write("N[f]")
    metastore = scene.lake.metastore
    worker = Worker(name="w", lake=scene.lake, engine=InProcess(1), clock=lambda: 20, tell=lambda text: None)
    before = [extent.span for extent in metastore.partition(AT).extents]
    assert worker.work() == 0
    after = [extent.span for extent in metastore.partition(AT).extents]
    assert (before, after) == ([Span(0, 4), Span(4, 8), Span(8, 9)], [Span(0, 8), Span(8, 9)])
    assert metastore.unleveled(limit=9) == {}
    assert [row.outcome for row in Leases(metastore).history()] == [LEVELED]
