"""For all tests: which of them `make test` leaves out (tests/thorough.py), and the servers that several folders talk to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from testbed.maven import KafkaUnavailable, spark_connector
from testbed.postgres import postgres
from testbed.s3 import S3Unavailable, s3, versitygw, versitygw_program
from tests.demanded import demanded
from tests.thorough import is_thorough


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before marks choose."""
    for item in items:
        if is_thorough(item.nodeid):
            item.add_marker("thorough")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture(scope="session")
def moto_settings() -> Iterator[Mapping[str, str]]:
    with s3() as settings:
        yield settings


@pytest.fixture(scope="session")
def versitygw_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    with demanded(S3Unavailable):
        versitygw_program()
    with versitygw(tmp_path_factory.mktemp("versitygw")) as settings:
        yield settings


@pytest.fixture(scope="session")
def connector() -> str:
    with demanded(KafkaUnavailable):
        return spark_connector()
