"""Verifies returned replicas through the agents beside them instead of over the wire: takes seconds, and copies nothing.

Only for spans from which, according to the decision, nothing can have been removed while the replica was away: then the replica
is right if it copied what is there. As a second check, all replicas must have the same tombstones and markers there and none
may have lost a marker, as in a reading. Everything else is read over the wire (`verification/verdicts.py`), and so is every
case in which agents disagree, fall silent or make no progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from headstone.agent.messages import SpanAnswered, SpanQuestion
from headstone.coordination.guard_values import OffsetSpan, Verdict, Verify
from headstone.guard.agents.truth import AgentTruth
from headstone.guard.verification.background import Read
from headstone.guard.verification.verdicts import JudgedReplica
from headstone.log.topic_partition import TopicPartition

STALLED_INTERVALS = 3
STALLED_S_MIN, STALLED_S_MAX = 5.0, 60.0
"""Gives up after STALLED_INTERVALS reports of the slowest agent without progress, but within these bounds, in seconds: other
readings wait meanwhile."""
POLL_S = 0.2


class ByAgents:
    """Asks agents first. If they could not answer once, they are not asked about the same span again."""

    def __init__(
        self, read: Read, truth: AgentTruth, *, clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._read, self._truth, self._clock_s, self._sleep = read, truth, clock_s, sleep
        self._unsolved: dict[tuple[TopicPartition, int], OffsetSpan] = {}

    def __call__(self, wanted: Verify) -> Mapping[int, JudgedReplica]:
        replica = TopicPartition(wanted.topic, wanted.partition), wanted.broker
        before = self._unsolved.get(replica)
        if wanted.missed is not None and (before is None or before.start != wanted.missed.start):
            if self._agree(replica[0], wanted.missed):
                self._unsolved.pop(replica, None)
                return {wanted.broker: JudgedReplica(verdict=Verdict.RIGHT)}
            self._unsolved[replica] = wanted.missed
        return self._read(wanted)

    def _agree(self, partition: TopicPartition, span: OffsetSpan) -> bool:
        question = SpanQuestion(partition=partition, span=span)
        if self._truth.beside_all(partition) is None:
            return False
        stalled_s = min(
            max(STALLED_INTERVALS * self._truth.interval_ms(partition) / 1000, STALLED_S_MIN), STALLED_S_MAX
        )
        progress, moved_s = -1, self._clock_s()
        with self._truth.asking(question):
            while (brokers := self._truth.beside_all(partition)) is not None:
                answers = self._truth.answers(question)
                digests = [answers[broker].deletions for broker in brokers if broker in answers]
                if len(digests) == len(brokers) and None not in digests:
                    return len(set(digests)) == 1 and all(
                        digest is not None and not digest.emptied for digest in digests
                    )
                if (read := _read_by(answers)) > progress:
                    progress, moved_s = read, self._clock_s()
                if self._clock_s() - moved_s > stalled_s:
                    return False
                self._sleep(POLL_S)
        return False


def _read_by(answers: Mapping[int, SpanAnswered]) -> int:
    return sum(answer.read_to for answer in answers.values())
