"""What the guard sees of a cluster: one look at bounded cost, and what looks prove together.

`look.look(admin, topics, clock)` returns a `Look`. `missed` and `leader_reading` read what absent replicas miss; `clock_skew`
and `topic_ages` learn from one look to the next. Asks brokers and changes nothing; knows no journal.
"""
