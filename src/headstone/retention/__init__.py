"""Which records survive, and why. Pure: arrays in, verdicts out."""
