"""How much memory a task may take, unless somebody says otherwise.

A number only, so that a command line can name it without the pipeline behind it.
"""

from __future__ import annotations

TASK_MEMORY_BYTES = 1 << 30
