"""The evidence for a decision as one line for the journal: which replica was seen in which state, and the moment of danger.

Words only. Bounded: of a topic with many partitions it names the first ones that are not fine.
"""

from __future__ import annotations

from headstone.coordination.danger import NEVER_MS
from headstone.coordination.guard_values import PartitionSeen, State, Status, TopicSeen
from headstone.units import count, exact_duration, moment

PARTITIONS_MAX = 10


def evidence(seen: TopicSeen, statuses: tuple[Status, ...]) -> str:
    partitions = {partition.partition: partition for partition in seen.partitions}
    worrying = [status for status in statuses if status.state is not State.FINE]
    parts = [
        f"asked {moment(seen.asked_ms)}, delete.retention.ms {seen.delete_retention_ms}, skew {exact_duration(seen.skew_ms)}"
    ]
    parts += [_partition(partitions[status.partition], status) for status in worrying[:PARTITIONS_MAX]]
    left = len(worrying) - PARTITIONS_MAX
    return "; ".join([*parts, *([f"and {count(left, 'partition')} more"] if left > 0 else [])])


def _partition(partition: PartitionSeen, status: Status) -> str:
    ends = " ".join(
        f"{replica.broker}:{'?' if replica.log_end is None else replica.log_end}" for replica in partition.replicas
    )
    unsafe = ""
    if status.unsafe_ms is not None:
        unsafe = f", unsafe from {'never' if status.unsafe_ms >= NEVER_MS else moment(status.unsafe_ms)}"
    return (
        f"partition {partition.partition} {status.state}: leader {partition.leader}, in sync "
        f"{','.join(map(str, partition.isr))}, log ends {ends}{unsafe}"
    )
