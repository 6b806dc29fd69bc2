"""Where a lake may be created: in a prefix and a directory that nothing else uses and that lie in no other lake.

An error names what is there: a lake, the log directory of a Kafka broker, or something else. A broker does not start while its
log directory contains a folder that is not a partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from os.path import realpath
from pathlib import Path

from headstone.errors import UsageError
from headstone.log.directory import KAFKA, kafka_sign, partition_in, refuse_broker_directory
from headstone.storage.redaction import address
from headstone.storage.stores import Store, local_directory

MARKER = "headstone-lake"
"""The object with the lake's id."""
OWNER = "headstone-metastore"
"""The object with the token of the metastore that may change this store."""
EMBEDDED = "metastore.db"
OBJECTS = "objects"
"""Names of the metastore and of the objects' prefix of a lake in a directory."""
OF_EVERY_DISK = {"lost+found"}
ANEW = "`headstone lake init` (headstone.Lake.create in a program)"
ELSEWHERE = "create the lake elsewhere"


def expect_free_directory(directory: Path) -> None:
    """For a lake in a directory of its own. It may exist if it is empty."""
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file; a lake needs a directory of its own")
    names = _names(directory)
    refuse_kafka(directory)
    refuse_embedded(directory)
    if EMBEDDED in names:
        raise UsageError(f"{directory} already contains a lake; see `headstone lake status {directory}`")
    if sign := kafka_sign(names):
        raise UsageError(f"{directory} {KAFKA.format(sign=sign)}; {ELSEWHERE}")
    if names:
        raise UsageError(f"{directory} is not empty (it contains {_some(names)}); a lake needs a directory of its own")


def expect_free_prefix(location: str, settings: Mapping[str, str] | None) -> None:
    """For the objects of a lake. Creates nothing."""
    directory = local_directory(location)
    if directory is not None:
        names = _names(directory)
        refuse_kafka(directory)
        refuse_embedded(directory)
    else:
        store = Store.open(location, settings, patient=False)
        names = {entry.path.rpartition("/")[2] for entry in store.children()}
    if MARKER in names:
        raise UsageError(
            f"{address(location)} already contains the objects of a lake; a lake needs a prefix of its own"
        )
    if sign := kafka_sign(names):
        raise UsageError(f"{address(location)} {KAFKA.format(sign=sign)}; name a prefix of its own with --objects")
    if names:
        raise UsageError(
            f"{address(location)} already contains objects ({_some(names)}); a lake needs a prefix of its own"
        )
    refuse_enclosing(location, settings)


def refuse_enclosing(location: str, settings: Mapping[str, str] | None) -> None:
    """Refuses a prefix inside another lake's: that lake would take unknown objects for foreign, or for garbage."""
    for outer in _outer(location):
        directory = local_directory(outer)
        is_lake = False
        if directory is not None:
            is_lake = (directory / MARKER).exists()
        else:
            with suppress(UsageError):  # if we may see this prefix only
                is_lake = Store.open(outer, settings, patient=False).has(MARKER)
        if is_lake:
            raise UsageError(
                f"{address(location)} is inside the lake {address(outer)}; a lake needs a prefix of its own"
            )


def what_is_there(directory: Path) -> str:
    """For a directory that was named as a lake and is not one: says what it is, and what to do instead."""
    if directory.is_file():
        return f"{directory} is a file; name the directory of a lake, or its database by its URL"
    if sign := kafka_sign(_names(directory)):
        return (
            f"{directory} has no lake: it is the log directory of a Kafka broker, or a part of one (it has {sign}); "
            f"`headstone lake init mylake` makes a lake elsewhere, `headstone lake ingest mylake {directory}` fills it"
        )
    if (directory / MARKER).exists():
        return f"{directory} holds the objects of a lake and not its metastore; name the directory around it"
    if (directory / OBJECTS / MARKER).exists():
        return (
            f"{directory} holds the objects of a lake, and its metastore is gone; `headstone lake rebuild {directory}`"
        )
    if _names(directory):
        return f"{directory} has no lake; create one with {ANEW} in a directory of its own"
    return f"{directory} has no lake; create one with `headstone lake init {directory}` (headstone.Lake.create in a program)"


def refuse_kafka(directory: Path) -> None:
    """Refuses a broker's log directory, and everything in it."""
    refuse_broker_directory(directory, instead=ELSEWHERE)
    for outer in Path(realpath(directory)).parents:
        if sign := _partition_in(outer):
            raise UsageError(f"{directory} lies in {outer}, which {KAFKA.format(sign=sign)}; {ELSEWHERE}")


def _partition_in(directory: Path) -> str | None:
    with suppress(OSError):  # it does not exist yet, or we may not list it
        return partition_in(directory)
    return None


def refuse_embedded(directory: Path) -> None:
    """Refuses a place inside the directory of a lake: it would be moved, copied and deleted with that lake."""
    for outer in Path(realpath(directory)).parents:
        if (outer / EMBEDDED).is_file():
            raise UsageError(f"{directory} is inside the lake {outer}; a lake needs a directory of its own")


def _names(directory: Path) -> set[str]:
    try:
        return {child.name for child in directory.iterdir()} - OF_EVERY_DISK
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError as error:
        raise UsageError(f"{directory}: {error.strerror}") from error


def _some(names: Collection[str]) -> str:
    shown = sorted(names)[:3]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _outer(location: str) -> Iterator[str]:
    """Every prefix that contains this one, the nearest first."""
    directory = local_directory(location)
    if directory is not None:
        yield from (f"file://{outer}" for outer in Path(realpath(directory)).parents)
        return
    scheme, _, path = location.partition("://")
    parts = [part for part in path.split("/") if part]
    for length in range(len(parts) - 1, 0, -1) if scheme != "memory" else ():
        yield f"{scheme}://{'/'.join(parts[:length])}"
