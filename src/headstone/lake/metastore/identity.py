"""Which metastore is the lake's: a copy that works on the same objects is noticed before it changes any.

Two metastores of one store delete each other's objects, each correctly by its own rows. Three things tell them apart. The
metastore remembers its **place**: which file or database it is, and which directory its objects are in. A copy is another file
or database over the same objects, and is refused. A directory that was moved, or copied with its objects, is another place with
objects of its own, and continues. Metastore and store share a **token**, which changes whenever a copy becomes a lake of its
own or takes over a store: a metastore with an older token is refused when it opens the lake. Taking over also goes to the
**journal**, so that processes that had opened the lake before are refused too (`journal.SetBack`).

Not detected here: clones of whole machines or database servers, which are the same in every respect. The first of them to
commit takes the next number of the journal, and the others are refused from then on.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select, text, update

from headstone.errors import CorruptLog, UsageError
from headstone.lake.format.prefixes import OWNER
from headstone.lake.format.seals import sealed, unsealed
from headstone.lake.metastore import schema
from headstone.lake.metastore.locations import found_location
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.notes import note
from headstone.storage.stores import MissingObject, Store, local_directory

MACHINE = Path("/etc/machine-id")
WRITE_AGAIN = "`headstone lake mend LAKE --apply`, or `headstone lake adopt LAKE`, writes it again"
ONLY_ONE = "two metastores of one store would delete each other's objects, so nothing was changed"

Facts = Mapping[str, str]


class MetastoreCopied(UsageError):
    """The metastore is a copy, and another one may be at work on the same objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePlace:
    """What a metastore and its objects are on their disks, or on their server. A remote store says nothing about itself."""

    metastore: Facts
    store: Facts

    @classmethod
    def of_row(cls, content: str) -> LakePlace:
        """Empty for a lake that was never opened."""
        return cls(**json.loads(content)) if content else cls(metastore={}, store={})

    def content(self) -> str:
        return json.dumps({"metastore": self.metastore, "store": self.store}, sort_keys=True)


def is_copy(before: LakePlace, now: LakePlace, *, shared_with_original: bool) -> bool:
    """Whether the metastore is another file or database than before, over the same objects.

    `shared_with_original`: its former place still has a metastore with the same objects. A file keeps its inode when it is
    moved. A file with a new inode at the old path on the same machine was restored from a backup."""
    if not before.metastore or _changed(before.store, now.store, "inode"):
        return False
    if "database" in now.metastore:
        return _changed(before.metastore, now.metastore, "database") or _changed(
            before.metastore, now.metastore, "server"
        )
    if shared_with_original:
        return True
    at_home = before.metastore.get("path") == now.metastore["path"] and not _changed(
        before.metastore, now.metastore, "machine"
    )
    return not (at_home and now.metastore.get("machine")) and _changed(before.metastore, now.metastore, "inode")


def is_whole_copy(before: LakePlace, now: LakePlace) -> bool:
    """Both metastore and objects are others than before: a separate lake from now on, perhaps the second with its id."""
    return bool(before.metastore) and _changed(before.store, now.store, "inode")


def _changed(before: Facts, now: Facts, name: str) -> bool:
    """Whether both have the fact and it differs."""
    return bool(before.get(name)) and bool(now.get(name)) and before[name] != now[name]


def expect_own(metastore: Metastore, store: Store, *, mends: bool = False) -> None:
    """Copied if the objects are, or may be, another metastore's. A moved metastore is known by its new place from now on.

    CorruptLog if the store's owner object is damaged; `mends` writes it again instead."""
    with metastore.transaction() as connection:
        row = connection.execute(select(schema.lakes)).one()
        now = _place(connection, metastore, store, row.lake_id)
    owner, _ = _owner_or_damage(store, row.lake_id)
    if owner and owner["token"] == row.token and LakePlace.of_row(row.place) == now:
        return
    with (
        metastore.transaction() as connection
    ):  # what is written to the store is written under this lock: no token is lost
        row = connection.execute(select(schema.lakes).with_for_update()).one()
        values = _settled(row, now, metastore, store, mends=mends)
        if values:
            connection.execute(update(schema.lakes).values(**values))
    _own(metastore, store, values.get("token", row.token))


def _settled(row: Any, now: LakePlace, metastore: Metastore, store: Store, *, mends: bool) -> dict[str, str]:
    """The values to store in a metastore whose place has changed; or raises Copied."""
    before, (owner, damage) = LakePlace.of_row(row.place), _owner_or_damage(store, row.lake_id)
    if owner and owner["token"] not in (row.token, row.token_before):
        raise MetastoreCopied(
            f"{store.url} was taken over by the metastore {owner['metastore']}; this one is an older copy, and {ONLY_ONE}. Use "
            "that one; if it is lost, run `headstone lake adopt` to use this one"
        )
    if is_copy(before, now, shared_with_original=_shares(before, row.location, metastore, store)):
        raise MetastoreCopied(
            f"this metastore, {described(now)}, is a copy of {described(before)}, or was moved from there, and still uses the "
            f"objects in {store.url}: {ONLY_ONE}. If the other one is gone for good, run `headstone lake adopt` to use this "
            "one; to make a separate lake, copy the objects as well and run `headstone lake rebuild NEW --objects COPY`"
        )
    if damage is not None and not mends:
        raise damage
    values = {} if before == now else {"place": now.content()}
    if is_whole_copy(before, now) or not row.token:
        values |= {"token": str(uuid.uuid4()), "token_before": row.token}
    return values


def adopt(metastore: Metastore, store: Store) -> None:
    """Makes the store this metastore's, wherever it came from; every copy of it is refused from now on.

    The caller has made sure that the journal has nothing that the metastore lacks."""
    token = str(uuid.uuid4())
    with metastore.transaction() as connection:
        row = connection.execute(select(schema.lakes).with_for_update()).one()
        now = _place(connection, metastore, store, row.lake_id)
        owner, _ = _owner_or_damage(store, row.lake_id)
        values = {"place": now.content(), "token": token, "token_before": (owner or {}).get("token", "")}
        connection.execute(update(schema.lakes).values(**values))
        note(connection, [{"adopted": token}])
    _own(metastore, store, token)


def _own(metastore: Metastore, store: Store, token: str) -> None:
    """The store is written last: after a crash before that it has the former token, which counts until then."""
    with metastore.transaction() as connection:
        row = connection.execute(select(schema.lakes)).one()
    place = described(LakePlace.of_row(row.place))
    store.put(OWNER, sealed(row.lake_id, OWNER, [], token=token, metastore=place))
    with metastore.transaction() as connection:
        connection.execute(update(schema.lakes).where(schema.lakes.c.token == token).values(token_before=""))


def owner_of(store: Store, lake_id: str) -> Facts | None:
    """What the store says about its metastore; None if nothing, as before a lake is first opened."""
    try:
        return unsealed(store, OWNER, lake_id, advice=WRITE_AGAIN).header
    except MissingObject:
        return None


def _owner_or_damage(store: Store, lake_id: str) -> tuple[Facts | None, CorruptLog | None]:
    """The damage is returned, not raised, because the check for a copy comes first: a copy may not mend."""
    try:
        return owner_of(store, lake_id), None
    except CorruptLog as damage:
        return None, damage


def described(place: LakePlace) -> str:
    """For messages."""
    facts = place.metastore
    if "database" in facts:
        return f"database {facts['name']} (oid {facts['database']})"
    return facts.get("path", "one that nobody has opened")


def _place(connection: Connection, metastore: Metastore, store: Store, lake_id: str) -> LakePlace:
    directory = local_directory(store.url)
    in_store = {} if directory is None else {"path": os.path.realpath(directory), "inode": str(directory.stat().st_ino)}
    return LakePlace(metastore=_metastore_facts(connection, metastore, lake_id), store=in_store)


def _metastore_facts(connection: Connection, metastore: Metastore, lake_id: str) -> Facts:
    if connection.dialect.name == "postgresql":
        return _database_facts(connection)
    file = metastore.file
    if file is None:
        return {}
    return {"path": str(file), "inode": str(file.stat().st_ino), "machine": _machine(lake_id)}


def _database_facts(connection: Connection) -> Facts:
    """A restored dump has another oid, another server another identifier. Not every role may ask for the latter."""
    own: Any = connection.execute(text("SELECT oid, datname FROM pg_database WHERE datname = current_database()")).one()
    facts = {"database": str(own.oid), "name": str(own.datname)}
    if connection.execute(text("SELECT has_function_privilege('pg_control_system()', 'EXECUTE')")).scalar_one():
        server = connection.execute(text("SELECT system_identifier FROM pg_control_system()")).scalar_one()
        facts["server"] = str(server)
    return facts


def _machine(lake_id: str) -> str:
    """Tells one machine from another without revealing its id. Empty if it has none."""
    try:
        machine = MACHINE.read_text().strip()
    except OSError:
        return ""
    return hashlib.sha256(f"{lake_id} {machine}".encode()).hexdigest()[:16] if machine else ""


def _shares(before: LakePlace, kept: str, metastore: Metastore, store: Store) -> bool:
    """Whether another file is where this metastore was before, and works on the same objects."""
    file, path = metastore.file, before.metastore.get("path")
    if file is None or not path or not Path(path).exists() or os.path.samefile(path, file):
        return False
    objects = found_location(kept, Path(path))
    directory, original = local_directory(store.url), local_directory(objects)
    if directory is None or original is None:
        return objects == store.url
    return original.is_dir() and os.path.samefile(directory, original)
