"""One simulated broker: a clock, a disk with one replica, and the two state machines of `coordination/`.

Owns what a broker decides alone: appending, following, cleaning, stopping, starting. The controller decides who leads and who
is in sync; the broker hears of it through `learn`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headstone.coordination import leader as leading
from headstone.coordination import replica as following
from headstone.coordination.messages import VERSION, Send
from headstone.coordination.watermarks import GroupWatermarks, ReplicaWatermarks
from headstone.retention.policy import COORDINATED, KAFKA, NO_LIMIT, Policy, kafka_rules
from headstone.sim.batches import Batch
from headstone.sim.cleaning import Cleaned, clean
from headstone.sim.partition_log import PartitionLog, PlainInsideTransactionError


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """The partition as the controller has it. `members` maps a broker to the version in which it was added."""

    version: int
    leader: int | None
    leader_epoch: int
    isr: tuple[int, ...]
    members: dict[int, int] = field(hash=False)
    readers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAnswer:
    """A leader's answer to a fetch. `diverging` is where the follower's log stops agreeing with the leader's, or None."""

    leader_epoch: int
    position: int
    batches: tuple[Batch, ...]
    high_watermark: int
    log_start: int
    diverging: tuple[int, int] | None = None


def coordinated_policy(policy: Policy, group: GroupWatermarks) -> Policy:
    return replace(policy, tombstones_below=group.mtro, markers_below=group.mxro, plain_below=NO_LIMIT)


def all_members(metadata: PartitionMetadata) -> tuple[int, ...]:
    return tuple(metadata.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a broker is made of; a mutant replaces a part. The defaults are the protocol as it should be."""

    replica: Callable[[int], following.Replica] = following.Replica
    leader: Callable[[int], leading.Leader] = leading.Leader
    prove: Callable[[PartitionLog], ReplicaWatermarks] = PartitionLog.watermarks
    policy: Callable[[Policy, GroupWatermarks], Policy] = coordinated_policy
    members: Callable[[PartitionMetadata], tuple[int, ...]] = all_members
    keeps_old_membership: bool = False
    stalls_on_plain: bool = False


class SimBroker:
    """`durable` and `member_since` are on its disk beside the log; all else is lost in a crash."""

    def __init__(self, number: int, rules: str, policy: Policy, parts: Parts, skew_ms: int) -> None:
        self.number = number
        self.rules = rules
        self.policy = policy
        self.skew_ms = skew_ms
        self.alive = True
        self.version = VERSION
        self.held = False
        """A topic config pauses its cleaner."""
        self.compacted = True
        self.stopped_clean = False
        self.log = PartitionLog()
        self.durable: following.Durable | None = None
        self.member_since: int | None = None
        self.metadata: PartitionMetadata | None = None
        self.replica = parts.replica(number)
        self.leader = parts.leader(number)
        self.ends: dict[int, int] = {}
        """As a leader: up to where each follower has fetched."""
        self.seen: dict[int, int] = {}
        """As a leader: the registration in which each follower did so."""
        self.registration = 0
        self.outbox: list[Send] = []
        self.grants: list[leading.HoldGranted] = []
        self.pending: FetchAnswer | None = None
        self.epoch_start = 0
        self.saved_high_watermark = 0
        self._parts = parts

    def clock(self, now_ms: int) -> int:
        return now_ms + self.skew_ms

    @property
    def leads(self) -> bool:
        return self.alive and self.metadata is not None and self.metadata.leader == self.number

    def group(self) -> GroupWatermarks:
        return self.replica.group

    def perform(self, effects: list[following.Effect] | list[leading.Effect]) -> None:
        for effect in effects:
            match effect:
                case following.Persist():
                    self.durable = effect.durable
                case Send():
                    self.outbox.append(effect)
                case leading.HoldGranted():
                    self.grants.append(effect)

    def start(self, fresh: int) -> None:
        self.replica = self._parts.replica(self.number)
        self.leader = self._parts.leader(self.number)
        started = following.Started(durable=self.durable, local=self._parts.prove(self.log), fresh=fresh)
        self.perform(self.replica.step(started))

    def wipe(self, fresh: int) -> None:
        """An empty disk: nothing is known, nothing is claimed."""
        self.log, self.durable, self.pending = PartitionLog(), None, None
        self.saved_high_watermark = 0
        self.start(fresh)

    def stop(self, *, clean_stop: bool) -> None:
        self.alive, self.stopped_clean = False, clean_stop
        self.metadata, self.pending, self.ends = None, None, {}
        self.outbox = []

    def restart(self, *, kept_to: int, fresh: int) -> None:
        """Comes back with what is on its disk; `kept_to` is where the part that was not flushed breaks off."""
        high = self.log.high_watermark if self.stopped_clean else self.saved_high_watermark
        self.log.reload(clean=self.stopped_clean, kept_to=kept_to, high_watermark=high)
        self.alive = True
        self.registration += 1
        self.start(fresh)

    def learn(self, metadata: PartitionMetadata, now_ms: int, fresh: int) -> None:
        """New metadata. Throws away a log of an earlier membership: it may still hold what others have removed."""
        before = self.metadata
        if before is not None and metadata.version <= before.version:
            return
        self.metadata = metadata
        since = metadata.members.get(self.number)
        if since != self.member_since:
            if not self._parts.keeps_old_membership:
                self.wipe(fresh)
            self.member_since = since
        new_epoch = before is None or metadata.leader_epoch > before.leader_epoch
        if new_epoch:
            self.pending = None
        self.perform(self.replica.step(following.LeaderKnown(leader_epoch=metadata.leader_epoch)))
        members = self._parts.members(metadata)
        if metadata.leader != self.number:
            self.perform(self.leader.step(leading.SteppedDown()))
        elif new_epoch:
            self._begin(metadata, now_ms)
        else:
            changed = leading.MembersChanged(
                members=members, readers=metadata.readers, log_end=self.log.log_end, now_ms=self.clock(now_ms)
            )
            self.perform(self.leader.step(changed))
            assert before is not None
            same = {b for b, since in metadata.members.items() if before.members.get(b) == since}
            self.ends = {broker: end for broker, end in self.ends.items() if broker in same}

    def _begin(self, metadata: PartitionMetadata, now_ms: int) -> None:
        self.log.begin_epoch(metadata.leader_epoch)
        self.epoch_start = self.log.log_end
        self.ends = {}
        elected = leading.Elected(
            leader_epoch=metadata.leader_epoch, members=self._parts.members(metadata), readers=metadata.readers,
            group=self.replica.group, log_end=self.log.log_end, now_ms=self.clock(now_ms),
        )  # fmt: skip
        self.perform(self.leader.step(elected))

    def advance_high_watermark(self) -> None:
        """As a leader: what every in-sync member has is committed."""
        assert self.metadata is not None
        ends = [self.log.log_end if b == self.number else self.ends.get(b, 0) for b in self.metadata.isr]
        self.log.high_watermark = max(self.log.high_watermark, min(ends, default=0))

    def serve_fetch(self, asker: SimBroker, limit: int, now_ms: int) -> FetchAnswer | None:
        """None if the asker is not a member that this leader knows of, or only of an earlier membership."""
        assert self.metadata is not None
        follower, position = asker.number, asker.log.log_end
        if follower not in self.metadata.members or self.metadata.members[follower] != asker.member_since:
            return None
        followed = leading.Followed(member=follower, incarnation=asker.replica.incarnation, now_ms=self.clock(now_ms))
        self.perform(self.leader.step(followed))
        log = self.log
        epoch = asker.log.epochs[-1][0] if asker.log.epochs else -1
        diverging = None
        if epoch >= 0:
            last_epoch, end = log.end_of_epoch(epoch)
            diverging = (last_epoch, end) if last_epoch < epoch or end < position else None
        taken: list[Batch] = []
        if diverging is None and log.log_start <= position:
            self.ends[follower], self.seen[follower] = position, asker.registration
            self.advance_high_watermark()
            for batch in log.batches(position):
                if len(taken) >= limit:
                    break
                taken.append(batch)
        return FetchAnswer(
            leader_epoch=self.metadata.leader_epoch, position=position, batches=tuple(taken),
            high_watermark=log.high_watermark, log_start=log.log_start, diverging=diverging,
        )  # fmt: skip

    def apply_fetch(self, got: FetchAnswer, fresh: int) -> None:
        log = self.log
        if got.diverging is not None:
            leader_epoch, end = got.diverging
            if leader_epoch >= 0:
                self.truncate(min(log.end_of_epoch(leader_epoch)[1], end), fresh)
                return
        if got.diverging is not None or got.position < got.log_start:
            # The leader has nothing of this log any more: begin again where the leader's log begins.
            log.restart_at(got.log_start)
            self.perform(self.replica.step(following.Truncated(local=self._parts.prove(log), fresh=fresh)))
            return
        for batch in got.batches:
            try:
                log.append(batch)
            except PlainInsideTransactionError as error:
                self.refused_plain(error, fresh)
                return
        log.high_watermark = max(log.high_watermark, min(got.high_watermark, log.log_end))
        log.advance_start(min(got.log_start, log.log_end))

    def refused_plain(self, error: PlainInsideTransactionError, fresh: int) -> None:
        """The leader has made the rest of this transaction plain: go back to where it began, and copy it again."""
        if not self._parts.stalls_on_plain:
            self.truncate(error.first_offset, fresh)

    def truncate(self, to: int, fresh: int) -> None:
        self.log.truncate(to)
        self.perform(self.replica.step(following.Truncated(local=self._parts.prove(self.log), fresh=fresh)))

    def progress(self) -> None:
        self.perform(self.replica.step(following.Progressed(local=self._parts.prove(self.log))))

    def clean(self, now_ms: int, *, chosen: bool = False) -> Cleaned | None:
        """One cleaner pass. A coordinated cleaner also runs for tombstones and markers that are due in clean parts.

        A log that was chosen before the hold came is cleaned all the same.
        """
        self.log.expire_producers(self.clock(now_ms), self.policy.producer_id_expiration_ms)
        if (self.held and not chosen) or not self.compacted:
            return None
        policy = self.cleaning_policy(now_ms)
        coordinated = self.rules == COORDINATED
        cleaned = clean(self.log, policy, debt=coordinated)
        if cleaned is not None:
            self.log.flushed = max(self.log.flushed, self.log.active.base)
            self.saved_high_watermark = self.log.high_watermark
        self.progress()
        return cleaned

    def cleaning_policy(self, now_ms: int) -> Policy:
        policy = replace(self.policy, now_ms=self.clock(now_ms))
        if self.rules == KAFKA:
            return kafka_rules(policy)
        coordinated = self._parts.policy(policy, self.replica.group)
        if self.version < VERSION:
            # Version 1 knows MTRO only: it leaves markers and transactional bits alone.
            return replace(coordinated, markers_below=0, plain_below=0)
        return coordinated
