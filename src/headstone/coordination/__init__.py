"""Decides when tombstones and markers may go: the watermark protocol of a replica set, and the guard's decisions. No clock, no
I/O.

`replica.Replica` and `leader.Leader` are the protocol's two parts, `messages` their two messages, `watermarks` the minimum over
all replicas. `guarding.decide(memory, seen, ...)` is the guard's decision about one topic, in the terms of `guard_values`;
`readmission.next_step` is the next step of a readmission.
"""
