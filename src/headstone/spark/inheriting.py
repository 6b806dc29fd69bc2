"""Copies what a caller's thread has told Spark about its jobs to threads of ours: job group, description, pool, tags.

pyspark's `inheritable_thread_target` asks the process which kind of Spark it has, but a process may have both. It also gives
all threads one set of properties, which tags of ours change. A session that does not answer raises nothing here; its next use
does.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headstone.spark.session import SparkSession, context_of

P = ParamSpec("P")
T = TypeVar("T")


def inheriting(spark: SparkSession, work: Callable[P, T]) -> Callable[P, T]:
    """The work, to be run on other threads any number of times; on this one it changes nothing."""
    here = threading.get_ident()
    try:
        context = context_of(spark)
        tell = _of_connect(spark) if context is None else _of_context(spark, context)
    except (PySparkException, Py4JError, OSError, AttributeError):
        return work

    def inherited(*arguments: P.args, **named: P.kwargs) -> T:
        if threading.get_ident() != here:
            tell()
        return work(*arguments, **named)

    return inherited


def _of_context(spark: SparkSession, context: Any) -> Callable[[], None]:
    """Without pinned threads (PYSPARK_PIN_THREAD) a thread has no properties of its own: they would be another thread's."""
    if not isinstance(context._gateway, ClientServer):
        return lambda: None
    properties, tags = context._jsc.sc().getLocalProperties().clone(), spark.getTags()

    def tell() -> None:
        context._jsc.sc().setLocalProperties(properties.clone())
        for tag in tags:
            spark.addTag(tag)

    return tell


def _of_connect(spark: SparkSession) -> Callable[[], None]:
    """Tags, and whatever else pyspark keeps for each thread."""
    kept = copy.deepcopy(vars(spark.client.thread_local))
    return lambda: vars(spark.client.thread_local).update(copy.deepcopy(kept))
