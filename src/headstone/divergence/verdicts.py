"""The findings of one partition as reported: with keys, files and what to do, grouped by cause; and the verdict.

Values only, from what was compared; prints nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headstone.divergence.advice import commands, repair
from headstone.divergence.findings import CERTAIN, FROZEN, Difference
from headstone.divergence.frozen import Frozen
from headstone.divergence.views import ProducerSaid
from headstone.log.topic_partition import TopicPartition

CLEAN, DIVERGED, INCOMPLETE = "clean", "diverged", "incomplete"
DIFFERENT_LOGS = "different-logs"
"""The named logs are not replicas of one partition: differences between them are no findings."""
EXAMPLES_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`kind` is the class; `key` is None if it is about no key. `or_kind`: another class, if the evidence does not decide."""

    kind: str
    replica: str
    key: bytes | None
    offset: int
    sure: str
    why: str
    file: str | None
    position: int | None
    producer_id: int
    producer_epoch: int | None
    marker: int | None
    served: Mapping[str, str]
    isolation: str
    misleads: bool
    or_kind: str | None
    or_replica: str | None
    else_kind: str | None = None
    repair: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingGroup:
    """Findings with one cause: the same class on the same replica, of one producer and one ending of its transactions."""

    kind: str
    replica: str
    producer_id: int
    marker: int | None
    or_kind: str | None
    sure: str
    isolation: str
    misleads: bool
    findings: tuple[Finding, ...]

    @property
    def examples(self) -> tuple[Finding, ...]:
        return self.findings[:EXAMPLES_MAX]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """For one partition: the brokers of its replicas by name, None if unknown; and the replicas that were not read."""

    partition: TopicPartition
    brokers: Mapping[str, int | None]
    unread: Sequence[str] = ()


def verdict(findings: int, problems: int, *, different: int = 0) -> str:
    """Findings count even if not everything could be read. `different`: partitions whose logs are not replicas of each
    other."""
    return DIVERGED if findings else DIFFERENT_LOGS if different else INCOMPLETE if problems else CLEAN


def of_difference(difference: Difference, key: bytes, file: str) -> Finding:
    return Finding(
        kind=difference.kind, replica=difference.replica, key=key, offset=difference.offset, sure=difference.sure,
        why=difference.why, file=file, position=difference.place[2], producer_id=difference.producer_id,
        producer_epoch=difference.producer_epoch, marker=difference.marker,
        served={one.replica: str(one) for one in difference.served}, isolation=difference.isolation,
        misleads=difference.misleads, or_kind=difference.or_kind, or_replica=difference.or_replica,
        else_kind=difference.else_kind,
    )  # fmt: skip


def of_frozen(frozen: Frozen, states: Sequence[ProducerSaid] | None) -> Finding:
    """`states`: what the replica's own broker says about its producers, if it was asked."""
    cleaned = "and everything of it is cleaned away there"
    end = cleaned if frozen.marker is None else f"at {frozen.marker}, which never came here"
    word, epoch = _said(frozen, states)
    return Finding(
        kind=FROZEN, replica=frozen.replica, key=None, offset=frozen.offset, sure=CERTAIN,
        why=f"the transaction of producer {frozen.producer_id} never ends here; it has ended on {frozen.ended_on} {end}{word}",
        file=None, position=None, producer_id=frozen.producer_id, producer_epoch=epoch, marker=frozen.marker, served={},
        isolation="read_committed", misleads=True, or_kind=None, or_replica=None,
    )  # fmt: skip


def _said(frozen: Frozen, states: Sequence[ProducerSaid] | None) -> tuple[str, int | None]:
    if states is None:
        return "", None
    state = next((one for one in states if one.producer_id == frozen.producer_id), None)
    if state is None or state.transaction_start is None:
        return "; the broker itself does not list it as open", None
    return f"; the broker itself says that it is open since offset {state.transaction_start}", state.epoch


def with_repairs(findings: Sequence[Finding], doubtful: set[str], placement: Placement) -> list[Finding]:
    """`doubtful`: replicas that some finding of the partition may be about: none of them is a source for another."""
    suspects = {*doubtful, *(finding.replica for finding in findings), *placement.unread}
    sources = [name for name in placement.brokers if name not in suspects]
    numbers = [broker for broker in placement.brokers.values() if broker is not None]
    verdicts = []
    for finding in findings:
        wrong = placement.brokers[finding.replica]
        steps: tuple[str, ...] = ()
        undecided = finding.or_replica not in (None, finding.replica)
        if wrong is not None and len(numbers) == len(placement.brokers) and not undecided:
            doubted = [placement.brokers[name] for name in placement.brokers if name in suspects]
            steps = commands(placement.partition, numbers, wrong, [b for b in doubted if b is not None])
        todo = repair(finding.kind, finding.replica, str(placement.partition), sources, undecided=undecided)
        verdicts.append(replace(finding, repair=todo, commands=steps))
    return sorted(verdicts, key=lambda one: (one.kind, one.replica, one.offset))


def grouped(findings: Sequence[Finding]) -> list[FindingGroup]:
    """By cause, in the order of the first finding of each."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        cause = (finding.kind, finding.replica, finding.producer_id, finding.marker, finding.or_kind, finding.else_kind,
                 finding.sure, finding.isolation, finding.misleads)  # fmt: skip
        groups.setdefault(cause, []).append(finding)
    return [
        FindingGroup(
            kind=some[0].kind, replica=some[0].replica, producer_id=some[0].producer_id, marker=some[0].marker,
            or_kind=some[0].or_kind, sure=some[0].sure, isolation=some[0].isolation, misleads=some[0].misleads,
            findings=tuple(some),
        )
        for some in groups.values()
    ]  # fmt: skip
