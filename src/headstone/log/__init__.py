"""Bytes to columns and back: Kafka's own files. Knows nothing about compaction."""
