"""Simulated clusters and sample logs, deterministic by seed.

`campaign_run.run_campaign` runs many seeds, `explore.explore` searches all states of a few replicas, `stories` tells the four
corruptions, `synth.write_sample` writes sample logs. `guarded` has the simulation with a guard.
"""
