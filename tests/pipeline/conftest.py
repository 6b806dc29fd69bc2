"""The S3 server that all tests of this folder share."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from headstone.storage.access import Access


@pytest.fixture(scope="session")
def access(moto_settings: Mapping[str, str]) -> Access:
    return Access.of(moto_settings)
