"""A terminal that a command of ours was given: what it shows."""

from __future__ import annotations

import os


def shown_on(ours: int, theirs: int) -> bytes:
    """Until the command, which has `theirs` by now, has closed it."""
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 1 << 16):
            shown += chunk
    except OSError:  # Linux says so when the other side is closed
        pass
    os.close(ours)
    return shown
