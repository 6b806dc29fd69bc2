"""The journal: what every commit has changed, told to the store, so that a metastore that was lost can be made again.

An object's own index tells what is in it, and not whether a commit has ever used it: what a refused compaction has uploaded
looks like what a successful one has, and may lack a tombstone whose victims are still served. So every change is noted in the
metastore by the transaction that makes it (`note`), and written to the store right behind it, under the next number
(`record`). Numbers have no gaps and are written once: whoever finds the next one taken by entries that it does not know works
with a metastore that was set back in time. Nothing here decides what may change.

Of one partition the entries are in the order of its commits: they are noted under its lock, and all that wait are written, the
oldest first. A crash between commit and store leaves them waiting for the next who commits, or for `gc`, which deletes nothing
before all is written.

What many entries come to is a base (`folding`): a number, and parts that hold what all entries up to it have made. Entries up
to the number of the newest base may be gone, so whoever is at an older number is refused by the base instead.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, func, insert, select, update

from headstone.errors import UsageError
from headstone.lake import schema
from headstone.lake.commits import Extent, Partition
from headstone.lake.rows import chunks
from headstone.lake.spans import Span
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.progress import Board
from headstone.storage.stores import MissingObject, Store

if TYPE_CHECKING:
    from headstone.lake.metastore import Metastore

FOLDER = "journal"
NOTED = "headstone-journal"
"""In a connection's info, until its transaction has ended: something was noted."""
ENTRIES_PER_OBJECT = 1000
READS_AT_ONCE = 16
READS_AHEAD = 1000
"""Objects that are in memory before they are used."""
KINDS = {"partition", "topic", "epochs", "erasure"}
"""Of changes: each has one of these names."""
BASES = "journal-base"
BASE_PARTS = "journal-base-parts"
"""A base is the list of its parts, which are all there before it is."""


class SetBack(UsageError):
    """The store knows of commits that the metastore does not: it is of an earlier time, or another copy of it is at work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that changed. `token` tells it from every other entry of any history."""

    token: str
    change: Mapping[str, Any]


def commit_change(
    topic_partition: TopicPartition, after: Partition, *, gone: Sequence[Extent], new: Sequence[Extent], ranges: bool,
    moment_ms: int,
) -> dict[str, Any]:  # fmt: skip
    """`ranges`: cleaned and tombstone ranges are told too; else they are as they were."""
    change: dict[str, Any] = {
        "partition": [topic_partition.topic, topic_partition.number], "start": after.start_offset, "next": after.next_offset,
        "epoch": after.compaction_epoch, "moment_ms": moment_ms, "gone": [extent.span.start for extent in gone],
        "new": [asdict(extent) for extent in new],
    }  # fmt: skip
    if ranges:
        change["cleaned"] = [list(span) for span in after.cleaned]
        change["tombstones"] = [[*known.span, known.cleaned_at_ms] for known in after.tombstones]
    return change


def topic_change(connection: Connection, name: str) -> dict[str, Any]:
    """As it is now: its settings, its id, how many partitions it has; or that it is gone."""
    topics, partitions = schema.topics, schema.partitions
    row = connection.execute(select(topics).where(topics.c.name == name)).first()
    if row is None:
        return {"topic": name, "dropped": True}
    counted = select(func.count()).select_from(partitions).where(partitions.c.topic_id == row.topic_id)
    change = {"topic": name, "settings": json.loads(row.settings), "kafka_id": row.kafka_id}
    return {**change, "partitions": connection.execute(counted).scalar_one()}


def epochs_change(topic_partition: TopicPartition, epochs: Sequence[tuple[int, int]]) -> dict[str, Any]:
    return {"epochs": [topic_partition.topic, topic_partition.number], "starts": list(map(list, epochs))}


def note_topic(connection: Connection, name: str) -> None:
    note(connection, [topic_change(connection, name)])


def note_epochs(connection: Connection, topic_partition: TopicPartition, epochs: Sequence[tuple[int, int]]) -> None:
    note(connection, [epochs_change(topic_partition, epochs)])


def erasure_change(row: Any) -> dict[str, Any]:
    """Of a row of the erasures: that it is asked for, and how far it is; not what it waits for."""
    names = ("requested_ms", "deadline_ms", "step", "step_ms")
    return {"erasure": [row.topic, row.key_digest], **{name: getattr(row, name) for name in names}}


def note(connection: Connection, changes: Sequence[Mapping[str, Any]]) -> None:
    """In one statement, however many there are."""
    rows = [{"token": secrets.token_hex(8), "change": json.dumps(change, separators=(",", ":"))} for change in changes]
    if rows:
        connection.execute(insert(schema.journal), rows)
        connection.info[NOTED] = True


def extent_of_entry(fields: Mapping[str, Any]) -> Extent:
    return Extent(**{**fields, "span": Span(*fields["span"])})


def object_of(number: int) -> str:
    return f"{FOLDER}/{number:020d}"


def record(metastore: Metastore, store: Store) -> None:
    """All that waits, and what somebody else has written and not crossed out. SetBack if the store is ahead of us."""
    while True:
        number, waiting = _waiting(metastore)
        if not waiting:
            return
        if store.put(object_of(number + 1), content_of(waiting), create=True):
            if base_number(store) > number:  # what stood there was folded: this one counts for nobody
                _refuse_older(metastore, store, number)
                continue
            _cross_out(metastore, number + 1, [entry.token for entry in waiting])
        else:
            _take_over(metastore, store, number)


def expect_current(metastore: Metastore, store: Store) -> None:
    """Two small questions: nobody has written the next number, or it was one of us who has not crossed it out."""
    number, _ = _waiting(metastore)
    # In this order: the next number may be folded and deleted in between, and the base is there before that.
    is_taken = store.has(object_of(number + 1))
    if base_number(store) > number:
        _refuse_older(metastore, store, number)
    elif is_taken:
        _take_over(metastore, store, number)


def _refuse_older(metastore: Metastore, store: Store, number: int) -> None:
    """The store is ahead of the number that we had: is the metastore, too, by now?"""
    if _waiting(metastore, limit=1)[0] <= number:
        raise _set_back(store)


def _set_back(store: Store) -> SetBack:
    return SetBack(
        f"{store.url} knows of commits that the metastore does not: it was set back in time, or another copy of it is at "
        "work; stop all workers, then `headstone lake rebuild` brings it up to date"
    )


def _take_over(metastore: Metastore, store: Store, number: int) -> None:
    """Whoever wrote the next number may be about to cross it out, or was killed: then we do. Else it is another history."""
    try:
        written = [entry.token for entry in read(store, number + 1)]
    except MissingObject:  # folded since: whoever folds has a newer number, and so have we, or it is another copy
        _refuse_older(metastore, store, number)
        return
    now, waiting = _waiting(metastore, limit=None)
    if now > number:
        return
    if not set(written) <= {entry.token for entry in waiting}:
        raise _set_back(store)
    # Below a base: who goes on from there comes, by one number after the other, to those that count.
    if base_number(store) > number:
        _refuse_older(metastore, store, number)
        return
    _cross_out(metastore, number + 1, written)


def _waiting(metastore: Metastore, limit: int | None = ENTRIES_PER_OBJECT) -> tuple[int, list[Entry]]:
    """With the number that was written last."""
    table = schema.journal
    with metastore.transaction(snapshot=True) as connection:
        number = connection.execute(select(schema.lakes.c.journal_number)).scalar_one()
        rows = connection.execute(select(table).order_by(table.c.entry_id).limit(limit))
        return number, [Entry(token=row.token, change=json.loads(row.change)) for row in rows]


def _cross_out(metastore: Metastore, number: int, tokens: Sequence[str]) -> None:
    lakes = schema.lakes
    with metastore.transaction() as connection:
        connection.execute(update(lakes).where(lakes.c.journal_number == number - 1).values(journal_number=number))
        for some in chunks(tokens):
            connection.execute(delete(schema.journal).where(schema.journal.c.token.in_(some)))


def content_of(entries: Sequence[Entry]) -> bytes:
    lines = (json.dumps({"token": entry.token, **entry.change}, separators=(",", ":")) for entry in entries)
    return "".join(line + "\n" for line in lines).encode()


def read(store: Store, number: int) -> list[Entry]:
    return _entries(store, object_of(number))


def _entries(store: Store, path: str) -> list[Entry]:
    content = store.read(path, 0, store.size(path))
    lines = (json.loads(line) for line in content.splitlines())
    return [Entry(token=line.pop("token"), change=line) for line in lines]


def base_of(number: int) -> str:
    return f"{BASES}/{number:020d}"


def base_number(store: Store) -> int:
    """Of the newest base; 0 if there is none."""
    return max((numbered(path) for path in store.list(BASES)), default=0)


def numbered(path: str) -> int:
    """The number that an object of the journal, or a base, has by its name."""
    return int(path.rpartition("/")[2])


def base_parts(store: Store, number: int) -> list[str]:
    path = base_of(number)
    return list(json.loads(store.read(path, 0, store.size(path)))["parts"])


def is_journal(store: Store, path: str) -> bool:
    """Whether an object is a part of the journal, by its name and by every line of it; or was, and is gone."""
    folder, _, name = path.rpartition("/")
    try:
        if folder == BASES and name.isdecimal():
            return all(part.startswith(f"{BASE_PARTS}/") for part in base_parts(store, int(name)))
        if not name.isdecimal() or (folder != FOLDER and not folder.startswith(f"{BASE_PARTS}/")):
            return False
        return all(KINDS & entry.change.keys() for entry in _entries(store, path))
    except MissingObject:
        return True
    except (ValueError, KeyError, TypeError):
        return False


def read_all(store: Store, board: Board | None = None) -> Iterator[tuple[int, list[Entry]]]:
    """The newest base, and the entries behind it. A number that is missing is an error: what it told cannot be guessed."""
    first = base_number(store)
    numbers = sorted(number for number in map(numbered, store.list(FOLDER)) if number > first)
    for expected, number in enumerate(numbers, start=first + 1):
        if number != expected:
            raise MissingObject(
                f"{store.url}/{object_of(expected)}: no such object; restore it from a backup or a version"
            )
    if first:
        yield first, []
    paths = [(first, part) for part in (base_parts(store, first) if first else ())]
    paths += [(number, object_of(number)) for number in numbers]
    sizes = _sizes(store, [path for _, path in paths], board)
    with ThreadPoolExecutor(READS_AT_ONCE) as pool:
        for start in range(0, len(paths), READS_AHEAD):
            some = paths[start : start + READS_AHEAD]
            read_ahead = pool.map(lambda place: _entries(store, place[1]), some)
            for (number, path), entries in zip(some, read_ahead, strict=True):
                if board is not None:
                    board.note(board.numbers(1)[0], sizes[path], len(entries))
                yield number, entries


def _sizes(store: Store, paths: Sequence[str], board: Board | None) -> Mapping[str, int]:
    """Of these objects, for whoever shows how far it is."""
    if board is None:
        return {}
    sizes = dict.fromkeys(paths, 0)
    listed = (entry for folder in (FOLDER, BASE_PARTS) for entry in store.entries(folder))
    sizes |= {entry.path: entry.size for entry in listed if entry.path in sizes}
    board.expect(sum(sizes.values()))
    return sizes
