"""What is in an object of the lake: ranges of record batches, the lists beside them, an index, a footer.

Start with `extents.py`, the value that everything else passes around, and `objects.py`, which writes and reads the bytes:

    with writing_object(store, object_id, lake_id) as writer:
        extent = writer.add(topic, number, span, batches, records=count, max_timestamp_ms=newest_ms, keys=keys)
    read_extent(store, extent)

`keyindex.py` is the list of an extent's keys, `dead.py` the list of its dead records, `spans.py` sets of offsets. `prefixes.py`
says where a lake may be created, `seals.py` writes objects that are not data and makes any change to them visible. Knows a
`Store`; knows nothing about a metastore.
"""
