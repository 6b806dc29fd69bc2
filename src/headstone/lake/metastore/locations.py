"""Where a lake's objects are, as its metastore stores it and as it is found again.

Objects in the directory of the metastore's file are stored as a path relative to it: such a lake is one directory, which works
wherever it is moved or copied to. All others are stored as a URL that does not depend on where a process runs.
"""

from __future__ import annotations

from os.path import realpath
from pathlib import Path

from headstone.storage.stores import local_directory


def kept_location(location: str, file: Path | None) -> str:
    """`file`: the metastore's, with links resolved, or None."""
    directory = local_directory(location)
    if directory is None:
        return location
    objects = Path(realpath(directory))
    if file is not None and file.parent in objects.parents:
        return objects.relative_to(file.parent).as_posix()
    return f"file://{directory.absolute()}"


def found_location(kept: str, file: Path | None) -> str:
    """The URL."""
    return kept if "://" in kept or file is None else f"file://{file.parent / kept}"
