"""Rebuilds the metastore from the store alone, after it was lost or set back in time: reads the journal from its beginning.

A partition is what its last commit in the store has made of it. Commits that were never made are not in the journal, however
much of them was uploaded, so they can neither revive nor lose anything. Unreferenced objects stay for a new time of grace;
objects that the journal needs and the store lacks are reported. What the journal does not know is lost with the metastore:
holds, requests, leases, history, the past before the rebuild. A metastore that was only set back keeps what it has of these.
Erasures come back with their deadlines, and unfinished ones begin again, because it is not known any more which objects were
left when. One transaction: the metastore is rebuilt, or as it was; a new one is removed on failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from headstone import units
from headstone.errors import UsageError
from headstone.lake.format.prefixes import EMBEDDED, OBJECTS, refuse_embedded, refuse_enclosing, refuse_kafka
from headstone.lake.lake import Lake, closed_if_refused, joined
from headstone.lake.metastore.clock import GIVEN
from headstone.lake.metastore.database import file_of
from headstone.lake.metastore.journal import SetBack, another_history, record, seen_end
from headstone.lake.metastore.marker import Marker, expect_marker_or_others, mend_marker, no_lake
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.replay import Replayed, needed_objects, replayed, write_replayed
from headstone.pipeline.progress import ROWS, ProgressLine, meter_on
from headstone.storage.redaction import address
from headstone.storage.stores import MissingObject, Store

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    topics: int
    partitions: int
    extents: int
    changes: int
    """In the journal."""
    changed: tuple[str, ...]
    """Partitions that the metastore had differently, or not at all."""
    erasures: int
    """Keys that are still to be erased; each begins again, with its former deadline."""
    dropped: tuple[str, ...]
    """Topics dropped, according to the journal."""
    unused: tuple[str, ...]
    """Objects that are unreferenced from now on, for the time of grace."""
    missing: tuple[str, ...]
    """Objects that are needed but missing in the store, or too short."""
    doubt: str
    """Why commits may be lost; empty if none are."""


@contextmanager
def rebuilding(
    metastore_url: str, location: str | None, *, settings: Mapping[str, str] | None = None
) -> Iterator[Lake]:
    """`open_for_rebuild` for a block that rebuilds. If the block fails, a metastore that it created is removed.

    An empty metastore would know nothing of the store, and take all of it for garbage."""
    file = file_of(metastore_url)
    was_file, was_there = file is not None and file.exists(), Metastore.is_there(metastore_url)
    lake = open_for_rebuild(metastore_url, location, settings=settings)
    with ExitStack() as failed:
        if not was_there:
            failed.callback(_unmake, lake.metastore, None if was_file else file)
        failed.callback(lake.close)
        yield lake
        failed.pop_all()


def _unmake(metastore: Metastore, file: Path | None) -> None:
    """It has nothing but the row of the lake."""
    if file is None:
        metastore.unmake()
    metastore.close()
    for part in (file.with_name(file.name + ending) for ending in ("", "-wal", "-shm")) if file is not None else ():
        part.unlink(missing_ok=True)


def open_for_rebuild(metastore_url: str, location: str | None, *, settings: Mapping[str, str] | None = None) -> Lake:
    """Opens the existing metastore, or creates an empty one. The lake's objects are at `location`, if given; else where the
    metastore has them, or beside the file of the new one."""
    metastore = Metastore.open(metastore_url) if Metastore.is_there(metastore_url) else None
    where = location or (metastore.location if metastore is not None else _objects_beside(metastore_url))
    if where is None:
        raise UsageError(f"{address(metastore_url)} has no lake; name the objects of the lost lake with --objects")
    try:
        store = Store.open(where, settings, make=False)
        refuse_enclosing(where, settings)
        if metastore is not None:
            with closed_if_refused(metastore):
                expect_marker_or_others(metastore, store)
            return joined(metastore, store)
        marker = Marker.read(store)
    except MissingObject as error:
        raise no_lake(where) from error
    if (file := file_of(metastore_url)) is not None:
        refuse_kafka(file.parent)
        refuse_embedded(file.parent)
    now_ms = max(replayed(store, marker.lake_id).newest_ms, 0) if marker.clock == GIVEN else None
    made = Metastore.create(
        metastore_url, location=where, now_ms=now_ms, lake_id=marker.lake_id, hash_key=marker.hash_key
    )
    return joined(made, store)


def _objects_beside(url: str) -> str | None:
    """For a lake in a directory whose metastore is lost."""
    file = file_of(url)
    return f"file://{file.parent / OBJECTS}" if file is not None and file.name == EMBEDDED else None


def rebuild(lake: Lake, *, progress: bool = False, tell: Tell = lambda text: None) -> Rebuilt:
    """From now on the lake's objects are where its store is. Nothing else may work on the lake meanwhile: another metastore of
    the lake is refused only once this one is adopted (`identity`), and a commit in between is not in the journal, and lost."""
    # A commit that the store does not have yet is a commit. With a metastore that was set back it belongs to another history.
    with suppress(SetBack):
        record(lake.metastore, lake.store)
    with ProgressLine(enabled=progress) as line:
        after = replayed(lake.store, lake.metastore.lake_id, line.board)
    tell(f"{units.count(after.changes, 'change')} in {units.count(after.objects, 'object')} of the journal")
    sizes = {entry.path.rpartition("/")[2]: entry.size for entry in lake.store.entries("objects")}
    _expect_whole(lake, after, len(sizes))
    mend_marker(lake.metastore, lake.store)
    needed = needed_objects(after)
    extents = sum(len(log.extents) for log in after.logs.values())
    with ProgressLine(enabled=progress, unit=ROWS) as line:
        line.expect(len(sizes.keys() | needed.keys()) + extents + len(after.erasures))
        changed, erasures = write_replayed(lake.metastore, after, sizes, needed, lake.store.url, meter_on(line.board))
    return Rebuilt(
        topics=len(after.topics), partitions=len(after.logs), changes=after.changes, changed=tuple(changed),
        extents=extents, erasures=erasures, dropped=tuple(sorted(after.dropped.keys() - after.topics.keys())),
        unused=tuple(sorted(sizes.keys() - needed.keys())),
        missing=tuple(sorted(one for one, size in needed.items() if sizes.get(one, -1) < size)), doubt=after.doubt,
    )  # fmt: skip


def _expect_whole(lake: Lake, after: Replayed, objects: int) -> None:
    """Refuses a metastore that knows more than the store's journal: then the journal is lost, not the metastore.

    Without a journal, nothing tells which objects are the log: all of them would be garbage."""
    number, digest = seen_end(lake.metastore)
    if number > after.end.number:
        raise UsageError(
            f"{lake.store.url}: the journal ends at number {after.end.number}, but the metastore has seen number {number}: "
            "entries are lost, or older ones were restored; the metastore was not changed. Restore them from a backup, or "
            "rewrite the journal from the metastore with `headstone lake mend LAKE --apply`"
        )
    if number == after.end.number and digest != after.end.digest:
        raise another_history(lake.store, number)
    if objects and not after.objects:
        raise UsageError(
            f"{lake.store.url} has {units.count(objects, 'object')} but no journal, without which they cannot be interpreted: "
            "nothing was changed; restore journal/, journal-base/, journal-base-parts/ and journal-end/ from a backup or a "
            "version"
        )
