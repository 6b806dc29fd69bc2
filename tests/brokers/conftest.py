"""Real brokers for the tests: every test that asks for `distribution` runs on each version."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from headstone.brokers.client import JavaClient
from headstone.brokers.distribution import Distribution
from testbed.maven import VERSIONS, KafkaUnavailable, kafka
from tests.demanded import demanded

ON_TRIAL = VERSIONS[-1:] if os.environ.get("KAFKA_HOME") else VERSIONS
BROKERS_OF_THEIR_OWN = (
    "test_boot", "test_clusters", "test_guard", "test_lake", "test_outages", "test_plain", "test_side_by_side",
)  # fmt: skip
"""Modules whose long tests share nothing: workers take them one by one. The tests of others stay together: a broker that they
share would be started again by the other worker."""


class Sharing(LoadScopeScheduling):
    """Not by pytest-xdist's own groups: since pytest 9.2 its marks are silently without effect (pytest-xdist #1386)."""

    def _split_scope(self, nodeid: str) -> str:
        version = next((version for version in VERSIONS if version in nodeid), "none")
        module = nodeid.partition("::")[0]
        return nodeid if Path(module).stem in BROKERS_OF_THEIR_OWN else f"{module} {version}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Sharing:
    return Sharing(config, log)


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
