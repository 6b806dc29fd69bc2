"""The guard's loop: look, decide, remember, act, sleep.

`watcher.Watcher(Settings(...), ...).run(stop, tell)` makes each look a `Round`. `coordination/guarding.py` decides.
"""
