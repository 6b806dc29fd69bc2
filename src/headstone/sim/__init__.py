"""Made-up clusters and logs, deterministic by seed."""
