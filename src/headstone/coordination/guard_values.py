"""The guard's vocabulary: what a look shows, what the guard remembers, its actions, and the status of each partition.

Values only, no rules. The memory must be durable before the actions of the same decision are carried out, just as a claim
before it is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headstone.coordination.danger import CommittedEnd, Retention

LONG_MAX = str(2**63 - 1)
RATIO, LAG_MIN, LAG_MAX = "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "max.compaction.lag.ms"
HOLD = ((RATIO, "1.0"), (LAG_MIN, LONG_MAX), (LAG_MAX, LONG_MAX))
"""Two independent ways to pause compaction, and the one setting that could override the first."""
DEFAULT_HOLD = (
    ("log.cleaner.min.cleanable.ratio", "1.0"),
    ("log.cleaner.min.compaction.lag.ms", LONG_MAX),
    ("log.cleaner.max.compaction.lag.ms", LONG_MAX),
)

Configs = tuple[tuple[str, str | None], ...]
"""Name and value; None if there is no override."""


class Verdict(StrEnum):
    RIGHT = "right"
    WRONG = "wrong"
    UNJUDGED = "cannot be judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSeen:
    """`log_end` is None while the broker does not answer; `verdict` is None until the replica was read and compared with the
    others.

    A reading counts only if it began (`read_ms`) after the replica was in sync again.
    """

    broker: int
    log_end: int | None
    verdict: Verdict | None = None
    read_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionsRead:
    """All batches of the leader's log from `start` to `end` were read; `newest` is the offset of the newest tombstone or marker
    there."""

    start: int
    end: int
    newest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSeen:
    """`horizons`: from batches that some replica lacks, pairs of a batch's last offset and its delete horizon in the guard's
    time, both rising. So the first pair from an offset on has the earliest horizon of everything from there on."""

    partition: int
    leader: int | None
    """None if the partition has no leader, so nothing is written. The ISR may then be shown empty (Kafka 4.1) or as it was
    last."""
    replicas: tuple[ReplicaSeen, ...]
    isr: tuple[int, ...]
    moving: tuple[int, ...] = ()
    """Replicas that a reassignment adds or removes."""
    leader_epoch: int | None = None
    """Rises whenever the leader changes or is lost; None if not reported."""
    committed_end: int | None = None
    first_ms: int | None = None
    """The timestamp of the record at offset 0; None if there is none, or if it was not asked for."""
    horizons: tuple[tuple[int, int], ...] = ()
    deletions: DeletionsRead | None = None
    """Deletions that some replica lacks; read after `asked_ms`, each batch once."""

    @property
    def is_sole(self) -> bool:
        """It has a single replica, which cannot fall behind another one, nor be compared with one."""
        return len(self.replicas) == 1 and not self.moving


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSeen:
    """One look at a topic. `asked_ms` is when the first question was sent; a broker answers from metadata that may be
    `Margins.metadata_age_ms` old.

    `overrides` are the topic's own values of the three settings of a hold. `held_on` are the brokers that confirmed that the
    hold is in force there. `alive` are the brokers that the cluster counts as alive, no older than `overrides`: every broker
    that was alive when the hold was set must be among them.
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
    """When the cluster last accepted a SetHold of this topic, if the caller knows."""
    default_accepted_ms: int | None = None
    """When the cluster last accepted a HoldByDefault, or already had that default, if the caller knows."""
    default_overrides: Configs | None = ()
    """The cluster default's own overrides of the settings of DEFAULT_HOLD; None if no broker answered."""
    topic_id: str | None = None
    """None if the cluster gives no ids. The caller never passes the memory of a topic with another id."""
    unseen_ms: int | None = None
    """When the last look was made that would have shown this topic (by id) and did not, so it was created since. None if there
    was no such look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """A replica that is not known to be right. `complete_ms` as in `danger.Danger`."""

    partition: int
    broker: int
    since_ms: int
    complete_ms: int | None
    excused_ms: int | None = None
    """Up to this time it has missed nothing that a cleaner removes for good."""
    horizon_ms: int | None = None
    """The earliest delete horizon read of what it lacks; counts also after the replica is back."""
    too_late: bool = False
    """Its moment of danger came without a hold in effect. Stays true until it is verified or re-replicated."""
    unread: bool = False
    """Whether it was away for too long is unknown: a new copy that began without a hold in effect, or a replica that was not
    looked at for too long."""
    began_ms: int | None = None
    """A new copy began no earlier than this; None if it is not a new copy."""
    returned_ms: int | None = None
    """When it was first seen in sync again."""
    unled_epoch: int | None = None
    """It was in sync until the partition lost its leader, at this leader epoch: if it is the next leader, it has missed
    nothing."""
    order: tuple[int, ...] = ()
    """The assigned replicas from before the guard decided to expel this one; empty if it did not."""
    expel_asked_ms: int | None = None
    """When its expulsion was last requested: that call may still arrive."""
    expelled_ms: int | None = None
    """When it was first seen out of the assignment."""

    @property
    def counts_from_ms(self) -> int | None:
        """The time from which what it lacks can harm it; None if it was never complete."""
        return None if self.complete_ms is None else max(self.complete_ms, self.excused_ms or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The hold of a topic. `found` is what a release restores. `seen_ms` is None until the cluster shows the hold.

    If the values found were those of a hold already, it is somebody else's: it counts while it stands, and nothing is restored.
    """

    asked_ms: int
    found: Configs
    seen_ms: int | None = None
    shown_ms: int | None = None
    """When the cluster last showed it. Another broker's answer may be older, and not show it yet, or still show it."""
    accepted_ms: int | None = None
    """When the cluster first accepted it: it was there, even if it was undone before a look saw it."""
    confirmed: tuple[int, ...] = ()
    confirmed_ms: int | None = None
    undone_ms: int | None = None
    by_robot: bool = False
    """Automation undid it, and will revert it again at every run: the answer must be out of its reach."""
    released_ms: int | None = None
    late_release_ms: int | None = None
    """When the guard last requested a release before it held again: that call may arrive after the new hold."""
    default_seen_ms: int | None = None
    """When the cluster default last showed the hold, if the guard holds by it."""
    default_asked_ms: int | None = None
    """When the default was last requested: that call may still arrive."""
    default_accepted_ms: int | None = None
    """When the cluster first accepted the default since it was requested."""
    default_undone_ms: int | None = None
    out_of_reach_ms: int | None = None
    """When the topic, held by the cluster default, was last seen with overrides of its own, which the default does not
    reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """A replica that was in sync when last seen: it was complete at `complete_ms`."""

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
    """What the guard knows of one topic. With an empty memory, a replica that is behind has no slack."""

    retentions: tuple[Retention, ...] = ()
    retention_seen_ms: int | None = None
    ends: tuple[tuple[int, CommittedEnd], ...] = ()
    """Partition and its committed end, oldest first."""
    complete: tuple[Complete, ...] = ()
    away: tuple[Away, ...] = ()
    hold: Hold | None = None
    default_hold: Configs | None = None
    """The cluster default as found before the guard held by it; None if the guard does not."""
    skew_ms: int = 0
    """The largest of `skews`."""
    skews: tuple[Skew, ...] = ()
    """One of each size seen; each size class is twice the one before."""
    partitions: int = 0
    """How many partitions the topic was seen with: higher numbers are new."""
    uncompacted_ms: int | None = None
    """Since when its cleanup.policy has not contained `compact`; None if it does. A purge switches compaction off for a
    while."""
    topic_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetHold:
    """Effect: one IncrementalAlterConfigs; must be in effect on every broker by `by_ms`."""

    topic: str
    configs: Configs
    by_ms: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskBrokers:
    """Effect: ask each of these brokers whether it has the hold."""

    topic: str
    brokers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndPasses:
    """Effect: restart cleaner threads (by a change of log.cleaner.backoff.ms), so that no pass from before the hold
    continues."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSpan:
    """From `start` up to `end`, exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """Effect: read this replica and compare it with the others.

    `missed` is the span that it lacked, if nothing in it can have been removed meanwhile. Then it is enough that the replica
    has the same tombstones and markers there as its leader, which agents can tell. None: the whole log must be read.
    """

    topic: str
    partition: int
    broker: int
    missed: OffsetSpan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Effect: restore these values; None deletes the override."""

    topic: str
    restore: Configs


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldByDefault:
    """Effect: hold all topics without overrides, because automation undoes the topic's own hold."""

    configs: Configs


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseDefault:
    """Effect: restore the cluster default, unless another topic's memory relies on it."""

    restore: Configs


@dataclass(frozen=True, slots=True, kw_only=True)
class Expel:
    """Effect: reassign the partition to the remaining replicas. A replica that is not assigned cannot lead."""

    topic: str
    partition: int
    broker: int
    remaining: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddAgain:
    """Effect: assign the expelled replica again, so that it is re-replicated under the hold. It comes last, and gets its place
    in `order` only after it was read: until then no election prefers it."""

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
    """Effect: tell a person. `partition` and `broker` are None if the alarm is about the topic."""

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
    """The status of one partition, for an operator. `countdown_ms` is negative once `unsafe_ms` has passed.

    Both are None if no replica is away, or if it is unknown when any of those was last complete.
    """

    partition: int
    state: State
    blockers: tuple[int, ...] = ()
    since_ms: int | None = None
    unsafe_ms: int | None = None
    countdown_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What the operator permits beyond holding topics. By default nothing."""

    cluster_default: bool = False
    readmission: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    memory: Memory
    actions: tuple[Action, ...]
    statuses: tuple[Status, ...]
