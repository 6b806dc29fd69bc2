"""Where Spark runs by default.

Text only, so that a command line can show it without loading Spark.
"""

from __future__ import annotations

LOCAL_MASTER = "local[*]"
