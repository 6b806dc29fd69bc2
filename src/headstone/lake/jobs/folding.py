"""Folds the journal: writes the result of its entries up to a number anew, so that it grows with the lake and not with time.

The metastore itself is the result of all entries. It is read page by page while others commit: what they change meanwhile is in
entries after the number. Each of those states how an extent, a range or a topic is, not how it differs, so it may be applied
twice. All waiting entries are written before the base appears, so a reader of a base has the entries after it. A base is either
whole or absent, and only then are the objects it replaces deleted. So a run killed at any point leaves a journal that says the
same. If two fold at once, the higher number counts, and both are right.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from headstone.lake.format.seals import digest_of, sealed
from headstone.lake.lake import Lake
from headstone.lake.metastore.journal import JournalEntry, base_number, content_of, expect_current, record, seen_end
from headstone.lake.metastore.journal_names import BASE_PARTS, BASES, ENDS, FOLDER, base_of, is_journal_path, numbered
from headstone.lake.metastore.replay import changes_so_far
from headstone.lake.metastore.surveys import extent_total
from headstone.pipeline.engine import Stop, never
from headstone.pipeline.progress import Board, meter_on

OBJECTS_MIN = 1000
"""Objects of the journal before folding is worth the trouble."""
EXTENTS_PER_OBJECT = 100
"""Folding one object pays for reading this many of the lake's extents."""
ENTRIES_PER_PART = 1000
"""Or as many extents."""


def is_worth_folding(lake: Lake) -> bool:
    """A lookup of the number, a listing of the bases, a sum over the partitions' rows."""
    number = seen_end(lake.metastore).number
    if number < OBJECTS_MIN:
        return False
    extents = extent_total(lake.metastore)
    return number - base_number(lake.store) >= max(OBJECTS_MIN, extents // EXTENTS_PER_OBJECT)


def fold(lake: Lake, board: Board | None = None, *, stop: Stop = never) -> int:
    """Returns the number up to which the journal is one base now; 0 if there is nothing to fold, or after a stop.

    Refuses a metastore that was set back in time: it is not the result of the entries. The board counts extents. `stop`: asked
    before each part of the base; the parts written are deleted, and the journal is as it was."""
    metastore, store = lake.metastore, lake.store
    expect_current(metastore, store)
    number, digest = seen_end(metastore)
    if number <= base_number(store):
        return 0
    if board is not None:
        board.expect(extent_total(metastore))
    meter = meter_on(board)
    folder = f"{BASE_PARTS}/{number:020d}-{secrets.token_hex(4)}"
    parts = dict[str, str]()
    for i, entries in enumerate(_parts(changes_so_far(metastore))):
        if stop():
            store.delete(parts)
            return 0
        path = f"{folder}/{i:08d}"
        content = content_of(metastore.lake_id, path, entries)
        parts[path] = digest_of(content)
        store.put(path, content)
        meter.add(sum(len(entry.change.get("new", ())) for entry in entries), 0)
    record(metastore, store)
    lines = [{"part": path, "sha256": part_digest} for path, part_digest in parts.items()]
    if store.put(base_of(number), sealed(metastore.lake_id, base_of(number), lines, entry=digest), create=True):
        forget_folded(lake, number)
    return number


def forget_folded(lake: Lake, number: int) -> None:
    """Deletes what the base of this number replaces: older bases first, then their parts and the folded entries."""
    store = lake.store
    for folder, last in ((BASES, number - 1), (BASE_PARTS, number - 1), (ENDS, number - 1), (FOLDER, number)):
        store.delete([path for path in store.list(folder) if is_journal_path(path) and _stands_for(path) <= last])


def _stands_for(path: str) -> int:
    """The number of an object of the journal, or of the base that it is a part of."""
    folder, part_of = path.split("/")[:2]
    return int(part_of.partition("-")[0]) if folder == BASE_PARTS else numbered(path)


def _parts(changes: Iterator[Mapping[str, Any]]) -> Iterator[list[JournalEntry]]:
    entries: list[JournalEntry] = []
    weight = 0
    for change in changes:
        entries.append(JournalEntry(token="", change=change))
        weight += 1 + len(change.get("new", ()))
        if weight >= ENTRIES_PER_PART:
            yield entries
            entries, weight = [], 0
    if entries:
        yield entries
