"""What a run takes of one machine by default: its cores, memory for each task, and how many tasks.

Numbers and names only, so that a command line can name them without loading the pipeline.
"""

from __future__ import annotations

import os

TASK_MEMORY_BYTES = 1 << 30
SPARK_FROM_BYTES = 4 << 30
"""Below this, a few threads in this process finish before Spark has started."""
AUTO, WHOLE, SHUFFLE = PATHS = "auto", "whole", "shuffle"
"""Whole: one task per partition. Shuffle: its keys go through buckets. Auto: whole if the keys fit into a task's memory."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
