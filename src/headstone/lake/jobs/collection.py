"""Garbage collection: deletes objects that no extent points at any more, or that were registered and never used.

Plans first. Then condemns in the metastore, deletes from the store, forgets: an interrupted collection is finished by the next.
Grace protects readers that looked up their extents before a compaction replaced them, and uploads under way; readers that take
longer pin what they read (`pins`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headstone.errors import HeadstoneError
from headstone.lake.defaults import GRACE_MS, UPLOAD_MS
from headstone.lake.format.objects import is_object_path, is_of_another_lake, object_path
from headstone.lake.format.prefixes import MARKER, OWNER
from headstone.lake.lake import Lake
from headstone.lake.metastore.journal import expect_current, record
from headstone.lake.metastore.journal_names import is_journal_path
from headstone.lake.metastore.object_states import ObjectRow
from headstone.pipeline.engine import Stop, never
from headstone.pipeline.progress import Board, meter_on
from headstone.storage.stores import Listed
from headstone.units import DAY_MS

BATCH = 1000
LISTING_EVERY_MS = DAY_MS
"""By workers. A listing of all objects is some thousand requests on a large lake, and orphans are rare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """What would go. `orphans` are in the store but unknown to the metastore: uploads that ended after their collection, or
    objects of a metastore of another time. They go after a grace that begins when they are found.

    `rows` have sizes from the store if it was listed: the metastore knows no size of an object that was never committed."""

    rows: list[ObjectRow]
    orphans: list[str]
    foreign: list[str]
    """Paths below the prefix that are not the lake's, another lake's objects included. They are never deleted."""
    missing: frozenset[str]
    """Rows whose objects are not in the store: they are forgotten. Empty if the store was not listed."""
    unreferenced_before_ms: int
    registered_before_ms: int
    now_ms: int


def garbage(lake: Lake, *, now_ms: int, grace_ms: int = GRACE_MS, upload_ms: int = UPLOAD_MS) -> Garbage:
    """A metastore that was set back in time is refused: what it does not know is no garbage."""
    expect_current(lake.metastore, lake.store)
    # In this order: an object in the store was registered before, so if it has no row it was forgotten since.
    stored, foreign = _told_apart(lake.store.entries())
    unknown = sorted(stored.keys() - lake.metastore.objects().keys())
    strangers = {name for name in unknown if is_of_another_lake(lake.store, name, lake.metastore.lake_id)}
    orphans = [name for name in unknown if name not in strangers]
    foreign = sorted([*foreign, *map(object_path, strangers)])
    without_listing = known_garbage(lake, now_ms=now_ms, grace_ms=grace_ms, upload_ms=upload_ms)
    rows = [replace(row, size=stored.get(row.object_id, row.size)) for row in without_listing.rows]
    missing = frozenset(row.object_id for row in rows) - stored.keys()
    return replace(without_listing, rows=rows, orphans=orphans, foreign=foreign, missing=missing)


def _told_apart(entries: Iterable[Listed]) -> tuple[dict[str, int], list[str]]:
    """Objects with their sizes, by id, and paths whose name is not that of any part of a lake."""
    stored, foreign = dict[str, int](), list[str]()
    for entry in entries:
        object_id = entry.path.rpartition("/")[2]
        if is_object_path(entry.path):
            stored[object_id] = entry.size
        elif entry.path not in (MARKER, OWNER) and not is_journal_path(entry.path):
            foreign.append(entry.path)
    return stored, sorted(foreign)


def known_garbage(lake: Lake, *, now_ms: int, grace_ms: int = GRACE_MS, upload_ms: int = UPLOAD_MS) -> Garbage:
    """Without a look at the store, so without orphans."""
    limits = {"unreferenced_before_ms": now_ms - grace_ms, "registered_before_ms": now_ms - upload_ms, "now_ms": now_ms}
    return Garbage(rows=lake.metastore.collectable(**limits), orphans=[], foreign=[], missing=frozenset(), **limits)


def worker_garbage(lake: Lake, *, now_ms: int, grace_ms: int = GRACE_MS, upload_ms: int = UPLOAD_MS) -> Garbage:
    """`garbage` if no worker has listed the store for a day, else `known_garbage`. The next worker retries a failed listing."""
    limits = {"now_ms": now_ms, "grace_ms": grace_ms, "upload_ms": upload_ms}
    listed_ms = lake.metastore.claim_listing(now_ms, every_ms=LISTING_EVERY_MS)
    if listed_ms is None:
        return known_garbage(lake, **limits)
    try:
        return garbage(lake, **limits)
    except HeadstoneError:
        lake.metastore.give_back_listing(listed_ms)
        raise


def collect(lake: Lake, collectable: Garbage, board: Board | None = None, *, stop: Stop = never) -> list[str]:
    """Returns what is gone. Condemns first, so that no commit uses what is about to go; an interrupted run is finished later.

    The board counts objects. `stop`: finishes the current batch and begins no other."""
    gone: list[str] = []
    meter = meter_on(board)
    if board is not None:
        board.expect(len(collectable.rows))
    expect_current(lake.metastore, lake.store)
    lake.metastore.note_orphans(collectable.orphans)
    for start in range(0, len(collectable.rows), BATCH):
        if stop():
            break
        batch = collectable.rows[start : start + BATCH]
        some = lake.metastore.condemn(
            [row.object_id for row in batch],
            unreferenced_before_ms=collectable.unreferenced_before_ms, registered_before_ms=collectable.registered_before_ms,
            now_ms=collectable.now_ms,
        )  # fmt: skip
        if some:
            # Write the commits that made them garbage to the store first: then a rebuilt metastore does not point at them.
            record(lake.metastore, lake.store)
            lake.store.delete([object_path(object_id) for object_id in some])
            lake.metastore.forget(some)
            gone += some
        meter.add(len(batch), 0)
    return gone
