"""The guard's defaults, apart from the margins in `coordination/danger.py`.

Numbers only, so that a command line can use them without importing the guard.
"""

from __future__ import annotations

PARTITIONS_AT_ONCE = 1
"""Maximum concurrent re-replications in readmissions."""
