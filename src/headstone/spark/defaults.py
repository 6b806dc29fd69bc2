"""Where Spark runs unless somebody says otherwise.

Text only, so that a command line can name it without Spark.
"""

from __future__ import annotations

LOCAL_MASTER = "local[*]"
