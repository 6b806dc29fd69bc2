"""Readmits a replica that may be wrong: it leaves the assignment, is copied again under a hold, is read, and gets its place
back.

`coordination.readmission.next_step` decides each step. `plan.plan` says what would be done, `driver.readmit` does it for a
person, `automatic.OwnReadmissions` for the guard. Each continues what the other began (`ledger.readmissions`).
"""
