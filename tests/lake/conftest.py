"""One behaviour suite over both metastores (an embedded SQLite file, a real PostgreSQL server) and over all stores."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from headstone.cli.main import main
from headstone.lake.lake import Lake, create_lake
from headstone.lake.metastore.metastore import Metastore
from headstone.storage.stores import Store
from testbed.s3 import BUCKET
from tests.lake.databases import new_database
from tests.lake.scene import Said, Scene


@pytest.fixture(params=["sqlite", "postgresql"])
def metastore_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'lake.db'}"
    return new_database(request.getfixturevalue("postgres_url"), f"lake_{uuid.uuid4().hex}")


@pytest.fixture
def metastore(metastore_url: str) -> Iterator[Metastore]:
    made = Metastore.create(metastore_url, location="memory://lake", now_ms=0)
    yield made
    made.close()


@pytest.fixture
def engine(metastore_url: str) -> Iterator[Engine]:
    """To look at the rows, and to damage them."""
    made = create_engine(metastore_url.replace("postgresql://", "postgresql+psycopg://"))
    yield made
    made.dispose()


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
def any_lake(metastore_url: str, tmp_path: Path) -> Iterator[Lake]:
    """On either database, with objects in files."""
    made = create_lake(metastore_url, f"file://{tmp_path / 'objects'}", now_ms=0)
    yield made
    made.close()


@pytest.fixture
def any_scene(any_lake: Lake, tmp_path: Path) -> Scene:
    return Scene(any_lake, tmp_path)


@pytest.fixture
def lake_anywhere(metastore_url: str, object_store: Store, moto_settings: dict[str, str]) -> Iterator[Lake]:
    """See `ANYWHERE`."""
    made = create_lake(metastore_url, object_store.url, now_ms=0, settings=moto_settings)
    yield made
    made.close()


@pytest.fixture
def scene_anywhere(lake_anywhere: Lake, tmp_path: Path) -> Scene:
    return Scene(lake_anywhere, tmp_path)


@pytest.fixture
def scene(lake: Lake, tmp_path: Path) -> Scene:
    return Scene(lake, tmp_path)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """`said("status", where, code=2).err`: what a verb prints that ends with this code."""

    def ask(*words: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert main(["lake", *words]) == code, words
        return capsys.readouterr()

    return ask


@pytest.fixture
def told(said: Said) -> Said:
    """The same as a document; None if it prints nothing."""

    def ask(*words: str, code: int = 0) -> Any:
        text = said(*words, "--output", "json", code=code).out
        return json.loads(text) if text else None

    return ask


@pytest.fixture
def local(lake: Lake, tmp_path: Path) -> Scene:
    """On an embedded lake, where `scene` is on either database."""
    return Scene(lake, tmp_path)
