"""Brokers of one partition without their logs: the real Replica and Leader, and a network that tells what it does.

What a log would prove is an argument. Messages travel as bytes, in order, a millisecond each, unless a link loses or
holds them. `told` is the story so far, a line each. Decides nothing and checks nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headstone.coordination import leader as leading
from headstone.coordination import replica as following
from headstone.coordination.leader import Blocker, HoldGranted, Leader
from headstone.coordination.messages import VERSION, Message, Poll, Report, Send
from headstone.coordination.replica import Durable, Persist, Replica, without_mxfo
from headstone.coordination.watermarks import GroupWatermarks, ReplicaWatermarks

Link = tuple[int, int]
MINUTE_MS = 60_000
EMPTY_LOG = ReplicaWatermarks(mcco=0, mxfo=0)


@dataclass(slots=True, kw_only=True)
class Broker:
    """`durable` is its disk; `local` is what its log proves. All else is lost when it stops."""

    replica: Replica
    leader: Leader
    durable: Durable | None = None
    local: ReplicaWatermarks = EMPTY_LOG
    runs: bool = True
    version: int = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A message on its way, as bytes."""

    sender: int
    to: int
    is_poll: bool
    data: bytes

    @property
    def link(self) -> Link:
        return self.sender, self.to

    def open(self) -> Message:
        return Poll.decode(self.data) if self.is_poll else Report.decode(self.data)


@dataclass(slots=True, kw_only=True)
class World:
    now_ms: int = 0
    brokers: dict[int, Broker] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    waiting: deque[Letter] = field(default_factory=deque)
    held: dict[Link, list[Letter]] = field(default_factory=dict)
    lossy: set[Link] = field(default_factory=set)
    incarnations: int = 0

    def fresh(self) -> int:
        self.incarnations += 1
        return self.incarnations

    def start(self, number: int, local: ReplicaWatermarks, *, disk_kept: bool = False) -> None:
        """As after a stop: nothing is remembered but the disk, if that."""
        known = self.brokers.get(number)
        broker = Broker(replica=Replica(number), leader=Leader(number), local=local)
        if known is not None:
            broker.version = known.version
            broker.durable = known.durable if disk_kept else None
        self.brokers[number] = broker
        started = following.Started(durable=broker.durable, local=local, fresh=self.fresh())
        self.perform(number, broker.replica.step(started))

    def stop(self, number: int) -> None:
        self.brokers[number].runs = False

    def clean(self, number: int, local: ReplicaWatermarks) -> None:
        self.brokers[number].local = local
        self.perform(number, self.brokers[number].replica.step(following.Progressed(local=local)))

    def truncate(self, number: int, local: ReplicaWatermarks) -> None:
        self.brokers[number].local = local
        truncated = following.Truncated(local=local, fresh=self.fresh())
        self.perform(number, self.brokers[number].replica.step(truncated))

    def learn_epoch(self, number: int, leader_epoch: int) -> None:
        known = following.LeaderKnown(leader_epoch=leader_epoch)
        self.perform(number, self.brokers[number].replica.step(known))

    def elect(self, number: int, leader_epoch: int, members: Iterable[int], readers: Iterable[str] = ()) -> None:
        """The broker hears of it in one piece: its replica first, so that it answers no older leader."""
        broker = self.brokers[number]
        self.learn_epoch(number, leader_epoch)
        elected = leading.Elected(
            leader_epoch=leader_epoch, members=tuple(members), readers=tuple(readers), group=broker.replica.group,
            log_end=self.log_end(number), now_ms=self.now_ms,
        )  # fmt: skip
        self.say(f"{number} leads from {group_text(broker.replica.group)}")
        self.perform(number, broker.leader.step(elected))

    def log_end(self, number: int) -> int:
        """A log reaches at least as far as it proves anything."""
        proved = self.brokers[number].local
        return max(proved.mcco, proved.mxfo)

    def change_members(self, number: int, members: Iterable[int], readers: Iterable[str] = ()) -> None:
        changed = leading.MembersChanged(
            members=tuple(members), readers=tuple(readers), log_end=self.log_end(number), now_ms=self.now_ms
        )
        self.lead(number, changed)

    def lead(self, number: int, event: leading.Event) -> None:
        leader = self.brokers[number].leader
        before = leader.group
        effects = leader.step(event)
        if leader.group != before:
            self.say(f"{number} raises the group to {group_text(leader.group)}")
        self.perform(number, effects)

    def perform(self, number: int, effects: Sequence[following.Effect | leading.Effect]) -> None:
        broker = self.brokers[number]
        for effect in effects:
            match effect:
                case Persist(durable=durable):
                    broker.durable = durable
                    self.say(f"{number} persists {durable_text(durable)}")
                case HoldGranted(reader=reader, from_offset=offset):
                    self.say(f"{number} grants {reader} a hold from offset {offset}")
                case Send(to=to, message=message):
                    if isinstance(message, Report) and broker.version < VERSION:
                        message = without_mxfo(message)
                    is_poll = isinstance(message, Poll)
                    self.waiting.append(Letter(sender=number, to=to, is_poll=is_poll, data=message.encode()))

    def settle(self) -> None:
        """Everything on its way arrives, and what that leads to."""
        while self.waiting:
            letter = self.waiting.popleft()
            text = f"{letter.sender} -> {letter.to}  {message_text(letter.open())}"
            if letter.link in self.held:
                self.held[letter.link].append(letter)
                self.say(f"{text}  held")
            elif letter.link in self.lossy or letter.to not in self.brokers or not self.brokers[letter.to].runs:
                self.say(f"{text}  lost")
            else:
                self.say(text)
                self.arrive(letter)

    def arrive(self, letter: Letter) -> None:
        self.now_ms += 1
        broker, lines = self.brokers[letter.to], len(self.told)
        match letter.open():
            case Poll() as poll:
                effects = broker.replica.step(poll)
                self.perform(letter.to, effects)
                if not effects:
                    self.say("nothing new")
            case Report() as report:
                before = repr(broker.leader.seats)
                self.lead(letter.to, leading.Reported(report=report, now_ms=self.now_ms))
                if repr(broker.leader.seats) == before:
                    self.say("ignored")
        self.told[lines:] = [f"    {line}" for line in self.told[lines:]]

    def release(self, link: Link, *, twice: bool = False, newest_first: bool = False) -> None:
        letters = self.held.pop(link)
        if newest_first:
            letters.reverse()
        self.waiting.extend(letters * 2 if twice else letters)

    def say(self, line: str) -> None:
        self.told.append(line)


def message_text(message: Message) -> str:
    match message:
        case Poll(leader_epoch=epoch, mtro=mtro, mxro=mxro, answer=answer):
            return f"Poll(epoch {epoch}, MTRO {mtro}, MXRO {mxro}{'' if answer else ', no answer'})"
        case Report(leader_epoch=epoch, incarnation=incarnation, mcco=mcco, mxfo=mxfo):
            free = "no MXFO" if mxfo is None else f"MXFO {mxfo}"
            return f"Report(epoch {epoch}, incarnation {incarnation}, MCCO {mcco}, {free})"


def durable_text(durable: Durable) -> str:
    epoch = "no epoch" if durable.leader_epoch < 0 else f"epoch {durable.leader_epoch}"
    claimed, group = replica_text(durable.claimed), group_text(durable.group)
    return f"incarnation {durable.incarnation}, {epoch}, claimed {claimed}, group {group}"


def replica_text(watermarks: ReplicaWatermarks) -> str:
    return f"MCCO {watermarks.mcco} MXFO {watermarks.mxfo}"


def group_text(group: GroupWatermarks) -> str:
    return f"MTRO {group.mtro} MXRO {group.mxro}"


def blocker_text(blocker: Blocker) -> str:
    return (
        f"blocked: {blocker.kind} at {blocker.watermark} by {blocker.who}, {blocker.behind} offsets behind, "
        f"since minute {blocker.since_ms // MINUTE_MS}: {blocker.reason}"
    )
