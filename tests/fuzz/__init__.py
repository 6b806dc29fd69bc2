"""Mutated log directories: made by seed, run through survey, inspection and compaction, judged with the oracle."""
