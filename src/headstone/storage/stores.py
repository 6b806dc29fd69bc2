"""Object storage behind one small interface: S3, Google Cloud Storage, Azure, local files, memory, all through obstore.

Owns the translation of its errors into ours. Knows nothing about the contents of objects.
"""

from __future__ import annotations

import os
import re
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
from headstone.interruption import sleep
from headstone.spelling import meant
from headstone.storage.access import FROM_ENVIRONMENT, Access
from headstone.storage.durable import make_directories, sync_directory
from headstone.storage.local_objects import LocalUpload, local_upload, staged_beside, sync_parents
from headstone.storage.redaction import address, first_line

PART_BYTES = 8 << 20
"""Of a multipart upload: a writer's memory, times the number of parts under way."""
PARTS_AT_ONCE = 2
LIST_PAGE = 1000
"""Objects per request for a listing."""
LIST_PAUSES_S = (0.1, 0.4, 1.6, 6.4)
CUT_OFF = "list response body"
"""In obstore's message about an answer that ended too early."""
REACH_SECONDS = 10
"""For the first answer of a store. Later requests are repeated for as long as obstore does it, some minutes."""
CLIENT_SETTINGS = (
    "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only",
    "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_only", "pool_idle_timeout",
    "pool_max_idle_per_host", "proxy_url", "randomize_addresses", "timeout", "user_agent",
)  # fmt: skip
"""Names of the connection's settings. obstore wants them apart from the store's, and panics otherwise."""
SETTINGS = {
    "s3": ("access_key_id", "endpoint", "region", "request_payer", "role_arn", "secret_access_key", "session_token",
           "skip_signature", "sse_kms_key_id", "virtual_hosted_style_request"),
    "gs": ("application_credentials", "base_url", "service_account", "service_account_key", "skip_signature"),
    "az": ("account_key", "account_name", "client_id", "client_secret", "endpoint", "sas_key", "skip_signature", "tenant_id"),
}  # fmt: skip
"""Obstore's names, to suggest for a mistyped one."""
UNKNOWN_SETTING = re.compile(r"Configuration key: '([^']*)' is not valid")
ENDPOINT_NAMES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3")
METADATA_SERVICES = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "/latest/api/token")
CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or say --store-conf access_key_id=env:NAME --store-conf "
    "secret_access_key=env:NAME (of a public bucket: --store-conf skip_signature=true)",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the key file of a service account, or say --store-conf "
    "service_account=FILE (of a public bucket: --store-conf skip_signature=true)",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or say --store-conf account_name=NAME --store-conf "
    "account_key=env:NAME",
}
SCHEMES = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, file:///PATH or memory://NAME"

_MEMORY: dict[str, MemoryStore] = {}


def is_remote(path: str) -> bool:
    """Whether it names an object store rather than a path of this machine."""
    scheme, colon, _ = path.partition("://")
    return bool(colon) and scheme != "file"


def local_directory(url: str) -> Path | None:
    """The directory of a store on this machine's disks; None for any other."""
    scheme, _, path = url.partition("://")
    return Path(path) if scheme == "file" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """An object, or a common prefix of objects. `tag` changes with the content."""

    path: str
    is_folder: bool = False
    size: int = 0
    modified_ns: int = 0
    tag: str | None = None


class ByteSink(Protocol):
    def write(self, data: bytes) -> object: ...


@dataclass(slots=True)
class Traffic:
    """Requests to a store. Each part of an upload is a request of its own, and so are its beginning and end."""

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
        """In another process it is opened there, once for all with the same access."""
        return store_of, (self.url, self.access)

    @classmethod
    def open(
        cls, url: str, settings: Mapping[str, str] | None = None, *, patient: bool = True, make: bool = True
    ) -> Store:
        """`settings` by obstore's names, such as `endpoint`, `region`, `access_key_id`; otherwise from the environment.

        Not `patient`: a store that does not answer is given up after a few seconds. `make` False: a local directory must exist;
        readers create none."""
        scheme, colon, rest = url.partition("://")
        if not colon:
            raise UsageError(f"{address(url)!r} is not object storage: {SCHEMES}")
        if scheme == "memory":
            return cls(url, _MEMORY.setdefault(rest, MemoryStore()))
        if scheme == "file":
            if make:
                make_directories(Path(rest))
            elif not Path(rest).is_dir():
                raise MissingObject(f"{url}: no such directory")
            return cls(url, LocalStore(prefix=rest))
        client, given = _told_apart(settings or {})
        more: dict[str, object] = {}
        if not patient:
            client = {"timeout": f"{REACH_SECONDS}s", **client}
            more = {"retry_config": {"max_retries": 3, "retry_timeout": timedelta(seconds=REACH_SECONDS)}}
        try:
            opened = from_url(url, config=given, client_options=client, **more)  # type: ignore[call-overload]
        except (exceptions.BaseError, ValueError) as error:
            raise UsageError(f"{address(url)}: {_refusal(scheme, first_line(error))}") from error
        return cls(url, opened, Access.of(settings or {}))

    @property
    def _root(self) -> Path | None:
        """For objects on a local disk."""
        scheme, _, root = self.url.partition("://")
        return Path(root) if scheme == "file" else None

    def upload(self, path: str, *, part_bytes: int = PART_BYTES) -> ObjectUpload | LocalObjectUpload:
        """An upload in parts, to be finished or abandoned."""
        if self._root is not None:
            return LocalObjectUpload(self, path, self._root / path)
        return ObjectUpload(self, path, part_bytes)

    @contextmanager
    def writing(self, path: str, *, part_bytes: int = PART_BYTES) -> Iterator[ByteSink]:
        """A streaming upload: the object appears when the block ends, and only if it ends well. A path is written once."""
        upload = self.upload(path, part_bytes=part_bytes)
        try:
            yield upload
            upload.finish()
        finally:
            upload.abandon()

    def _size_if_any(self, path: str) -> int | None:
        try:
            return self.size(path)
        except MissingObject:
            return None

    def read(self, path: str, position: int, length: int) -> bytes:
        """Exactly these bytes; it is an error if the object ends earlier."""
        return bytes(self.view(path, position, length))

    def view(self, path: str, position: int, length: int) -> memoryview:
        """As `read`, in the library's own memory: a copy of many megabytes takes as long as reading them did."""
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
        """The objects and folders directly below the prefix."""
        result = self._listed(prefix, lambda: obstore.list_with_delimiter(self._store, prefix or None))
        self.traffic.lists += 1
        yield from (Listed(path=folder.rstrip("/"), is_folder=True) for folder in result["common_prefixes"])
        yield from (_listed(entry) for entry in result["objects"])

    def _listed(self, prefix: str, ask: Callable[[], Any]) -> Any:
        """Repeats a truncated listing: obstore does so for truncated objects only."""
        for pause_s in (*LIST_PAUSES_S, None):
            try:
                with self._translated(prefix):
                    return ask()
            except Unfinished as error:
                if pause_s is None or CUT_OFF not in str(error):
                    raise
                sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    def put(self, path: str, content: bytes, *, create: bool = False) -> bool:
        """Writes a whole object at once. `create`: only if there is none yet; False if there was one with another content.

        One with the same content counts as ours: a request is repeated when its answer was lost, and then finds its own object.
        So if content must have a single writer, it has to name its writer."""
        self._expect_directory()
        try:
            with self._translated(path):
                if self._root is None:
                    obstore.put(self._store, path, content, mode="create" if create else "overwrite")
                else:
                    with local_upload(self._root / path) as upload:
                        upload.write(content)
                        upload.publish(create=create)
        except ExistingObject:
            return self._size_if_any(path) == len(content) and self.read(path, 0, len(content)) == content
        self.traffic.writes += 1
        self.traffic.bytes_written += len(content)
        return True

    def tag(self, path: str) -> str:
        """Changes with the content."""
        with self._translated(path):
            return str(obstore.head(self._store, path)["e_tag"])

    def replace(self, path: str, content: bytes, *, tag: str) -> bool:
        """Only if the object still has this tag; False if another writer was faster."""
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
            if self._root is not None:
                make_directories((self._root / target).parent)
            obstore.copy(self._store, source, target)
            if self._root is not None:  # the same file under another name: its content is safe
                sync_directory((self._root / target).parent)
        self.traffic.writes += 1

    def delete(self, paths: Iterable[str]) -> None:
        """Missing objects are no error: an interrupted collection runs again.

        Also deletes what killed uploads have left of them: on local disks nothing else removes it."""
        gone = list(paths)
        places = [self._root / path for path in gone] if self._root is not None else []
        for staged in (staged for place in places for staged in staged_beside(place)):
            staged.unlink(missing_ok=True)
        for path in gone:
            try:
                with self._translated(path):
                    obstore.delete(self._store, [path])
            except MissingObject:
                continue
        sync_parents(places)

    def _expect_directory(self) -> None:
        """Local writes create missing folders: if the directory was moved away, it would be back with only a part of it."""
        directory = local_directory(self.url)
        if directory is not None and not directory.is_dir():
            raise MissingObject(f"{self.url}: the directory is gone; nothing was written")

    def staged(self) -> tuple[str, ...]:
        """What uploads have written and not published; object stores do not show this."""
        root = self._root
        parts = root.rglob("*#*") if root is not None else ()
        return tuple(sorted(path.relative_to(str(root)).as_posix() for path in parts if path.is_file()))

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise MissingObject(f"{self.url}/{path}: no such object or bucket") from error
        except exceptions.PreconditionError as error:
            raise ChangedObject(f"{self.url}/{path}: somebody has replaced it") from error
        except (FileExistsError, exceptions.AlreadyExistsError) as error:
            raise ExistingObject(f"{self.url}/{path}: there is such an object already") from error
        except (PermissionError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise UsageError(f"{self.url}: access refused: {first_line(error)}; check the credentials") from error
        except (OSError, exceptions.BaseError) as error:
            raise Unfinished(f"{self.url}/{path}: {reason(self.url, error)}") from error


def reason(url: str, error: Exception) -> str:
    """Without credentials, the SDK asks the cloud's machine for them, at an address that means nothing to the user."""
    text = first_line(error)
    if not any(sign in text for sign in METADATA_SERVICES):
        return text
    names = CREDENTIALS.get(url.partition("://")[0], "")
    return f"no credentials: {names}; this machine's cloud gave none either: {text}"


@lru_cache(maxsize=64)
def store_of(bucket: str, access: Access) -> Store:
    """Opened once per process: connections are kept."""
    return Store.open(bucket, dict(access.settings), make=False)


class ObjectUpload:
    """Parts are uploaded while others are written. The object appears when the upload is finished, and never otherwise."""

    def __init__(self, store: Store, path: str, part_bytes: int) -> None:
        self._store = store
        self._path = path
        self._part_bytes = part_bytes
        self._size = 0
        store._expect_directory()
        with store._translated(path):
            self._writer = obstore.open_writer(
                store._store, path, buffer_size=part_bytes, max_concurrency=PARTS_AT_ONCE
            )

    def write(self, data: bytes | memoryview) -> None:
        with self._told():
            self._writer.write(bytes(data))  # a copy: another thread reads it later
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
        """obstore reports an upload's errors as a bare OSError, or as a missing upload."""
        try:
            yield
        except (OSError, exceptions.BaseError) as error:
            raise Unfinished(f"{self._store.url}/{self._path}: {reason(self._store.url, error)}") from error

    def abandon(self) -> None:
        """What was uploaded is not an object yet; the bucket's rule for unfinished uploads removes it."""


class LocalObjectUpload:
    """For an object on a local disk, safe when finished."""

    def __init__(self, store: Store, path: str, place: Path) -> None:
        self._store = store
        self._path = path
        self._size = 0
        self._closed = False
        with store._translated(path):
            self._upload = LocalUpload(place)

    def write(self, data: bytes | memoryview) -> None:
        with self._store._translated(self._path):
            self._upload.write(data)
        self._size += len(data)

    def finish(self) -> None:
        with self._store._translated(self._path):
            self._upload.publish()
        self._store.traffic.writes += 1
        self._store.traffic.bytes_written += self._size

    def abandon(self) -> None:
        if not self._closed:
            self._closed = True
            self._upload.close()


def _told_apart(settings: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Settings of the connection, and those of the store. Plain HTTP only if the endpoint says so."""
    client = {name: value for name, value in settings.items() if name in CLIENT_SETTINGS}
    given = {name: value for name, value in settings.items() if name not in CLIENT_SETTINGS}
    endpoints = [value for name, value in given.items() if "endpoint" in name] or [
        os.environ.get(name, "") for name in ENDPOINT_NAMES
    ]
    for endpoint in filter(None, endpoints):
        if not endpoint.startswith(("http://", "https://")):
            raise UsageError(f"{address(endpoint)!r} is not an endpoint: http://HOST:PORT or https://HOST:PORT")
    plain = any(endpoint.startswith("http://") for endpoint in endpoints)
    return {"allow_http": str(plain).lower(), **client}, given


def _refusal(scheme: str, what: str) -> str:
    """What obstore says about a URL and its settings, and what to do about it."""
    unknown = UNKNOWN_SETTING.search(what)
    if unknown is not None:
        hint = meant(unknown[1], [*SETTINGS.get(scheme, ()), *CLIENT_SETTINGS]) or "; settings have obstore's names"
        return f"unknown setting {unknown[1]!r} of {scheme}://{hint}"
    return f"{what}; {'say --store-conf account_name=NAME' if 'Account must be' in what else f'object storage is {SCHEMES}'}"


def _listed(entry: Mapping[str, Any]) -> Listed:
    return Listed(
        path=entry["path"], size=int(entry["size"]), tag=entry["e_tag"],
        modified_ns=int(entry["last_modified"].timestamp() * 1000) * 1_000_000,
    )  # fmt: skip


class ChangedObject(Unfinished):
    """An object to be replaced has changed meanwhile."""


class ExistingObject(Unfinished):
    """An object to be created exists already."""


class MissingObject(Unfinished):
    """An object that the metastore knows is not in the store."""
