"""Every state that a few replicas can reach, breadth first: the real `Replica` and `Leader` on logs of a few cells.

Owns the world around them: controller, logs, faults within a budget, and a network that loses, doubles and reorders. Of
a record it knows only how far it has been cleaned; what a cleaner does is for `cleaning.py` and the seeds.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NamedTuple

from headstone.coordination import leader as leading
from headstone.coordination import replica as following
from headstone.coordination.messages import Message, Poll, Report, Send
from headstone.coordination.watermarks import GroupWatermarks, ReplicaWatermarks
from headstone.sim.broker import Parts

TRANSACTIONAL = "transactional"
"""A cell is data of a transaction until it is cleaned, by itself. MCCO and MXFO are the same number."""
SUPERSEDED = "superseded"
"""A cell holds what any later one may supersede: it is clean below the offset that it was cleaned up to. MXFO is the
end of what is committed."""

NOBODY = -1
LEVELS = 8
"""A cell is its leader epoch * LEVELS + the offset that it was cleaned up to."""

Log = tuple[int, ...]
Frozen = tuple[tuple[str, Any], ...]
Event = following.Event | leading.Event
Action = tuple[object, ...]
World = tuple[int, ...]
"""Numbers of the brokers and the controller, the highest watermark that anybody ever knew, numbers of waiting messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What keeps the number of states finite. Logs are `written` long at first and grow to `offsets`."""

    brokers: int = 3
    members: int = 3
    offsets: int = 1
    written: int = 1
    data: str = TRANSACTIONAL
    waiting: int = 1
    """Messages that are neither lost nor delivered at once."""
    elections: int = 1
    faults: int = 1
    """Restarts: with all of the log, with less, on an empty disk."""
    changes: int = 0
    """Members removed or added."""
    late_metadata: bool = False
    """A broker that restarts is polled before it has heard of any leader epoch; else it first learns the newest."""
    states_max: int = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """complete: nothing within the bounds was left out. path: what happens on a shortest way to the violation."""

    states: int
    transitions: int
    depth: int
    complete: bool
    violation: str | None = None
    path: tuple[str, ...] = ()


class Metadata(NamedTuple):
    """members: each with the change that made it one."""

    leader: int
    leader_epoch: int
    members: tuple[tuple[int, int], ...]

    def since(self, number: int) -> int:
        return dict(self.members).get(number, NOBODY)

    def tells(self, known: Metadata | None) -> bool:
        """That an epoch has lost its leader is no news: who followed it gets nothing anyway."""
        return known is None or self[1:] != known[1:]


class Controller(NamedTuple):
    """committed: the leader epochs of the cells that no leader may lack. The rest is what is left of the bounds."""

    metadata: Metadata
    committed: Log
    elections: int
    faults: int
    changes: int


class Broker(NamedTuple):
    """born is the newest incarnation that it ever was. fell: the replica took a watermark back."""

    number: int
    log: Log
    replica: Frozen
    leader: Frozen
    durable: following.Durable | None
    known: Metadata | None
    since: int
    born: int
    fell: bool

    @property
    def group(self) -> GroupWatermarks:
        found: GroupWatermarks = dict(self.replica).get("group", following.NOTHING_REMOVABLE)
        return found

    @property
    def leads(self) -> int:
        """The leader epoch in which it takes itself for the leader."""
        found: int = dict(self.leader).get("leader_epoch", NOBODY)
        return found


Outcome = tuple[Broker, tuple[Send, ...]]
Choice = tuple[Action, int, int, tuple[int, ...]]
"""What one broker can do alone: what it is called, the broker's number then, the controller's, the messages'."""


def epochs(log: Log) -> Log:
    return tuple(cell // LEVELS for cell in log)


def agreed(mine: Log, others: Log) -> int:
    """Up to where two rows of leader epochs are the same."""
    pairs = enumerate(zip(mine, others, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(mine), len(others)))


def dirty_below(log: Log, end: int) -> bool:
    return any(cell % LEVELS < end for cell in log[:end])


def cleaned(log: Log, end: int, data: str) -> Log:
    level = LEVELS - 1 if data == TRANSACTIONAL else end
    return tuple(max(cell, cell // LEVELS * LEVELS + level) if i < end else cell for i, cell in enumerate(log))


def proved(log: Log, committed: Log, data: str) -> ReplicaWatermarks:
    end = agreed(epochs(log), committed)
    mcco = max(n for n in range(end + 1) if not dirty_below(log, n))
    return ReplicaWatermarks(mcco=mcco, mxfo=mcco if data == TRANSACTIONAL else end)


def received(message: Message) -> Event:
    return leading.Reported(report=message, now_ms=0) if isinstance(message, Report) else message


def freeze_leader(leader: leading.Leader) -> Frozen:
    """Those who do not lead are all alike: an election overwrites whatever they remember."""
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


class Host:
    """What a broker owes its two state machines. Each method takes a broker as it is and gives it as it becomes."""

    def __init__(self, bounds: Bounds, parts: Parts) -> None:
        self.data = bounds.data
        self.parts = parts

    def new(self, number: int, log: Log, metadata: Metadata) -> Broker:
        """Stopped and started once, so that nobody is a newcomer."""
        nobody = Broker(number, (), (), (), None, None, metadata.since(number), 0, False)
        started = self.restart(nobody, (), metadata, epochs(log), wiped=True)[0]
        return self.restart(started, log, metadata, epochs(log), wiped=False)[0]

    def step(self, broker: Broker, *events: Event) -> Outcome:
        """What it says to itself arrives at once; the rest is returned."""
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
        before, now = broker.group, replica.group
        after = broker._replace(
            replica=tuple(vars(replica).items()), leader=freeze_leader(leader), durable=durable,
            born=max(broker.born, replica.incarnation),
            fell=broker.fell or now.mtro < before.mtro or now.mxro < before.mxro,
        )  # fmt: skip
        return after, tuple(out)

    def write(self, broker: Broker, log: Log, committed: Log) -> Outcome:
        """The log was changed, or more of it is committed."""
        local = proved(log, committed, self.data)
        if len(log) < len(broker.log):
            return self.step(broker._replace(log=log), following.Truncated(local=local, fresh=broker.born + 1))
        return self.step(broker._replace(log=log), following.Progressed(local=local))

    def restart(self, broker: Broker, log: Log, metadata: Metadata | None, committed: Log, *, wiped: bool) -> Outcome:
        durable = None if wiped else broker.durable
        started = following.Started(durable=durable, local=proved(log, committed, self.data), fresh=broker.born + 1)
        kept = () if wiped else (("group", broker.group),)
        after, _ = self.step(broker._replace(log=log, replica=kept, leader=(), durable=durable, known=None), started)
        return (after, ()) if metadata is None else self.learn(after, metadata, committed)

    def learn(self, broker: Broker, metadata: Metadata, committed: Log) -> Outcome:
        """A log of an earlier membership is thrown away. What starts is told the leader epoch before all else."""
        known, since = broker.known, metadata.since(broker.number)
        if since != broker.since and not self.parts.keeps_old_membership:
            broker, _ = self.restart(broker, (), None, committed, wiped=True)
        members = tuple(member for member, _ in metadata.members)
        events: list[Event] = [following.LeaderKnown(leader_epoch=metadata.leader_epoch)]
        if metadata.leader != broker.number:
            events.append(leading.SteppedDown())
        elif known is None or metadata.leader_epoch > known.leader_epoch:
            elected = leading.Elected(
                leader_epoch=metadata.leader_epoch,
                members=members,
                readers=(),
                group=broker.group,
                own_mcco=0,
                now_ms=0,
            )
            events.append(elected)
        else:
            events.append(leading.MembersChanged(members=members, readers=(), own_mcco=0, now_ms=0))
        return self.step(broker._replace(known=metadata, since=since), *events)


class Explorer:
    """Numbers whatever it meets, so that a state is a few numbers. Knows what can happen next, and what must not."""

    def __init__(self, bounds: Bounds, parts: Parts) -> None:
        self.bounds = bounds
        self.host = Host(bounds, parts)
        self.values: list[Any] = []
        self._numbers: dict[object, int] = {}
        self._choices = cache(self._alone)
        self._restarts = cache(self._restarted)
        self._decisions = cache(self._decided)
        self._fetches = cache(self._fetched)
        self._receives = cache(self._received)
        self._commits = cache(self._committed)
        self._whole = cache(self._is_whole)
        self._reach = cache(self._highest)
        self._dirty = cache(self._is_dirty)

    def number(self, value: object) -> int:
        found = self._numbers.setdefault(value, len(self.values))
        if found == len(self.values):
            self.values.append(value)
        return found

    def _did(self, outcome: Outcome) -> tuple[int, tuple[int, ...]]:
        return self.number(outcome[0]), tuple(self.number(send) for send in outcome[1])

    def start(self) -> World:
        bounds, log = self.bounds, (0,) * self.bounds.written
        metadata = Metadata(0, 0, tuple((member, 0) for member in range(bounds.members)))
        brokers = [self.host.new(n, log if n < bounds.members else (), metadata) for n in range(bounds.brokers)]
        controller = Controller(metadata, epochs(log), bounds.elections, bounds.faults, bounds.changes)
        return (*map(self.number, (*brokers, controller)), 0)

    def after(self, world: World) -> Iterator[tuple[Action, World]]:
        """All that can happen next. Who waits for a message that never comes is one who does nothing."""
        n = self.bounds.brokers
        at, waiting = world[n], world[n + 2 :]
        for message in waiting:
            rest = tuple(other for other in waiting if other != message)
            yield from self._arrive(("late",), (*world[: n + 2], *rest), message)
            yield from self._arrive(("late, and not for the last time",), world, message)
        whole = tuple(self._whole(world[b], at) for b in range(n))
        for b in range(n):
            for action, broker, controller, sends in self._choices(world[b], at):
                yield from self._next(action, world, b, broker, controller, sends)
            for action, broker, controller, sends in self._restarts(world[b], at, sum(whole) - whole[b]):
                yield from self._next(action, world, b, broker, controller, sends)
            for source in range(n):
                for action, broker, leader in self._fetches(world[b], world[source], at):
                    asked = (*world[:source], leader, *world[source + 1 :])
                    yield from self._next(action, asked, b, broker, at, ())
        for action, controller in self._decisions(at, whole):
            yield action, (*world[:n], controller, *world[n + 1 :])

    def _next(
        self, action: Action, world: World, b: int, broker: int, controller: int, sends: tuple[int, ...]
    ) -> Iterator[tuple[Action, World]]:
        """Of what is sent together at most one message is not lost: whoever wants more polls again."""
        n = self.bounds.brokers
        highest = max(world[n + 1], self._reach(broker))
        if controller == world[n]:
            after = (*world[:b], broker, *world[b + 1 : n + 1], highest, *world[n + 2 :])
        else:
            brokers = tuple(self._commits(broker if i == b else world[i], controller) for i in range(n))
            after = (*brokers, controller, highest, *world[n + 2 :])
        yield action, after
        for message in sends:
            waiting = after[n + 2 :]
            if len(waiting) < self.bounds.waiting and message not in waiting:
                yield (*action, "waits", self.values[message]), (*after[: n + 2], *sorted((*waiting, message)))
            yield from self._arrive((*action, "at once"), after, message)

    def _arrive(self, action: Action, world: World, message: int) -> Iterator[tuple[Action, World]]:
        send: Send = self.values[message]
        broker, sends = self._receives(world[send.to], message)
        controller = world[self.bounds.brokers]
        yield from self._next((*action, send), world, send.to, broker, controller, sends)

    def _received(self, broker: int, message: int) -> tuple[int, tuple[int, ...]]:
        return self._did(self.host.step(self.values[broker], received(self.values[message].message)))

    def _alone(self, at: int, controlled: int) -> list[Choice]:
        """Ticking, appending, cleaning, learning."""
        broker: Broker = self.values[at]
        controller: Controller = self.values[controlled]
        me, log, committed, bounds = broker.number, broker.log, controller.committed, self.bounds
        found: list[tuple[Action, Outcome]] = []
        if broker.leads != NOBODY:
            found.append((("tick", me), self.host.step(broker, leading.Tick(now_ms=0))))
            if len(log) < bounds.offsets:
                found.append((("append", me), self.host.write(broker, (*log, broker.leads * LEVELS), committed)))
        for end in range(1, agreed(epochs(log), committed) + 1):
            new = cleaned(log, end, bounds.data)
            if new != log:
                found.append((("clean", me, "to", end), self.host.write(broker, new, committed)))
        if controller.metadata.tells(broker.known):
            found.append((("learn", me), self.host.learn(broker, controller.metadata, committed)))
        return [
            (action, self.number(outcome[0]), self._leads_on(outcome[0], controller), self._did(outcome)[1])
            for action, outcome in found
        ]

    def _leads_on(self, broker: Broker, controller: Controller) -> int:
        """What the newest leader has is committed, as if nobody else were in sync: who lacks it cannot follow it."""
        leader, leader_epoch, _ = controller.metadata
        if (broker.number, broker.leads) == (leader, leader_epoch):
            controller = controller._replace(committed=epochs(broker.log))
        return self.number(controller)

    def _committed(self, at: int, controlled: int) -> int:
        broker: Broker = self.values[at]
        committed: Log = self.values[controlled].committed
        return self.number(self.host.write(broker, broker.log, committed)[0])

    def _fetched(self, at: int, source: int, controlled: int) -> list[tuple[Action, int, int]]:
        """Within one leader epoch, for members that the leader knows. The answer may be lost, or short."""
        broker, leader = self.values[at], self.values[source]
        known, me, log = broker.known, broker.number, broker.log
        if known is None or known.leader != leader.number or leader.leads != known.leader_epoch or leader.number == me:
            return []
        if not leader.known.since(me) == broker.since != NOBODY:
            return []
        incarnation: int = dict(broker.replica)["incarnation"]
        followed = leading.Followed(member=me, incarnation=incarnation, now_ms=0)
        asked = self.number(self.host.step(leader, followed)[0])
        committed, same = self.values[controlled].committed, agreed(epochs(log), epochs(leader.log))
        if same < len(log):
            short = self.number(self.host.write(broker, log[:same], committed)[0])
            return [(("fetch", me, "lost"), at, asked), (("truncate", me, "to", same), short, asked)]
        found: list[tuple[Action, int, int]] = [(("fetch", me, "lost"), at, asked)]
        for end in range(same + 1, len(leader.log) + 1):
            copied = self.host.write(broker, (*log, *leader.log[same:end]), committed)[0]
            found.append((("fetch", me, "to", end), self.number(copied), asked))
        return found

    def _restarted(self, at: int, controlled: int, others: int) -> list[Choice]:
        """others: how many more have all that is committed. Who led has to be elected again."""
        broker: Broker = self.values[at]
        controller: Controller = self.values[controlled]
        me, metadata, committed, log = broker.number, controller.metadata, controller.committed, broker.log
        if not controller.faults:
            return []
        if metadata.leader == me:
            metadata = metadata._replace(leader=NOBODY)
        after = self.number(controller._replace(metadata=metadata, faults=controller.faults - 1))
        told = None if self.bounds.late_metadata else metadata
        found: list[Choice] = []
        for kept in range(0 if others else min(len(committed), len(log)), len(log) + 1):
            did, sends = self._did(self.host.restart(broker, log[:kept], told, committed, wiped=False))
            found.append((("restart", me, "with", kept), did, after, sends))
        if others:
            did, sends = self._did(self.host.restart(broker, (), told, committed, wiped=True))
            found.append((("restart", me, "on an empty disk"), did, after, sends))
        return found

    def _decided(self, controlled: int, whole: tuple[bool, ...]) -> list[tuple[Action, int]]:
        """The controller elects who has all that is committed, and removes neither the leader nor the last of those."""
        controller: Controller = self.values[controlled]
        metadata, bounds = controller.metadata, self.bounds
        found: list[tuple[Action, Controller]] = []
        for b in range(bounds.brokers):
            if controller.elections and whole[b]:
                elected = metadata._replace(leader=b, leader_epoch=metadata.leader_epoch + 1)
                found.append((("elect", b), controller._replace(metadata=elected, elections=controller.elections - 1)))
            if not controller.changes:
                continue
            left, others = controller.changes - 1, tuple(pair for pair in metadata.members if pair[0] != b)
            joined = tuple(sorted((*others, (b, bounds.changes - left))))
            if others == metadata.members:
                change = metadata._replace(members=joined)
                found.append((("add", b), controller._replace(metadata=change, changes=left)))
            elif b != metadata.leader and sum(whole) > whole[b]:
                change = metadata._replace(members=others)
                found.append((("remove", b), controller._replace(metadata=change, changes=left)))
        return [(action, self.number(after)) for action, after in found]

    def _is_member(self, broker: Broker, controller: Controller) -> bool:
        """One that was removed and added again is none until it knows, and has thrown its log away."""
        return broker.since == controller.metadata.since(broker.number) != NOBODY

    def _is_whole(self, at: int, controlled: int) -> bool:
        broker, controller = self.values[at], self.values[controlled]
        committed = controller.committed
        return self._is_member(broker, controller) and epochs(broker.log[: len(committed)]) == committed

    def _highest(self, at: int) -> int:
        broker: Broker = self.values[at]
        known = [broker.group, dict(broker.leader).get("group", broker.group)]
        return max(max(g.mtro, g.mxro) if self.bounds.data == TRANSACTIONAL else g.mtro for g in known)

    def _is_dirty(self, at: int, controlled: int, highest: int) -> bool:
        broker: Broker = self.values[at]
        return self._is_member(broker, self.values[controlled]) and dirty_below(broker.log, highest)

    def violation(self, world: World) -> str | None:
        n = self.bounds.brokers
        for b in range(n):
            if self._dirty(world[b], world[n], world[n + 1]):
                return f"the watermark is {world[n + 1]}, but broker {b} is dirty below it"
            if self.values[world[b]].fell:
                return f"broker {b} took its watermark back"
        return None


def explore(bounds: Bounds, parts: Parts) -> Explored:
    """Breadth first, so that no shorter path leads to what it finds."""
    explorer = Explorer(bounds, parts)
    worlds, parents = [explorer.start()], array("q", [-1])
    seen, at, end = set(worlds), 0, 1
    transitions = depth = 0
    while at < len(worlds) <= bounds.states_max:
        if at == end:
            depth, end = depth + 1, len(worlds)
        for _, world in explorer.after(worlds[at]):
            transitions += 1
            if world in seen:
                continue
            seen.add(world)
            worlds.append(world)
            parents.append(at)
            violation = explorer.violation(world)
            if violation is not None:
                path = _path(explorer, worlds, parents)
                return Explored(
                    states=len(worlds), transitions=transitions, depth=depth + 1, complete=False, violation=violation,
                    path=path,
                )  # fmt: skip
        at += 1
    return Explored(states=len(worlds), transitions=transitions, depth=depth, complete=at == len(worlds))


def _path(explorer: Explorer, worlds: list[World], parents: array[int]) -> tuple[str, ...]:
    """What leads to the last world, found again from its ancestors."""
    steps: list[str] = []
    at = len(worlds) - 1
    while parents[at] >= 0:
        action = next(action for action, world in explorer.after(worlds[parents[at]]) if world == worlds[at])
        steps.append(" ".join(map(_told, action)))
        at = parents[at]
    return tuple(reversed(steps))


def _told(part: object) -> str:
    if not isinstance(part, Send):
        return str(part)
    said = part.message
    if isinstance(said, Poll):
        return f"[poll {said.leader} to {part.to}, epoch {said.leader_epoch}, MTRO {said.mtro}, answer {said.answer}]"
    return f"[report {said.member}.{said.incarnation} to {part.to}, epoch {said.leader_epoch}, MCCO {said.mcco}]"
