"""Garbage collection: objects that no extent points at any more, or that were registered and never used.

Plans first. Condemns in the metastore, deletes from the store, forgets: an interrupted collection is finished by the next.
Grace is for readers that looked up their extents before a compaction replaced them, and for uploads that are on their way;
readers that take longer pin what they read (`pins`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import select, update
from sqlalchemy.dialects import postgresql, sqlite

from headstone.errors import HeadstoneError
from headstone.lake import schema
from headstone.lake.changes import UNREFERENCED
from headstone.lake.journal import expect_current, record
from headstone.lake.lake import Lake
from headstone.lake.objects import object_path
from headstone.lake.rows import ObjectRow, chunks
from headstone.pipeline.engine import Stop, never
from headstone.pipeline.progress import Board, meter_on

GRACE_MS = 3_600_000
UPLOAD_MS = 86_400_000
"""How long an upload may take. A compaction that takes longer is refused when it commits, and starts over."""
BATCH = 1000
LISTING_EVERY_MS = 86_400_000
"""By workers. A listing of all objects is some thousand requests on a large lake, and orphans are rare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """What would go. `orphans` are in the store and the metastore does not know them: uploads that ended after their
    collection, or what a metastore of another time has known. They go after a grace that begins when they are found."""

    rows: list[ObjectRow]
    orphans: list[str]
    unreferenced_before_ms: int
    registered_before_ms: int
    now_ms: int


def garbage(lake: Lake, *, now_ms: int, grace_ms: int = GRACE_MS, upload_ms: int = UPLOAD_MS) -> Garbage:
    """A metastore that was set back in time is refused: what it does not know is no garbage."""
    expect_current(lake.metastore, lake.store)
    # In this order: an object that is in the store was registered before, so without a row it was forgotten since.
    stored = {path.rpartition("/")[2] for path in lake.store.list("objects")}
    orphans = sorted(stored - lake.metastore.objects().keys())
    return replace(known_garbage(lake, now_ms=now_ms, grace_ms=grace_ms, upload_ms=upload_ms), orphans=orphans)


def known_garbage(lake: Lake, *, now_ms: int, grace_ms: int = GRACE_MS, upload_ms: int = UPLOAD_MS) -> Garbage:
    """Without a look at the store, which would tell of orphans."""
    limits = {"unreferenced_before_ms": now_ms - grace_ms, "registered_before_ms": now_ms - upload_ms, "now_ms": now_ms}
    return Garbage(rows=lake.metastore.collectable(**limits), orphans=[], **limits)


def worker_garbage(lake: Lake, *, now_ms: int, grace_ms: int = GRACE_MS, upload_ms: int = UPLOAD_MS) -> Garbage:
    """`garbage` if no worker has asked for a day, else `known_garbage`. A listing that fails is tried by the next worker."""
    limits = {"now_ms": now_ms, "grace_ms": grace_ms, "upload_ms": upload_ms}
    listed_ms = _claim_listing(lake, now_ms)
    if listed_ms is None:
        return known_garbage(lake, **limits)
    try:
        return garbage(lake, **limits)
    except HeadstoneError:
        with lake.metastore.transaction() as connection:
            connection.execute(update(schema.lakes).values(listed_ms=listed_ms))
        raise


def _claim_listing(lake: Lake, now_ms: int) -> int | None:
    """When the store was listed last, 0 if never, if that is a day ago: from now on everybody else takes it for listed."""
    with lake.metastore.transaction() as connection:
        listed_ms = int(connection.execute(select(schema.lakes.c.listed_ms)).scalar_one())
        if listed_ms and listed_ms > now_ms - LISTING_EVERY_MS:
            return None
        unchanged = schema.lakes.c.listed_ms == listed_ms
        claimed = connection.execute(update(schema.lakes).where(unchanged).values(listed_ms=now_ms)).rowcount
    return listed_ms if claimed else None


def collect(lake: Lake, collectable: Garbage, board: Board | None = None, *, stop: Stop = never) -> list[str]:
    """What was deleted. Condemned first, so that no commit uses what is about to go; an interrupted one is finished later.

    The board counts objects. `stop`: the batch in hand is deleted, and none after it."""
    gone: list[str] = []
    meter = meter_on(board)
    if board is not None:
        board.expect(len(collectable.rows))
    expect_current(lake.metastore, lake.store)
    _note_orphans(lake, collectable.orphans)
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
            # Whatever made them garbage is told to the store before: a rebuilt metastore does not point at them.
            record(lake.metastore, lake.store)
            lake.store.delete([object_path(object_id) for object_id in some])
            lake.metastore.forget(some)
            gone += some
        meter.add(len(batch), 0)
    return gone


def _note_orphans(lake: Lake, object_ids: Sequence[str]) -> None:
    """Unreferenced from now on; those that another collector has noted meanwhile stay as they are."""
    with lake.metastore.transaction() as connection:
        insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        unknown = insert(schema.objects).on_conflict_do_nothing(index_elements=[schema.objects.c.object_id])
        row = {"state": UNREFERENCED, "size": 0, "changed_ms": lake.metastore.moment(connection)}
        for some in chunks(object_ids):
            connection.execute(unknown, [{**row, "object_id": object_id} for object_id in some])
