"""What to do about a finding, and how long replicas that are behind are safe. Text and numbers only; executes nothing.

A wrong replica does not recover by itself: it never fetches again what it has missed. A new copy from a healthy replica repairs
it; a tombstone repairs a key on all replicas at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstone.divergence.findings import ABORTED_SERVED, FROZEN, HIDDEN, OTHER, REAPPEARS
from headstone.divergence.kafka_tools import elect_preferred, reassign
from headstone.divergence.views import ReplicaFacts
from headstone.log.topic_partition import TopicPartition

REBUILD = (
    "rebuild {replica}: stop its broker, move {partition} out of its log directory, start it: it copies the log from the "
    "leader, which must be {sources}"
)
NO_SOURCE = (
    "every other replica of {partition} is in doubt about something too: do not copy any of them over {replica} before it is "
    "known which is right, key by key"
)
MEANWHILE = (
    "until then keep {replica} from leading {partition}: last in its list of replicas, then a preferred leader election"
)


def repair(
    kind: str, replica: str, partition: str, sources: Sequence[str], *, undecided: bool = False
) -> tuple[str, ...]:
    """In the order in which to do it. `sources`: replicas that nothing speaks against. `undecided`: it is unclear who is wrong,
    or how."""
    rebuild = (REBUILD if sources else NO_SOURCE).format(
        replica=replica, partition=partition, sources=" or ".join(sources)
    )
    meanwhile = MEANWHILE.format(replica=replica, partition=partition)
    if kind == OTHER or undecided:
        return meanwhile, f"find out which replica is right before anything else, then {rebuild}"
    if kind in (REAPPEARS, ABORTED_SERVED):
        tombstone = (
            f"or, if the key is meant to be gone, write a tombstone for it into {partition}: it goes on every replica"
        )
        return meanwhile, rebuild, tombstone
    if kind == FROZEN:
        abort = "kafka-transactions.sh cannot end it: its coordinator has forgotten it"
        return meanwhile, f"{rebuild} ({abort})"
    assert kind == HIDDEN
    return meanwhile, rebuild


def commands(partition: TopicPartition, brokers: Sequence[int], wrong: int, doubtful: Sequence[int]) -> tuple[str, ...]:
    """For Kafka's own tools, for a person to read and run: move leadership away first, then make a new copy of the wrong
    replica.

    BOOTSTRAP stands for the cluster. Each reassignment is verified before the next one: repeat that command until it says
    complete. Empty if no replica is beyond doubt, because the leader is what would be copied."""
    sources = [broker for broker in brokers if broker != wrong and broker not in doubtful]
    remaining = [*sources, *(broker for broker in brokers if broker != wrong and broker in doubtful)]
    if not sources:
        return ()
    steps: list[str] = []
    for name, replicas in (("prefer", [*remaining, wrong]), ("without", remaining), ("again", [*remaining, wrong])):
        steps += reassign({partition: replicas}, f"{name}.json")
        if name == "prefer":
            steps.append(elect_preferred(partition))
    return tuple(steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """A replica that is behind. From `unsafe_ms` on, something that it has not copied yet may be gone for ever."""

    replica: str
    log_end: int
    behind: int
    unsafe_ms: int
    stamped: bool
    """True if a delete horizon says so; else `unsafe_ms` is the earliest that cleaning from now on could lead to."""


def forecast(replicas: Sequence[ReplicaFacts], *, now_ms: int, delete_retention_ms: int) -> list[Risk]:
    end = max(facts.log_end for facts in replicas)
    risks = []
    for facts in replicas:
        if facts.log_end >= end:
            continue
        ahead = [other for other in replicas if other.log_end > facts.log_end]
        horizons = [
            int(stamp["horizon_ms"])
            for other in ahead
            for stamp in other.stamps[other.stamps["offset"] >= facts.log_end]
        ]
        first = min([*horizons, now_ms + delete_retention_ms])
        risks.append(
            Risk(
                replica=facts.name, log_end=facts.log_end, behind=end - facts.log_end, unsafe_ms=first,
                stamped=bool(horizons) and first == min(horizons),
            )
        )  # fmt: skip
    return risks
