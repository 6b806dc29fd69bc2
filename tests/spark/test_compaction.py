"""The stages on real Spark give, byte for byte, what the same bodies give in this process."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headstone.errors import CorruptLog
from headstone.pipeline import work
from headstone.pipeline.compaction import CompactionResult, Engine
from headstone.pipeline.inprocess import InProcess
from headstone.retention.policy import Policy, kafka_rules
from headstone.spark.engine import OnSpark
from tests.logs import compact_here, files_of, flip_a_byte

NOW_MS = 1_800_000_000_000
POLICIES = {
    "kafka": kafka_rules(Policy(now_ms=NOW_MS, segment_bytes=500_000)),
    "coordinated": Policy(
        now_ms=NOW_MS, segment_bytes=500_000, tombstones_below=6_000, markers_below=6_000, plain_below=8_000
    ),
    "bounded": kafka_rules(Policy(now_ms=NOW_MS, segment_bytes=500_000, index_keys_max=1_500)),
}


def run(source: Path, out: Path, engine: Engine, path: str, policy: Policy) -> CompactionResult:
    return compact_here(source, engine=engine, out=out, policy=policy, path=path, dirty_from=0)


@pytest.mark.parametrize("path", ["whole", "shuffle"])
@pytest.mark.parametrize("rules", sorted(POLICIES))
def test_spark_writes_what_one_process_writes(
    rules: str, path: str, sample: Path, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "UNIT_BYTES", 200_000)
    here = run(sample, tmp_path / "here", InProcess(), "whole", POLICIES[rules])
    there = run(sample, tmp_path / "there", OnSpark(lambda: spark, parallelism=2), path, POLICIES[rules])
    assert files_of(tmp_path / "there") == files_of(tmp_path / "here")
    tombstones = [(r.as_json()["tombstones_kept"], r.as_json()["tombstones_removed"]) for r in there.partitions]
    assert tombstones == [(r.as_json()["tombstones_kept"], r.as_json()["tombstones_removed"]) for r in here.partitions]
    assert [(r.keys, r.records_after, r.dirty_end) for r in there.partitions] == [
        (r.keys, r.records_after, r.dirty_end) for r in here.partitions
    ]


def test_a_second_pass_continues_from_the_first(sample: Path, tmp_path: Path, spark: SparkSession) -> None:
    engine = OnSpark(lambda: spark, parallelism=2)
    run(sample, tmp_path / "1", engine, "whole", POLICIES["kafka"])
    later = replace(POLICIES["kafka"], now_ms=NOW_MS + 90_000_000)
    here = run(tmp_path / "1", tmp_path / "2", engine, "shuffle", later)
    assert sum(r.reasons["expired tombstone"] for r in here.partitions) > 0
    again = run(tmp_path / "1", tmp_path / "3", InProcess(), "whole", later)
    assert files_of(tmp_path / "3") == files_of(tmp_path / "2")
    assert [r.records_after for r in again.partitions] == [r.records_after for r in here.partitions]


def damaged(sample: Path, target: Path, names: list[str]) -> dict[str, Path]:
    """A copy of the sample with one wrong byte in each of these partitions; the files that have it."""
    shutil.copytree(sample, target)
    return {name: flip_a_byte(target / name, 1)[0] for name in names}


@pytest.mark.parametrize("path", ["whole", "shuffle"])
def test_a_damaged_batch_is_told_with_its_place_and_nothing_is_written(
    path: str, sample: Path, tmp_path: Path, spark: SparkSession
) -> None:
    names = sorted(child.name for child in sample.iterdir() if child.is_dir())
    victim = damaged(sample, tmp_path / "damaged", names)[names[0]]
    with pytest.raises(CorruptLog) as raised:
        run(tmp_path / "damaged", tmp_path / "out", OnSpark(lambda: spark, parallelism=2), path, POLICIES["kafka"])
    assert (raised.value.file, raised.value.position) == (str(victim), 0)
    assert "CRC" in raised.value.problem
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("path", ["whole", "shuffle"])
def test_the_other_partitions_go_on(path: str, sample: Path, tmp_path: Path, spark: SparkSession) -> None:
    victim = damaged(sample, tmp_path / "damaged", ["t0-0"])["t0-0"]
    engine = OnSpark(lambda: spark, parallelism=2)
    result = run(tmp_path / "damaged", tmp_path / "out", engine, path, POLICIES["kafka"])
    assert [(one.partition, str(victim) in str(one.error)) for one in result.failed] == [("t0-0", True)]
    whole = run(sample, tmp_path / "whole", engine, path, POLICIES["kafka"])
    of_partitions = {name: content for name, content in files_of(tmp_path / "whole").items() if "/" in name}
    others = {name: content for name, content in of_partitions.items() if not name.startswith("t0-0/")}
    assert {name: content for name, content in files_of(tmp_path / "out").items() if "/" in name} == others
    assert [report.partition for report in result.partitions] == ["t1-0", "t2-0"]
    assert [report.partition for report in whole.partitions] == ["t0-0", "t1-0", "t2-0"]
