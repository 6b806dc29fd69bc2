"""A lake: its metastore and its store, opened together. Two lakes never share a prefix.

The marker object at the prefix carries the lake's id (`marker`); if it carries another id, metastore and store do not belong
together. An empty metastore over existing objects is refused, because it would take all of them for garbage. Every commit is
written to the store's journal (`journal`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from headstone.errors import CorruptLog, Unfinished, UsageError
from headstone.lake.format.objects import is_object_path
from headstone.lake.format.prefixes import (
    EMBEDDED,
    OBJECTS,
    expect_free_directory,
    expect_free_prefix,
    refuse_embedded,
    refuse_enclosing,
    refuse_kafka,
    what_is_there,
)
from headstone.lake.metastore.commits import OtherVersion
from headstone.lake.metastore.database import file_of
from headstone.lake.metastore.identity import adopt, expect_own
from headstone.lake.metastore.journal import (
    NO_ENTRY,
    expect_current,
    is_of_earlier_time,
    knows_nothing,
    record,
    tell_end,
)
from headstone.lake.metastore.marker import Marker, expect_marker, expect_marker_or_others, mend_marker, no_lake
from headstone.lake.metastore.metastore import Metastore
from headstone.storage.durable import make_directories
from headstone.storage.redaction import address, hide, password_of
from headstone.storage.secrets import resolved
from headstone.storage.stores import MissingObject, Store
from headstone.units import count

MOVED = (
    "if the lake's objects were moved, `headstone lake rebuild LAKE --objects URL` tells the metastore where they are"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """An open lake. A context manager: closes the metastore at the end."""

    metastore: Metastore
    store: Store

    def close(self) -> None:
        self.metastore.close()

    def __enter__(self) -> Lake:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()


def metastore_url(given: str, *, make: bool = False) -> str:
    """The URL for a lake named by its directory, by the URL itself, or by a reference to it (`env:NAME`, `file:PATH`)."""
    given = _resolved(given)
    if "://" in given:
        return given
    if make:
        expect_free_directory(Path(given))
    elif not (Path(given) / EMBEDDED).exists():
        raise UsageError(what_is_there(Path(given)))
    return directory_url(given)


def _resolved(given: str) -> str:
    """This process never shows the password, however it was given. An empty text would mean the current directory."""
    if not given:
        raise UsageError("'' is no lake: name its directory, or its metastore by its URL")
    given = resolved(given)
    hide(unquote(password_of(given) or ""))
    return given


def directory_url(path: str) -> str:
    """The URL of the metastore of a lake in a directory."""
    return f"sqlite:///{Path(path).absolute() / EMBEDDED}"


def new_place(given: str, objects: str | None) -> tuple[str, str]:
    """For a lake to be created: the metastore's URL and the place of the objects. `given` as for `metastore_url`."""
    url = metastore_url(given, make=True)
    if objects is None and url != directory_url(given):
        raise UsageError(
            "name the object storage with --objects (objects= in a program); only a lake in a directory has its own"
        )
    return url, objects or f"file://{Path(given).absolute() / OBJECTS}"


def rebuilt_place(given: str, objects: str | None) -> tuple[str, str | None]:
    """For a lake whose metastore may be gone: its URL and the place of the objects; None if only the metastore knows.

    `given` as for `metastore_url`."""
    given = _resolved(given)
    if "://" in given:
        return given, objects
    if not Path(given).is_dir():
        raise UsageError(f"{given}: no such directory; name the lake's directory")
    return directory_url(given), objects


def create_lake(
    metastore_url: str, location: str, *, now_ms: int | None = None, settings: Mapping[str, str] | None = None
) -> Lake:
    """Creates a lake. The prefix must be free: objects of another lake would be garbage to this one.

    `now_ms` None: the lake uses its database's clock. Otherwise it uses a given clock, which starts at `now_ms`."""
    expect_free_prefix(location, settings)
    if (file := file_of(metastore_url)) is not None:
        refuse_kafka(file.parent)
        refuse_embedded(file.parent)
        make_directories(file.parent)
    metastore = Metastore.create(metastore_url, location=location, now_ms=now_ms)
    store = Store.open(metastore.location, settings)
    Marker.of(metastore).write(store)
    tell_end(store, metastore.lake_id, NO_ENTRY)
    expect_own(metastore, store)
    return joined(metastore, store)


def joined(metastore: Metastore, store: Store) -> Lake:
    """A commit counts once the database has it. If the store does not answer then, it is told later. If the tables have another
    version by then, another program tells it."""

    def tell_store() -> None:
        with suppress(Unfinished, OtherVersion):
            record(metastore, store)

    metastore.after_commit.add(tell_store)
    return Lake(metastore=metastore, store=store)


def open_lake(metastore_url: str, *, settings: Mapping[str, str] | None = None, damaged: bool = False) -> Lake:
    """Refuses a metastore that is a copy, or whose time is not the store's; nothing is changed then.

    `damaged`: for callers that check or mend the lake. What tells whose the store is may then be damaged."""
    lake = unchecked_lake(metastore_url, settings=settings, damaged=damaged)
    with closed_if_refused(lake.metastore):
        refuse_enclosing(lake.store.url, settings)
        if damaged and is_of_earlier_time(lake.metastore, lake.store):
            return lake  # nothing is written to objects that may be there by mistake; mending asks whose they are
        with suppress(*((CorruptLog,) if damaged else ())):
            expect_own(lake.metastore, lake.store)
    return lake


def adopt_lake(metastore_url: str, *, settings: Mapping[str, str] | None = None) -> Lake:
    """Makes this metastore the lake's only one: its copies are refused from now on. Writes marker and owner again."""
    lake = unchecked_lake(metastore_url, settings=settings, damaged=True)
    with closed_if_refused(lake.metastore):
        mend_marker(lake.metastore, lake.store)
        adopt(lake.metastore, lake.store)
    return lake


def unchecked_lake(metastore_url: str, *, settings: Mapping[str, str] | None = None, damaged: bool = False) -> Lake:
    """Metastore and store are of the same time; the caller must check that this is the store's only metastore."""
    metastore = Metastore.open(metastore_url)
    with closed_if_refused(metastore):
        location = metastore.location
        expect = expect_marker_or_others if damaged else expect_marker
        try:
            expect(metastore, Store.open(location, settings, patient=False, make=False))
        except MissingObject as error:
            raise no_lake(location, MOVED) from error
        store = Store.open(location, settings, make=False)
        expect_current(metastore, store, damaged=damaged)
        _refuse_empty(metastore, store)
    return joined(metastore, store)


@contextmanager
def closed_if_refused(metastore: Metastore) -> Iterator[None]:
    """An open connection keeps parts of a SQLite database beside its file, which would clash with a backup restored there."""
    with ExitStack() as refused:
        refused.callback(metastore.close)
        yield
        refused.pop_all()


def _refuse_empty(metastore: Metastore, store: Store) -> None:
    """Refuses a metastore that knows of nothing, over a store with objects: its rebuild was killed, or the two do not belong
    together."""
    if not knows_nothing(metastore):
        return
    stored = [path for path in store.list(OBJECTS) if is_object_path(path)]
    if stored:
        raise UsageError(
            f"the metastore is empty, but {store.url} has {count(len(stored), 'object')} of the lake: they were written with "
            "another metastore; nothing was changed. Restore that metastore, or restore journal/, journal-base/, "
            "journal-base-parts/ and journal-end/ and run `headstone lake rebuild`"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeAddress:
    """All that another process needs to open the lake."""

    metastore_url: str
    store_settings: Mapping[str, str]

    def __repr__(self) -> str:
        return f"LakeAddress({address(self.metastore_url)}, {', '.join(sorted(self.store_settings))})"

    def open(self, *, damaged: bool = False) -> Lake:
        return open_lake(self.metastore_url, settings=self.store_settings, damaged=damaged)
