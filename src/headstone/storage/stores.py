"""Object storage behind one small face: S3, Google Cloud Storage, Azure, local files, memory, all through obstore.

Owns the translation of its errors into ours. Knows nothing of what is in the objects.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import obstore
from obstore import exceptions
from obstore.store import LocalStore, MemoryStore, from_url

from headstone.errors import Unfinished, UsageError
from headstone.storage.access import FROM_ENVIRONMENT, Access
from headstone.storage.redaction import address, first_line

PART_BYTES = 8 << 20
"""Of a multipart upload: what a writer holds in memory, times the parts that are on their way."""
PARTS_AT_ONCE = 2
LIST_PAGE = 1000
"""Objects that one request for a listing brings."""
LIST_PAUSES_S = (0.1, 0.4, 1.6, 6.4)
CUT_OFF = "list response body"
"""In what obstore says of an answer that ended too early."""
REACH_SECONDS = 10
"""For the first answer of a store; afterwards requests are repeated for as long as obstore does it, some minutes."""
CLIENT_SETTINGS = (
    "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only",
    "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_only", "pool_idle_timeout",
    "pool_max_idle_per_host", "proxy_url", "randomize_addresses", "timeout", "user_agent",
)  # fmt: skip
"""Those of the connection. obstore wants them apart from those of the store, and panics if they are not."""
SCHEMES = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, file:///PATH or memory://NAME"

_MEMORY: dict[str, MemoryStore] = {}


def is_remote(path: str) -> bool:
    """Whether it names an object store rather than a path of this machine."""
    scheme, colon, _ = path.partition("://")
    return bool(colon) and scheme != "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """An object, or a prefix that others begin with. `tag` changes with the content."""

    path: str
    is_folder: bool = False
    size: int = 0
    modified_ns: int = 0
    tag: str | None = None


class Sink(Protocol):
    def write(self, data: bytes) -> object: ...


@dataclass(slots=True)
class Traffic:
    """What was asked of a store. Parts of an upload are requests of their own, and so are its beginning and end."""

    reads: int = 0
    writes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    lists: int = 0


class Store:
    """The objects under one prefix."""

    def __init__(self, url: str, store: Any, access: Access = FROM_ENVIRONMENT) -> None:
        self.url = url
        self.access = access
        self.traffic = Traffic()
        self._store = store

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it is opened there, once for all who have the same access."""
        return store_of, (self.url, self.access)

    @classmethod
    def open(cls, url: str, settings: Mapping[str, str] | None = None, *, patient: bool = True) -> Store:
        """settings by obstore's names, such as `endpoint`, `region`, `access_key_id`; else from the environment.

        Not `patient`: a store that does not answer is given up after a few seconds."""
        scheme, colon, rest = url.partition("://")
        if not colon:
            raise UsageError(f"{address(url)!r} is not object storage: {SCHEMES}")
        if scheme == "memory":
            return cls(url, _MEMORY.setdefault(rest, MemoryStore()))
        if scheme == "file":
            Path(rest).mkdir(parents=True, exist_ok=True)
            return cls(url, LocalStore(prefix=rest))
        client, given = _told_apart(settings or {})
        more: dict[str, object] = {}
        if not patient:
            client = {"timeout": f"{REACH_SECONDS}s", **client}
            more = {"retry_config": {"max_retries": 3, "retry_timeout": timedelta(seconds=REACH_SECONDS)}}
        try:
            opened = from_url(url, config=given, client_options=client, **more)  # type: ignore[call-overload]
        except (exceptions.BaseError, ValueError) as error:
            raise UsageError(f"{address(url)}: {first_line(error)}; object storage is {SCHEMES}") from error
        return cls(url, opened, Access.of(settings or {}))

    def upload(self, path: str, *, part_bytes: int = PART_BYTES) -> ObjectUpload:
        """An upload in parts that somebody finishes, or not."""
        return ObjectUpload(self, path, part_bytes)

    @contextmanager
    def writing(self, path: str, *, part_bytes: int = PART_BYTES) -> Iterator[Sink]:
        """A streaming upload: the object appears when the block ends, and only if it ends well. A path is written once."""
        upload = self.upload(path, part_bytes=part_bytes)
        yield upload
        upload.finish()

    def _size_if_any(self, path: str) -> int | None:
        try:
            return self.size(path)
        except MissingObject:
            return None

    def read(self, path: str, position: int, length: int) -> bytes:
        """Exactly these bytes; an object that ends before is an error."""
        return bytes(self.view(path, position, length))

    def view(self, path: str, position: int, length: int) -> memoryview:
        """As `read`, where the library has put them: a copy of many megabytes takes as long as reading them did."""
        if length == 0:
            return memoryview(b"")
        with self._translated(path):
            content = memoryview(obstore.get_range(self._store, path, start=position, length=length))
        if len(content) != length:
            raise Unfinished(
                f"{self.url}/{path}: {len(content)} bytes at {position}, {length} expected: the object is cut off"
            )
        self.traffic.reads += 1
        self.traffic.bytes_read += length
        return content

    def size(self, path: str) -> int:
        with self._translated(path):
            return int(obstore.head(self._store, path)["size"])

    def has(self, path: str) -> bool:
        return self._size_if_any(path) is not None

    def list(self, prefix: str = "") -> list[str]:
        return sorted(entry.path for entry in self.entries(prefix))

    def entries(self, prefix: str = "") -> Iterator[Listed]:
        """Every object below the prefix, as a folder."""
        pages = self._listed(prefix, lambda: list(obstore.list(self._store, prefix or None, chunk_size=LIST_PAGE)))
        self.traffic.lists += len(pages)
        yield from (_listed(entry) for page in pages for entry in page)

    def children(self, prefix: str = "") -> Iterator[Listed]:
        """The objects and folders right below the prefix."""
        result = self._listed(prefix, lambda: obstore.list_with_delimiter(self._store, prefix or None))
        self.traffic.lists += 1
        yield from (Listed(path=folder.rstrip("/"), is_folder=True) for folder in result["common_prefixes"])
        yield from (_listed(entry) for entry in result["objects"])

    def _listed(self, prefix: str, ask: Callable[[], Any]) -> Any:
        """obstore asks again for what is cut off of an object, and not of a listing."""
        for pause_s in (*LIST_PAUSES_S, None):
            try:
                with self._translated(prefix):
                    return ask()
            except Unfinished as error:
                if pause_s is None or CUT_OFF not in str(error):
                    raise
                time.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    def put(self, path: str, content: bytes, *, create: bool = False) -> bool:
        """A whole object at once. `create`: only if there is none yet; False if there was one with another content.

        One with this content counts as ours: a request is repeated when its answer was lost, and then finds its own object.
        So a content that must have one writer names its writer."""
        try:
            with self._translated(path):
                obstore.put(self._store, path, content, mode="create" if create else "overwrite")
        except ExistingObject:
            return self._size_if_any(path) == len(content) and self.read(path, 0, len(content)) == content
        self.traffic.writes += 1
        self.traffic.bytes_written += len(content)
        return True

    def tag(self, path: str) -> str:
        """Another one with every content."""
        with self._translated(path):
            return str(obstore.head(self._store, path)["e_tag"])

    def replace(self, path: str, content: bytes, *, tag: str) -> bool:
        """Only if the object still is the one with this tag; False if somebody was faster."""
        try:
            with self._translated(path):
                obstore.put(self._store, path, content, mode={"e_tag": tag})
        except ChangedObject:
            return False
        self.traffic.writes += 1
        self.traffic.bytes_written += len(content)
        return True

    def copy(self, source: str, target: str) -> None:
        """Within the store, without the bytes passing through here."""
        with self._translated(source):
            obstore.copy(self._store, source, target)
        self.traffic.writes += 1

    def delete(self, paths: Iterable[str]) -> None:
        """Those that are not there any more are no error: a collection that was interrupted runs again.

        With what an upload that was killed has left of them: on local disks nobody else removes it."""
        for path in paths:
            for staged in self._staged(path):
                staged.unlink(missing_ok=True)
            try:
                with self._translated(path):
                    obstore.delete(self._store, [path])
            except MissingObject:
                continue

    def staged(self) -> tuple[str, ...]:
        """What uploads have written and not published; object stores show no such thing."""
        scheme, _, root = self.url.partition("://")
        parts = Path(root).rglob("*#*") if scheme == "file" else ()
        return tuple(sorted(path.relative_to(root).as_posix() for path in parts if path.is_file()))

    def _staged(self, path: str) -> tuple[Path, ...]:
        """Local uploads are written beside their place, as `name#1`, and then renamed."""
        scheme, _, root = self.url.partition("://")
        place = Path(root) / path
        return tuple(place.parent.glob(f"{place.name}#*")) if scheme == "file" else ()

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise MissingObject(f"{self.url}/{path}: no such object or bucket") from error
        except exceptions.PreconditionError as error:
            raise ChangedObject(f"{self.url}/{path}: somebody has replaced it") from error
        except exceptions.AlreadyExistsError as error:
            raise ExistingObject(f"{self.url}/{path}: there is such an object already") from error
        except (PermissionError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise UsageError(f"{self.url}: access refused: {first_line(error)}; check the credentials") from error
        except exceptions.BaseError as error:
            raise Unfinished(f"{self.url}/{path}: {first_line(error)}") from error


@lru_cache(maxsize=64)
def store_of(bucket: str, access: Access) -> Store:
    """Opened once per process: connections are kept."""
    return Store.open(bucket, dict(access.settings))


class ObjectUpload:
    """Parts go up while others are written; the object appears when it is finished, and never if it is not."""

    def __init__(self, store: Store, path: str, part_bytes: int) -> None:
        self._store = store
        self._path = path
        self._part_bytes = part_bytes
        self._size = 0
        with store._translated(path):
            self._writer = obstore.open_writer(
                store._store, path, buffer_size=part_bytes, max_concurrency=PARTS_AT_ONCE
            )

    def write(self, data: bytes | memoryview) -> None:
        with self._told():
            self._writer.write(bytes(data))  # a copy: it is read later, on another thread
        self._size += len(data)

    def finish(self) -> None:
        """If only the answer to the last request was lost, the object is there: an upload is whole or not there at all."""
        try:
            with self._told():
                self._writer.close()
        except Unfinished:
            if self._store._size_if_any(self._path) != self._size:
                raise
        parts = -(-self._size // self._part_bytes)
        self._store.traffic.writes += 1 if parts <= 1 else parts + 2
        self._store.traffic.bytes_written += self._size

    @contextmanager
    def _told(self) -> Iterator[None]:
        """obstore tells what an upload met as a bare OSError, or as a missing upload."""
        try:
            yield
        except (OSError, exceptions.BaseError) as error:
            raise Unfinished(f"{self._store.url}/{self._path}: {first_line(error)}") from error

    def abandon(self) -> None:
        """What was uploaded of it is no object; a rule of the bucket for unfinished uploads removes it."""


def _told_apart(settings: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Settings of the connection, and those of the store. Over plain HTTP only if the endpoint says so."""
    client = {name: value for name, value in settings.items() if name in CLIENT_SETTINGS}
    given = {name: value for name, value in settings.items() if name not in CLIENT_SETTINGS}
    endpoints = [value for name, value in given.items() if "endpoint" in name] or [
        os.environ.get("AWS_ENDPOINT_URL", "")
    ]
    for endpoint in filter(None, endpoints):
        if not endpoint.startswith(("http://", "https://")):
            raise UsageError(f"{address(endpoint)!r} is not an endpoint: http://HOST:PORT or https://HOST:PORT")
    plain = any(endpoint.startswith("http://") for endpoint in endpoints)
    return {"allow_http": str(plain).lower(), **client}, given


def _listed(entry: Mapping[str, Any]) -> Listed:
    return Listed(
        path=entry["path"], size=int(entry["size"]), tag=entry["e_tag"],
        modified_ns=int(entry["last_modified"].timestamp() * 1000) * 1_000_000,
    )  # fmt: skip


class ChangedObject(Unfinished):
    """An object that was to be replaced is another one by now."""


class ExistingObject(Unfinished):
    """An object that was to be made is there already."""


class MissingObject(Unfinished):
    """An object that the metastore knows is not in the store."""
