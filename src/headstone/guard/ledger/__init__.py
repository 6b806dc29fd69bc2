"""The journal, and everything that the guard changes for a while and puts back.

`journal_places` opens a `journal.Journal`: memories, changes, alarms, the lease. `overrides.change` changes a setting with the
journal before and behind; `temporary_changes` are those of readmissions, put back exactly as found. `memory.Recollection` is
what the guard remembers between two looks. Decides nothing.
"""
