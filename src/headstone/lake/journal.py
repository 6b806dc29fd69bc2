"""The journal: what every commit has changed, told to the store, so that a metastore that was lost can be made again.

An object's own index tells what is in it, and not whether a commit has ever used it: what a refused compaction has uploaded
looks like what a successful one has, and may lack a tombstone whose victims are still served. So every change is noted in the
metastore by the transaction that makes it (`note`), and written to the store right behind it, under the next number
(`record`). Numbers have no gaps and are written once: whoever finds the next one taken by entries that it does not know works
with a metastore that was set back in time. Nothing here decides what may change.

Of one partition the entries are in the order of its commits: they are noted under its lock, and all that wait are written, the
oldest first. A crash between commit and store leaves them waiting for the next who commits, or for `gc`, which deletes nothing
before all is written.
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
KINDS = {"partition", "topic", "epochs"}
"""Of changes: each has one of these names."""


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


def note_topic(connection: Connection, name: str) -> None:
    """As it is now: its settings, its id, how many partitions it has; or that it is gone."""
    topics, partitions = schema.topics, schema.partitions
    row = connection.execute(select(topics).where(topics.c.name == name)).first()
    if row is None:
        note(connection, [{"topic": name, "dropped": True}])
        return
    counted = select(func.count()).select_from(partitions).where(partitions.c.topic_id == row.topic_id)
    change = {"topic": name, "settings": json.loads(row.settings), "kafka_id": row.kafka_id}
    note(connection, [{**change, "partitions": connection.execute(counted).scalar_one()}])


def note_epochs(connection: Connection, topic_partition: TopicPartition, epochs: Sequence[tuple[int, int]]) -> None:
    note(connection, [{"epochs": [topic_partition.topic, topic_partition.number], "starts": list(map(list, epochs))}])


def note(connection: Connection, changes: Sequence[Mapping[str, Any]]) -> None:
    """In one statement, however many there are."""
    rows = [{"token": secrets.token_hex(8), "change": json.dumps(change, separators=(",", ":"))} for change in changes]
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
        if store.put(object_of(number + 1), _content(waiting), create=True):
            _cross_out(metastore, number + 1, [entry.token for entry in waiting])
        else:
            _take_over(metastore, store, number)


def expect_current(metastore: Metastore, store: Store) -> None:
    """One small question: nobody has written the next number, or it was one of us who has not crossed it out."""
    number, _ = _waiting(metastore)
    if store.has(object_of(number + 1)):
        _take_over(metastore, store, number)


def _take_over(metastore: Metastore, store: Store, number: int) -> None:
    """Whoever wrote the next number may be about to cross it out, or was killed: then we do. Else it is another history."""
    written = [entry.token for entry in read(store, number + 1)]
    now, waiting = _waiting(metastore, limit=None)
    if now > number:
        return
    if not set(written) <= {entry.token for entry in waiting}:
        raise SetBack(
            f"{store.url} knows of commits that the metastore does not: it was set back in time, or another copy of it is at "
            "work; stop all workers, then `headstone lake rebuild` brings it up to date"
        )
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


def _content(entries: Sequence[Entry]) -> bytes:
    lines = (json.dumps({"token": entry.token, **entry.change}, separators=(",", ":")) for entry in entries)
    return "".join(line + "\n" for line in lines).encode()


def read(store: Store, number: int) -> list[Entry]:
    path = object_of(number)
    content = store.read(path, 0, store.size(path))
    lines = (json.loads(line) for line in content.splitlines())
    return [Entry(token=line.pop("token"), change=line) for line in lines]


def is_journal(store: Store, path: str) -> bool:
    """Whether an object is a part of the journal, by its name and by every line of it."""
    folder, _, name = path.rpartition("/")
    if folder != FOLDER or not name.isdecimal():
        return False
    try:
        return all(KINDS & entry.change.keys() for entry in read(store, int(name)))
    except (ValueError, KeyError):
        return False


def read_all(store: Store) -> Iterator[tuple[int, list[Entry]]]:
    """From the first on. A number that is missing is an error: what it told cannot be guessed."""
    numbers = [int(path.rpartition("/")[2]) for path in store.list(FOLDER)]
    for expected, number in enumerate(numbers, start=1):
        if number != expected:
            raise MissingObject(
                f"{store.url}/{object_of(expected)}: no such object; restore it from a backup or a version"
            )
    with ThreadPoolExecutor(READS_AT_ONCE) as pool:
        for first in range(0, len(numbers), READS_AHEAD):
            some = numbers[first : first + READS_AHEAD]
            yield from zip(some, pool.map(lambda number: read(store, number), some), strict=True)
