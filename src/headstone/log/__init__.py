"""Bytes to columns and back: Kafka's own files. Knows nothing of compaction."""
