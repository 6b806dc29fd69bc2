"""A job for spark-submit: compacts the partitions below one path into another, and shows what is there now.

    spark-submit --master spark://host:7077 compact_job.py s3://backups/broker-1 s3://backups/compacted region=eu-west-1

Settings of the object store follow the paths, by obstore's names; a secret is told by reference, such as
secret_access_key=env:S3_SECRET, which is looked up on the driver.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import headstone as hs


def main(source: str, out: str, *settings: str) -> None:
    store = dict(setting.split("=", 1) for setting in settings)
    spark = SparkSession.builder.appName("compact").getOrCreate()
    done = hs.compact(spark, source, out=out, store=store, progress=False)
    facts = hs.inspect(out, spark=spark, store=store, progress=False)
    for row in facts.orderBy("partition").collect():
        print(f"{row['partition']}: {row['keys']} live keys in {row['records']} records")
    print(f"{len(done.to_dicts())} partitions compacted in {done.seconds:.1f} s")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
