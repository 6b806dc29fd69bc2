"""Why a replica cannot be judged: how each reason begins, by which an alarm finds its advice.

Words only: `verdicts.py` chooses the reason, `loop/alarms.py` has the advice.
"""

from __future__ import annotations

DIFFERS = "it, or another replica, is wrong"
DIFFERENT_LOGS = "these are different logs"
WITHHELD = "it serves less than its records say"
DAMAGED = "its log is damaged"
