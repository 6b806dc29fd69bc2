"""Offsets further apart than a segment reaches: extents that hold them are compacted, and no new ones are made."""

from __future__ import annotations

from headstone.lake.format.extents import Extent
from headstone.lake.format.objects import read_extent, writing_object
from headstone.lake.format.spans import Span
from tests.lake.scene import AT, RETENTION_MS, Scene
from tests.lake.single import level_partition

FAR = 3_000_000_000


def test_a_log_that_begins_far_out_is_compacted(scene: Scene) -> None:
    """Its first extent begins at 0, more than 2^31 below its first record."""
    scene.write(f"+{FAR}", "|", "N[a]", "N[b]", "N[a]")
    (extent,) = scene.lake.metastore.partition(AT).extents
    assert extent.span == Span(0, FAR + 3)
    done = scene.compact(now_ms=10)
    assert ([(offset - FAR, key) for offset, key, _ in scene.held()], done.records_after) == ([(1, b"b"), (2, b"a")], 2)
    scene.write("T[a]", "N[b]")
    scene.compact(now_ms=20)
    scene.compact(now_ms=20 + RETENTION_MS)
    assert [(offset - FAR, key) for offset, key, _ in scene.held()] == [(4, b"b")]
    assert scene.lake.metastore.check() == []


def test_an_extent_that_is_too_wide_for_a_segment_is_compacted(scene: Scene) -> None:
    """As leveling has made them: three times as far as the offsets of one segment reach, tombstones in the last part."""
    terms = ["N[a,b]", f"+{FAR}", "|", "N[a]", f"+{FAR}", "|", "T[b]", "N[c]"]
    for term in terms:
        scene.history.append(term)
    extents = merged_into_one(scene)
    assert [extent.span.end > 2 * FAR for extent in extents] == [True]
    done = scene.compact(now_ms=10)
    assert [key for _, key, _ in scene.held()] == [b"a", b"b", b"c"]
    assert (done.extents_rewritten, done.records_after, done.records_before) == (1, 3, 5)
    (extent,) = scene.lake.metastore.partition(AT).extents
    assert (extent.records, len(scene.lake.metastore.partition(AT).tombstones)) == (3, 1)
    scene.compact(now_ms=10 + RETENTION_MS)
    assert [key for _, key, _ in scene.held()] == [b"a", b"c"]


def merged_into_one(scene: Scene) -> tuple[Extent, ...]:
    """The whole log of the scene as one extent, however far apart its offsets are."""
    scene.write()
    partition, lake = scene.lake.metastore.partition(AT), scene.lake
    (object_id,) = lake.metastore.register(1, now_ms=0)
    with writing_object(lake.store, object_id, lake.metastore.lake_id) as writer:
        chunks = [read_extent(lake.store, extent) for extent in partition.extents]
        made = writer.add("t", 0, Span(0, partition.next_offset), chunks, records=5, max_timestamp_ms=9)
    lake.metastore.level(AT, 0, [made], {object_id: writer.size}, now_ms=0)
    return lake.metastore.partition(AT).extents


def test_leveling_makes_no_extent_that_is_wider_than_a_segment(scene: Scene) -> None:
    for _ in range(2):
        scene.write("N[a]", "N[b]")
    scene.write("N[c]", f"+{FAR}")
    scene.write("N[d]")
    level_partition(scene.lake, AT, clock=lambda: 10, extent_bytes=800)
    spans = [extent.span for extent in scene.lake.metastore.partition(AT).extents]
    assert spans == [Span(0, 4), Span(4, FAR + 5), Span(FAR + 5, FAR + 6)]
    assert len(scene.held()) == 6


def test_offsets_that_are_far_apart_are_not_one_extent(scene: Scene) -> None:
    """A segment of Kafka's could not hold them: 2^31 is where it ends."""
    scene.write("N[a]", "+2147483645", "|", "N[b]", "|", "+1", "|", "N[c]", "|", "N[d]")
    found = scene.lake.metastore.partition(AT).extents
    assert [(tuple(one.span), one.records) for one in found] == [((0, 2147483647), 2), ((2147483647, 2147483650), 2)]
    assert [offset for offset, _, _ in scene.held()] == [0, 2147483646, 2147483648, 2147483649]
