"""Real brokers for the tests: every test that asks for `distribution` runs on each version, one worker per version."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headstone.brokers.client import JavaClient
from headstone.brokers.distribution import Distribution
from testbed.maven import VERSIONS, KafkaUnavailable, kafka, spark_connector
from tests.demanded import demanded

ON_TRIAL = VERSIONS[-1:] if os.environ.get("KAFKA_HOME") else VERSIONS


@pytest.hookimpl(tryfirst=True)  # xdist reads the marks in its own hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Brokers of two versions at the same time, never two tests of one."""
    for item in items:
        if "distribution" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(item.callspec.params["distribution"]))  # type: ignore[attr-defined]


@pytest.fixture(scope="session", params=ON_TRIAL)
def distribution(request: pytest.FixtureRequest) -> Distribution:
    with demanded(KafkaUnavailable):
        return kafka(request.param)


@pytest.fixture(scope="session")
def java(distribution: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    with JavaClient(distribution, tmp_path_factory.mktemp("client")) as client:
        yield client


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """For the settings of Kafka's tools."""
    return tmp_path / "tools"


@pytest.fixture(scope="session")
def connector() -> str:
    with demanded(KafkaUnavailable):
        return spark_connector()
