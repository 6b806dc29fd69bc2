"""What a test needs and a machine may lack: skipped with the reason, and in CI a failure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def demanded(*reasons: type[Exception]) -> Iterator[None]:
    """Around what starts it, not around the test."""
    try:
        yield
    except reasons as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI demands it: {error}")
        pytest.skip(str(error))
