"""What the guard is told, what it remembers, what it wants done and what it tells of each partition.

Values only. The memory must be durable before the actions of the same decision are carried out, as a claim before it is
sent. Knows no rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headstone.coordination.danger import CommittedEnd, Retention

LONG_MAX = str(2**63 - 1)
RATIO, LAG_MIN, LAG_MAX = "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "max.compaction.lag.ms"
HOLD = ((RATIO, "1.0"), (LAG_MIN, LONG_MAX), (LAG_MAX, LONG_MAX))
"""Two ways to pause that do not depend on each other, and the one setting that would override the first."""
DEFAULT_HOLD = (
    ("log.cleaner.min.cleanable.ratio", "1.0"),
    ("log.cleaner.min.compaction.lag.ms", LONG_MAX),
    ("log.cleaner.max.compaction.lag.ms", LONG_MAX),
)

Configs = tuple[tuple[str, str | None], ...]
"""Name and value; None: there is no override."""


class Verdict(StrEnum):
    RIGHT = "right"
    WRONG = "wrong"
    UNJUDGED = "cannot be judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSeen:
    """log_end is None while it cannot be asked; verdict is None while it was not read and compared with the others.

    A reading counts only if it began (read_ms) after the replica was in sync again.
    """

    broker: int
    log_end: int | None
    verdict: Verdict | None = None
    read_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionsRead:
    """All batches of the leader's log from `start` to `end` were read; `newest` is the newest tombstone or marker there."""

    start: int
    end: int
    newest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSeen:
    """horizons: read in batches that some replica lacks. Each is the last offset of a batch and its delete horizon in the
    guard's time, with offsets and times rising: of what lies from an offset on, the first one there is the earliest."""

    partition: int
    leader: int | None
    """None: nobody leads, so nothing is written. Who is in sync then may be shown as nobody (Kafka 4.1), or as who was last."""
    replicas: tuple[ReplicaSeen, ...]
    isr: tuple[int, ...]
    moving: tuple[int, ...] = ()
    """Replicas that a reassignment adds or removes."""
    leader_epoch: int | None = None
    """One more each time that somebody else leads, or nobody; None: not told."""
    committed_end: int | None = None
    first_ms: int | None = None
    """The timestamp of the record at offset 0; None: there is none, or it was not asked for."""
    horizons: tuple[tuple[int, int], ...] = ()
    deletions: DeletionsRead | None = None
    """Of what some replica lacks; read after asked_ms, each batch once."""

    @property
    def is_sole(self) -> bool:
        """It has one replica, which nobody else can have left behind, and which can be compared with nobody."""
        return len(self.replicas) == 1 and not self.moving


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSeen:
    """One look at a topic. asked_ms is when the first question was sent. A broker answers from what it knows, which may
    be `Margins.metadata_age_ms` old.

    `overrides` are the topic's own of the three settings of a hold. `held_on` are the brokers that said themselves that
    the hold is in force there; `alive` are the brokers that the cluster counts as such, no older than `overrides`: who was
    there when the hold was set must be among them.
    """

    topic: str
    asked_ms: int
    compacted: bool
    delete_retention_ms: int
    overrides: Configs
    partitions: tuple[PartitionSeen, ...]
    alive: tuple[int, ...]
    held_on: tuple[int, ...] = ()
    skew_ms: int = 0
    """The largest difference between two brokers' clocks that the answers allow."""
    in_sync_min: int = 1
    hold_accepted_ms: int | None = None
    """When the cluster last answered a SetHold of this topic without an error, if the caller knows."""
    default_accepted_ms: int | None = None
    """When the cluster last answered a HoldByDefault without an error, or had that default already, if the caller knows."""
    default_overrides: Configs | None = ()
    """The cluster default's own overrides of the settings of DEFAULT_HOLD; None: nobody answered."""
    topic_id: str | None = None
    """None: the cluster gives none. Whoever calls gives no memory of a topic of another id."""
    unseen_ms: int | None = None
    """When an earlier look was asked that would have shown a topic of this id, and did not: it was made since. None: there was
    none, or it may only have failed to show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """A replica that is not known to be right. complete_ms as in `danger.Danger`."""

    partition: int
    broker: int
    since_ms: int
    complete_ms: int | None
    excused_ms: int | None = None
    """Up to then it has missed nothing that a cleaner removes for good."""
    horizon_ms: int | None = None
    """The earliest delete horizon that was read of what it lacks since: what was read once counts when it is back, too."""
    too_late: bool = False
    """Its moment of danger came without a hold in effect: it stays so until it is checked or re-replicated."""
    unread: bool = False
    """Nobody saw that it was away too long, and nobody can say that it was not: a new copy that began without a hold in
    effect, or a replica that nobody looked at for too long."""
    began_ms: int | None = None
    """A new copy began no earlier than this; None: it is none."""
    returned_ms: int | None = None
    """When it was first seen in sync again."""
    unled_epoch: int | None = None
    """It was in sync until nobody led, which was this leader epoch: if it is the next to lead, it has missed nothing."""
    order: tuple[int, ...] = ()
    """The replicas as they were assigned before the guard decided to expel this one; empty: it did not."""
    expel_asked_ms: int | None = None
    """When its expulsion was last asked for: that call may still arrive."""
    expelled_ms: int | None = None
    """When it was first seen out of the assignment."""

    @property
    def counts_from_ms(self) -> int | None:
        """From when on what it lacks can harm it; None: it never had everything."""
        return None if self.complete_ms is None else max(self.complete_ms, self.excused_ms or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The hold of a topic; `found` is restored. seen_ms is None until the cluster shows it.

    If the hold's own values were found, it is somebody else's: it counts while it stands, and nothing is restored.
    """

    asked_ms: int
    found: Configs
    seen_ms: int | None = None
    shown_ms: int | None = None
    """When the cluster last showed it. Another broker's answer may be older and show it not yet, or still."""
    accepted_ms: int | None = None
    """When the cluster first accepted it: it is there, even if somebody takes it away before it is seen."""
    confirmed: tuple[int, ...] = ()
    confirmed_ms: int | None = None
    undone_ms: int | None = None
    by_robot: bool = False
    """Who undid it puts back what it knew, at every round: out of its reach it may be answered."""
    released_ms: int | None = None
    late_release_ms: int | None = None
    """When the guard last asked to release it, before it held again: that call may arrive after this one."""
    default_seen_ms: int | None = None
    """When the cluster default last showed the hold, where the guard holds by it."""
    default_asked_ms: int | None = None
    """When the default was last asked for: that call may still arrive."""
    default_accepted_ms: int | None = None
    """When the cluster first accepted the default since it was asked for."""
    default_undone_ms: int | None = None
    out_of_reach_ms: int | None = None
    """When the topic was last seen with overrides of its own that the cluster default, by which it is held, does not reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """A replica that was in sync when last seen: it had everything at complete_ms."""

    partition: int
    broker: int
    complete_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """A difference between two brokers' clocks, and when one of about that size was last seen."""

    seen_ms: int
    skew_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the guard knows of one topic from before; an empty one knows nothing, so whoever is behind has no slack."""

    retentions: tuple[Retention, ...] = ()
    retention_seen_ms: int | None = None
    ends: tuple[tuple[int, CommittedEnd], ...] = ()
    """Partition and what was committed there, oldest first."""
    complete: tuple[Complete, ...] = ()
    away: tuple[Away, ...] = ()
    hold: Hold | None = None
    default_hold: Configs | None = None
    """What was found in the cluster default before the guard held by it; None: it does not."""
    skew_ms: int = 0
    """The largest of `skews`."""
    skews: tuple[Skew, ...] = ()
    """One of each size that was seen, up to twice as large as the next."""
    partitions: int = 0
    """How many partitions the topic was seen with: those beyond are made since."""
    uncompacted_ms: int | None = None
    """Since when its cleanup.policy does not say `compact`; None: it does. A purge switches it off for a while."""
    topic_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetHold:
    """Effect: one IncrementalAlterConfigs; in effect on every broker by by_ms."""

    topic: str
    configs: Configs
    by_ms: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskBrokers:
    """Effect: ask each of these brokers itself whether it has the hold."""

    topic: str
    brokers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndPasses:
    """Effect: restart cleaner threads (a change of log.cleaner.backoff.ms), so that no pass of before the hold goes on."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSpan:
    """From `start` up to `end`, exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """Effect: read this replica, compare it with the others.

    `missed` is what it lacked, if nothing of that can have been removed meanwhile: then it is enough that it has the same
    tombstones and markers there as its leader, which agents can tell. None: nothing less than all of it.
    """

    topic: str
    partition: int
    broker: int
    missed: OffsetSpan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Effect: restore these; None deletes the override."""

    topic: str
    restore: Configs


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldByDefault:
    """Effect: hold all topics without overrides, where a robot undoes the topic's own hold."""

    configs: Configs


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseDefault:
    """Effect: restore the cluster default, unless another topic's memory holds by it too: then leave it."""

    restore: Configs


@dataclass(frozen=True, slots=True, kw_only=True)
class Expel:
    """Effect: reassign to the remaining replicas. A replica that is not assigned cannot lead."""

    topic: str
    partition: int
    broker: int
    remaining: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddAgain:
    """Effect: reassign to the replicas of before: the expelled one is re-replicated under the hold. It gets its place in their
    order only when it was read: until then no election prefers it."""

    topic: str
    partition: int
    broker: int
    order: tuple[int, ...]


class AlarmKind(StrEnum):
    UNDONE_BY_ROBOT = "a robot undid the hold"
    CHANGED_BY_PERSON = "somebody changed the hold"
    FOREIGN_HOLD = "held by somebody else"
    NOT_CONFIRMED = "a broker does not have the hold"
    TOO_LATE = "away past the moment of danger"
    WRONG = "a replica is wrong"
    UNJUDGED = "a replica cannot be judged"
    RETENTION_TOO_SHORT = "delete.retention.ms is too short to guard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Effect: a person must know; partition and broker are None where it is about the topic."""

    kind: AlarmKind
    topic: str
    partition: int | None = None
    broker: int | None = None


Action = (
    SetHold | AskBrokers | EndPasses | Verify | Release | HoldByDefault | ReleaseDefault | Expel | AddAgain | Alarm
)  # fmt: skip


class State(StrEnum):
    FINE = "fine"
    WATCHED = "watched"
    HELD = "held"
    UNREAD = "to be read"
    UNJUDGED = "cannot be judged"
    TOO_LATE = "too late: needs readmission"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One partition for an operator. countdown_ms is negative once unsafe_ms is over.

    Both are None if nobody is away, or of nobody who is away it is known when it had everything.
    """

    partition: int
    state: State
    blockers: tuple[int, ...] = ()
    since_ms: int | None = None
    unsafe_ms: int | None = None
    countdown_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What the operator allows beyond holding topics. Nothing, unless said."""

    cluster_default: bool = False
    readmission: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    memory: Memory
    actions: tuple[Action, ...]
    statuses: tuple[Status, ...]
