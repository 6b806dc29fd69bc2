"""The guard's memory between two looks: the newest in this process, and on disk everything that a restart must not lose.

An older memory is only more careful: a replica that was complete earlier is in danger earlier. So what merely advances with
time (log ends, when replicas were last complete or excused) is written now and then, and everything else at once. Otherwise a
cluster of ten thousand partitions would be written in full at every look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from headstone.coordination.guard_values import Configs, Memory, TopicSeen, Verdict
from headstone.coordination.guarding import REREAD_MS
from headstone.coordination.holding import found_before
from headstone.errors import HeadstoneError
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import RememberedTopic, ReplicaReading

IDLE_MS = 300_000
RETENTION_SHARE = 8
"""Or after the topic's delete.retention.ms divided by this, if that is less, so that a restart costs little of its slack."""
IDLE_SHARE, IDLE_TOPICS_MIN = 8, 50
"""Topics that are due only by time: at each look at most one in IDLE_SHARE of all topics, or IDLE_TOPICS_MIN if that is
more."""


class Recollection:
    """Of the leading guard. A guard that does not lead must call `forget`, because another one writes then."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._newest: dict[str, Memory] = {}
        self._written: dict[str, tuple[object, int]] = {}

    def memory(self, topic: str) -> Memory:
        return self._newest[topic] if topic in self._newest else self._journal.memory(topic)

    def newest(self, topic: str, memories: Mapping[str, Memory]) -> Memory:
        """Like `memory`; if the journal cannot be read either, takes it from `memories`."""
        try:
            return self.memory(topic)
        except HeadstoneError:
            return memories.get(topic, Memory())

    def note_found(self, topic: str, present: Configs) -> Configs:
        """Called just before the topic is held, and on the disk when it returns: what to restore after the hold."""
        memory = self.memory(topic)
        previous = found_before(memory, present)
        if memory.hold is not None and memory.hold.found != previous:
            corrected = replace(memory, hold=replace(memory.hold, found=previous))
            self._journal.remember(topic, corrected)
            self._newest[topic] = corrected
            self._written.pop(topic, None)
        return previous

    def forget(self) -> None:
        self._newest.clear()
        self._written.clear()

    def drop(self, topic: str) -> None:
        """Forgets the copy in this process: the one on disk may have been corrected."""
        self._newest.pop(topic, None)
        self._written.pop(topic, None)

    def keep(self, decided: Mapping[str, RememberedTopic], *, holder: str, now_ms: int, looked_ms: int | None) -> None:
        """When it returns, what matters is on disk. Writes nothing if `holder` no longer leads."""
        matters = {topic: what_matters(kept) for topic, kept in decided.items()}
        urgent = [topic for topic in decided if topic not in self._written or self._written[topic][0] != matters[topic]]
        aged = sorted(
            (self._written[topic][1], topic)
            for topic, kept in decided.items()
            if topic in self._written and now_ms - self._written[topic][1] >= _idle_ms(kept.memory)
        )
        share = max(IDLE_TOPICS_MIN, len(decided) // IDLE_SHARE)
        chosen = {*urgent, *(topic for _, topic in aged[:share])}
        self._journal.remember_all(
            {topic: decided[topic] for topic in sorted(chosen)}, holder=holder, now_ms=now_ms, looked_ms=looked_ms
        )
        self._newest |= {topic: kept.memory for topic, kept in decided.items()}
        self._written |= {topic: (matters[topic], now_ms) for topic in chosen}


def what_matters(kept: RememberedTopic) -> object:
    """Everything except what merely advances with time."""
    memory = kept.memory
    away = tuple(replace(away, excused_ms=None) for away in memory.away)
    return (
        replace(memory, ends=(), complete=(), away=away, retention_seen_ms=None, skews=()),
        tuple((complete.partition, complete.broker) for complete in memory.complete),
        tuple((status.partition, status.state, status.blockers) for status in kept.statuses),
    )


def _idle_ms(memory: Memory) -> int:
    retention_ms = memory.retentions[-1].retention_ms if memory.retentions else 0
    return min(IDLE_MS, retention_ms // RETENTION_SHARE)


def released_by_person(memory: Memory, released_ms: int | None) -> Memory:
    """The memory as if the guard had seen a person undo the hold: it reports that, and leaves the topic alone until every
    replica is back."""
    hold = memory.hold
    if hold is None or released_ms is None or hold.asked_ms > released_ms:
        return memory
    if hold.undone_ms is not None:
        return replace(memory, hold=replace(hold, by_robot=False))
    seen_ms = hold.asked_ms if hold.seen_ms is None else hold.seen_ms
    return replace(memory, hold=replace(hold, seen_ms=seen_ms, undone_ms=released_ms, confirmed=(), confirmed_ms=None))


def with_readings(seen: TopicSeen, readings: Sequence[ReplicaReading], now_ms: int) -> TopicSeen:
    """Adds the readings to the replicas. A reading that could not judge its replica expires after a while, so the replica is
    read again."""
    by_replica = {
        (reading.partition, reading.broker): reading
        for reading in readings
        if reading.verdict is not Verdict.UNJUDGED or now_ms - reading.read_ms < REREAD_MS
    }
    partitions = []
    for partition in seen.partitions:
        replicas = []
        for replica in partition.replicas:
            reading = by_replica.get((partition.partition, replica.broker))
            if reading is not None:
                replica = replace(replica, verdict=reading.verdict, read_ms=reading.read_ms)
            replicas.append(replica)
        partitions.append(replace(partition, replicas=tuple(replicas)))
    return replace(seen, partitions=tuple(partitions))


def without_wishes(before: Memory, decided: Memory) -> Memory:
    """For a dry run: keeps what was learnt, but no hold and no readmission that was never requested from the cluster."""
    hold = decided.hold
    if before.hold is None or hold is None or hold.asked_ms != before.hold.asked_ms or (
        hold.released_ms != before.hold.released_ms
    ):  # fmt: skip
        hold = before.hold
    orders = {(away.partition, away.broker): away.order for away in before.away}
    away = tuple(replace(away, order=orders.get((away.partition, away.broker), ())) for away in decided.away)
    return replace(decided, hold=hold, default_hold=before.default_hold, away=away)
