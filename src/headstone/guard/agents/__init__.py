"""What the agents beside the brokers report, and what their reports prove.

`listener.listening(...)` opens the server that agents report to, and is all that the rest of the guard sees of them. `truth`
decides whose report counts, `partition_truth` what the reports about one partition prove. The agents themselves are in
`agent/`.
"""
