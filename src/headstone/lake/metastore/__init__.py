"""Which extents are the log of each partition, and everything else that must not be guessed: one SQL database per lake.

The only package that speaks SQL: no row, table, session or connection leaves it. Callers have a `Metastore` and get values:

    metastore = Metastore.open(url)
    (object_id,) = metastore.register(1)
    metastore.append({partition: Append(expected_next=0, extents=(extent,))}, {object_id: size})
    metastore.snapshot()[partition].extents

Start with `commits.py`: every rule and every reason to refuse, without SQL. Then read `metastore.py`, one transaction per
method, and `changes.py`, what a commit writes. Beside them:

    catalog, object_states, past, checking   inside a transaction: topics, objects, the past, every invariant
    scheduling, totals, standings, due       which partition is due, and why; the queue
    surveys, object_accounts                 what jobs ask about many partitions, or objects, at once
    leases, holds, pins, erasures, losses, leader_epochs    state kept for others, each with its own small class or functions
    notes, journal, replay                   what each commit changes, written to the store; and a metastore rebuilt from it
    listeners                                callbacks after commits
    clock, locations, marker, identity       whose time decides, and whose store it is
    schema, rows, database                   tables and their values; start elsewhere
"""
