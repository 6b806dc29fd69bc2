"""Readers that pin what they read: garbage collection leaves what the log was made of then, for as long as the pin lasts.

A pin is taken before the extents are looked up, renewed while they are read, and given back at the end; that of a reader that
died expires. Without one a reader has the time of grace. Pins keep objects; what keeps tombstones in the log is a hold.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sqlalchemy import delete, insert, select, update

from headstone.errors import Unfinished
from headstone.lake import schema
from headstone.lake.clock import Moment
from headstone.lake.metastore import Metastore
from headstone.lake.rows import lock_pins
from headstone.lake.schema import OtherVersion

PIN_MS = 600_000
"""Of a pin that is renewed: so long after a reader has died, what it read may go."""
RENEWALS = 3
"""In the time of a pin: two of them may fail."""
UNDERWAY_MS = 60_000
"""A commit that was under way when a pin was taken has an older time; it takes seconds, not minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """What the log was made of at `as_of_ms` or since stays."""

    pin_id: str
    reader: str
    as_of_ms: int
    expires_ms: int


class Pins:
    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore

    def pin(
        self, reader: str, *, as_of_ms: int | None = None, for_ms: int = PIN_MS, now_ms: Moment | None = None
    ) -> Pin:
        """From now on; or from a moment in the past, of which what is left now stays."""
        with self._metastore.transaction() as connection:
            lock_pins(connection)
            moment_ms = self._metastore.moment(connection, now_ms)
            since_ms = moment_ms if as_of_ms is None else min(as_of_ms, moment_ms)
            made = Pin(
                pin_id=str(uuid.uuid4()), reader=reader, as_of_ms=since_ms - UNDERWAY_MS, expires_ms=moment_ms + for_ms
            )
            connection.execute(delete(schema.pins).where(schema.pins.c.expires_ms <= moment_ms))
            row = {name: getattr(made, name) for name in ("pin_id", "reader", "as_of_ms", "expires_ms")}
            connection.execute(insert(schema.pins).values(**row))
        return made

    def renew(self, pin: Pin, *, for_ms: int = PIN_MS, now_ms: Moment | None = None) -> bool:
        """False if it had expired, and is gone."""
        with self._metastore.transaction() as connection:
            moment_ms = self._metastore.moment(connection, now_ms)
            own = (schema.pins.c.pin_id == pin.pin_id) & (schema.pins.c.expires_ms > moment_ms)
            renewed = connection.execute(update(schema.pins).where(own).values(expires_ms=moment_ms + for_ms))
            return renewed.rowcount == 1

    def release(self, pin: Pin) -> None:
        with self._metastore.transaction() as connection:
            connection.execute(delete(schema.pins).where(schema.pins.c.pin_id == pin.pin_id))

    def all(self, *, now_ms: Moment | None = None) -> list[Pin]:
        with self._metastore.transaction() as connection:
            lasting = schema.pins.c.expires_ms > self._metastore.moment(connection, now_ms)
            rows = connection.execute(select(schema.pins).where(lasting).order_by(schema.pins.c.as_of_ms))
            return [Pin(**row._mapping) for row in rows]


@contextmanager
def pinned(metastore: Metastore, reader: str, *, as_of_ms: int | None = None) -> Iterator[Pin]:
    """What is looked up and read in the block stays. A thread renews the pin for as long as the block takes."""
    pins = Pins(metastore)
    pin = pins.pin(reader, as_of_ms=as_of_ms)
    done = threading.Event()

    def renew() -> None:
        while not done.wait(PIN_MS / RENEWALS / 1000):
            with suppress(Unfinished, OtherVersion):  # the metastore may answer the next one
                pins.renew(pin)

    thread = threading.Thread(target=renew, daemon=True, name="pin")
    thread.start()
    try:
        yield pin
    finally:
        done.set()
        thread.join()
        with suppress(Unfinished, OtherVersion):  # then it expires
            pins.release(pin)
