"""The agent's defaults.

Numbers only, so that a command line can use them without importing the agent.
"""

from __future__ import annotations

from headstone.bounds import Bounds
from headstone.units import HOUR_MS, SECOND_MS

REPORT_EVERY_MS = 10 * SECOND_MS
"""A guard that looks every 30 s has a fresh report at each look."""
REPORT_INTERVAL_MS = Bounds(SECOND_MS, HOUR_MS)
"""The bounds of what an agent may be told instead."""
