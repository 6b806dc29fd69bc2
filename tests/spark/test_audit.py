"""The audit as a Spark job: findings come back from tasks as they are found in this process."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from headstone.log.directory import find_partitions
from headstone.pipeline.auditing import audit, replicas_of
from headstone.spark.engine import OnSpark
from tests.divergence.replicas import findings
from tests.logs import flip_a_byte, write_log


def test_findings_travel_and_damage_does_not_end_the_others(spark: SparkSession, tmp_path: Path) -> None:
    for name, text in (("one", "N[k] N[b] T[k] | N[z]"), ("two", "N[k] N[b] +1 | N[z]")):
        for partition in ("t-0", "u-0"):
            write_log(tmp_path / name, text, partition)
    broken, _ = flip_a_byte(tmp_path / "two" / "u-0")
    found = [(name, find_partitions([tmp_path / name])) for name in ("one", "two")]
    first, second = audit(replicas_of(found), OnSpark(lambda: spark, parallelism=2))
    assert (findings(first), first.problems) == ([("deleted-reappears", "two", b"k")], ())
    assert second.results == ()
    assert str(broken) in second.problems[0]
