"""Is a replica right? Reads it and its peers over the wire and judges it.

`verdicts.verify(connection, topic, partition, broker, work=...)` gives a `Judged` for each replica; `background.Readings` does
it beside the loop, one replica at a time, and notes the result in the journal.
"""
