"""The agent beside each broker: reads the broker's replicas while it runs, and reports to the guard what they claim (RFC 1).

`agent.Agent(...)` finds the broker's partitions and makes one report of them all; `client.GuardClient` delivers it. The guard
uses what both sides speak, `messages` and `authentication`, and `deletions`, which says what a replica can miss. Reads log
directories and never writes them. Knows no cluster and no journal, and of the guard only its address.
"""
