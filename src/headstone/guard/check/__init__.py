"""Settings that widen the danger: `headstone guard check`.

`facts.gather` asks the cluster and the journal, `rules.check` turns the facts into findings. Changes nothing.
"""
