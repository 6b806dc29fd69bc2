"""Lets Spark find the data source `kafka-log` by itself: it looks for DefaultSource in packages named pyspark_*."""

from headstone.spark.source import KafkaLogSource as DefaultSource

__all__ = ["DefaultSource"]
