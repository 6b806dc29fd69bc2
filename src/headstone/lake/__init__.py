"""Topics in object storage: objects of record batches, and the metastore that says which of them are the log."""
