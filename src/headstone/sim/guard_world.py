"""The guard's world in the simulator: slow, outdated and partly wrong.

Owns what brokers answer and how old that is, how long calls and news take, and who else changes the topic's configs: a robot, a
person. Everything stays within `MARGINS`, except what fails outright. The guard itself is in `guard_actor.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import (
    DEFAULT_HOLD,
    HOLD,
    RATIO,
    Configs,
)
from headstone.sim.broker import PartitionMetadata
from headstone.sim.cluster import SimCluster

RETENTION_MS = 4_000
MARGINS = Margins(metadata_age_ms=600, skew_ms=500, effect_ms=520, poll_ms=100, pass_start_ms=400)
"""Exactly what the simulator does to the guard, so that each margin is needed."""
NO_OVERRIDES: Configs = tuple((name, None) for name, _ in HOLD)
NO_DEFAULTS: Configs = tuple((name, None) for name, _ in DEFAULT_HOLD)
PERSONS_RATIO = "0.3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """How often the guard's world misbehaves; `late` is the share of answers, calls and news that take their time."""

    call_fails: float = 0.0
    broker_silent: float = 0.0
    dies: float = 0.0
    late: float = 0.5


ROUGH = Trouble(call_fails=0.8, broker_silent=0.3, dies=0.01)
CALM = Trouble()
WORST = Trouble(late=1.0)
"""Everything is as late and as old as the margins allow, all at once: here each margin is needed to the last moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """Configs as the controller has them."""

    overrides: Configs = NO_OVERRIDES
    default_overrides: Configs = NO_DEFAULTS
    delete_retention_ms: int
    compacted: bool = True

    @property
    def hold(self) -> bool:
        """By the values in force: a topic's own, else the default's."""
        pairs = zip(self.overrides, self.default_overrides, HOLD, strict=True)
        return all((default if own is None else own) == held for (_, own), (_, default), (_, held) in pairs)


class World:
    """The configs, who changes them, and what the guard can see of it all. Nothing takes longer than `bounds` says.

    A call reaches the controller, and its news every broker, within call_ms each; with the look that confirms it and decide_ms,
    from a look's first question to the decision, that is bounds.effect_ms.
    """

    def __init__(self, cluster: SimCluster, bounds: Margins, trouble: Trouble, rng: random.Random) -> None:
        self.cluster, self.bounds, self.trouble, self.rng = cluster, bounds, trouble, rng
        self.settings = SimSettings(delete_retention_ms=cluster.delete_retention_ms)
        self.call_ms = (bounds.effect_ms - bounds.poll_ms) * 10 // 21
        self.decide_ms = bounds.effect_ms - bounds.poll_ms - 2 * self.call_ms
        self.passes: dict[int, int] = {}
        """Brokers whose cleaner has chosen the log, and when its pass begins."""
        self.changes = 0
        """Changes of the configs, not by the guard, since it last looked."""
        self.undone_ms: int | None = None
        """When somebody else last undid a hold."""
        self.robot_knows = NO_OVERRIDES
        self.empties_isr = False
        """A partition without a leader shows an empty ISR, as with eligible leader replicas (Kafka 4.1)."""
        self._history: list[tuple[int, PartitionMetadata, SimSettings]] = []
        self._pending: list[tuple[int, int, Callable[[], None]]] = []
        self._sent = 0

    def later(self, within_ms: int, arrive: Callable[[], None]) -> None:
        late_ms = within_ms if self.rng.random() < self.trouble.late else self.rng.choice((0, within_ms // 2))
        self._sent += 1
        self._pending.append((self.cluster.now_ms + late_ms, self._sent, arrive))

    def at(self, due_ms: int, arrive: Callable[[], None]) -> None:
        self._sent += 1
        self._pending.append((due_ms, self._sent, arrive))

    def next_ms(self) -> int | None:
        return min((due_ms for due_ms, _, _ in self._pending), default=None)

    def arrivals(self) -> None:
        """Delivers what is due, in the order of arrival."""
        while self._pending and (soonest := min(self._pending, key=lambda item: item[:2]))[0] <= self.cluster.now_ms:
            self._pending.remove(soonest)
            soonest[2]()

    def changing(self) -> None:
        """Keeps the present state as a former one: it was true until now."""
        now_ms = self.cluster.now_ms
        oldest_ms = now_ms - self.bounds.metadata_age_ms
        self._history = [known for known in self._history if known[0] >= oldest_ms]
        self._history.append((now_ms, self.cluster.metadata, self.settings))

    def known(self) -> tuple[PartitionMetadata, SimSettings]:
        """What a broker answers: the newest state, or one that was true up to metadata_age_ms ago."""
        oldest_ms = self.cluster.now_ms - self.bounds.metadata_age_ms
        old = [known[1:] for known in self._history if known[0] >= oldest_ms]
        if old and self.rng.random() < self.trouble.late:
            return old[0] if self.trouble.late == 1.0 else self.rng.choice(old)
        return self.cluster.metadata, self.settings

    def configure(self, **changes: object) -> None:
        """The controller has it now; each broker when it replays its metadata."""
        self.changing()
        self.settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        self.cluster.hold, self.cluster.compacted = self.settings.hold, self.settings.compacted
        self.cluster.delete_retention_ms = self.settings.delete_retention_ms
        for broker in self.cluster.brokers:
            self.later(self.call_ms, lambda broker=broker: self.cluster.learn(broker))  # type: ignore[misc]

    def override(self, configs: Configs) -> None:
        self.configure(overrides=_changed(self.settings.overrides, configs))

    def override_default(self, configs: Configs) -> None:
        self.configure(default_overrides=_changed(self.settings.default_overrides, configs))

    def robot(self) -> None:
        """Restores the values that it knows, every time."""
        if self.settings.overrides != self.robot_knows:
            self._edit(self.robot_knows)

    def person(self, rng: random.Random) -> None:
        """Changes the topic, or the robot's source, which the robot then keeps. Never keeps a hold that way: nobody could
        release it."""
        configs = rng.choice((((RATIO, PERSONS_RATIO),), NO_OVERRIDES, HOLD))
        if configs != HOLD and rng.random() < 0.5:
            self.robot_knows = _changed(NO_OVERRIDES, configs)
        self._edit(configs)

    def _edit(self, configs: Configs) -> None:
        self.changes += 1
        held = self.settings.hold
        self.override(configs)
        if held and not self.settings.hold:
            self.undone_ms = self.cluster.now_ms

    @property
    def undone_unseen(self) -> bool:
        """Somebody undid the hold, and a look may be too old to show it, or no newer than one that was."""
        noticed_ms = 2 * self.bounds.metadata_age_ms + 2 * self.bounds.poll_ms
        return self.undone_ms is not None and self.cluster.now_ms <= self.undone_ms + noticed_ms

    def change_retention(self, rng: random.Random) -> None:
        """Never below the sum of the margins: such a retention is only reported."""
        self.changes += 1
        self.configure(delete_retention_ms=rng.choice((RETENTION_MS * 2 // 3, RETENTION_MS, 2 * RETENTION_MS)))

    def owed(self, number: int) -> str | None:
        """A deletion that a replica has been without for longer than any look and call may take: a guard that releases then
        knew of it, or should have looked again. Nothing is owed below the point where every log that may lead begins, because
        copies begin there."""
        truth, brokers = self.cluster.truth, self.cluster.brokers
        starts = [brokers[other].log.log_start for other in self.cluster.metadata.isr if other != number]
        end = max(brokers[number].log.log_end, min(starts, default=0))
        bounds = self.bounds
        old_ms = self.cluster.now_ms - bounds.metadata_age_ms - bounds.effect_ms - bounds.poll_ms
        tombstones = [
            entry.record.offset for entry in truth.between(end, truth.committed_end)
            if entry.record.value is None and entry.accepted_ms < old_ms
        ]  # fmt: skip
        markers = [
            txn.marker for txn in truth.txns
            if txn.marker is not None and end <= txn.marker < truth.committed_end and txn.marker_ms < old_ms
        ]  # fmt: skip
        missed = min((*tombstones, *markers), default=None)
        return None if missed is None else f"let go while broker {number} lacks the deletion at offset {missed}"

    def begin_passes(self) -> None:
        for number, begin_ms in list(self.passes.items()):
            broker = self.cluster.brokers[number]
            if begin_ms <= self.cluster.now_ms or not broker.alive:
                del self.passes[number]
                if broker.alive:
                    self.cluster.clean(broker, chosen=True)


def _changed(before: Configs, changes: Configs) -> Configs:
    new = dict(changes)
    return tuple((name, new.get(name, value)) for name, value in before)
