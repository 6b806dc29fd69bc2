"""Reads a Kafka log directory with Spark SQL: the newest value of every key, as a read_committed consumer would see it.

Without an argument it makes a sample first. Exit 0 if the table has exactly the live keys that `headstone inspect`
counts; 1 if not.

    python examples/backup_sql.py [LOG_DIRECTORY]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from headstone.spark.session import spark_session

TABLE = """
    SELECT topic, partition, key, newest.value, newest.offset
    FROM (
        SELECT topic, partition, key, max_by(struct(value, offset), offset) AS newest
        FROM log
        WHERE visibility = 'committed' AND key IS NOT NULL
        GROUP BY topic, partition, key
    )
    WHERE newest.value IS NOT NULL
    ORDER BY topic, partition, key
"""


def headstone(*arguments: str) -> str:
    command = [sys.executable, "-m", "headstone.cli.main", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def sample(directory: Path) -> Path:
    headstone("synth", str(directory), "--topic", "orders", "--partitions", "2", "--records", "5000",
              "--keys", "1000", "--tombstones", "0.05", "--transactions", "0.3", "--codec", "zstd")  # fmt: skip
    return directory


def main(log_directory: Path) -> int:
    facts = json.loads(headstone("inspect", "--output", "json", str(log_directory)))
    expected = sum(partition["keys"] for partition in facts["partitions"])
    # Any SparkSession will do where PYSPARK_PYTHON has headstone; this one starts quickly and quietly.
    with spark_session(app_name="backup_sql", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"}) as spark:
        spark.read.format("kafka-log").load(str(log_directory)).createOrReplaceTempView("log")
        table = spark.sql(TABLE).collect()
    for row in table[:3]:
        print(f"partition {row.partition}, offset {row.offset}: {bytes(row.key)!r} = {bytes(row.value)[:24]!r}")
    live = len(table)
    print(f"{live} live keys in the table, {expected} counted by inspect")
    return 0 if live == expected else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory(prefix="headstone-example-") as place:
        sys.exit(main(sample(Path(place) / "backup")))
