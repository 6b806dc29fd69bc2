"""What is installed: a wheel with its types, against which a strict client is checked."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pyspark
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
CLIENT = """
from pathlib import Path

import headstone as hs
import pandas as pd
from pyspark.sql import DataFrame, SparkSession


def facts(spark: SparkSession, root: Path) -> DataFrame:
    here: pd.DataFrame = hs.inspect([root / "a", "s3://backups/a"], store={"region": "eu-west-1"}, topics=["orders"])
    column: pd.Series = here[["partition", "records", "error"]]["error"]
    there: DataFrame = hs.inspect("s3://a", spark=spark, now_ms=1, min_compaction_lag_ms=0, progress=False)
    return there.select("partition", "keys") if len(column) else there


def compacted(spark: SparkSession, root: Path) -> tuple[pd.DataFrame, DataFrame]:
    settings = hs.CompactionSettings(
        topics=("orders",), topic_settings={"delete.retention.ms": "1h"}, peers=(root / "b", "s3://c"), now_ms=1
    )
    try:
        plan: hs.Compaction = hs.compact(None, root, dry_run=True, settings=settings)
        reason: object = plan.to_dicts()[0]["reason"]
        hs.compact(None, root, in_place=True, settings=hs.CompactionSettings(tombstones_below=1, markers_below=2))
        done = hs.compact(spark, root, out=root / "out", store={"region": "eu-west-1"}, progress=False)
    except hs.PartitionsFailed as error:
        errors: dict[str, Exception] = error.errors
        assert isinstance(error.done, hs.Compaction)
        raise SystemExit(f"{error}: {', '.join(errors)}; {len(error.done.to_dicts())} done") from error
    before: tuple[str, ...] = done.done_before
    seconds: float = done.seconds
    print(reason, before, seconds)
    return done.to_pandas(), done.to_spark(spark)


def audited(spark: SparkSession, root: Path) -> str:
    live = hs.audit(bootstrap="kafka-1:9092", settings=hs.AuditSettings(topics=("orders",)), kafka={"client.id": "me"})
    asked = hs.AuditSettings(keys=(b"k",), now_ms=1, delete_retention_ms=1, bytes_per_second=1)
    audit: hs.Audit = hs.audit([root / "a", "b"], spark=spark, settings=asked)
    verdict: str = audit.verdict
    reasons = [f"{found.kind} {found.replica} {found.key!r} {found.offset} {found.why} {found.repair}"
               for found in audit.findings]
    document: dict[str, object] = audit.to_dict()
    frame: pd.DataFrame = audit.to_pandas()
    far: DataFrame = audit.to_spark(spark)
    return f"{live.verdict} {verdict} {reasons} {document['verdict']} {audit.to_html()} {len(frame)} {far.count()}"


def kept(spark: SparkSession, root: Path) -> int:
    with hs.Lake.create(root / "lake") as lake:
        lake.create_topic("empty", 2, {"cleanup.policy": "compact"})
        settings = hs.IngestSettings(cleanup_policy="compact", topic_settings={"orders": {"retention.ms": "-1"}})
        parts = lake.ingest([root / "a"], settings=settings)
        parts += lake.ingest(bootstrap="kafka-1:9092", topics=["orders"], spark=spark)
        names = [f"{part.partition.topic} {part.partition}" for part in parts]
        records: int = sum(part.records for part in parts)
    try:
        other = hs.Lake("postgresql://lake", store={"region": "eu-west-1"})
        run = other.compact(spark, settings=hs.LakeCompactionSettings(level=True))
        other.close()
    except hs.UsageError as error:
        raise SystemExit(str(error)) from error
    except hs.CorruptLog as error:
        raise SystemExit(f"{error.file} {error.position} {error.offset}") from error
    except (hs.Unfinished, hs.HeadstoneError) as error:
        raise SystemExit(error.exit_code) from error
    topic: hs.Topic = lake.topic("orders")
    newest: pd.DataFrame = topic.table()
    past: DataFrame = topic.table(spark, as_of_ms=1)
    everything: pd.DataFrame = topic.records(as_of_ms=1)
    far: DataFrame = topic.records(spark)
    sums = lake.status().sums
    topics = [f"{row.topic} {len(row.partitions)}" for row in lake.topics()]
    print(names, len(run.compacted), newest[["key"]].head(), past, everything, far, sums.records, topics, hs.__version__)
    return records + sums.partitions
"""
PANDAS = """
from typing import overload

class Series:
    def __len__(self) -> int: ...

class DataFrame:
    @overload
    def __getitem__(self, name: str) -> Series: ...
    @overload
    def __getitem__(self, names: list[str]) -> DataFrame: ...
    def __len__(self) -> int: ...
    def head(self) -> DataFrame: ...
"""
"""In the place of its stubs, which are a package of their own: without any a DataFrame is Any to whoever checks."""
WRONG = """
import headstone as hs

hs.compact("no session", 1, out=None)
number: int = hs.audit(["a", "b"]).verdict
hs.comapct
hs.inspect("a").select("partition")
hs.audit(["a", "b"]).findings[0].whi
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel, and beside it what the one that tests has."""
    work = tmp_path_factory.mktemp("wheel")
    build = f"-m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir {work} {ROOT}".split()
    done = subprocess.run([sys.executable, *build], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    venv.create(work / "venv", with_pip=False, symlinks=True)
    (wheel,) = work.glob("headstone-*.whl")
    site = next((work / "venv" / "lib").glob("python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "brought.pth").write_text(str(Path(pyspark.__path__[0]).parent))
    return work / "venv" / "bin" / "python"


def checked(installed: Path, program: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Strictly, and with nothing in it that could be anything."""
    (tmp_path / "client.py").write_text(program)
    (tmp_path / "pandas").mkdir()
    (tmp_path / "pandas" / "__init__.pyi").write_text(PANDAS)
    check = ["-m", "mypy", "--strict", "--disallow-any-expr", "--no-incremental", "--python-executable", str(installed)]
    return subprocess.run(
        [sys.executable, *check, "client.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_strict_client_is_typed(installed: Path, tmp_path: Path) -> None:
    done = checked(installed, CLIENT, tmp_path)
    assert done.returncode == 0, done.stdout


def test_a_mistake_is_found(installed: Path, tmp_path: Path) -> None:
    done = checked(installed, WRONG, tmp_path)
    assert [line.split(":")[1] for line in done.stdout.splitlines() if "error" in line and "Found" not in line] == [
        "4", "4", "5", "6", "7", "8",
    ], done.stdout  # fmt: skip


def test_the_wheel_brings_what_spark_looks_for(installed: Path) -> None:
    site = next(installed.parent.parent.glob("lib/python*/site-packages"))
    for name in ("headstone/py.typed", "pyspark_headstone/__init__.py", "pyspark_headstone_lake/__init__.py"):
        assert (site / name).is_file()
