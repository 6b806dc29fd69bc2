"""A replica that may be wrong leaves the assignment, is copied again under a hold, is read, and gets its place back.

`steps.next_step` decides each step (pure). `plan.plan` says what would be done, `driver.readmit` does it for a person, and
`automatic.OwnReadmissions` for the guard itself; each goes on with what the other began (`ledger.readmissions`).
"""
