"""Is a replica right? Reads it and the partition's other replicas over the wire and judges it.

`verdicts.verify(connection, topic, partition, broker, work=...)` returns a `Judged` for each replica. `background.Readings`
does so beside the loop, one replica at a time, and records the result in the journal.
"""
