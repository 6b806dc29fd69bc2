"""What the agents beside the brokers report, and what it proves.

`listener.listening(...)` opens the server that they report to, and is what the rest of the guard sees of them. `truth` says
whose report counts, `partition_truth` what those of one partition prove. The agents themselves are the room `agent/`.
"""
