"""One broker of an exploration as a frozen value, and the host that thaws it, steps its state machines and freezes it again.

Owns logs of a few cells, metadata and the controller's own state. Knows nothing of the search, of messages on their way and of
what may happen next (`explore.py`).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple

from headstone.coordination import leader as leading
from headstone.coordination import replica as following
from headstone.coordination.messages import Message, Report, Send
from headstone.coordination.watermarks import GroupWatermarks, ReplicaWatermarks
from headstone.sim.broker import Parts

NOBODY = -1
LEVELS = 8
"""A cell is its leader epoch * LEVELS + the offset that it was cleaned up to."""

Log = tuple[int, ...]
Frozen = tuple[tuple[str, Any], ...]
Event = following.Event | leading.Event


class ExploredMetadata(NamedTuple):
    """`members`: each with the change that made it one."""

    leader: int
    leader_epoch: int
    members: tuple[tuple[int, int], ...]

    def since(self, number: int) -> int:
        return dict(self.members).get(number, NOBODY)


class Controller(NamedTuple):
    """`committed`: the leader epochs of the cells that no leader may lack. The other fields are what is left of the bounds."""

    metadata: ExploredMetadata
    committed: Log
    elections: int
    faults: int
    changes: int

    def has(self, broker: ExploredBroker) -> bool:
        """A broker that was removed and added again is no member until it knows, and has thrown its log away."""
        return broker.since == self.metadata.since(broker.number) != NOBODY

    def whole(self, broker: ExploredBroker) -> bool:
        return self.has(broker) and epochs(broker.log[: len(self.committed)]) == self.committed

    def dirty(self, broker: ExploredBroker, end: int) -> bool:
        return self.has(broker) and dirty_below(broker.log, end)


class ExploredBroker(NamedTuple):
    """`born`: its newest incarnation. `leads`: the epoch it believes it leads. `reach`: its highest watermark. `fell`: a group
    watermark that it knew has fallen."""

    number: int
    since: int
    log: Log = ()
    replica: Frozen = ()
    leader: Frozen = ()
    durable: following.Durable | None = None
    metadata: ExploredMetadata | None = None
    born: int = 0
    leads: int = NOBODY
    group: GroupWatermarks = following.NOTHING_REMOVABLE
    reach: int = 0
    fell: bool = False


Outcome = tuple[ExploredBroker, tuple[Send, ...]]


def epochs(log: Log) -> Log:
    return tuple(cell // LEVELS for cell in log)


def agreed(left: Log, right: Log) -> int:
    """Up to where two rows of leader epochs agree."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))


def dirty_below(log: Log, end: int) -> bool:
    return any(cell % LEVELS < end for cell in log[:end])


def received(message: Message) -> Event:
    return leading.Reported(report=message, now_ms=0) if isinstance(message, Report) else message


def freeze_leader(leader: leading.Leader) -> Frozen:
    """All brokers that do not lead are alike: an election overwrites what they remember."""
    if not leader.leading:
        return ()
    seats = tuple((m, tuple((f.name, getattr(s, f.name)) for f in fields(s))) for m, s in leader.seats.items())
    return tuple((vars(leader) | {"seats": seats, "readers": ()}).items())


def thaw_leader(leader: leading.Leader, frozen: Frozen) -> leading.Leader:
    if frozen:
        state = dict(frozen)
        seats = {member: leading.Seat(**dict(seat)) for member, seat in state["seats"]}
        vars(leader).update(state | {"seats": seats, "readers": {}})
    return leader


class BrokerHost:
    """What a broker owes its two state machines. Each method takes a broker as it is and returns it as it becomes."""

    def __init__(self, transactional: bool, parts: Parts) -> None:
        self.transactional = transactional
        self.parts = parts

    def new(self, number: int, log: Log, metadata: ExploredMetadata) -> ExploredBroker:
        """Stopped and started once, so that no broker is a newcomer."""
        started, _ = self.restart(ExploredBroker(number, metadata.since(number)), (), metadata, epochs(log), wiped=True)
        return self.restart(started, log, metadata, epochs(log), wiped=False)[0]

    def step(self, broker: ExploredBroker, *events: Event) -> Outcome:
        """Messages to itself arrive at once; the others are returned."""
        replica = self.parts.replica(broker.number)
        vars(replica).update(broker.replica)
        leader = thaw_leader(self.parts.leader(broker.number), broker.leader)
        durable, out, queue = broker.durable, [], list(events)
        while queue:
            event = queue.pop(0)
            effects = leader.step(event) if isinstance(event, leading.Event) else replica.step(event)
            for effect in effects:
                if isinstance(effect, following.Persist):
                    durable = effect.durable
                elif isinstance(effect, Send) and effect.to == broker.number:
                    queue.append(received(effect.message))
                elif isinstance(effect, Send):
                    out.append(effect)
        group, before = replica.group, broker.group
        groups = (group, leader.group) if leader.leading else (group,)
        after = broker._replace(
            replica=tuple(vars(replica).items()), leader=freeze_leader(leader), durable=durable, group=group,
            born=max(broker.born, replica.incarnation), leads=leader.leader_epoch if leader.leading else NOBODY,
            reach=max(max(g.mtro, g.mxro) if self.transactional else g.mtro for g in groups),
            fell=broker.fell or group.mtro < before.mtro or group.mxro < before.mxro,
        )  # fmt: skip
        return after, tuple(out)

    def proved(self, log: Log, committed: Log) -> ReplicaWatermarks:
        end = agreed(epochs(log), committed)
        mcco = max(n for n in range(end + 1) if not dirty_below(log, n))
        return ReplicaWatermarks(mcco=mcco, mxfo=mcco if self.transactional else end)

    def cleaned(self, log: Log, end: int) -> Log:
        level = LEVELS - 1 if self.transactional else end
        return tuple(max(cell, cell // LEVELS * LEVELS + level) if i < end else cell for i, cell in enumerate(log))

    def write(self, broker: ExploredBroker, log: Log, committed: Log) -> Outcome:
        """The log has changed, or more of it is committed."""
        local = self.proved(log, committed)
        if len(log) < len(broker.log):
            return self.step(broker._replace(log=log), following.Truncated(local=local, fresh=broker.born + 1))
        return self.step(broker._replace(log=log), following.Progressed(local=local))

    def restart(
        self, broker: ExploredBroker, log: Log, metadata: ExploredMetadata | None, committed: Log, *, wiped: bool
    ) -> Outcome:
        broker = broker._replace(log=log, replica=(), leader=(), metadata=None)
        if wiped:
            broker = broker._replace(durable=None, group=following.NOTHING_REMOVABLE)
        local = self.proved(log, committed)
        after, _ = self.step(broker, following.Started(durable=broker.durable, local=local, fresh=broker.born + 1))
        return (after, ()) if metadata is None else self.learn(after, metadata, committed)

    def learn(self, broker: ExploredBroker, metadata: ExploredMetadata, committed: Log) -> Outcome:
        """Throws away a log of an earlier membership. A broker that starts hears of the leader epoch before anything else."""
        before, since = broker.metadata, metadata.since(broker.number)
        if since != broker.since and not self.parts.keeps_old_membership:
            broker, _ = self.restart(broker, (), None, committed, wiped=True)
        members = tuple(member for member, _ in metadata.members)
        change: Event = leading.MembersChanged(members=members, readers=(), log_end=0, now_ms=0)
        if metadata.leader != broker.number:
            change = leading.SteppedDown()
        elif before is None or metadata.leader_epoch > before.leader_epoch:
            change = leading.Elected(
                leader_epoch=metadata.leader_epoch, members=members, readers=(), group=broker.group, log_end=0, now_ms=0
            )  # fmt: skip
        known_epoch = following.LeaderKnown(leader_epoch=metadata.leader_epoch)
        return self.step(broker._replace(metadata=metadata, since=since), known_epoch, change)
