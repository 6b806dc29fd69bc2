"""The four corruptions by name, in the order in which they are told.

Names only, so that a command line can list them without the cluster that plays them. `stories.py` has the stories.
"""

from __future__ import annotations

TOMBSTONE_DIVERGENCE = "tombstone-divergence"
ABORTED_TO_COMMITTED = "aborted-to-committed"
COMMITTED_TO_ABORTED = "committed-to-aborted"
STUCK_READ_COMMITTED = "stuck-read-committed"
VARIANTS = (TOMBSTONE_DIVERGENCE, ABORTED_TO_COMMITTED, COMMITTED_TO_ABORTED, STUCK_READ_COMMITTED)
