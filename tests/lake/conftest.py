"""One behaviour suite over both metastores (an embedded SQLite file, a real PostgreSQL server) and over all stores."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from headstone.lake.lake import Lake, create_lake
from headstone.lake.metastore.metastore import Metastore
from headstone.storage.stores import Store
from testbed.s3 import BUCKET
from tests.lake.scene import Scene


@pytest.fixture(params=["sqlite", "postgresql"])
def metastore_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'lake.db'}"
    server = str(request.getfixturevalue("postgres_url"))
    name = f"lake_{uuid.uuid4().hex}"
    engine = create_engine(server.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return server.replace("/postgres?", f"/{name}?")


@pytest.fixture
def metastore(metastore_url: str) -> Iterator[Metastore]:
    made = Metastore.create(metastore_url, location="memory://lake", now_ms=0)
    yield made
    made.close()


@pytest.fixture(params=["memory", "file", "s3"])
def object_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty one."""
    name = uuid.uuid4().hex
    if request.param == "memory":
        return Store.open(f"memory://{name}")
    if request.param == "file":
        return Store.open(f"file://{tmp_path / 'objects'}")
    return Store.open(f"s3://{BUCKET}/{name}", request.getfixturevalue("moto_settings"))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """An embedded one, for what does not depend on the metastore or the store."""
    made = create_lake(f"sqlite:///{tmp_path / 'lake.db'}", f"file://{tmp_path / 'objects'}", now_ms=0)
    yield made
    made.close()


@pytest.fixture
def scene(lake: Lake, tmp_path: Path) -> Scene:
    return Scene(lake, tmp_path)
