"""Topics in object storage: objects of record batches, and the metastore that says which of them are the log.

Four packages and four files; imports go from the bottom of this list to its top, and import-linter holds it:

    defaults    sizes and times that several of them use
    format      what is in an object: batches, lists of keys, lists of dead records
    metastore   which objects are the log, and whose turn it is; the only package that speaks SQL
    lake        a metastore and its store, opened together
    jobs        what changes a lake that is there: compaction, leveling, retention, erasure, garbage, mending, rebuilding
    topics      topics made, altered, dropped; what a source says of one
    transfer    records in and out: ingest, reading, export, restore
    status      what `lake status` tells

A reader starts with `lake.open_lake` and `metastore/metastore.py`, then follows one of the walks in docs/ARCHITECTURE.md.
"""
