"""The parent of Spark's Python workers on a local master: imports what a worker needs once, here, before the fork.

pyspark comes from where it is installed, not from the zip that Spark puts first, which has no compiled modules.
"""

from __future__ import annotations

import gc
import sys

sys.path[:] = [place for place in sys.path if not place.endswith("pyspark.zip") and "py4j-" not in place]

import pyspark.daemon  # noqa: E402
import pyspark.worker  # noqa: E402

import headstone.spark.engine  # noqa: E402, F401

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()
