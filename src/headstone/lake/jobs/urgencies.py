"""Which partitions of a lake are worth a compaction now, and why: for a run of `lake compact`, and for requests of one.

The rule is in `scheduling`; `standings` reads the rows. Workers do not use this: their shared queue is in `due`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from headstone.lake.lake import Lake
from headstone.lake.metastore.leases import Leases
from headstone.lake.metastore.scheduling import Urgency
from headstone.lake.metastore.surveys import all_judged
from headstone.log.topic_partition import TopicPartition


def urgencies(lake: Lake, *, now_ms: int, requested: Collection[TopicPartition] = ()) -> dict[TopicPartition, Urgency]:
    """For every partition of the lake. Invalid settings are their own reason.

    `requested`: treated as requested, too."""
    judged = all_judged(lake.metastore, now_ms=now_ms, requested=requested)
    return {each.partition: each.urgency for each in sorted(judged, key=lambda each: each.partition)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """`idle`: partitions with nothing to do, and why; no request is made for these."""

    partitions: tuple[TopicPartition, ...]
    idle: Mapping[TopicPartition, str]


def request_compaction(lake: Lake, partitions: Sequence[TopicPartition]) -> Requested:
    """By the next worker, whatever their dirty ratio."""
    now_ms = lake.metastore.clock()
    states = urgencies(lake, now_ms=now_ms, requested=partitions)
    wanted = tuple(name for name in partitions if states[name].eligible)
    for name in wanted:
        Leases(lake.metastore).request(name, now_ms=now_ms)
    return Requested(
        partitions=wanted, idle={name: states[name].reason for name in partitions if name not in wanted}
    )  # fmt: skip
