"""A lake: its metastore and its store, opened together. Two lakes never share a prefix.

The marker object at the prefix carries the lake's id; whoever finds another id there has been given the wrong pair. Behind the
id is what a lost metastore cannot be made again without: the secret of the digests, and whose clock the lake goes by. Who may
read the marker may read the records themselves. Every commit is told to the store (`journal`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from sqlalchemy import select

from headstone.errors import Unfinished, UsageError
from headstone.lake import schema
from headstone.lake.journal import expect_current, record
from headstone.lake.metastore import Metastore
from headstone.storage.redaction import address, hide, password_of
from headstone.storage.secrets import resolved
from headstone.storage.stores import MissingObject, Store

MARKER = "headstone-lake"
LAKE_ID_BYTES = 36
EMBEDDED = "metastore.db"
"""The metastore of a lake in a directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    metastore: Metastore
    store: Store

    def close(self) -> None:
        self.metastore.close()


def metastore_url(given: str, *, make: bool = False) -> str:
    """Of a lake that is named by its directory, by the URL itself, or by a reference to it (`env:NAME`, `file:PATH`)."""
    given = _resolved(given)
    if "://" in given:
        return given
    if make:
        Path(given).mkdir(parents=True, exist_ok=True)
    elif not (Path(given) / EMBEDDED).exists():
        raise UsageError(f"{given} holds no lake; `headstone lake init {given}` makes one")
    return directory_url(given)


def _resolved(given: str) -> str:
    """Its password is not shown by this process, however it was given."""
    given = resolved(given)
    hide(unquote(password_of(given) or ""))
    return given


def directory_url(path: str) -> str:
    """The metastore of a lake in a directory."""
    return f"sqlite:///{Path(path).absolute() / EMBEDDED}"


def rebuilt_place(given: str, objects: str | None) -> tuple[str, str | None]:
    """The metastore's URL, and where the objects are, of a lake whose metastore may be gone; None: it has to tell.

    Named as for `metastore_url`."""
    given = _resolved(given)
    if "://" in given:
        return given, objects
    if not Path(given).is_dir():
        raise UsageError(f"{given}: no such directory; name the one that the lake was in")
    return directory_url(given), objects or f"file://{Path(given).absolute() / 'objects'}"


def create_lake(
    metastore_url: str, location: str, *, now_ms: int | None = None, settings: Mapping[str, str] | None = None
) -> Lake:
    """A new lake. The prefix must be free: objects of another lake would be garbage to this one.

    `now_ms`: it goes by a given clock, which stands there now. None: by its database's."""
    if Store.open(location, settings, patient=False).list():
        raise UsageError(f"{address(location)} holds objects already; a lake needs a prefix of its own")
    store = Store.open(location, settings)
    metastore = Metastore.create(metastore_url, location=location, now_ms=now_ms)
    with store.writing(MARKER) as sink:
        sink.write(marker_of(metastore).encode())
    return joined(metastore, store)


def marker_of(metastore: Metastore) -> str:
    with metastore.transaction() as connection:
        row = connection.execute(select(schema.lakes)).one()
    return f"{row.lake_id}\n{json.dumps({'hash_key': row.hash_key, 'clock': row.clock})}\n"


def joined(metastore: Metastore, store: Store) -> Lake:
    """A commit is made when the database has it. A store that does not answer then is told later, and by the newer program if
    the tables have been upgraded since."""

    def after_commit() -> None:
        with suppress(Unfinished, schema.OtherVersion):
            record(metastore, store)

    metastore.after_commit = after_commit
    return Lake(metastore=metastore, store=store)


def open_lake(metastore_url: str, *, settings: Mapping[str, str] | None = None) -> Lake:
    metastore = Metastore.open(metastore_url)
    store = Store.open(metastore.location, settings)
    try:
        lake_id = Store.open(metastore.location, settings, patient=False).read(MARKER, 0, LAKE_ID_BYTES).decode()
    except MissingObject as error:
        raise UsageError(f"{store.url} holds no lake: {MARKER} is missing there") from error
    if lake_id != metastore.lake_id:
        raise UsageError(f"{store.url} belongs to lake {lake_id}, the metastore to lake {metastore.lake_id}")
    expect_current(metastore, store)
    return joined(metastore, store)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeAddress:
    """Enough to open the lake in another process."""

    metastore_url: str
    store_settings: Mapping[str, str]

    def __repr__(self) -> str:
        return f"LakeAddress({address(self.metastore_url)}, {', '.join(sorted(self.store_settings))})"

    def open(self) -> Lake:
        return open_lake(self.metastore_url, settings=self.store_settings)
