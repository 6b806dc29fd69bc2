"""Jobs under a tag, by which another thread cancels them: the session's owner may run other jobs in it.

A classic session keeps its own tags by thread, so that no other thread can cancel by them (Spark 4.0 to 4.3): there they are
the context's. Spark Connect has no context, and its session's tags are the server's.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headstone.spark.session import context_of


def new_tag() -> str:
    return f"headstone-{secrets.token_hex(8)}"


@contextmanager
def tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """Tags the jobs of this thread."""
    context = context_of(spark)
    if context is not None:
        context.addJobTag(tag)
    else:
        spark.addTag(tag)
    try:
        yield
    finally:
        if context is not None:
            context.removeJobTag(tag)
        else:
            spark.removeTag(tag)


def cancel(spark: SparkSession, tag: str) -> None:
    """On any thread. A JVM that has gone runs nothing."""
    with suppress(PySparkException, Py4JError, OSError):
        context = context_of(spark)
        if context is not None:
            context.cancelJobsWithTag(tag)
        else:
            spark.interruptTag(tag)
