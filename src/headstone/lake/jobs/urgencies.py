"""Which partitions of a lake are worth a compaction now, and why: for a run of `lake compact`, and for who asks for one.

The rule is in `scheduling`, the rows are read by `standings`. Workers do not ask here: the queue of all of them is in `due`.
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
    """Every partition of the lake. Settings that make no sense are their own reason.

    `requested`: as if somebody had asked for these too."""
    judged = all_judged(lake.metastore, now_ms=now_ms, requested=requested)
    return {each.partition: each.urgency for each in sorted(judged, key=lambda each: each.partition)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """`idle`: in which there is nothing to do, and why; nobody is asked for these."""

    partitions: tuple[TopicPartition, ...]
    idle: Mapping[TopicPartition, str]


def request_compaction(lake: Lake, partitions: Sequence[TopicPartition]) -> Requested:
    """Of these, by the next worker, whatever their dirty ratio."""
    now_ms = lake.metastore.clock()
    states = urgencies(lake, now_ms=now_ms, requested=partitions)
    wanted = tuple(name for name in partitions if states[name].eligible)
    for name in wanted:
        Leases(lake.metastore).request(name, now_ms=now_ms)
    return Requested(
        partitions=wanted, idle={name: states[name].reason for name in partitions if name not in wanted}
    )  # fmt: skip
