"""Many partitions at once: plan, bodies of tasks, commit, report; the engine in this process. No Spark, no brokers, no SQL.

    inputs, selection           what a caller's paths name, and which of it is compacted
    compaction, planning        one compaction, from survey to report
    inspection, auditing        exact facts of partitions; replicas compared
    work, splitting, buckets    the bodies of the tasks, and how a partition is cut into them
    sinks, commit, new_objects  where new logs go: in place, into a new directory, into an object store
    engine, inprocess           the port to what runs the tasks, and threads of this process
    runner, progress, machine   what a call needs beside its work

Start with `compaction.py`. Which records survive is decided in `retention/`.
"""
