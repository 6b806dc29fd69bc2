"""What changes an existing lake: jobs that read its objects, write others, and commit.

A command, the Python library or a worker calls one function, with a `Lake` and an `Engine`:

    compact_run.compact_due, leased_jobs   `lake compact`        worker_run, worker, upkeep   `lake worker`
    erasure_run, erasure, proof            `lake erase`, `prove-erased`
    garbage_run, collection, folding       `lake gc`             expiry                       `lake retain`
    store_check, mending                   `lake status --check`, `lake mend`
    rebuild                                `lake rebuild`

Start with `compaction.py`: plan (`job_plan`), let tasks decide and write (`extent_work`), commit each partition when it is
done. `rewriting.py` rewrites extents without deciding anything, for `leveling` and `purging`. `job.py` drives both.
`keeping.py` keeps leases alive, `turns.py` limits how much is done before others get their turn. `key_search.py` finds the
records of a key.
"""
