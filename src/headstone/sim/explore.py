"""Searches every state that a few replicas can reach, breadth first: the real `Replica` and `Leader` on logs of a few cells.

Owns the search and the world around them (`explored_broker.py`): the controller's decisions, faults within a budget, and a
network that loses, duplicates and reorders. Of a record it knows only how far it has been cleaned; `cleaning.py` and the seeds
test what a cleaner does.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from headstone.coordination import leader as leading
from headstone.coordination.messages import Poll
from headstone.sim.broker import Parts
from headstone.sim.explored_broker import (
    LEVELS,
    NOBODY,
    BrokerHost,
    Controller,
    ExploredBroker,
    ExploredMetadata,
    Outcome,
    agreed,
    dirty_below,
    epochs,
    received,
)

# How millions of states are visited in minutes, with the classes that run in production.
#
# A world is the brokers, the controller, the highest watermark ever known, and the messages on their way. `after` yields every
# world that one action leads to. The search keeps those that it has not seen, breadth first, so that a violation comes with a
# shortest path. It terminates, because `ExploreBounds` limits everything that could go on for ever.
#
# A world consists of few parts, and the same parts recur in new combinations. So every part is a frozen value with a number
# (`number`), a world is a short tuple of numbers, and what one broker does in one situation is worked out once (`cache` around
# every `_find_...`): the real `Replica` and `Leader` are thawed, stepped and frozen again once per part, not once per world.
#
# What is left out, and why that is allowed:
#
# - Records. A cell of a log is its leader epoch and how far it was cleaned; the claim to refute is only "nothing below the
#   watermark is dirty on any member".
# - Most orders of messages. A message is lost, delivered at once, or waits; one that waits may arrive later, twice, or never.
#   Of messages sent together at most one is not lost: a leader that needs more polls again, so no outcome is missed, only
#   repeated.
# - Replication by quorum. What the newest leader has is committed, which is the most that any in-sync set could commit, and no
#   replica without it may be elected.
# - Memories of an earlier leadership. All replicas that do not lead are alike, because an election overwrites what they
#   remember.
#
# The watermark in a world is the highest ever known, not the present one: a removal that was allowed once can have happened.

Action = str | int | tuple["Action", ...]
"""Words, and numbers of messages; written out only for a path."""
World = tuple[int, ...]
"""Numbers of the brokers and the controller, the highest watermark that was ever known, numbers of waiting messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploreBounds:
    """Keeps the number of states finite. Logs are `written` long at first and grow to `offsets`."""

    brokers: int = 3
    members: int = 3
    offsets: int = 1
    written: int = 1
    transactional: bool = True
    """True: a cell is data of a transaction until it is cleaned, so MCCO and MXFO are the same number. False: any later cell
    may supersede it, so it is clean below the offset that it was cleaned up to, and MXFO is the end of what is committed."""
    waiting: int = 1
    """Messages that are neither lost nor delivered at once."""
    elections: int = 1
    faults: int = 1
    """Restarts: with all of the log, with less, on an empty disk."""
    changes: int = 0
    """Members removed or added."""
    late_metadata: bool = False
    """True: a broker that restarts may be polled before it has heard of any leader epoch. False: it first learns the newest."""
    states_max: int = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """`complete`: nothing within the bounds was left out. `path`: a shortest sequence of actions to the violation."""

    states: int
    transitions: int
    depth: int
    complete: bool
    violation: str | None = None
    path: tuple[str, ...] = ()


Deed = tuple[Action, Outcome, Controller]
"""What a broker does: the action, the broker and what it sends, the controller."""
Choice = tuple[Action, int, int, tuple[int, ...]]


class Explorer:
    """Numbers everything it meets, so that a state is a few numbers, and works out each broker's case once."""

    def __init__(self, bounds: ExploreBounds, parts: Parts) -> None:
        self.bounds = bounds
        self.host = BrokerHost(bounds.transactional, parts)
        self.values: list[Any] = []
        self._numbers: dict[object, int] = {}
        self._choices = cache(self._find_choices)
        self._fetches = cache(self._find_fetches)
        self._decisions = cache(self._find_decisions)
        self._arrival = cache(self._receive)
        self._committed = cache(self._commit)
        self._whole = cache(lambda at, control: self.values[control].whole(self.values[at]))
        self._dirty = cache(lambda at, control, end: self.values[control].dirty(self.values[at], end))

    def number(self, value: object) -> int:
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number

    def start(self) -> World:
        bounds, log = self.bounds, (0,) * self.bounds.written
        metadata = ExploredMetadata(0, 0, tuple((member, 0) for member in range(bounds.members)))
        brokers = [self.host.new(n, log if n < bounds.members else (), metadata) for n in range(bounds.brokers)]
        controller = Controller(metadata, epochs(log), bounds.elections, bounds.faults, bounds.changes)
        return (*map(self.number, (*brokers, controller)), 0)

    def after(self, world: World) -> Iterator[tuple[Action, World]]:
        """All that can happen next. A message that is never delivered is as good as lost."""
        n = self.bounds.brokers
        controller_number, waiting = world[n], world[n + 2 :]
        for message in waiting:
            rest = tuple(other for other in waiting if other != message)
            yield from self._arrive("late", (*world[: n + 2], *rest), message)
            yield from self._arrive("late, and not for the last time", world, message)
        whole = tuple(self._whole(broker, controller_number) for broker in world[:n])
        for b in range(n):
            for action, broker, controller, sends in self._choices(world[b], controller_number, sum(whole) > whole[b]):
                yield from self._next(action, world, b, broker, controller, sends)
            for source in range(n):
                for action, broker, leader in self._fetches(world[b], world[source], controller_number):
                    asked = (*world[:source], leader, *world[source + 1 :])
                    yield from self._next(action, asked, b, broker, controller_number, ())
        for action, controller in self._decisions(controller_number, whole):
            yield action, (*world[:n], controller, *world[n + 1 :])

    def _next(
        self, action: Action, world: World, b: int, broker: int, controller: int, sends: tuple[int, ...]
    ) -> Iterator[tuple[Action, World]]:
        """Of messages sent together at most one is not lost: a leader that needs more polls again."""
        n = self.bounds.brokers
        highest = max(world[n + 1], self.values[broker].reach)
        if controller == world[n]:
            after = (*world[:b], broker, *world[b + 1 : n + 1], highest, *world[n + 2 :])
        else:
            brokers = tuple(self._committed(broker if i == b else world[i], controller) for i in range(n))
            after = (*brokers, controller, highest, *world[n + 2 :])
        yield action, after
        waiting = after[n + 2 :]
        for message in sends:
            if len(waiting) < self.bounds.waiting and message not in waiting:
                yield (action, "waits", message), (*after[: n + 2], *sorted((*waiting, message)))
            yield from self._arrive((action, "at once"), after, message)

    def _arrive(self, action: Action, world: World, message: int) -> Iterator[tuple[Action, World]]:
        to = self.values[message].to
        broker, sends = self._arrival(world[to], message)
        yield from self._next((action, message), world, to, broker, world[self.bounds.brokers], sends)

    def _receive(self, number: int, message: int) -> tuple[int, tuple[int, ...]]:
        broker, sends = self.host.step(self.values[number], received(self.values[message].message))
        return self.number(broker), tuple(map(self.number, sends))

    def _commit(self, number: int, control: int) -> int:
        broker: ExploredBroker = self.values[number]
        return self.number(self.host.write(broker, broker.log, self.values[control].committed)[0])

    def _find_choices(self, number: int, control: int, spare: bool) -> list[Choice]:
        """What a broker does alone. `spare`: another one also has all that is committed."""
        broker: ExploredBroker = self.values[number]
        controller: Controller = self.values[control]
        host, me, log, committed = self.host, broker.number, broker.log, controller.committed
        deeds: list[Deed] = []
        if broker.leads != NOBODY:
            deeds.append((f"tick {me}", host.step(broker, leading.Tick(now_ms=0)), controller))
            if len(log) < self.bounds.offsets:
                grown = host.write(broker, (*log, broker.leads * LEVELS), committed)
                deeds.append((f"append {me}", grown, self._leading(grown[0], controller)))
        for end in range(1, agreed(epochs(log), committed) + 1):
            if dirty_below(log, end):
                clean = host.write(broker, host.cleaned(log, end), committed)
                deeds.append((f"clean {me} to {end}", clean, controller))
        # That an epoch has lost its leader is no news: it serves nobody anyway.
        if broker.metadata is None or controller.metadata[1:] != broker.metadata[1:]:
            learned = host.learn(broker, controller.metadata, committed)
            deeds.append((f"learn {me}", learned, self._leading(learned[0], controller)))
        deeds += self._restarts(broker, controller, spare) if controller.faults else []
        return [
            (action, self.number(after), self.number(changed), tuple(map(self.number, sends)))
            for action, (after, sends), changed in deeds
        ]

    def _leading(self, broker: ExploredBroker, controller: Controller) -> Controller:
        """What the newest leader has is committed, as if it were the only one in sync: a broker that lacks it cannot lead
        next."""
        newest = (broker.number, broker.leads) == controller.metadata[:2]
        return controller._replace(committed=epochs(broker.log)) if newest else controller

    def _restarts(self, broker: ExploredBroker, controller: Controller, spare: bool) -> Iterator[Deed]:
        """A leader that restarts has to be elected again."""
        host, me, log, metadata = self.host, broker.number, broker.log, controller.metadata
        if metadata.leader == me:
            metadata = metadata._replace(leader=NOBODY)
        heard, committed = None if self.bounds.late_metadata else metadata, controller.committed
        controller = controller._replace(metadata=metadata, faults=controller.faults - 1)
        for kept in range(0 if spare else min(len(committed), len(log)), len(log) + 1):
            back = host.restart(broker, log[:kept], heard, committed, wiped=False)
            yield f"restart {me} with {kept}", back, controller
        if spare:
            yield f"restart {me} on an empty disk", host.restart(broker, (), heard, committed, wiped=True), controller

    def _find_fetches(self, number: int, source: int, control: int) -> list[tuple[Action, int, int]]:
        """Within one leader epoch, by members that the leader knows. The answer may be lost, or short."""
        broker: ExploredBroker = self.values[number]
        leader: ExploredBroker = self.values[source]
        metadata, me, log = broker.metadata, broker.number, broker.log
        if (
            metadata is None
            or leader.metadata is None
            or number == source
            or (leader.number, leader.leads) != metadata[:2]
        ):
            return []
        if not leader.metadata.since(me) == broker.since != NOBODY:
            return []
        followed = leading.Followed(member=me, incarnation=dict(broker.replica)["incarnation"], now_ms=0)
        asked = self.number(self.host.step(leader, followed)[0])
        same = agreed(epochs(log), epochs(leader.log))
        ends = (same,) if same < len(log) else range(same + 1, len(leader.log) + 1)
        fetches: list[tuple[Action, int, int]] = [(f"fetch {me} lost", number, asked)]
        for end in ends:
            after, _ = self.host.write(broker, log[:same] + leader.log[same:end], self.values[control].committed)
            fetches.append((f"fetch {me} to {end}", self.number(after), asked))
        return fetches

    def _find_decisions(self, control: int, whole: tuple[bool, ...]) -> list[tuple[Action, int]]:
        """The controller elects a member that has all that is committed, and removes neither the leader nor the last such
        member."""
        controller: Controller = self.values[control]
        metadata, elections, left = controller.metadata, controller.elections - 1, controller.changes - 1
        decisions: list[tuple[Action, Controller]] = []
        for b, has_all in enumerate(whole):
            if elections >= 0 and has_all:
                led = metadata._replace(leader=b, leader_epoch=metadata.leader_epoch + 1)
                decisions.append((f"elect {b}", controller._replace(metadata=led, elections=elections)))
            rest = tuple(pair for pair in metadata.members if pair[0] != b)
            if left >= 0 and rest == metadata.members:
                grown = metadata._replace(members=tuple(sorted((*rest, (b, self.bounds.changes - left)))))
                decisions.append((f"add {b}", controller._replace(metadata=grown, changes=left)))
            elif left >= 0 and b != metadata.leader and sum(whole) > has_all:
                shrunk = metadata._replace(members=rest)
                decisions.append((f"remove {b}", controller._replace(metadata=shrunk, changes=left)))
        return [(action, self.number(after)) for action, after in decisions]

    def violation(self, world: World) -> str | None:
        n = self.bounds.brokers
        control, highest = world[n : n + 2]
        for b in range(n):
            if self._dirty(world[b], control, highest):
                return f"the watermark is {highest}, but broker {b} is dirty below it"
            if self.values[world[b]].fell:
                return f"broker {b} took its watermark back"
        return None


def explore(bounds: ExploreBounds, parts: Parts) -> Explored:
    """Breadth first, so that no shorter path leads to what it finds."""
    explorer = Explorer(bounds, parts)
    worlds, parents = [explorer.start()], array("q", [-1])
    seen, number, end = set(worlds), 0, 1
    violation, transitions, depth = explorer.violation(worlds[0]), 0, 0
    while number < len(worlds) <= bounds.states_max and violation is None:
        if number == end:
            depth, end = depth + 1, len(worlds)
        for _, world in explorer.after(worlds[number]):
            transitions += 1
            if world not in seen:
                seen.add(world)
                worlds.append(world)
                parents.append(number)
                violation = explorer.violation(world)
                if violation is not None:
                    break
        number += 1
    path = _path(explorer, worlds, parents) if violation is not None else ()
    return Explored(
        states=len(worlds), transitions=transitions, depth=len(path) or depth,
        complete=violation is None and number == len(worlds), violation=violation, path=path,
    )  # fmt: skip


def _path(explorer: Explorer, worlds: list[World], parents: array[int]) -> tuple[str, ...]:
    """What leads to the last world, reconstructed from its ancestors."""
    number, steps = len(worlds) - 1, list[str]()
    while parents[number] >= 0:
        action = next(action for action, world in explorer.after(worlds[parents[number]]) if world == worlds[number])
        steps.append(_told(explorer, action))
        number = parents[number]
    return tuple(reversed(steps))


def _told(explorer: Explorer, action: Action) -> str:
    if isinstance(action, str):
        return action
    if isinstance(action, tuple):
        return " ".join(_told(explorer, part) for part in action)
    to, message = explorer.values[action].to, explorer.values[action].message
    if isinstance(message, Poll):
        return f"[{'poll' if message.answer else 'news'} to {to}: epoch {message.leader_epoch}, MTRO {message.mtro}]"
    return f"[report of {message.member}.{message.incarnation}: epoch {message.leader_epoch}, MCCO {message.mcco}]"
