"""Records into the lake and out of it; nothing here changes what is in it already.

    ingest, ingest_tasks        from log directories             landing, live       from a running cluster
    reading, table_view, views  records and tables, now or in the past
    export*                     log directories from which brokers start
    restore*                    a topic back into Kafka, with verification; offset_map, group_offsets  move readers along

Start with `ingest.py` and `reading.py`. `live.py` is the port to Kafka: what the lake asks of a cluster, which
`cluster/live.py` answers. Tasks get a `Store` and extents, and no metastore.
"""
