"""Garbage collection: objects that no extent points at any more, or that were registered and never used.

Plans first. Deletes from the store, then from the metastore: an interrupted collection runs again. Grace is for readers that
looked up their extents before a compaction replaced them, and for uploads that are on their way.
"""

from __future__ import annotations

from headstone.lake.lake import Lake
from headstone.lake.metastore import ObjectRow
from headstone.lake.objects import object_path

GRACE_MS = 3_600_000
UPLOAD_MS = 86_400_000
"""How long an upload may take. A compaction that takes longer is refused when it commits, and starts over."""
BATCH = 1000


def garbage(lake: Lake, *, now_ms: int, grace_ms: int = GRACE_MS, upload_ms: int = UPLOAD_MS) -> list[ObjectRow]:
    return lake.metastore.collectable(unreferenced_before_ms=now_ms - grace_ms, registered_before_ms=now_ms - upload_ms)


def collect(lake: Lake, rows: list[ObjectRow]) -> None:
    for at in range(0, len(rows), BATCH):
        some = [row.object_id for row in rows[at : at + BATCH]]
        lake.store.delete([object_path(object_id) for object_id in some])
        lake.metastore.forget(some)
