"""Passes each look on to the agents' truth, and adds what the agents know to the look.

The only place where the two meet: the loop knows nothing of agents. Asks no broker, decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from headstone.coordination.guard_values import TopicSeen
from headstone.guard.agents.truth import AgentTruth
from headstone.guard.looks.clock_skew import largest_difference_ms
from headstone.guard.looks.look import Look

LookAt = Callable[[Sequence[str] | None], Look]


def attended(look: LookAt, truth: AgentTruth, watched: Sequence[str]) -> LookAt:
    """`watched`: the topics that the guard watches; empty means every compacted topic."""

    def looked(topics: Sequence[str] | None) -> Look:
        seen = look(topics)
        whole = topics is None or (bool(watched) and set(topics) == set(watched))
        truth.learn(seen.cluster_id, seen.brokers, seen.topics, whole=whole)
        return replace(seen, topics=tuple(_with_truth(topic, truth) for topic in seen.topics))

    return looked


def _with_truth(topic: TopicSeen, truth: AgentTruth) -> TopicSeen:
    return replace(topic, skew_ms=max(topic.skew_ms, largest_difference_ms(truth.clocks())))
