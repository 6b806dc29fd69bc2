"""A guard over one topic of one partition, look after look: what the tests of its decision share."""

from __future__ import annotations

from dataclasses import replace

from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import (
    HOLD,
    LAG_MAX,
    LAG_MIN,
    RATIO,
    Action,
    AddAgain,
    Alarm,
    AlarmKind,
    Allowed,
    AskBrokers,
    Configs,
    Decision,
    Expel,
    Memory,
    PartitionSeen,
    Release,
    ReplicaSeen,
    SetHold,
    State,
    TopicSeen,
    Verdict,
    Verify,
)
from headstone.coordination.guarding import decide

SECOND_MS, HOUR_MS = 1_000, 3_600_000
DAY_MS = 24 * HOUR_MS
MARGINS = Margins()
NOTHING: Configs = ((RATIO, None), (LAG_MIN, None), (LAG_MAX, None))
START_MS = 100 * DAY_MS
COMPLETE_MS = START_MS - MARGINS.metadata_age_ms
UNSAFE_MS = COMPLETE_MS + DAY_MS - MARGINS.skew_ms - MARGINS.pass_start_ms


def partition(
    isr: tuple[int, ...] = (1, 2, 3), *, verdict: Verdict | None = None, read_ms: int = 0, end: int | None = 100,
    assigned: tuple[int, ...] = (1, 2, 3), moving: tuple[int, ...] = (), others: Verdict | None = Verdict.RIGHT,
) -> PartitionSeen:  # fmt: skip
    """Replica 3 is the one that things happen to; who reads it reads the others too."""
    judged = None if verdict is None else others
    replicas = [
        ReplicaSeen(
            broker=broker, log_end=end if broker == 3 else 100, verdict=verdict if broker == 3 else judged,
            read_ms=read_ms,
        )
        for broker in assigned
    ]  # fmt: skip
    return PartitionSeen(
        partition=0, leader=isr[0], replicas=tuple(replicas), isr=isr, moving=moving, committed_end=100
    )


LOOK = TopicSeen(
    topic="orders", asked_ms=START_MS, compacted=True, delete_retention_ms=DAY_MS, overrides=NOTHING,
    partitions=(partition(),), alive=(1, 2, 3),
)  # fmt: skip
BEHIND = partition((1, 2), end=None)
OUT = partition((1, 2), assigned=(1, 2))
DUE_MS = START_MS + 13 * HOUR_MS
"""A hold is, of whoever left at the start."""
BACK_MS = START_MS + 5 * DAY_MS
NEWS_MS = MARGINS.metadata_age_ms + 1
"""So much later no answer can be older than the one before."""


class Watch:
    """One guard over many looks; each is decided the moment it was asked for."""

    def __init__(self, allowed: Allowed | None = None) -> None:
        self.allowed = allowed or Allowed()
        self.memory = Memory()
        self.look = LOOK
        self.sees()

    def sees(self, part: PartitionSeen | None = None, *, at_ms: int = START_MS, **changes: object) -> Decision:
        if part is not None:
            changes["partitions"] = (part,)
        if changes.get("overrides", HOLD) != HOLD:
            changes.setdefault("held_on", ())
        self.look = replace(self.look, asked_ms=at_ms, **changes)  # type: ignore[arg-type]
        decision = decide(self.memory, self.look, at_ms, MARGINS, self.allowed)
        self.memory = decision.memory
        return decision

    def back(self) -> Watch:
        """Days later replica 3 is in sync again, and nobody has read it yet."""
        self.sees(partition(), at_ms=BACK_MS)
        return self

    def held(self) -> Watch:
        """Replica 3 went away, and half a day later the topic is held on every broker."""
        self.sees(BEHIND, at_ms=DUE_MS)
        self.sees(at_ms=DUE_MS + SECOND_MS, overrides=HOLD, held_on=(1, 2, 3))
        return self


def right(read_ms: int, others: Verdict | None = Verdict.RIGHT) -> PartitionSeen:
    return partition(verdict=Verdict.RIGHT, read_ms=read_ms, others=others)


def wrong(read_ms: int, others: Verdict | None = Verdict.RIGHT) -> PartitionSeen:
    return partition(verdict=Verdict.WRONG, read_ms=read_ms, others=others)


def outcome(decision: Decision) -> tuple[tuple[Action, ...], State]:
    """What is to be done, and how the first partition stands."""
    return decision.actions, decision.statuses[0].state


def alarm(kind: AlarmKind, *, broker: int | None = None, number: int | None = None) -> Alarm:
    return Alarm(kind=kind, topic="orders", partition=number, broker=broker)


WRONG = alarm(AlarmKind.WRONG, broker=3, number=0)
LATE = alarm(AlarmKind.TOO_LATE, broker=3, number=0)
SET_HOLD = SetHold(topic="orders", configs=HOLD, by_ms=UNSAFE_MS, reason="behind: partition 0: broker 3")
ASK_ALL = AskBrokers(topic="orders", brokers=(1, 2, 3))
VERIFY = Verify(topic="orders", partition=0, broker=3)
RELEASE = Release(topic="orders", restore=NOTHING)
EXPEL = Expel(topic="orders", partition=0, broker=3, remaining=(1, 2))
ADD = AddAgain(topic="orders", partition=0, broker=3, order=(1, 2, 3))
