"""How much a micro-batch of a Python source may bring: an option, and what each version of Spark makes of it.

Knows offsets by partition, and no source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstone.errors import UsageError
from headstone.spark.source_options import positive

try:
    from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

    HAS_LIMITS = True
except ImportError:  # before Spark 4.2
    HAS_LIMITS = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass


__all__ = ["HAS_LIMITS", "SupportsTriggerAvailableNow", "ends_of_batch", "limited", "offsets_max_of", "read_limit"]
NAME = "maxOffsetsPerTrigger"


def offsets_max_of(options: Mapping[str, str]) -> int | None:
    """Of one micro-batch, over all partitions; None: all there are."""
    limit = options.get(NAME)
    if limit is not None and not HAS_LIMITS:
        raise UsageError(f"{NAME}: this Spark asks a Python source for all there is; it needs Spark 4.2")
    return None if limit is None else positive(NAME, limit)


def read_limit(offsets_max: int) -> Any:
    """For Spark versions with such limits."""
    return ReadMaxRows(offsets_max)


def ends_of_batch(
    begins: Mapping[str, int], ends: Mapping[str, int], *, until: Mapping[str, int] | None, limit: object
) -> dict[str, int]:
    """Not beyond `until`, if a trigger for the data available now has set it, and within Spark's own `limit`."""
    if until is not None:
        stops = {**begins, **until}
        ends = {name: max(begins[name], min(end, stops[name])) for name, end in ends.items()}
    offsets_max: int | None = getattr(limit, "max_rows", None)
    return dict(ends) if offsets_max is None else limited(begins, ends, offsets_max)


def limited(begins: Mapping[str, int], ends: Mapping[str, int], offsets_max: int) -> dict[str, int]:
    """At most offsets_max offsets, shared among the partitions by how much each has; some progress if there is any."""
    waiting = {name: end - begins[name] for name, end in ends.items()}
    total = sum(waiting.values())
    if total <= offsets_max:
        return dict(ends)
    chosen, left = {}, offsets_max
    for name in sorted(ends):
        share = min(-(-waiting[name] * offsets_max // total), waiting[name], left)
        chosen[name] = begins[name] + share
        left -= share
    return chosen
