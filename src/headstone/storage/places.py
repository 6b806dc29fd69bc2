"""Places where logs are: a path of a local disk, or a prefix or object of an object store with the same interface.

An `ObjectPlace` has the few methods of `pathlib.Path` that readers use (name, parent, `/`, children, exists, status, content),
so that readers of a log directory need not know which it is. It answers from a listing that is made once: a log directory of a
thousand partitions costs one request per thousand objects. Knows nothing about Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headstone.errors import UsageError
from headstone.storage.access import FROM_ENVIRONMENT, Access
from headstone.storage.redaction import address
from headstone.storage.stores import Listed, Store, is_remote, store_of


@dataclass(frozen=True, slots=True)
class FileStatus:
    """As much of a file's status as an object has. `st_ino` is its entity tag, which changes with the content."""

    st_size: int
    st_mtime_ns: int
    st_ino: str | None


Children = Mapping[str, FileStatus | None]
"""By name; a folder has no status."""


@dataclass(slots=True)
class _Tree:
    """What was found below some prefixes of one store. `listed`: prefixes below which everything is known."""

    bucket: str
    access: Access
    folders: dict[str, dict[str, FileStatus | None]] = field(default_factory=dict)
    listed: list[str] = field(default_factory=list)

    def children(self, key: str) -> Children:
        if key in self.folders:
            return self.folders[key]
        if any(_below(key, root) for root in self.listed):
            return {}
        self._add(store_of(self.bucket, self.access).children(key), key)
        return self.folders[key]

    def list_below(self, key: str) -> None:
        self._add(store_of(self.bucket, self.access).entries(key), key)
        self.listed.append(key)

    def below(self, key: str) -> _Tree:
        folders = {folder: names for folder, names in self.folders.items() if _below(folder, key)}
        return _Tree(self.bucket, self.access, folders, [key] if key in folders else [])

    def _add(self, entries: Iterable[Listed], root: str) -> None:
        """Also adds the folders between the root and an entry, which no store has; nothing above the root: there may be more.

        Some tools put an empty object where a folder is: the one of the root itself is ignored."""
        self.folders.setdefault(root, {})
        folders_seen = {root}
        for entry in (entry for entry in entries if entry.path != root):
            parent, _, name = entry.path.rpartition("/")
            status = None if entry.is_folder else FileStatus(entry.size, entry.modified_ns, entry.tag)
            self.folders.setdefault(parent, {})[name] = status
            while parent not in folders_seen:
                folders_seen.add(parent)
                above, _, folder = parent.rpartition("/")
                self.folders.setdefault(above, {})[folder] = None
                parent = above


def _below(key: str, root: str) -> bool:
    return not root or key == root or key.startswith(root + "/")


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """A prefix or an object: `bucket` is the URL of the store's root, `key` has no slash at its ends."""

    bucket: str
    key: str
    access: Access = FROM_ENVIRONMENT
    _tree: _Tree = field(default=None, compare=False, repr=False)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self._tree is None:
            object.__setattr__(self, "_tree", _Tree(self.bucket, self.access))

    def __str__(self) -> str:
        return f"{self.bucket}/{self.key}" if self.key else self.bucket

    def __lt__(self, other: object) -> bool:
        return str(self) < str(other)

    def __truediv__(self, name: str) -> ObjectPlace:
        return ObjectPlace(self.bucket, f"{self.key}/{name}" if self.key else name, self.access, self._tree)

    def __reduce__(self) -> tuple[object, ...]:
        """Leaves behind what is known about other places: a task gets only its own."""
        return ObjectPlace, (self.bucket, self.key, self.access, self._tree.below(self.key))

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPlace:
        return ObjectPlace(self.bucket, self.key.rpartition("/")[0], self.access, self._tree)

    def with_name(self, name: str) -> ObjectPlace:
        return self.parent / name

    def with_suffix(self, suffix: str) -> ObjectPlace:
        return self.with_name(Path(self.name).with_suffix(suffix).name)

    def exists(self) -> bool:
        return self.is_dir() or self._status() is not None

    def is_file(self) -> bool:
        return self._status() is not None

    def is_dir(self) -> bool:
        return bool(self._tree.children(self.key))

    def is_symlink(self) -> bool:
        return False

    def iterdir(self) -> Iterator[ObjectPlace]:
        return (self / name for name in sorted(self._tree.children(self.key)))

    def stat(self) -> FileStatus:
        status = self._status()
        if status is None:
            raise FileNotFoundError(f"{self}: no such object")
        return status

    def read_bytes(self) -> bytes:
        size = self.stat().st_size
        return store_of(self.bucket, self.access).read(self.key, 0, size)

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def _status(self) -> FileStatus | None:
        return self._tree.children(self.key.rpartition("/")[0]).get(self.name) if self.key else None


Place = Path | ObjectPlace

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "memory")
"""Obstore's schemes, and that of its store in memory."""


def place(given: str | Place, access: Access = FROM_ENVIRONMENT) -> Place:
    """From its path or URL. Everything below it in an object store is listed now."""
    if isinstance(given, Path) or not is_remote(str(given)):
        return Path(str(given).removeprefix("file://"))
    root = object_place(str(given), given.access if isinstance(given, ObjectPlace) else access)
    root._tree.list_below(root.key)
    return root


def children(place: Place) -> list[Place]:
    """By name."""
    return sorted(place.iterdir(), key=lambda child: child.name)


def local(place: Place) -> Path:
    """For what only a disk can do: locks, renames, owners."""
    if isinstance(place, ObjectPlace):
        raise UsageError(f"{place}: this needs a local directory")
    return place


def object_place(url: str, access: Access = FROM_ENVIRONMENT) -> ObjectPlace:
    """Without asking the store for anything."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in SCHEMES:
        raise UsageError(f"{address(url)}: unsupported scheme {scheme}://; use a path, or one of {', '.join(SCHEMES)}")
    if not bucket:
        raise UsageError(f"{url}: no bucket; name {scheme}://BUCKET/PREFIX")
    return ObjectPlace(f"{scheme}://{bucket}", key.strip("/"), access)


def answering(url: str, settings: Mapping[str, str]) -> ObjectPlace:
    """In a store that answers: one that does not is given up within seconds. Later requests are repeated for longer."""
    target = object_place(url, Access.of(settings))
    next(Store.open(url, settings, patient=False).children(), None)
    return target
