"""The steps of erasures, and how commits change them: a topic is dropped, or an erased key comes in again.

Works inside the transaction of that commit. Requests and progress are in `erasures`.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, delete, insert, select, update

from headstone.lake.metastore import schema
from headstone.lake.metastore.notes import erasure_change, note
from headstone.lake.metastore.rows import chunks

REQUESTED = "requested"
VALUES_REMOVED = "values have left the log"
VALUES_GONE = "values are gone"
KEY_REMOVED = "key has left the log"
ERASED = "erased"
STEPS = (REQUESTED, VALUES_REMOVED, VALUES_GONE, KEY_REMOVED, ERASED)
"""In this order. Data that has left the log is still in unreferenced objects until these are collected."""
WHOLE = "*"
"""In place of a digest: all of a dropped topic. Its steps are `requested`, `OBJECTS_REMOVED`, `erased`."""
OBJECTS_REMOVED = "has left the objects in use"
TOPIC_DROPPED = "topic dropped"
"""For a key whose topic was dropped before the key was erased: it is erased when the whole topic is."""
NEVER_SEEN = "never seen here"
"""In place of erased: no record of the key was found between the request and the end."""
CAME_AGAIN = "came in again"
"""After it was erased. Erasing it again needs a new request."""
CAME_LATER = "came in later"
"""After no record of it had been found, here or in the dropped topic. Erasing it needs a new request."""
CLOSED = (ERASED, NEVER_SEEN, CAME_AGAIN, CAME_LATER)
WHEN_IT_COMES = {KEY_REMOVED: REQUESTED, ERASED: CAME_AGAIN, NEVER_SEEN: CAME_LATER}
"""The step of an erasure after a record of its key is committed; every other step stays."""


def request_drop(connection: Connection, topic: str, *, deadline_ms: int, moment_ms: int) -> None:
    """For a topic that this transaction drops, with its keys that were still to be erased: the earliest deadline counts."""
    table = schema.erasures
    left = connection.execute(
        select(table).where(table.c.topic == topic, table.c.step.not_in(CLOSED)).with_for_update()
    ).all()
    deadline_ms = min([deadline_ms, *(row.deadline_ms for row in left)])
    state = {"step_ms": moment_ms, "not_before_ms": 0, "waits_for": ""}
    keys = (table.c.topic == topic) & (table.c.key_digest != WHOLE) & table.c.step.not_in(CLOSED)
    connection.execute(update(table).where(keys).values(step=TOPIC_DROPPED, **state))
    whole = (table.c.topic == topic) & (table.c.key_digest == WHOLE)
    connection.execute(delete(table).where(whole))
    asked = {"requested_ms": moment_ms, "deadline_ms": deadline_ms, "step": REQUESTED, "seen": True}
    connection.execute(insert(table).values(topic=topic, key_digest=WHOLE, **asked, **state))
    changed = connection.execute(select(table).where(keys | whole)).all()
    note(connection, [erasure_change(row) for row in changed])


def come_again(connection: Connection, topic: str, digests: Collection[str], moment_ms: int) -> None:
    """This transaction commits records of these keys. They count as seen from now on, even if no job looks while they are
    there. A job that looked before and found none has to look again."""
    table = schema.erasures
    state = {"step_ms": moment_ms, "not_before_ms": 0, "waits_for": ""}
    for some in chunks(sorted(digests)):
        chosen = (table.c.topic == topic) & table.c.key_digest.in_(some)
        changed = chosen & (table.c.step.in_(tuple(WHEN_IT_COMES)) | ~table.c.seen)
        names = list(connection.scalars(select(table.c.key_digest).where(changed).with_for_update()))
        named = chosen & table.c.key_digest.in_(names)
        new_in_dropped = named & (table.c.step == TOPIC_DROPPED) & ~table.c.seen
        connection.execute(update(table).where(new_in_dropped).values(step=CAME_LATER, **state))
        for step, next_step in WHEN_IT_COMES.items():
            connection.execute(update(table).where(named, table.c.step == step).values(step=next_step, **state))
        # A job that looked before this commit, and found none, has an older step now, so its update changes nothing.
        connection.execute(update(table).where(named, ~table.c.seen).values(seen=True, step_ms=moment_ms))
        note(connection, [erasure_change(row) for row in connection.execute(select(table).where(named)).all()])
