"""Carries out decisions through the Admin API.

`actions.Actions` carries out a round's actions in order, `changes.carry_out` a single one. `without_journal` holds topics while
the journal cannot be written. `release` undoes the guard's holds. Decides nothing.
"""
