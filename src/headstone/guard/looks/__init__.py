"""What is seen of a cluster: one look, at a cost that is bounded, and what looks prove together.

`look.look(admin, topics, clock)` gives a `Look`. `missed` and `leader_reading` read what absent replicas miss; `clock_skew` and
`topic_ages` learn from one look to the next. Asks brokers and changes nothing; knows no journal.
"""
