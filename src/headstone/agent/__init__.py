"""What runs beside each broker: reads its replicas while it runs, and tells the guard what they claim (RFC 1).

`agent.Agent(...)` finds the broker's partitions and makes one report of all; `client.GuardClient` delivers it. The guard uses
of this room what both sides speak: `messages` and `authentication`, and `deletions`, which says what a replica can miss.
Reads log directories and never writes them. Knows no cluster, no journal and nothing of the guard behind its address.
"""
