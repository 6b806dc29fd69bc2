"""The library on the caller's Spark session: it is used, on any thread, and left as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headstone as hs
from headstone.api.running import CallersRunner
from headstone.cli.main import main
from headstone.spark.inheriting import inheriting

NOW_MS = 1_800_000_000_000


@pytest.fixture
def conf(spark: SparkSession) -> dict[str, str]:
    spark.range(1).count()  # Spark itself adds to them at first use
    return dict(spark.sparkContext.getConf().getAll())


def test_everything_runs_on_the_session_that_is_passed(
    spark: SparkSession, sample: Path, tmp_path: Path, conf: dict[str, str]
) -> None:
    here = hs.inspect(sample, progress=False)
    facts = hs.inspect(sample, spark=spark, progress=False)
    assert [tuple(row) for row in facts.select("partition", "records", "keys").orderBy("partition").collect()] == [
        tuple(row) for row in here[["partition", "records", "keys"]].itertuples(index=False)
    ]
    done = hs.compact(spark, sample, out=tmp_path / "out", progress=False)
    assert done.to_spark(spark).count() == 3
    assert hs.inspect(tmp_path / "out", progress=False)["keys"].tolist() == here["keys"].tolist()
    assert hs.audit([sample, tmp_path / "out"], spark=spark, progress=False).verdict == "clean"
    assert spark.range(3).count() == 3
    assert dict(spark.sparkContext.getConf().getAll()) == conf


def test_a_lakes_topic_is_a_data_frame(spark: SparkSession, sample: Path, tmp_path: Path) -> None:
    with hs.Lake.create(tmp_path / "lake") as lake:
        lake.ingest(sample, spark=spark, progress=False)
        run = lake.compact(spark, settings=hs.LakeCompactionSettings(everything=True), progress=False)
        assert len(run.compacted) == 3
        topic = lake.topic("t1")
        newest = topic.table(spark).select("partition", "offset", "key", "value").orderBy("offset").collect()
        here = topic.table().sort_values("offset")
        assert [(row.offset, bytes(row.key), bytes(row.value)) for row in newest] == list(
            zip(here["offset"], here["key"], here["value"], strict=True)
        )
        assert topic.records(spark).count() == len(topic.records())


READ_TWICE = """
import sys
import headstone as hs
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
with hs.Lake.create(sys.argv[1]) as lake:
    topic = lake.create_topic("orders")
    print([topic.table(spark).count(), topic.records(spark).count(), topic.records(spark).count()])
"""


@pytest.mark.parametrize("found_by_spark", [True, False])
def test_reading_a_lake_again_says_nothing_of_a_replaced_source(found_by_spark: bool, tmp_path: Path) -> None:
    """Also where Spark does not find the source: a package without one stands before ours."""
    hiding = tmp_path / "hiding"
    (hiding / "pyspark_headstone_lake").mkdir(parents=True)
    (hiding / "pyspark_headstone_lake" / "__init__.py").touch()
    path = [*([] if found_by_spark else [str(hiding)]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", READ_TWICE, str(tmp_path / "lake")], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.stdout.strip() == "[0, 0, 0]", done.stderr
    assert "replaced" not in done.stderr
    assert "WARN" in done.stderr, "Spark's warnings are shown"


def test_calls_on_other_threads_and_two_at_once(spark: SparkSession, sample: Path, tmp_path: Path) -> None:
    errors: list[Exception] = []

    def compacted(name: str) -> None:
        try:
            hs.compact(
                spark, sample, out=tmp_path / name, settings=hs.CompactionSettings(now_ms=NOW_MS), progress=False
            )
        except (hs.HeadstoneError, OSError, RuntimeError) as error:
            errors.append(error)

    threads = [threading.Thread(target=compacted, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [path.read_bytes() for path in sorted((tmp_path / "a").rglob("*.log"))] == [
        path.read_bytes() for path in sorted((tmp_path / "b").rglob("*.log"))
    ]
    assert spark.range(3).count() == 3


@contextmanager
def told_of_this_thread(spark: SparkSession) -> Iterator[None]:
    context = spark.sparkContext
    context.setJobGroup("nightly", "the caller's own words")
    context.setLocalProperty("mine", "yes")
    spark.addTag("callers")
    try:
        yield
    finally:
        context._jsc.clearJobGroup()
        context.setLocalProperty("mine", None)  # type: ignore[arg-type]
        spark.clearTags()


@pytest.mark.parametrize("how", ["the main thread", "another thread", "the command line"])
def test_jobs_are_of_the_callers_group(how: str, spark: SparkSession, sample: Path, tmp_path: Path) -> None:
    """Whoever cancels the group in another thread, or looks at it in Spark's interface, finds these."""
    calls: dict[str, Callable[[], object]] = {
        "the main thread": lambda: hs.compact(spark, sample, out=tmp_path / "out", progress=False),
        "the command line": lambda: main(["compact", str(sample), "--out", str(tmp_path / "out"), "--quiet"]),
    }
    tracker = spark.sparkContext.statusTracker()
    before = {group: set(tracker.getJobIdsForGroup(group)) for group in ("nightly", None)}

    def called() -> None:
        with told_of_this_thread(spark):
            calls.get(how, calls["the main thread"])()
            assert spark.sparkContext.getLocalProperty("mine") == "yes"
            assert spark.getTags() == {"callers"}
            assert not any(tag.startswith("headstone-") for tag in spark.sparkContext.getJobTags())

    if how == "another thread":
        thread = threading.Thread(target=called)
        thread.start()
        thread.join()
    else:
        called()
    assert set(tracker.getJobIdsForGroup("nightly")) > before["nightly"]
    assert set(tracker.getJobIdsForGroup(None)) == before[None]


def told_on_another_thread(spark: SparkSession) -> tuple[dict[str, str | None], set[str]]:
    told: list[tuple[dict[str, str | None], set[str]]] = []
    names = ("spark.jobGroup.id", "spark.job.description", "mine")

    def look() -> None:
        told.append(({name: spark.sparkContext.getLocalProperty(name) for name in names}, spark.getTags()))

    thread = threading.Thread(target=inheriting(spark, look))
    thread.start()
    thread.join()
    return told[0]


def test_a_thread_of_ours_says_what_the_callers_says(spark: SparkSession) -> None:
    with told_of_this_thread(spark):
        assert told_on_another_thread(spark) == (
            {"spark.jobGroup.id": "nightly", "spark.job.description": "the caller's own words", "mine": "yes"}, {"callers"},
        )  # fmt: skip
    assert told_on_another_thread(spark) == (
        {"spark.jobGroup.id": None, "spark.job.description": None, "mine": None}, set(),
    )  # fmt: skip


def test_a_session_is_asked_for_its_cores(spark: SparkSession, sample: Path, tmp_path: Path) -> None:
    """One machine more than this one may have: as many tasks as the session runs, not as this process has cores."""
    with CallersRunner(spark=spark, shows_progress=False).engine(0) as engine:
        assert engine.parallelism == spark.sparkContext.defaultParallelism == 2
