"""Keeps the promise of coordinated compaction on a live cluster: looks, holds, readmissions, what operators are told (RFC 3).

`assembly.guarding(GuardRequest(...), messages)` opens a guard and gives its `reporter.Rounds`, until the block ends. `by_hand`
has what a person does beside it: `release`, `check_cluster`, `readmit_replicas`. `answers.ask` is `guard status`.

Packages, each importing only those below it (pyproject.toml):

    monitoring | agents   what people and Prometheus are told; what agents report and prove
    loop                  look, decide, remember, act, sleep
    acting                one action at a time, each in the journal before it is made
    readmission           out, in again, read, back in its place
    verification | check  is a replica right; are the settings
    ledger | looks        the journal and every temporary change; what is seen of a cluster

The decisions are `coordination/`'s.
"""
