"""The journal: what every commit has changed, written to the store, so that a lost metastore can be rebuilt.

An object's own index tells what is in it, but not whether a commit ever used it: the upload of a refused compaction looks like
that of a successful one, and may lack a tombstone whose victims are still served. So the transaction that makes a change also
notes it in the metastore (`notes`), and the note is written to the store right after it, under the next number (`record`).
Numbers have no gaps and are written once. A metastore that finds the next number taken by entries that it does not know was set
back in time. Nothing here decides what may change.

A partition's entries are in the order of its commits: noted under its lock, and written oldest first. After a crash between
commit and store they wait for the next commit, or for `gc`, which deletes nothing before all of them are written.

Every object is sealed (`seals`). An entry repeats the seal of the one before, a base the seals of its parts;
`journal-end/<number>` tells which entry is the newest. So a changed, exchanged or lost object is named, and nothing is rebuilt
from the rest.

A base sums up many entries (`folding`): a number, and parts with the result of all entries up to it. Entries up to the number
of the newest base may be gone, so a metastore at an older number is refused because of the base.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, select, update

from headstone.errors import CorruptLog, UsageError
from headstone.interruption import Threads
from headstone.lake.format.extents import Extent
from headstone.lake.format.seals import Page, damaged, digest_of, sealed, unsealed
from headstone.lake.format.spans import Span
from headstone.lake.metastore import schema
from headstone.lake.metastore.journal_names import (
    BASE_PARTS,
    BASES,
    ENDS,
    FOLDER,
    base_of,
    end_of,
    is_journal_path,
    numbered,
    object_of,
)
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.rows import chunks
from headstone.pipeline.progress import Board
from headstone.storage.stores import MissingObject, Store

ENTRIES_PER_OBJECT = 1000
READS_AT_ONCE = 16
READS_AHEAD = 1000
"""Objects that may be in memory before they are used."""
KINDS = {"partition", "topic", "epochs", "erasure", "lost", "adopted"}
"""Every change has one of these names."""
PUT_BACK = (
    "restore it from a backup or from the bucket's version history; if the metastore is intact, `headstone lake mend LAKE "
    "--apply` rewrites the journal from it"
)


class SetBack(UsageError):
    """The store knows commits that the metastore does not: it is of an earlier time, or another copy of it is at work."""


class Strangers(UsageError):
    """Objects tell of commits that the metastore does not know by their names, but not by their content: whose are they?"""


class JournalEnd(NamedTuple):
    """The newest entry: its number, and its SHA-256, which the next one repeats. 0 and "" before the first."""

    number: int
    digest: str


NO_ENTRY = JournalEnd(0, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One change. `token` tells it from every other entry of any history."""

    token: str
    change: Mapping[str, Any]


def extent_of_entry(fields: Mapping[str, Any]) -> Extent:
    return Extent(**{**fields, "span": Span(*fields["span"])})


def record(metastore: Metastore, store: Store) -> None:
    """Writes all that waits; takes over what others wrote and did not cross out. SetBack if the store is ahead of us."""
    while True:
        end, waiting = _waiting(metastore)
        if not waiting:
            return
        _write(metastore, store, end, waiting)


def record_nothing(metastore: Metastore, store: Store) -> None:
    """Writes an entry without changes: its number is above everything that the store was told."""
    record(metastore, store)
    _write(metastore, store, _waiting(metastore)[0], [])


def _write(metastore: Metastore, store: Store, end: JournalEnd, waiting: Sequence[JournalEntry]) -> None:
    number = end.number + 1
    content = content_of(metastore.lake_id, object_of(number), waiting, previous=end.digest)
    if store.put(object_of(number), content, create=True):
        if base_number(store) > end.number:  # what stood there was folded: this one counts for nobody
            _refuse_older(metastore, store, end.number)
            return
        _cross_out(metastore, store, JournalEnd(number, digest_of(content)), [entry.token for entry in waiting])
    else:
        _take_over(metastore, store, end)


def expect_current(metastore: Metastore, store: Store, *, damaged: bool = False) -> None:
    """A few small checks. Nobody has written the next number, or one of us did and has not crossed it out. The newest number
    told is ours, with our entry. And the store is not of an earlier time than the metastore.

    `damaged`: for callers that check or mend the lake; damage and Strangers are then allowed."""
    with suppress(*((Strangers, CorruptLog) if damaged else ())):  # CorruptLog: of the next number
        _expect_current(metastore, store, damaged=damaged)


def _expect_current(metastore: Metastore, store: Store, *, damaged: bool) -> None:
    while True:
        end, _ = _waiting(metastore)
        number = end.number
        newest, strange = _told_if_whole(store, metastore.lake_id, number)
        # In this order: the next number may be folded and deleted in between, but its base is there before that.
        is_taken = store.has(object_of(number + 1))
        if base_number(store) > number or newest.number > number + 1:
            _refuse_older(metastore, store, number)
        elif is_taken:
            _take_over(metastore, store, end)
        elif newest.number > number:  # told of after it was written: it is lost
            _refuse_older(metastore, store, number)
        elif newest.number == number and newest.digest not in ("", end.digest):
            raise another_history(store, number)
        elif not damaged and newest.number < number and not _has_entry(store, number):
            raise SetBack(
                f"{store.url}: its journal ends at number {max(newest.number, 0)}, but the metastore has seen number {number}: "
                "the objects are older than the metastore, as after restoring only them from a backup; nothing was changed. "
                "Restore the newer objects, or the metastore of the same time; `headstone lake mend LAKE` shows what is lost "
                "without the newer objects"
            )
        elif strange:
            raise Strangers(_strange(store, strange, number))
        else:
            return


def is_of_earlier_time(metastore: Metastore, store: Store) -> bool:
    """Whether the store lacks the newest entry of the metastore, and the end that would tell that only the entry is lost."""
    number = _waiting(metastore, limit=1)[0].number
    return _told_if_whole(store, metastore.lake_id, number)[0].number < number and not _has_entry(store, number)


def _has_entry(store: Store, number: int) -> bool:
    """Whether the entry is there, or the base that it was folded into, which is written before the entry is deleted."""
    return store.has(object_of(number)) or base_number(store) >= number


def another_history(store: Store, number: int) -> SetBack:
    return SetBack(
        f"{store.url}: number {number} of its journal is not the one that the metastore knows: these are the objects of "
        "another copy of the lake, or the metastore is; nothing was changed. Put back what belongs together; or move the "
        "metastore away, and `headstone lake rebuild LAKE --objects URL` makes the one of these objects"
    )


def _refuse_older(metastore: Metastore, store: Store, number: int) -> None:
    """The store is ahead of the number that we had. Returns if the metastore has caught up by now, otherwise raises."""
    if _waiting(metastore, limit=1)[0].number > number:
        return
    if strange := _nothing_but_strangers(store, metastore.lake_id, number):
        raise Strangers(_strange(store, strange, number))
    raise _set_back(store)


def _strange(store: Store, paths: Collection[str], number: int) -> str:
    return f"{store.url}: {', '.join(paths)}: {strange_problem(number)}; nothing was changed"


def strange_problem(number: int) -> str:
    return (
        f"by its name the journal's, which the metastore has seen at number {number}, and not by its content; if it is not the "
        "lake's, take it away; if it is, it was damaged, and the metastore is of an earlier time"
    )


def strangers(store: Store, lake_id: str, number: int) -> list[str]:
    """Objects that tell of commits after `number` by their name but not by their content: we must not commit beside them."""
    names = [
        *_names_ahead(store, number, (BASES, ENDS)),
        *(path for path in [object_of(number + 1)] if store.has(path)),
    ]
    return [path for path in names if not _is_whole(store, path, lake_id)]


def foreign_entries(store: Store, lake_id: str, number: int) -> list[str]:
    """Names of entries too far above `number` to be looked at, without the content of entries."""
    return [path for path in _names_ahead(store, number + 1, (FOLDER,)) if not _is_whole(store, path, lake_id)]


def _nothing_but_strangers(store: Store, lake_id: str, number: int) -> list[str]:
    """`strangers`, or nothing if a whole object does tell of commits after the number."""
    names = [
        *_names_ahead(store, number, (BASES, ENDS)),
        *_names_ahead(store, number + 1, (FOLDER,)),
    ]  # the next one may be ours
    if any(_is_whole(store, path, lake_id) for path in names):
        return []
    return strangers(store, lake_id, number)


def _names_ahead(store: Store, number: int, folders: Collection[str]) -> list[str]:
    paths = (path for folder in folders for path in store.list(folder) if is_journal_path(path))
    return sorted(path for path in paths if numbered(path) > number)


def _is_whole(store: Store, path: str, lake_id: str) -> bool:
    try:
        opened(store, path, lake_id)
    except MissingObject:  # it was an entry and has been deleted
        return True
    except CorruptLog:
        return False
    return True


def _set_back(store: Store) -> SetBack:
    return SetBack(
        f"{store.url} knows of commits that the metastore does not: it was set back in time, or another copy of it is at "
        "work; stop all workers, then `headstone lake rebuild` brings it up to date"
    )


def _take_over(metastore: Metastore, store: Store, end: JournalEnd) -> None:
    """The writer of the next number may be about to cross it out, or was killed: then we do it. Else it is another history."""
    number = end.number
    try:
        page = opened(store, object_of(number + 1), metastore.lake_id)
        written = [entry.token for entry in entries_of(page)]
    except MissingObject:  # folded since: the folder has a newer number, and so have we, unless it is another copy
        _refuse_older(metastore, store, number)
        return
    now, waiting = _waiting(metastore, limit=None)
    if now.number > number:
        return
    if page.header.get("previous") != end.digest:
        raise _set_back(store)
    if not set(written) <= {entry.token for entry in waiting}:
        raise _set_back(store)
    # Below a base: who goes on from there comes, by one number after the other, to those that count.
    if base_number(store) > number:
        _refuse_older(metastore, store, number)
        return
    _cross_out(metastore, store, JournalEnd(number + 1, page.digest), written)


def known_end(connection: Connection) -> JournalEnd:
    """The last entry written, as far as the metastore knows."""
    row = connection.execute(select(schema.lakes.c.journal_number, schema.lakes.c.journal_digest)).one()
    return JournalEnd(int(row.journal_number), str(row.journal_digest))


def seen_end(metastore: Metastore) -> JournalEnd:
    with metastore.transaction() as connection:
        return known_end(connection)


def knows_nothing(metastore: Metastore) -> bool:
    """Whether it has never had an object or a change."""
    rows = (schema.journal.c.entry_id, schema.objects.c.object_id)
    with metastore.transaction() as connection:
        is_told = known_end(connection).number
        return not is_told and not any(connection.execute(select(row).limit(1)).first() for row in rows)


def _waiting(metastore: Metastore, limit: int | None = ENTRIES_PER_OBJECT) -> tuple[JournalEnd, list[JournalEntry]]:
    """The last entry written, and the entries that wait to be written after it."""
    table = schema.journal
    with metastore.transaction(snapshot=True) as connection:
        rows = connection.execute(select(table).order_by(table.c.entry_id).limit(limit))
        return known_end(connection), [JournalEntry(token=row.token, change=json.loads(row.change)) for row in rows]


def _cross_out(metastore: Metastore, store: Store, end: JournalEnd, tokens: Sequence[str]) -> None:
    """Tells the store first: nobody writes the next number before this one is known to be there."""
    tell_end(store, metastore.lake_id, end)
    lakes, values = schema.lakes, {"journal_number": end.number, "journal_digest": end.digest}
    with metastore.transaction() as connection:
        connection.execute(update(lakes).where(lakes.c.journal_number == end.number - 1).values(**values))
        for some in chunks(tokens):
            connection.execute(delete(schema.journal).where(schema.journal.c.token.in_(some)))


def tell_end(store: Store, lake_id: str, end: JournalEnd) -> None:
    """An object whose name is the number, so that a late writer does not hide a higher one."""
    store.put(end_of(end.number), sealed(lake_id, end_of(end.number), [], newest=end.digest))
    store.delete([end_of(end.number - 1)] if end.number else [])


def told_end(store: Store, lake_id: str, *, last: int | None = None) -> JournalEnd | None:
    """The highest end that is told; None if there is none. CorruptLog if it is damaged. But an end is told before the next
    number is written: so damage beyond `last`, the end of the journal, is ignored if a lower end is whole."""
    newest, damages = _told(store, lake_id)
    _expect_told(newest, damages, last)
    return newest


def _told(store: Store, lake_id: str) -> tuple[JournalEnd | None, dict[int, CorruptLog]]:
    """The highest end that is whole, and the damage of each higher one."""
    damages = dict[int, CorruptLog]()
    for number in sorted(_numbers(store, ENDS), reverse=True):
        try:
            return JournalEnd(number, str(opened(store, end_of(number), lake_id).header["newest"])), damages
        except CorruptLog as error:
            damages[number] = error
    return None, damages


def _expect_told(newest: JournalEnd | None, damages: Mapping[int, CorruptLog], last: int | None) -> None:
    for number, damage in damages.items():
        if newest is None or last is None or number <= last + 1:
            raise damage


def _told_if_whole(store: Store, lake_id: str, number: int) -> tuple[JournalEnd, list[str]]:
    """`told_end` for callers that go on without it: number -1 if nothing is told, an empty digest if it can't be read. Also
    returns damaged ends that are further ahead of `number` than they could be."""
    strange = list[str]()
    for newest in sorted(_numbers(store, ENDS), reverse=True):
        try:
            return JournalEnd(newest, str(opened(store, end_of(newest), lake_id).header["newest"])), strange
        except MissingObject:
            return JournalEnd(newest, ""), strange
        except CorruptLog:
            if newest <= number + 1:
                return JournalEnd(newest, ""), strange
            strange.append(end_of(newest))
    return JournalEnd(-1, ""), strange


def content_of(lake_id: str, path: str, entries: Sequence[JournalEntry], **header: object) -> bytes:
    """The content of an entry, or of a part of a base."""
    return sealed(lake_id, path, [{"token": entry.token, **entry.change} for entry in entries], **header)


def opened(store: Store, path: str, lake_id: str) -> Page:
    """CorruptLog if it was changed, or is another object."""
    return unsealed(store, path, lake_id, advice=PUT_BACK)


def entries_of(page: Page) -> list[JournalEntry]:
    return [
        JournalEntry(token=line["token"], change={name: line[name] for name in line if name != "token"})
        for line in page.lines
    ]


def base_number(store: Store) -> int:
    """Number of the newest base; 0 if there is none."""
    return max(_numbers(store, BASES), default=0)


def _numbers(store: Store, folder: str) -> list[int]:
    """Numbers of the journal's objects in a folder, which may have other files too."""
    return [numbered(path) for path in store.list(folder) if is_journal_path(path)]


def is_journal(store: Store, path: str, lake_id: str) -> bool:
    """Whether an object is, or was until just now, part of the journal, by its name and every line of it."""
    folder = path.rpartition("/")[0]
    if not is_journal_path(path):
        return False
    try:
        page = opened(store, path, lake_id)
    except MissingObject:
        return True
    except (CorruptLog, ValueError, KeyError, TypeError):
        return False
    kinds = {"part"} if folder == BASES else KINDS
    return all(kinds & line.keys() for line in page.lines)


def read_all(store: Store, lake_id: str, board: Board | None = None) -> Iterator[tuple[JournalEnd, list[JournalEntry]]]:
    """The newest base, and the entries after it. A missing number is an error: what it told cannot be guessed.

    So is an entry that does not continue the one before, or an end above the last entry."""
    first = base_number(store)
    newest, damages = _told(store, lake_id)
    present = sorted(number for number in _numbers(store, FOLDER) if number > first)
    numbers = _without_gap(first, present)
    end_number = numbers[-1] if numbers else first
    _expect_told(newest, damages, end_number)
    last = max(end_number, newest.number if newest is not None else 0)
    beyond = [number for number in present if number > end_number]
    if newest is None or any(_is_whole(store, object_of(number), lake_id) for number in beyond):
        last = max(last, *beyond, 0)
    if last > end_number:
        raise MissingObject(
            f"{store.url}/{object_of(end_number + 1)}: no such object, but the journal continues to number {last}; {PUT_BACK}"
        )
    end, parts = NO_ENTRY, dict[str, str]()
    if first:
        base = opened(store, base_of(first), lake_id)
        end, parts = JournalEnd(first, base.header["entry"]), {line["part"]: line["sha256"] for line in base.lines}
        yield end, []
    paths = [(first, part) for part in parts] + [(number, object_of(number)) for number in numbers]
    sizes = _sizes(store, [path for _, path in paths], board)
    with Threads(READS_AT_ONCE) as pool:
        for start in range(0, len(paths), READS_AHEAD):
            some = paths[start : start + READS_AHEAD]
            read_ahead = pool.map(lambda place: opened(store, place[1], lake_id), some)
            for (number, path), page in zip(some, read_ahead, strict=True):
                if parts.get(path, page.digest) != page.digest:
                    raise damaged(store, path, f"it is not the part that belongs to {base_of(first)}", PUT_BACK)
                if path not in parts:
                    if page.header["previous"] != end.digest:
                        raise damaged(store, path, f"it does not continue number {end.number}", PUT_BACK)
                    end = JournalEnd(number, page.digest)
                if board is not None:
                    board.note(board.numbers(1)[0], sizes[path], len(page.lines))
                yield end, entries_of(page)
    if newest is not None and newest.number == end.number and newest.digest != end.digest:
        raise damaged(store, object_of(end.number), f"it is not the one named in {end_of(end.number)}", PUT_BACK)


def _without_gap(first: int, numbers: Sequence[int]) -> list[int]:
    """The numbers that follow `first` without a gap. Later ones may be as far away as they like."""
    return [number for number, expected in zip(numbers, count(first + 1)) if number == expected]  # fmt: skip


def _sizes(store: Store, paths: Sequence[str], board: Board | None) -> Mapping[str, int]:
    """Sizes of these objects, for progress. Empty without a board."""
    if board is None:
        return {}
    sizes = dict.fromkeys(paths, 0)
    listed = (entry for folder in (FOLDER, BASE_PARTS) for entry in store.entries(folder))
    sizes |= {entry.path: entry.size for entry in listed if entry.path in sizes}
    board.expect(sum(sizes.values()))
    return sizes
