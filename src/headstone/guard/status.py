"""What an operator asks: who blocks what, how long until the first unsafe removal, what is held since when, what to do.

Values made of what the guard remembers and of its newest look; as a document for JSON. Rendering as text is the command
line's, as metrics `metrics.py`'s. Decides nothing, changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from headstone.coordination.absences import in_effect
from headstone.coordination.danger import NEVER_MS
from headstone.coordination.guard_values import Configs, Memory, State, Status
from headstone.coordination.guarding import STALE_LOOKS
from headstone.guard.alarms import advice
from headstone.guard.journal import KeptAlarm, Lease
from headstone.guard.suspects import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A hold as the guard knows it; confirmed_ms is None until every live broker has said itself that it has it."""

    since_ms: int
    confirmed: tuple[int, ...]
    confirmed_ms: int | None
    undone_ms: int | None
    by_default: bool
    found: Configs
    reason: str = ""
    bytes_held_back: int | None = None
    """What the topic's replicas have grown by since; None: nobody has asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A replica that needs readmission, or is on the way."""

    partition: int
    broker: int
    since_ms: int
    expelled_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    topic: str
    partitions: tuple[Status, ...]
    held: Held | None = None
    waiting: tuple[Waiting, ...] = ()

    @property
    def worrying(self) -> tuple[Status, ...]:
        return tuple(status for status in self.partitions if status.state is not State.FINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardStatus:
    """looked_ms is None if nobody has looked yet; `fresh`: asked of the cluster now, else the journal's word."""

    cluster_id: str
    now_ms: int
    looked_ms: int | None
    fresh: bool
    lease: Lease | None
    topics: tuple[TopicStatus, ...]
    alarms: tuple[KeptAlarm, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def leader(self) -> Lease | None:
        return self.lease if self.lease is not None and self.lease.until_ms > self.now_ms else None

    @property
    def states(self) -> Counter[State]:
        return Counter(status.state for topic in self.topics for status in topic.partitions)

    @property
    def countdown_ms(self) -> int | None:
        """To the first unsafe removal that nothing keeps back; negative: it may have happened."""
        running = (State.WATCHED, State.TOO_LATE, State.UNKNOWN)
        left = [s.countdown_ms for topic in self.topics for s in topic.partitions if s.state in running]
        return min((ms for ms in left if ms is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a status is made of: of a look just now, or of what the journal has."""

    cluster_id: str
    memories: Mapping[str, Memory]
    statuses: Mapping[str, tuple[Status, ...]]
    looked_ms: int | None
    lease: Lease | None
    alarms: Sequence[KeptAlarm] = ()
    problems: Sequence[str] = ()
    held_bytes: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    by_hand: Mapping[str, tuple[Waiting, ...]] = field(default_factory=dict)
    """Readmissions that a person has begun."""
    wrong: Mapping[str, frozenset[Replica]] = field(default_factory=dict)
    """Replicas that were read since they are back, and were not found right."""


def guard_status(known: Known, *, now_ms: int, poll_ms: int, fresh: bool) -> GuardStatus:
    """As of now_ms: countdowns go on, and what was seen too long ago is unknown."""
    looks_old = known.looked_ms is None or now_ms - known.looked_ms > STALE_LOOKS * poll_ms
    leader = known.lease if known.lease is not None and known.lease.until_ms > now_ms else None
    topics = [
        TopicStatus(
            topic=topic,
            partitions=tuple(
                _aged(_judged(_guarded(status, topic, leader), known.wrong.get(topic, frozenset())), now_ms, looks_old)
                for status in known.statuses.get(topic, ())
            ),
            held=_held(topic, memory, known),
            waiting=_waiting(memory, known.by_hand.get(topic, ()), known.wrong.get(topic, frozenset())),
        )
        for topic, memory in sorted({**dict.fromkeys(known.by_hand, Memory()), **known.memories}.items())
    ]  # fmt: skip
    return GuardStatus(
        cluster_id=known.cluster_id, now_ms=now_ms, looked_ms=known.looked_ms, fresh=fresh, lease=known.lease,
        topics=tuple(topics), alarms=tuple(known.alarms), problems=tuple(known.problems),
    )  # fmt: skip


def _guarded(status: Status, topic: str, leader: Lease | None) -> Status:
    """What the guard that leads does not watch is not fine: nobody would hold it."""
    unwatched = leader is not None and not leader.watches(topic)
    calm = status.state in (State.FINE, State.WATCHED)
    return replace(status, state=State.UNKNOWN) if unwatched and calm else status


def _judged(status: Status, wrong: frozenset[Replica]) -> Status:
    """Who was read and is wrong is not to be read, nor held for: it has missed something, and copies afresh or stays so."""
    is_wrong = any(partition == status.partition for partition, _ in wrong)
    return replace(status, state=State.TOO_LATE) if is_wrong and status.state is not State.UNKNOWN else status


def _aged(status: Status, now_ms: int, stale: bool) -> Status:
    countdown_ms = None if status.unsafe_ms is None else status.unsafe_ms - now_ms
    return replace(status, countdown_ms=countdown_ms, state=State.UNKNOWN if stale else status.state)


def _held(topic: str, memory: Memory, known: Known) -> Held | None:
    hold = memory.hold
    if hold is None or hold.released_ms is not None:
        return None
    return Held(
        since_ms=hold.asked_ms, confirmed=hold.confirmed, confirmed_ms=hold.confirmed_ms if in_effect(memory) else None,
        undone_ms=hold.undone_ms, by_default=memory.default_hold is not None, found=hold.found,
        reason=known.reasons.get(topic, ""), bytes_held_back=known.held_bytes.get(topic),
    )  # fmt: skip


def _waiting(
    memory: Memory, by_hand: tuple[Waiting, ...], wrong: frozenset[Replica]
) -> tuple[Waiting, ...]:  # fmt: skip
    late = [
        Waiting(partition=away.partition, broker=away.broker, since_ms=away.since_ms, expelled_ms=away.expelled_ms)
        for away in memory.away
        if away.too_late or away.order or (away.partition, away.broker) in wrong
    ]
    begun = {(waiting.partition, waiting.broker) for waiting in by_hand}
    return *(waiting for waiting in late if (waiting.partition, waiting.broker) not in begun), *by_hand


def status_document(status: GuardStatus) -> dict[str, object]:
    leader = status.leader
    return {
        "cluster_id": status.cluster_id,
        "now_ms": status.now_ms,
        "looked_ms": status.looked_ms,
        "fresh": status.fresh,
        "leader": None
        if leader is None
        else {"guard": leader.holder, "acts": leader.applies, "until_ms": leader.until_ms},
        "partitions": {str(state): count for state, count in sorted(status.states.items())},
        "countdown_ms": status.countdown_ms,
        "topics": [_topic_document(topic) for topic in status.topics if topic.worrying or topic.held or topic.waiting],
        "alarms": [alarm_document(alarm) for alarm in status.alarms],
        "problems": list(status.problems),
    }


def _topic_document(topic: TopicStatus) -> dict[str, object]:
    held = topic.held
    return {
        "topic": topic.topic,
        "held": None if held is None else {
            "since_ms": held.since_ms, "brokers": list(held.confirmed), "in_effect_ms": held.confirmed_ms,
            "undone_ms": held.undone_ms, "by_cluster_default": held.by_default, "found": dict(held.found),
            "reason": held.reason, "bytes_held_back": held.bytes_held_back,
        },
        "partitions": [
            {
                "partition": status.partition, "state": str(status.state), "blockers": list(status.blockers),
                "since_ms": status.since_ms, "unsafe_ms": status.unsafe_ms,
                "countdown_ms": None if status.unsafe_ms == NEVER_MS else status.countdown_ms,
            }
            for status in topic.worrying
        ],
        "waiting_for_readmission": [
            {"partition": w.partition, "broker": w.broker, "since_ms": w.since_ms, "expelled_ms": w.expelled_ms}
            for w in topic.waiting
        ],
    }  # fmt: skip


def alarm_document(alarm: KeptAlarm) -> dict[str, object]:
    return {
        "kind": alarm.kind, "topic": alarm.topic or None, "partition": alarm.partition, "broker": alarm.broker,
        "detail": alarm.detail, "since_ms": alarm.first_ms, "advice": advice(alarm),
    }  # fmt: skip
