"""Finds settings that make an outage more dangerous: `headstone guard check`.

`facts.gather` asks the cluster and the journal, `rules.check` turns the facts into findings. Changes nothing.
"""
