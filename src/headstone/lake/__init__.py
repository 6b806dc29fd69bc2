"""Topics in object storage: objects of record batches, and the metastore that says which of them are the log.

Four packages and four files. Each may import only what stands above it in this list; import-linter enforces that:

    defaults    sizes and times that several of them use
    format      what is in an object: batches, lists of keys, lists of dead records
    metastore   which objects are the log, and whose turn it is; the only package that speaks SQL
    lake        a metastore and its store, opened together
    jobs        what changes an existing lake: compaction, leveling, retention, erasure, garbage, mending, rebuilding
    topics      topics created, altered, dropped; what a source says about one
    transfer    records in and out: ingest, reading, export, restore
    status      what `lake status` shows

Start with `lake.open_lake` and `metastore/metastore.py`, then follow one of the walks in docs/ARCHITECTURE.md.
"""
