"""The next step of a readmission, decided from its record and from what the cluster shows. Pure.

A replica that may be wrong is taken out of the assignment, is re-replicated under a hold, is read, and gets its old place back.
Each step follows from the cluster's own state, so if a run is killed anywhere, the next one continues. A replica is added again
only when its broker itself has said that the old copy is gone: a broker that comes back, or hears of both changes at once,
would otherwise continue with the old copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headstone.coordination.guard_values import Verdict
from headstone.log.topic_partition import TopicPartition

TRIES_MAX = 2
"""If a fresh copy is wrong again, this replica is not the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readmission:
    """What must outlive the process. `order` has the replicas as they were assigned before."""

    topic: str
    partition: int
    broker: int
    order: tuple[int, ...]
    expelled: bool = False
    """It was seen out of the assignment: whatever it has now is a new copy."""
    was_away: bool = False
    """Its broker was away when it was taken out: the broker keeps the old folder, under another name."""
    verified: bool = False
    tries: int = 0
    began_ms: int = 0
    topic_id: str | None = None
    by_guard: bool = False
    """Begun by the guard itself, which continues it at each look."""
    added_ms: int = 0
    """When it was added again: earlier readings are of the old copy. 0 if it was not added since it was last taken out."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def copies(self) -> bool:
        """It was added again and is not known to be right yet. One that was expelled and is away copies nothing yet."""
        return self.expelled and self.added_ms > 0 and not self.verified


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionNow:
    """As the cluster shows it. `adding` and `removing` belong to a running reassignment."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int | None
    in_sync_min: int
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    has_copy: bool | None = None
    """What the broker itself says; None if it does not answer."""
    held: bool = False
    """Every live broker has confirmed the hold."""
    throttled: bool = False
    """The copy is throttled, or need not be."""
    verdict: Verdict | None = None
    """From a reading that began after it was in sync again."""
    copied_bytes: int | None = None
    """Of the copy being made: shows whether it makes progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Make durable what was seen, before anything else happens."""

    readmission: Readmission


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveReplica:
    remaining: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """At the end of the list: no election prefers it before it was read."""

    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reorder:
    """The same replicas in their old order; no data moves."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldTopic:
    """On every live broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """Limit the rate of the copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Compare the replica with the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elect:
    """Elect it: it was the preferred leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAway:
    """The replica is out of the assignment, and nothing more can be done before its broker is back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPerson:
    """Nothing more is done, and a person must know why. `again`: the readmission is not over, and the next run continues it.
    `replaced`: somebody has replaced the replica, so it is over, whoever began it."""

    why: str
    again: bool = False
    replaced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadmissionDone:
    pass


Step = (
    Note
    | RemoveReplica
    | Add
    | Reorder
    | HoldTopic
    | Throttle
    | Read
    | Elect
    | Wait
    | BrokerAway
    | AskPerson
    | ReadmissionDone
)


def next_step(readmission: Readmission, now: PartitionNow) -> Step:
    if now.adding or now.removing:
        return _moving(readmission, now)
    if not readmission.expelled:
        return _expel(readmission, now)
    if readmission.broker not in now.replicas:
        return _add(readmission, now)
    return _admit(readmission, now)


def refusals(partition: TopicPartition, broker: int, now: PartitionNow) -> list[str]:
    """Why this replica must not be taken out of the assignment now; each reason says what to do."""
    in_sync = [other for other in now.isr if other != broker]
    if broker not in now.replicas:
        return [f"broker {broker} has no replica of {partition}: it is on {_list(now.replicas)}"]
    if now.adding or now.removing:
        return [
            f"{partition} is being reassigned by somebody else (adding {_list(now.adding)}, removing {_list(now.removing)}): "
            "wait until that is done, or cancel it"
        ]
    if not in_sync:
        return [
            f"no other replica of {partition} is in sync: this one is the last copy, however wrong; bring another one "
            "back first"
        ]
    if len(in_sync) < now.in_sync_min:
        return [
            f"without broker {broker} {partition} has {len(in_sync)} in sync, and min.insync.replicas is {now.in_sync_min}: "
            "producers would be refused; bring another replica back first"
        ]
    return []


def _moving(readmission: Readmission, now: PartitionNow) -> Step:
    broker, only = readmission.broker, (readmission.broker,)
    if not readmission.expelled and now.removing == only and not now.adding:
        return Wait(why=f"broker {broker} leaves the assignment")
    if readmission.expelled and now.adding == only and not now.removing:
        if not now.held:
            return HoldTopic()
        return Wait(why=f"broker {broker} is re-replicating")
    return AskPerson(
        why=f"{readmission.topic_partition} is being reassigned by somebody else (adding {_list(now.adding)}, removing "
        f"{_list(now.removing)}): when that is done, run the same command again",
        again=readmission.expelled,
    )


def _expel(readmission: Readmission, now: PartitionNow) -> Step:
    if readmission.broker not in now.replicas:
        return Note(readmission=replace(readmission, expelled=True))
    if now.replicas != readmission.order and set(now.replicas) != set(readmission.order):
        return Note(readmission=replace(readmission, order=now.replicas))
    reasons = refusals(readmission.topic_partition, readmission.broker, now)
    if reasons:
        return AskPerson(why=reasons[0])
    return RemoveReplica(remaining=tuple(broker for broker in now.replicas if broker != readmission.broker))


def _add(readmission: Readmission, now: PartitionNow) -> Step:
    if set(now.replicas) != set(readmission.order) - {readmission.broker}:
        return AskPerson(
            why=f"somebody else has changed the replicas of {readmission.topic_partition} to {_list(now.replicas)}: they are "
            "left as they are",
            replaced=True,
        )
    if now.has_copy is None:
        return BrokerAway()
    if now.has_copy:
        return Wait(why=f"broker {readmission.broker} deletes its old copy")
    if not now.held:
        return HoldTopic()
    if not now.throttled:
        return Throttle()
    return Add(replicas=(*now.replicas, readmission.broker))


def _admit(readmission: Readmission, now: PartitionNow) -> Step:
    broker, order = readmission.broker, readmission.order
    if broker not in now.isr:
        return Wait(why=f"broker {broker} is re-replicating") if now.held else HoldTopic()
    if not readmission.verified:
        if now.verdict is None:
            return Read()
        if now.verdict is Verdict.RIGHT:
            return Note(readmission=replace(readmission, verified=True))
        if readmission.tries + 1 < TRIES_MAX:
            again = replace(readmission, expelled=False, added_ms=0, tries=readmission.tries + 1)
            return Note(readmission=again)
        return AskPerson(
            why=f"broker {broker} re-replicated {readmission.topic_partition} and is still {now.verdict}: compare all of its "
            "replicas with `headstone audit`; the one that leads may be the wrong one"
        )
    if now.replicas != order and set(now.replicas) == set(order):
        return Reorder(order=order)
    if now.replicas == order and order[0] == broker and now.leader != broker:
        return Elect()
    return ReadmissionDone()


def _list(brokers: tuple[int, ...]) -> str:
    return ", ".join(map(str, brokers)) or "nobody"
