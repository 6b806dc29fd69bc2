"""Keeps the promise of coordinated compaction on a live cluster: looks, holds, readmissions, and what operators see (RFC 3).

`assembly.guarding(GuardRequest(...), messages)` opens a guard and yields its `reporter.Rounds` until the block ends. `by_hand`
has the commands that a person runs beside a guard: `release`, `check_cluster`, `readmit_replicas`. `answers.ask` is `guard
status`.

Packages, each importing only those below it (pyproject.toml):

    monitoring | agents   what people and Prometheus see; what agents report and prove
    loop                  look, decide, remember, act, sleep
    acting                one action at a time, each in the journal before it is made
    readmission           take the replica out, add it again, read it, restore its place
    verification | check  is a replica right; are the settings safe
    ledger | looks        the journal and every temporary change; what a look sees of a cluster

`coordination/` makes the decisions.
"""
