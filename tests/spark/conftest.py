"""One classic local session for all tests of this folder, and sample logs that are made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headstone.lake.lake import create_lake, metastore_url
from headstone.log import codecs
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from headstone.spark.session import spark_session
from tests.lake.scene import Scene


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    conf = {"spark.sql.python.filterPushdown.enabled": "true"}
    with spark_session(app_name="headstone tests", master="local[2]", conf=conf) as session:
        yield session


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three partitions with transactions, tombstones and headers, one for each of three codecs, in one log directory."""
    root = tmp_path_factory.mktemp("sample") / "logs"
    for number, codec in enumerate((codecs.NONE, codecs.LZ4, codecs.ZSTD)):
        settings = SampleSettings(
            topic=f"t{number}", records=12_000, keys=3_000, codec=codec, transactions=0.4, segment_bytes=300_000,
            seed=number,
        )  # fmt: skip
        write_sample(root, settings)
    return root


@pytest.fixture
def new_lake(tmp_path: Path) -> Iterator[Scene]:
    """At `lake`, with nothing in it; what is written to it stands as a log, too, at `log`."""
    where = tmp_path / "lake"
    lake = create_lake(metastore_url(str(where), make=True), f"file://{where}/objects", now_ms=0)
    yield Scene(lake, tmp_path)
    lake.close()
