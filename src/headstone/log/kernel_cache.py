"""Where compiled kernels are kept: in a folder named by the sources they were compiled from.

Numba compares a cached kernel with the file that defines it, not with the files whose kernels and constants were compiled into
it. After an update of some files a caller would continue with old parts of the code, and write a wrong log. So every state of
the sources has a folder of its own. Does not know what the kernels do.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from numba import config

PACKAGE = Path(__file__).resolve().parent.parent
PREFIX = "kernels-"
ROOMS_OF_CONSTANTS = ("log", "retention")
"""In these rooms every file counts; elsewhere only files that define a kernel."""
ROOMS = (*ROOMS_OF_CONSTANTS, "divergence", "pipeline")
DECORATED = b"\n@kernel\n"


def digest(package: Path) -> str:
    """Of all sources that kernels are made of."""
    content = hashlib.sha256()
    for room in ROOMS:
        for file in sorted((package / room).glob("*.py")):
            text = file.read_bytes()
            if room in ROOMS_OF_CONSTANTS or DECORATED in text:
                content.update(f"{room}/{file.name} {len(text)}\n".encode() + text)
    return content.hexdigest()[:16]


@cache
def folder() -> Path:
    """Beside the package, or in the user's cache if we may not write beside the package."""
    beside = PACKAGE / "__pycache__"
    if os.access(beside if beside.exists() else PACKAGE, os.W_OK):
        return beside / (PREFIX + digest(PACKAGE))
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "headstone" / (PREFIX + digest(PACKAGE))


@contextmanager
def kept_apart() -> Iterator[None]:
    """Caches kernels defined in the block in our folder, unless the user has set one. No other package's are touched."""
    before = config.CACHE_DIR
    config.CACHE_DIR = before or str(folder())
    try:
        yield
    finally:
        config.CACHE_DIR = before


def forget_others() -> None:
    """Deletes kernels of other states of the sources, which are no longer used."""
    for cached in folder().parent.glob(PREFIX + "*"):
        if cached != folder():
            shutil.rmtree(cached, ignore_errors=True)
