"""Bytes to columns and back: Kafka's own files. Knows nothing about compaction.

    directory, reading                          which files there are, and their batches, verified
    layout, kernels, codecs                     the wire format, and the compiled loops over it
    columns, listing                            records as Arrow, or one by one for people
    encoding, arrow_batches, indexes            writing batches and indexes
    checkpoints, snapshots, cluster_metadata    the small files beside the logs
    swap, ownership, failpoint                  replacing segments so that a crash at any point does no harm

Start with `directory.find_partitions` and `reading.py`.
"""
