"""Every state that a few replicas can reach, breadth first: the real `Replica` and `Leader` on logs of a few cells.

Owns the world around the protocol: a controller, logs, a network that loses, doubles and reorders, faults within a budget.
A cell says how far it has been cleaned and nothing else; what a cleaner does is for `cleaning.py` and the seeds. The host
is taken at its word: a replica that has no disk left is a new one, and whoever knows a leader epoch follows no older one.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from headstone.coordination import leader as leading
from headstone.coordination import replica as following
from headstone.coordination.messages import Poll, Report, Send
from headstone.coordination.watermarks import ReplicaWatermarks
from headstone.sim.broker import Parts

TRANSACTIONAL = "transactional"
"""Each cell is data of a transaction until it is cleaned; MCCO and MXFO are the same number."""
SUPERSEDED = "superseded"
"""Plain data: MXFO is the end of the log. Cleaning up to an offset removes only what is superseded below that offset."""

NOBODY = -1
LEVELS = 8
"""A cell is its leader epoch * LEVELS + the offset that it has been cleaned up to."""

Log = tuple[int, ...]
Frozen = tuple[tuple[str, Any], ...]
World = tuple[int, ...]
"""Numbers of the brokers, of the controller, and of the messages under way, ascending."""
Action = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What makes the number of states finite. offsets is how long a log may grow, written how long all are at first."""

    brokers: int = 3
    members: int = 3
    offsets: int = 1
    written: int = 1
    data: str = TRANSACTIONAL
    in_flight: int = 2
    elections: int = 1
    faults: int = 1
    """Restarts, with all of the log, or less, or an empty disk."""
    changes: int = 0
    """Members removed or added."""
    late_metadata: bool = False
    """A broker that restarts answers polls before it has heard of any leader epoch."""
    states_max: int = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """complete: no state within the bounds was left out. path: the actions of a shortest way to `violation`."""

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

    def newer(self, known: Metadata | None) -> bool:
        return known is None or (self.leader_epoch, self.members) != (known.leader_epoch, known.members)


class Controller(NamedTuple):
    """committed: the leader epochs of the cells that no election may lose. highest: MTRO as anybody ever knew it."""

    metadata: Metadata
    committed: Log
    highest: int
    elections: int
    faults: int
    changes: int


class Broker(NamedTuple):
    """leads is the leader epoch that it takes itself to lead, born the newest incarnation that it ever was."""

    number: int
    log: Log
    replica: Frozen
    leader: Frozen
    durable: following.Durable | None
    known: Metadata | None
    since: int
    born: int
    group: int
    highest: int
    leads: int
    fell: bool


Outcome = tuple[Broker, tuple[Send, ...]]
Numbered = tuple[int, tuple[int, ...]]


def epochs(log: Log) -> Log:
    return tuple(cell // LEVELS for cell in log)


def covers(log: Log, committed: Log) -> bool:
    return epochs(log[: len(committed)]) == committed


def agreed(log: Log, other: Log) -> int:
    """Up to where the two came from the same leaders."""
    pairs = zip(log, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a // LEVELS != b // LEVELS), min(len(log), len(other)))


def dirty_below(log: Log, end: int) -> bool:
    return any(cell % LEVELS < end for cell in log[:end])


def proved(log: Log, committed: Log, data: str) -> ReplicaWatermarks:
    end = agreed(log, tuple(epoch * LEVELS for epoch in committed))
    mcco = max(n for n in range(end + 1) if not dirty_below(log, n))
    return ReplicaWatermarks(mcco=mcco, mxfo=mcco if data == TRANSACTIONAL else end)


def freeze_leader(leader: leading.Leader) -> Frozen:
    """One that does not lead is like any other: an election overwrites all that it remembers."""
    if not leader.leading:
        return ()
    seats = tuple(
        (member, tuple((f.name, getattr(seat, f.name)) for f in fields(seat))) for member, seat in leader.seats.items()
    )
    return tuple((vars(leader) | {"seats": seats, "readers": ()}).items())


def thaw_leader(leader: leading.Leader, frozen: Frozen) -> leading.Leader:
    if frozen:
        state = dict(frozen)
        seats = {member: leading.Seat(**dict(seat)) for member, seat in state["seats"]}
        vars(leader).update(state | {"seats": seats, "readers": {}})
    return leader


class Host:
    """One broker as the state machines' host: each method takes a broker as it was and gives it as it becomes."""

    def __init__(self, bounds: Bounds, parts: Parts) -> None:
        self.bounds = bounds
        self.parts = parts

    def first(self, number: int, log: Log, metadata: Metadata) -> Outcome:
        """Has been there for a while: what is on its disk is not a newcomer's."""
        nobody = Broker(number, (), (), (), None, None, metadata.since(number), 0, 0, 0, NOBODY, False)
        empty, _ = self.restart(nobody, (), True, (), None)
        return self.restart(empty, log, False, epochs(log), metadata)

    def step(self, broker: Broker, *events: following.Event | leading.Event) -> Outcome:
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
                    said = effect.message
                    queue.append(leading.Reported(report=said, now_ms=0) if isinstance(said, Report) else said)
                elif isinstance(effect, Send):
                    out.append(effect)
        group = replica.group.mtro
        after = broker._replace(
            replica=tuple(vars(replica).items()), leader=freeze_leader(leader), durable=durable,
            born=max(broker.born, replica.incarnation), group=group,
            highest=max(group, leader.group.mtro) if leader.leading else group,
            leads=leader.leader_epoch if leader.leading else NOBODY, fell=broker.fell or group < broker.group,
        )  # fmt: skip
        return after, tuple(out)

    def write(self, broker: Broker, log: Log, committed: Log) -> Outcome:
        """The log has grown or was cleaned, or more of it is known to be committed."""
        local = proved(log, committed, self.bounds.data)
        return self.step(broker._replace(log=log), following.Progressed(local=local))

    def truncate(self, broker: Broker, log: Log, committed: Log) -> Outcome:
        local = proved(log, committed, self.bounds.data)
        return self.step(broker._replace(log=log), following.Truncated(local=local, fresh=broker.born + 1))

    def restart(self, broker: Broker, log: Log, wiped: bool, committed: Log, metadata: Metadata | None) -> Outcome:
        durable = None if wiped else broker.durable
        empty = broker._replace(
            log=log, replica=(), leader=(), durable=durable, known=None, group=0 if wiped else broker.group
        )
        local = proved(log, committed, self.bounds.data)
        started = following.Started(durable=durable, local=local, fresh=broker.born + 1)
        after, sends = self.step(empty, started)
        return (after, sends) if metadata is None else self.learn(after, metadata, committed)

    def learn(self, broker: Broker, metadata: Metadata, committed: Log) -> Outcome:
        """A log of an earlier membership is thrown away."""
        since, known = metadata.since(broker.number), broker.known
        if since != broker.since and not self.parts.keeps_old_membership:
            broker, _ = self.restart(broker, (), True, committed, None)
        events: list[following.Event | leading.Event] = [following.LeaderKnown(leader_epoch=metadata.leader_epoch)]
        members = tuple(member for member, _ in metadata.members)
        state = dict(broker.replica)
        if metadata.leader != broker.number:
            events.append(leading.SteppedDown())
        elif known is None or metadata.leader_epoch > known.leader_epoch:
            events.append(
                leading.Elected(
                    leader_epoch=metadata.leader_epoch, members=members, readers=(), group=state["group"], own_mcco=0,
                    now_ms=0,
                )
            )  # fmt: skip
        else:
            events.append(leading.MembersChanged(members=members, readers=(), own_mcco=0, now_ms=0))
        return self.step(broker._replace(known=metadata, since=since), *events)


class Explorer:
    """Numbers whatever it meets, so that a state is a few numbers and the real code runs once for each new case."""

    def __init__(self, bounds: Bounds, parts: Parts) -> None:
        self.bounds = bounds
        self.host = Host(bounds, parts)
        self.values: list[Any] = []
        self._numbers: dict[object, int] = {}
        self._done: dict[tuple[object, ...], Numbered] = {}

    def number(self, value: object) -> int:
        found = self._numbers.setdefault(value, len(self.values))
        if found == len(self.values):
            self.values.append(value)
        return found

    def run(self, act: Callable[..., Outcome], broker: int, *arguments: object) -> Numbered:
        key = (act, broker, arguments)
        done = self._done.get(key)
        if done is None:
            after, sends = act(self.values[broker], *arguments)
            done = self._done[key] = (self.number(after), tuple(self.number(send) for send in sends))
        return done

    def start(self) -> World:
        bounds = self.bounds
        metadata = Metadata(0, 0, tuple((member, 0) for member in range(bounds.members)))
        log = (0,) * bounds.written
        brokers = [
            self.host.first(number, log if number < bounds.members else (), metadata)[0]
            for number in range(bounds.brokers)
        ]
        controller = Controller(metadata, epochs(log), 0, bounds.elections, bounds.faults, bounds.changes)
        return (*(self.number(broker) for broker in brokers), self.number(controller))

    def after(self, world: World) -> Iterator[tuple[Action, World]]:
        """Everything that can happen next, and what it leads to."""
        count = self.bounds.brokers
        brokers: list[Broker] = [self.values[number] for number in world[:count]]
        controller: Controller = self.values[world[count]]
        yield from self._messages(world)
        for broker in brokers:
            yield from self._alone(world, broker, controller)
            yield from self._fetches(world, broker, brokers, controller)
        yield from self._decisions(world, brokers, controller)

    def _next(
        self, action: Action, world: World, changed: dict[int, int], *, sends: tuple[int, ...] = (),
        network: World | None = None, controller: Controller | None = None,
    ) -> Iterator[tuple[Action, World]]:  # fmt: skip
        """Of what is sent together at most one message is not lost: whoever wants more polls again."""
        count = self.bounds.brokers
        brokers = tuple(changed.get(number, world[number]) for number in range(count))
        before = self.values[world[count]] if controller is None else controller
        highest = max(before.highest, *(self.values[broker].highest for broker in brokers))
        if controller is not None or highest > before.highest:
            at = self.number(before._replace(highest=highest))
        else:
            at = world[count]
        waiting = world[count + 1 :] if network is None else network
        after = (*brokers, at, *waiting)
        yield action, after
        for number in sends:
            send: Send = self.values[number]
            if len(waiting) < self.bounds.in_flight and number not in waiting:
                yield (*action, "; waits:", send), (*brokers, at, *sorted((*waiting, number)))
            yield from self._delivered((*action, ";", send), after, send, waiting)

    def _delivered(self, action: Action, world: World, send: Send, network: World) -> Iterator[tuple[Action, World]]:
        said = send.message
        event = leading.Reported(report=said, now_ms=0) if isinstance(said, Report) else said
        broker, sends = self.run(self.host.step, world[send.to], event)
        yield from self._next(action, world, {send.to: broker}, sends=sends, network=network)

    def _messages(self, world: World) -> Iterator[tuple[Action, World]]:
        """Those that waited arrive, in any order, and may do so again."""
        waiting = world[self.bounds.brokers + 1 :]
        for number in waiting:
            send: Send = self.values[number]
            left = tuple(other for other in waiting if other != number)
            yield from self._delivered(("late:", send), world, send, left)
            yield from self._delivered(("late, not for the last time:", send), world, send, waiting)

    def _alone(self, world: World, broker: Broker, controller: Controller) -> Iterator[tuple[Action, World]]:
        me, at, committed = broker.number, world[broker.number], controller.committed
        if broker.leads != NOBODY:
            after, sends = self.run(self.host.step, at, leading.Tick(now_ms=0))
            yield from self._next(("tick", me), world, {me: after}, sends=sends)
            if len(broker.log) < self.bounds.offsets:
                log = (*broker.log, broker.leads * LEVELS)
                yield from self._committing(
                    ("append", me), world, self.run(self.host.write, at, log, committed), controller
                )
        for end in range(1, agreed(broker.log, tuple(epoch * LEVELS for epoch in committed)) + 1):
            log = self._cleaned(broker.log, end)
            if log != broker.log:
                after, sends = self.run(self.host.write, at, log, committed)
                yield from self._next(("clean", me, "to", end), world, {me: after}, sends=sends)
        if controller.metadata.newer(broker.known):
            learned = self.run(self.host.learn, at, controller.metadata, committed)
            yield from self._committing(("learn", me), world, learned, controller)

    def _cleaned(self, log: Log, end: int) -> Log:
        """What is no longer transactional is so for ever; a superseded record goes when the newer one is below the end."""
        level = LEVELS - 1 if self.bounds.data == TRANSACTIONAL else end
        return tuple(max(cell, cell // LEVELS * LEVELS + level) if i < end else cell for i, cell in enumerate(log))

    def _committing(
        self, action: Action, world: World, did: Numbered, controller: Controller
    ) -> Iterator[tuple[Action, World]]:
        """All that the newest leader has is committed, as with no other in sync; others can lead once they have it."""
        at, sends = did
        broker: Broker = self.values[at]
        metadata, held = controller.metadata, epochs(broker.log)
        changed = {broker.number: at}
        if broker.leads != metadata.leader_epoch or metadata.leader != broker.number or held == controller.committed:
            yield from self._next(action, world, changed, sends=sends)
            return
        for number in range(self.bounds.brokers):
            one = changed.get(number, world[number])
            known: Broker = self.values[one]
            if proved(known.log, held, self.bounds.data) != proved(known.log, controller.committed, self.bounds.data):
                changed[number], _ = self.run(self.host.write, one, known.log, held)
        yield from self._next(action, world, changed, sends=sends, controller=controller._replace(committed=held))

    def _fetches(
        self, world: World, broker: Broker, brokers: list[Broker], controller: Controller
    ) -> Iterator[tuple[Action, World]]:
        """Served within one leader epoch, to members that the leader knows; the answer may be lost, or be short."""
        known, me = broker.known, broker.number
        if known is None or known.leader in (NOBODY, me):
            return
        source = brokers[known.leader]
        served = source.known is not None and source.known.since(me) == broker.since != NOBODY
        if source.leads != known.leader_epoch or not served:
            return
        followed = leading.Followed(member=me, incarnation=dict(broker.replica)["incarnation"], now_ms=0)
        leader, _ = self.run(self.host.step, world[source.number], followed)
        asked = {source.number: leader}
        yield from self._next(("fetch", me, "lost"), world, asked)
        log, same = broker.log, agreed(broker.log, source.log)
        if same < len(log):
            after, _ = self.run(self.host.truncate, world[me], log[:same], controller.committed)
            yield from self._next(("fetch", me, "truncated to", same), world, asked | {me: after})
            return
        for end in {same + 1, len(source.log)}:
            if same < end <= len(source.log):
                copied = (*log, *source.log[same:end])
                after, _ = self.run(self.host.write, world[me], copied, controller.committed)
                yield from self._next(("fetch", me, "to", end), world, asked | {me: after})

    def _decisions(self, world: World, brokers: list[Broker], controller: Controller) -> Iterator[tuple[Action, World]]:
        metadata, committed = controller.metadata, controller.committed
        whole = [
            b.number for b in brokers
            if covers(b.log, committed) and b.since == metadata.since(b.number) != NOBODY
        ]  # fmt: skip
        if controller.elections:
            for number in whole:
                elected = metadata._replace(leader=number, leader_epoch=metadata.leader_epoch + 1)
                after = controller._replace(metadata=elected, elections=controller.elections - 1)
                yield from self._next(("elect", number), world, {}, controller=after)
        if controller.faults:
            for broker in brokers:
                yield from self._restarts(world, broker, controller, needed=set(whole) <= {broker.number})
        if controller.changes:
            yield from self._changes(world, controller, whole)

    def _restarts(
        self, world: World, broker: Broker, controller: Controller, *, needed: bool
    ) -> Iterator[tuple[Action, World]]:
        """A broker stops and comes back. Who led has to be elected again."""
        me, metadata = broker.number, controller.metadata
        if metadata.leader == me:
            metadata = metadata._replace(leader=NOBODY)
        after = controller._replace(metadata=metadata, faults=controller.faults - 1)
        told = None if self.bounds.late_metadata else metadata
        least = min(len(controller.committed), len(broker.log)) if needed else 0
        for kept in range(least, len(broker.log) + 1):
            at, sends = self.run(self.host.restart, world[me], broker.log[:kept], False, controller.committed, told)
            yield from self._next(("restart", me, "with", kept), world, {me: at}, sends=sends, controller=after)
        if not needed:
            at, sends = self.run(self.host.restart, world[me], (), True, controller.committed, told)
            yield from self._next(("restart", me, "on an empty disk"), world, {me: at}, sends=sends, controller=after)

    def _changes(self, world: World, controller: Controller, whole: list[int]) -> Iterator[tuple[Action, World]]:
        """Never the leader, and never the last that has all that is committed."""
        metadata, left = controller.metadata, controller.changes - 1
        for number in range(self.bounds.brokers):
            others = tuple(pair for pair in metadata.members if pair[0] != number)
            if len(others) == len(metadata.members):
                what, members = "add", tuple(sorted((*others, (number, self.bounds.changes - left))))
            elif number != metadata.leader and set(whole) - {number}:
                what, members = "remove", others
            else:
                continue
            after = controller._replace(metadata=metadata._replace(members=members), changes=left)
            yield from self._next((what, number), world, {}, controller=after)

    def violation(self, world: World) -> str | None:
        controller: Controller = self.values[world[self.bounds.brokers]]
        for number in world[: self.bounds.brokers]:
            broker: Broker = self.values[number]
            member = broker.since == controller.metadata.since(broker.number) != NOBODY
            if member and dirty_below(broker.log, controller.highest):
                return f"the watermark is {controller.highest}, but broker {broker.number} is not clean below it"
            if broker.fell:
                return f"broker {broker.number} took its watermark back"
        return None


def explore(bounds: Bounds, parts: Parts) -> Explored:
    """Breadth first, so that what it finds is found on a shortest path."""
    explorer = Explorer(bounds, parts)
    worlds = [explorer.start()]
    seen = {worlds[0]}
    parents = array("q", [-1])
    transitions = depth = at = 0
    while at < len(worlds) <= bounds.states_max:
        end = len(worlds)
        for at in range(at, end):  # noqa: B020 - goes on where the last level ended
            for _, world in explorer.after(worlds[at]):
                transitions += 1
                if world in seen:
                    continue
                seen.add(world)
                worlds.append(world)
                parents.append(at)
                found = explorer.violation(world)
                if found is not None:
                    path = _path(explorer, worlds, parents)
                    return Explored(
                        states=len(worlds), transitions=transitions, depth=len(path), complete=False, violation=found,
                        path=path,
                    )  # fmt: skip
        at = end
        depth += 1
    return Explored(states=len(worlds), transitions=transitions, depth=depth, complete=at == len(worlds))


def _path(explorer: Explorer, worlds: list[World], parents: array[int]) -> tuple[str, ...]:
    """The actions that lead to the last world, found again from its ancestors."""
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
