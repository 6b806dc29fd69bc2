"""The journal, and every setting that the guard changes temporarily and restores.

`journal_places` opens a `journal.Journal`: memories, changes, alarms, the lease. `overrides.change` changes a setting and
journals the change before and after. `temporary_changes` are those of readmissions, restored exactly as found.
`memory.Recollection` is what the guard remembers between two looks. Decides nothing.
"""
