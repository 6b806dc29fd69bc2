"""What the guard goes by unless somebody says otherwise, beside the margins of `coordination/danger.py`.

Numbers only, so that a command line can name them without the guard behind them.
"""

from __future__ import annotations

PARTITIONS_AT_ONCE = 1
"""Maximum concurrent re-replications in readmissions."""
