"""What an operator asks: which replica blocks what, how long until the first unsafe removal, what is held since when, what to
do.

Values made from the guard's memory and its newest look, and their JSON documents. The command line renders them as text,
`metrics.py` as metrics. Decides nothing, changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from headstone.coordination.absences import in_effect
from headstone.coordination.danger import NEVER_MS
from headstone.coordination.guard_values import Configs, Memory, State, Status
from headstone.coordination.guarding import STALE_LOOKS
from headstone.coordination.hold_states import ENDED, asked_by_default, state_of
from headstone.guard.ledger.journal_values import KeptAlarm, Lease
from headstone.guard.loop.alarms import advice
from headstone.guard.readmission.candidates import Replica
from headstone.units import moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A hold as the guard knows it. `confirmed_ms` is None until every live broker has confirmed the hold."""

    since_ms: int
    confirmed: tuple[int, ...]
    confirmed_ms: int | None
    undone_ms: int | None
    by_default: bool
    found: Configs
    reason: str = ""
    bytes_held_back: int | None = None
    """Growth of the topic's replicas since it was held; None if not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A replica that needs readmission or is being readmitted."""

    partition: int
    broker: int
    since_ms: int
    expelled_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedTopicStatus:
    topic: str
    partitions: tuple[Status, ...]
    held: Held | None = None
    waiting: tuple[Waiting, ...] = ()
    watched: bool = True
    """False if no guard watches it: then only what a single look shows is known of its replicas."""

    @property
    def worrying(self) -> tuple[Status, ...]:
        return tuple(status for status in self.partitions if status.state is not State.FINE) if self.watched else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardStatus:
    """`looked_ms` is None if there was no look yet. `fresh`: from the cluster now, else from the journal."""

    cluster_id: str
    now_ms: int
    looked_ms: int | None
    fresh: bool
    lease: Lease | None
    topics: tuple[GuardedTopicStatus, ...]
    alarms: tuple[KeptAlarm, ...] = ()
    problems: tuple[str, ...] = ()
    runs: bool = False
    """True if a guard runs on this machine with this journal, whether or not it can write there."""

    @property
    def leader(self) -> Lease | None:
        return self.lease if self.lease is not None and self.lease.until_ms > self.now_ms else None

    @property
    def not_watched(self) -> tuple[str, ...]:
        return tuple(topic.topic for topic in self.topics if not topic.watched)

    @property
    def states(self) -> Counter[State]:
        """Over watched topics."""
        return Counter(status.state for topic in self.topics if topic.watched for status in topic.partitions)

    @property
    def countdown_ms(self) -> int | None:
        """Until the first unsafe removal that no hold prevents; negative if it may have happened."""
        running = (State.WATCHED, State.TOO_LATE, State.UNKNOWN)
        left = [s.countdown_ms for topic in self.topics for s in topic.partitions if s.state in running]
        return min((ms for ms in left if ms is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a status is made from: a look made now, or the journal."""

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
    """Readmissions begun by a person."""
    wrong: Mapping[str, frozenset[Replica]] = field(default_factory=dict)
    """Replicas that were read since they came back, and found wrong."""
    remembered: frozenset[str] | None = None
    """Topics that the journal knows; None if all of these are."""
    runs: bool = False


def guard_status(knowledge: Known, *, now_ms: int, poll_ms: int, fresh: bool) -> GuardStatus:
    """As of `now_ms`: countdowns continue, and what was seen too long ago is unknown."""
    looks_old = knowledge.looked_ms is None or now_ms - knowledge.looked_ms > STALE_LOOKS * poll_ms
    leader = knowledge.lease if knowledge.lease is not None and knowledge.lease.until_ms > now_ms else None
    topics = [
        GuardedTopicStatus(
            topic=topic,
            partitions=tuple(
                _aged(_judged(status, knowledge.wrong.get(topic, frozenset())), now_ms, looks_old)
                for status in _guarded(topic, memory, leader, knowledge)
            ),
            watched=_watched(topic, leader, knowledge) or _has_work(topic, memory, knowledge),
            held=_held(topic, memory, knowledge),
            waiting=_waiting(memory, knowledge.by_hand.get(topic, ()), knowledge.wrong.get(topic, frozenset())),
        )
        for topic, memory in sorted({**dict.fromkeys(knowledge.by_hand, Memory()), **knowledge.memories}.items())
    ]  # fmt: skip
    return GuardStatus(
        cluster_id=knowledge.cluster_id, now_ms=now_ms, looked_ms=knowledge.looked_ms, fresh=fresh, lease=knowledge.lease,
        topics=tuple(topics), alarms=tuple(knowledge.alarms), problems=tuple(knowledge.problems), runs=knowledge.runs,
    )  # fmt: skip


def _guarded(topic: str, memory: Memory, leader: Lease | None, knowledge: Known) -> tuple[Status, ...]:
    """A topic that no guard watches is not fine, because no guard would hold it. Nor is it too late: a single look cannot show
    what its replicas had before. Only the states that an earlier run left work for are shown as they are."""
    statuses = knowledge.statuses.get(topic, ())
    if _watched(topic, leader, knowledge):
        return statuses
    if not _has_work(topic, memory, knowledge):
        return tuple(Status(partition=status.partition, state=State.UNKNOWN) for status in statuses)
    calm = (State.FINE, State.WATCHED)
    return tuple(replace(status, state=State.UNKNOWN) if status.state in calm else status for status in statuses)


def _watched(topic: str, leader: Lease | None, knowledge: Known) -> bool:
    """By the leading guard; without one, by the guard that led last, whose topics are in the journal."""
    if leader is not None:
        return leader.watches(topic)
    return knowledge.remembered is None or topic in knowledge.remembered


def _has_work(topic: str, memory: Memory, knowledge: Known) -> bool:
    suspects = any(away.too_late or away.order for away in memory.away)
    return memory.hold is not None or suspects or topic in knowledge.by_hand or topic in knowledge.wrong


def _judged(status: Status, wrong: frozenset[Replica]) -> Status:
    """A replica that was read and found wrong need not be read, and a hold does not help it: it needs readmission."""
    is_wrong = any(partition == status.partition for partition, _ in wrong)
    return replace(status, state=State.TOO_LATE) if is_wrong and status.state is not State.UNKNOWN else status


def _aged(status: Status, now_ms: int, stale: bool) -> Status:
    countdown_ms = None if status.unsafe_ms is None else status.unsafe_ms - now_ms
    return replace(status, countdown_ms=countdown_ms, state=State.UNKNOWN if stale else status.state)


def _held(topic: str, memory: Memory, knowledge: Known) -> Held | None:
    if state_of(memory) in ENDED:
        return None
    hold = memory.hold
    assert hold is not None
    return Held(
        since_ms=hold.asked_ms, confirmed=hold.confirmed, confirmed_ms=hold.confirmed_ms if in_effect(memory) else None,
        undone_ms=hold.undone_ms, by_default=asked_by_default(memory), found=hold.found,
        reason=knowledge.reasons.get(topic, ""), bytes_held_back=knowledge.held_bytes.get(topic),
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
        "now": moment(status.now_ms),
        "looked_ms": status.looked_ms,
        "looked": None if status.looked_ms is None else moment(status.looked_ms),
        "fresh": status.fresh,
        "runs": status.runs or leader is not None,
        "leader": None
        if leader is None
        else {"guard": leader.holder, "acts": leader.applies, "until_ms": leader.until_ms},
        "partitions": {str(state): count for state, count in sorted(status.states.items())},
        "countdown_ms": status.countdown_ms,
        "topics": [_topic_document(topic) for topic in status.topics if topic.worrying or topic.held or topic.waiting],
        "not_watched": list(status.not_watched),
        "alarms": [alarm_document(alarm) for alarm in status.alarms],
        "problems": list(status.problems),
    }


def _topic_document(topic: GuardedTopicStatus) -> dict[str, object]:
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
        "detail": alarm.detail, "since_ms": alarm.first_ms, "since": moment(alarm.first_ms) if alarm.first_ms else None,
        "advice": advice(alarm),
    }  # fmt: skip
