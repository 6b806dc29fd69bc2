"""Lets Spark find the data source `headstone` by itself: it looks for DefaultSource in packages named pyspark_*."""

from headstone.spark.lake_source import HeadstoneSource as DefaultSource

__all__ = ["DefaultSource"]
