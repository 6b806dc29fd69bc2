"""The marker at a lake's prefix: which lake the objects are, and what a rebuild of a lost metastore cannot do without.

That is the secret of the digests in lists of keys, and which clock the lake uses. With another secret no list would find its
keys, and a deleted key would be served; so the marker is sealed, and compared with the metastore whenever the lake is opened.
Readers of the marker could read the records anyway. The metastore knows all that is in it, so a damaged or lost one is written
again, provided that other objects show that the store is this lake's.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import select

from headstone.errors import CorruptLog, UsageError
from headstone.lake.format.objects import is_object_path, read_index
from headstone.lake.format.prefixes import MARKER, OWNER
from headstone.lake.format.seals import sealed, unsealed
from headstone.lake.metastore import schema
from headstone.lake.metastore.journal import opened
from headstone.lake.metastore.journal_names import BASES, ENDS, FOLDER
from headstone.lake.metastore.metastore import Metastore
from headstone.storage.redaction import address
from headstone.storage.stores import MissingObject, Store

WRITE_AGAIN = (
    "`headstone lake mend LAKE --apply` writes it again from the metastore; without a metastore put it back from a backup or a "
    "version of the bucket"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The content of the marker object; `of` takes it from the metastore, `read` from the store."""

    lake_id: str
    hash_key: str
    clock: str

    @classmethod
    def of(cls, metastore: Metastore) -> Marker:
        with metastore.transaction() as connection:
            row = connection.execute(select(schema.lakes)).one()
        return cls(lake_id=row.lake_id, hash_key=row.hash_key, clock=row.clock)

    @classmethod
    def read(cls, store: Store) -> Marker:
        header = unsealed(store, MARKER, None, advice=WRITE_AGAIN).header
        return cls(lake_id=header["lake"], hash_key=header["hash_key"], clock=header["clock"])

    def write(self, store: Store) -> None:
        store.put(MARKER, sealed(self.lake_id, MARKER, [], hash_key=self.hash_key, clock=self.clock))


def no_lake(location: str, advice: str = "") -> UsageError:
    return UsageError(f"{address(location)} has no lake: {MARKER} is missing there{advice and '; ' + advice}")


def expect_marker(metastore: Metastore, store: Store) -> None:
    """CorruptLog if it is damaged, MissingObject if it is lost."""
    marker, expected = Marker.read(store), Marker.of(metastore)
    if marker.lake_id != expected.lake_id:
        raise UsageError(
            f"{store.url} belongs to lake {marker.lake_id}, but the metastore belongs to lake {expected.lake_id}"
        )
    if marker != expected:
        raise UsageError(
            f"{store.url}/{MARKER} has another secret or clock than the metastore, so one of them is not this lake's; nothing "
            "was changed. Restore the right one from a backup"
        )


def expect_marker_or_others(metastore: Metastore, store: Store) -> None:
    """As `expect_marker`, but it may be damaged or lost if other objects show whose the store is."""
    try:
        expect_marker(metastore, store)
    except (CorruptLog, MissingObject):
        if not _is_told_by_others(store, metastore.lake_id):
            raise


def mend_marker(metastore: Metastore, store: Store) -> None:
    """Writes a damaged or lost marker again; UsageError if the store has another lake's."""
    try:
        expect_marker(metastore, store)
    except (CorruptLog, MissingObject):
        Marker.of(metastore).write(store)


def _is_told_by_others(store: Store, lake_id: str) -> bool:
    """Whether any other object says that it is this lake's. An empty store, or another lake's, has none."""
    for path in (OWNER, *(path for folder in (ENDS, BASES, FOLDER) for path in store.list(folder))):
        with suppress(CorruptLog, MissingObject):
            opened(store, path, lake_id)
            return True
    for path in filter(is_object_path, store.list("objects")):
        with suppress(CorruptLog, MissingObject):
            read_index(store, path.rpartition("/")[2], lake_id)
            return True
    return False
