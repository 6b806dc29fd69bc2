"""Readers pin what they read: while a pin lasts, garbage collection leaves what the log consisted of at its moment.

A pin is taken before the extents are looked up, renewed during the read, and released at the end; a dead reader's pin
expires. If one expired because the metastore did not answer for too long, it is taken again: what is left then stays, and a
reader that misses something is told why. A reader without a pin has the time of grace. Pins keep objects; holds keep
tombstones in the log.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace

from sqlalchemy import Connection, delete, insert, select, update

from headstone.errors import HeadstoneError, Unfinished
from headstone.lake.metastore import schema
from headstone.lake.metastore.clock import Moment
from headstone.lake.metastore.commits import OtherVersion
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.object_states import lock_pins
from headstone.storage.stores import MissingObject

PIN_MS = 600_000
"""Lifetime of a pin unless renewed: this long after a reader has died, what it read may go."""
RENEWALS = 3
"""Per lifetime of a pin: two of them may fail."""
RETRY_MS = 10_000
"""After a failed renewal: once the metastore is back, an expired pin is missing for collectors only this long."""
UNDERWAY_MS = 60_000
"""A commit under way when a pin was taken has an older time; it takes seconds, not minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """What the log consisted of at `as_of_ms` or since stays."""

    pin_id: str
    reader: str
    as_of_ms: int
    expires_ms: int


class Pins:
    """The readers' pins of one lake. Most callers use `pinned`, which also renews its pin."""

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
            _write(connection, made, moment_ms)
        return made

    def renew(self, pin: Pin, *, for_ms: int = PIN_MS, now_ms: Moment | None = None) -> bool:
        """False if it had expired, and is gone."""
        with self._metastore.transaction() as connection:
            moment_ms = self._metastore.moment(connection, now_ms)
            own = (schema.pins.c.pin_id == pin.pin_id) & (schema.pins.c.expires_ms > moment_ms)
            renewed = connection.execute(update(schema.pins).where(own).values(expires_ms=moment_ms + for_ms))
            return renewed.rowcount == 1

    def keep(self, pin: Pin, *, for_ms: int = PIN_MS, now_ms: Moment | None = None) -> bool:
        """Renews it. False if it had expired and was taken again: what was left since its moment, and still exists, stays."""
        if self.renew(pin, for_ms=for_ms, now_ms=now_ms):
            return True
        with self._metastore.transaction() as connection:
            lock_pins(connection)
            moment_ms = self._metastore.moment(connection, now_ms)
            _write(connection, replace(pin, expires_ms=moment_ms + for_ms), moment_ms)
        return False

    def release(self, pin: Pin) -> None:
        with self._metastore.transaction() as connection:
            connection.execute(delete(schema.pins).where(schema.pins.c.pin_id == pin.pin_id))

    def all(self, *, now_ms: Moment | None = None) -> list[Pin]:
        with self._metastore.transaction() as connection:
            lasting = schema.pins.c.expires_ms > self._metastore.moment(connection, now_ms)
            rows = connection.execute(select(schema.pins).where(lasting).order_by(schema.pins.c.as_of_ms))
            return [Pin(**row._mapping) for row in rows]


def _write(connection: Connection, pin: Pin, moment_ms: int) -> None:
    """Also removes expired pins. This pin may be one of them, or may have been taken again by another caller."""
    columns = schema.pins.c
    connection.execute(delete(schema.pins).where((columns.expires_ms <= moment_ms) | (columns.pin_id == pin.pin_id)))
    connection.execute(insert(schema.pins).values(**asdict(pin)))


class _Keeper:
    """A thread that keeps a pin, whatever errors it meets."""

    def __init__(self, pins: Pins, pin: Pin) -> None:
        self._lapsed, self._kept_s = False, time.monotonic()
        self._pins, self._pin, self._done = pins, pin, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="pin")
        self._thread.start()

    @property
    def has_lapsed(self) -> bool:
        """Whether there was a time without the pin."""
        return self._lapsed or time.monotonic() - self._kept_s > PIN_MS / 1000

    def end(self) -> None:
        self._done.set()
        self._thread.join()

    def keep(self) -> bool:
        """False if the metastore, or a clock, does not allow it now. The next try may succeed."""
        try:
            self._lapsed |= not self._pins.keep(self._pin)
        except HeadstoneError:
            return False
        self._kept_s = time.monotonic()
        return True

    def _run(self) -> None:
        kept = True
        while not self._done.wait((PIN_MS / RENEWALS if kept else RETRY_MS) / 1000):
            kept = self.keep()


@contextmanager
def pinned(metastore: Metastore, reader: str, *, as_of_ms: int | None = None) -> Iterator[Pin]:
    """What the block looks up and reads stays. A thread renews the pin until the block ends.

    Unfinished if the block met a deleted object because the pin had expired."""
    pins = Pins(metastore)
    pin = pins.pin(reader, as_of_ms=as_of_ms)
    keeper = _Keeper(pins, pin)
    try:
        yield pin
    except MissingObject as error:
        keeper.keep()
        if not keeper.has_lapsed:
            raise
        raise Unfinished(
            f"the metastore did not answer for longer than a pin lasts ({PIN_MS // 60_000} minutes), and gc has removed what "
            f"was being read ({error}): start over with the lake as it is now"
        ) from error
    finally:
        keeper.end()
        with suppress(Unfinished, OtherVersion):  # then it expires
            pins.release(pin)
