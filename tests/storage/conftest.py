"""Real servers with the S3 API for the tests of this folder."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import pytest

from headstone.storage.access import Access
from headstone.storage.stores import Store
from testbed.s3 import BUCKET


@pytest.fixture(scope="session")
def access(moto_settings: Mapping[str, str]) -> Access:
    return Access.of(moto_settings)


@pytest.fixture(params=["moto", "versitygw"])
def server(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """Settings of each of the servers."""
    settings: Mapping[str, str] = request.getfixturevalue(f"{request.param}_settings")
    return settings


@pytest.fixture
def empty_url() -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture
def store(server: Mapping[str, str], empty_url: str) -> Store:
    return Store.open(empty_url, server)
