"""A real server with the S3 API for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headstone.storage.access import Access
from testbed.s3 import s3


@pytest.fixture(scope="session")
def access() -> Iterator[Access]:
    with s3() as settings:
        yield Access.of(settings)
