"""The oracle: Kafka's log format, cleaner, producer state and readers, told slowly and once more.

Everything fast in Headstone is compared with this package. It imports nothing from `headstone`, uses no arrays, and
follows Kafka's own classes (`DefaultRecordBatch`, `Cleaner`, `ProducerStateManager`) record by record.
"""
