"""One cluster, one S3 server and one session for all tests of this folder: no path is shared between driver and executors.

Every store is reached through a proxy of the test, which sees each request of each machine: the moment to strike.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headstone.log import codecs
from headstone.pipeline.compaction import CompactionRequest, compact
from headstone.pipeline.inprocess import InProcess
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from headstone.spark.engine import OnSpark
from headstone.spark.session import spark_session
from headstone.storage.access import Access
from testbed.faulty_s3 import FaultyS3, faulty_s3
from testbed.machines import MachinesUnavailable, machine
from testbed.spark_cluster import APPLICATION_CONF, SPECULATION, SparkCluster, spark_cluster
from tests.clusters.backups import POLICY, Backup, upload
from tests.demanded import demanded
from tests.oracle.notation import History

RECORDS = 4_000
"""Per partition."""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with demanded(MachinesUnavailable):
        machine()
    with spark_cluster(workers=2, hidden=[tmp_path_factory.getbasetemp()]) as started:
        yield started


@pytest.fixture(scope="session")
def listening(versitygw_settings: Mapping[str, str]) -> Iterator[FaultyS3]:
    with faulty_s3(versitygw_settings) as proxy:
        yield proxy


@pytest.fixture
def proxy(listening: FaultyS3) -> Iterator[FaultyS3]:
    """Without faults, until the test exchanges `decide`."""
    yield listening
    listening.decide = lambda request: None


@pytest.fixture(scope="session")
def access(listening: FaultyS3) -> Access:
    return Access.of(listening.settings)


@pytest.fixture(scope="module")
def spark(cluster: SparkCluster) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYSPARK_PYTHON", sys.executable)
        conf = {**APPLICATION_CONF, **SPECULATION}
        with spark_session(app_name="tests/clusters", master=cluster.url, conf=conf) as session:
            yield session


@pytest.fixture
def engine(spark: SparkSession) -> OnSpark:
    return OnSpark(lambda: spark, parallelism=2)


@pytest.fixture
def driver_file(tmp_path: Path) -> Path:
    path = tmp_path / "of the driver"
    path.write_bytes(b"seen")
    return path


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four partitions with transactions, tombstones and headers, two codecs, several segments each."""
    root = tmp_path_factory.mktemp("sample") / "logs"
    for number, codec in enumerate((codecs.NONE, codecs.ZSTD)):
        settings = SampleSettings(
            topic=f"t{number}", partitions=2, records=RECORDS, keys=1_000, codec=codec, transactions=0.4,
            segment_bytes=150_000, seed=number,
        )  # fmt: skip
        write_sample(root, settings)
    return root


@pytest.fixture(scope="session")
def expected(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process makes of the same logs on a local disk."""
    out = tmp_path_factory.mktemp("expected") / "out"
    request = CompactionRequest(
        paths=(str(sample),), out=out, policy=POLICY, path="whole", progress=False, dirty_from=0
    )
    compact(request, InProcess(), lambda text: None)
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


@pytest.fixture(scope="session")
def sample_url(sample: Path, versitygw_settings: Mapping[str, str]) -> str:
    return upload(sample, versitygw_settings)


@pytest.fixture(scope="session")
def backup(sample_url: str, access: Access) -> Backup:
    return Backup(url=sample_url, access=access)


@pytest.fixture(scope="session")
def replicas(versitygw_settings: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """URLs of three, by name; the second has lost a tombstone and kept what it deletes."""
    root = tmp_path_factory.mktemp("replicas")
    texts = {"one": "N[k] N[b] T[k] | N[z]", "two": "N[k] N[b] +1 | N[z]", "three": "N[k] N[b] T[k] | N[z]"}
    for name, text in texts.items():
        history = History()
        history.append(text)
        history.write_partition(root / name, "t-0")
    return {name: upload(root / name, versitygw_settings) for name in texts}
