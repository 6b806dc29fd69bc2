"""Carries out what was decided, with the Admin API.

`actions.Actions` does a round's actions in order, `changes.carry_out` each of them; `without_journal` holds while the
journal cannot be written; `release` undoes what the guard holds. Asks, never decides.
"""
