"""A lake on which many work and one at a time moves: threads that hand a baton on, a seed that decides who has it next.

An actor hands the baton back before each transaction of the metastore and around each operation of the store, so no parked
thread holds a lock. When it gets it again it may find itself killed (`Killed`, after which it can do nothing more), or its
upload broken off, or the clock moved. Threads that are no actors pass through. Knows nothing of what the actors are after.
"""

from __future__ import annotations

import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from obstore.store import MemoryStore
from sqlalchemy import event

from headstone.errors import Unfinished
from headstone.lake.metastore.clock import Moment
from headstone.lake.metastore.commits import Append, CommitRefused
from headstone.lake.metastore.database import connected
from headstone.lake.metastore.metastore import Metastore
from headstone.log.topic_partition import TopicPartition
from headstone.storage.stores import PART_BYTES, ByteSink, Store

START_MS = 10_000
STEPS_MAX = 100_000
"""Of actors that are to end: more is a job that goes round in circles."""
UPLOAD = "upload"
LOOKS = 0.5
"""Of the transactions that are no commits: the others follow at once on what came before."""
CONNECTION_LOST = "the connection was lost"


def _taken() -> threading.Lock:
    """A lock that one thread waits for and another one releases."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class Killed(BaseException):
    """What kill -9 is to a process: no handler of the lake's own errors sees it."""


@dataclass(slots=True, kw_only=True)
class Actor:
    name: str
    started_ms: int
    turn: threading.Lock = field(default_factory=_taken)
    point: str = "start"
    """Where it waits for the baton."""
    doomed: bool = False
    breaks_off: bool = False
    dead: bool = False
    over: bool = False
    unwatched: int = 0
    """Above 0 it goes on without handing the baton back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Odds:
    """At one turn."""

    kill: float = 0.015
    break_off: float = 0.1
    """Of an upload only."""
    tick: float = 0.03
    ticks_ms: tuple[int, ...] = (1, 5, 20, 100, 400)
    stay: float = 0.5
    """That whoever has the baton keeps it."""
    age_ms_max: int | None = None
    """Whoever has been at it for longer is killed. None: nobody is."""


class Baton:
    """Time and chance of one race. `roles` by name: how often its turn comes, and what it does, again and again."""

    def __init__(self, seed: int, odds: Odds, roles: Mapping[str, tuple[int, Callable[[], None]]]) -> None:
        self.chance = random.Random(seed)
        self.now_ms = START_MS
        self.counts: Counter[str] = Counter()
        self.trace: list[str] = []
        self._odds = odds
        self._roles = dict(roles)
        self._mine = threading.local()
        self._back = _taken()
        self._pool = ThreadPoolExecutor(len(self._roles))
        self._live: dict[str, tuple[Actor, Future[None]]] = {}
        self._last = ""

    @property
    def acting(self) -> bool:
        """Whether this thread is an actor."""
        return getattr(self._mine, "actor", None) is not None

    def clock(self) -> int:
        return self.now_ms

    def pause(self, point: str) -> None:
        """Called by whoever is about to touch what is shared."""
        actor: Actor | None = getattr(self._mine, "actor", None)
        if actor is None or actor.unwatched:
            return
        if actor.dead:
            raise Killed(point)
        actor.point = point
        self._back.release()
        actor.turn.acquire()
        if actor.doomed:
            actor.dead = True
            raise Killed(point)
        if actor.breaks_off:
            actor.breaks_off = False
            raise Unfinished(f"{point}: {CONNECTION_LOST}")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One step, whatever is in it."""
        actor = getattr(self._mine, "actor", None)
        if actor is None:
            yield
            return
        actor.unwatched += 1
        try:
            yield
        finally:
            actor.unwatched -= 1

    def run(self, steps: int) -> None:
        names = [name for name, (share, _) in sorted(self._roles.items()) for _ in range(share)]
        for _ in range(steps):
            name = self._last if self._last and self.chance.random() < self._odds.stay else self.chance.choice(names)
            self._last = name
            if name not in self._live:
                self._start(name)
            if self.chance.random() < self._odds.tick:
                self.now_ms += self.chance.choice(self._odds.ticks_ms)
            actor = self._live[name][0]
            if actor.point != "start":
                actor.doomed = self.chance.random() < self._odds.kill
                actor.breaks_off = actor.point.startswith(UPLOAD) and self.chance.random() < self._odds.break_off
                self.counts["kills"] += actor.doomed
                self.counts["uploads broken off"] += actor.breaks_off and not actor.doomed
            self._resume(name)

    def finish(self) -> None:
        """Everybody ends what they have begun; nobody is killed and no time passes."""
        for _ in range(STEPS_MAX):
            if not self._live:
                return
            self._resume(self.chance.choice(sorted(self._live)))
        raise AssertionError(f"{', '.join(sorted(self._live))} come to no end")

    def power_failure(self) -> None:
        """All at once."""
        for name, (actor, _) in sorted(self._live.items()):
            actor.doomed = True
            self.counts["kills"] += 1
            self._resume(name)

    def close(self) -> None:
        for actor, _ in self._live.values():
            actor.doomed = True
            while not actor.over:
                actor.turn.release()
                self._back.acquire()
        self._pool.shutdown()

    def _start(self, name: str) -> None:
        actor = Actor(name=name, started_ms=self.now_ms)

        def live() -> None:
            self._mine.actor = actor
            actor.turn.acquire()
            try:
                if not actor.doomed:
                    self._roles[name][1]()
            finally:
                actor.over = True
                self._mine.actor = None
                self._back.release()

        self._live[name] = actor, self._pool.submit(live)

    def _resume(self, name: str) -> None:
        actor, future = self._live[name]
        limit_ms = self._odds.age_ms_max
        if limit_ms is not None and self.now_ms - actor.started_ms > limit_ms and not actor.doomed:
            actor.doomed = True
            self.counts["killed for their age"] += 1
        fate = " killed" if actor.doomed else " breaks off" if actor.breaks_off else ""
        self.trace.append(f"{self.now_ms} {name}: {actor.point}{fate}")
        actor.turn.release()
        self._back.acquire()
        if actor.over:
            del self._live[name]
            error = future.exception()
            if error is not None and not isinstance(error, Killed):
                raise error


class BatonStore(Store):
    """Objects in memory."""

    def __init__(self, baton: Baton) -> None:
        super().__init__("memory://race", MemoryStore())
        self._baton = baton

    @contextmanager
    def writing(self, path: str, *, part_bytes: int = PART_BYTES) -> Iterator[ByteSink]:
        self._baton.pause(f"{UPLOAD} of {path} begins")
        with super().writing(path, part_bytes=part_bytes) as sink:
            yield sink
            self._baton.pause(f"{UPLOAD} of {path} ends")
        self._baton.pause(f"{path} is there")

    def put(self, path: str, content: bytes, *, create: bool = False) -> bool:
        self._baton.pause(f"{UPLOAD} of {path} begins")
        self._baton.pause(f"{UPLOAD} of {path} ends")
        put = super().put(path, content, create=create)
        self._baton.pause(f"{path} is there")
        return put

    def view(self, path: str, position: int, length: int) -> memoryview:
        self._baton.pause(f"read of {path}")
        return super().view(path, position, length)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._baton.pause(f"deletion of {path}")
            super().delete([path])


class BatonMetastore(Metastore):
    """SQLite in a file. Whoever is refused has changed nothing: not one transaction was committed to the database."""

    def __init__(self, baton: Baton, path: Path) -> None:
        engine = connected(f"sqlite:///{path}", make=True)
        event.listen(engine, "connect", _forget_on_power_loss)
        super().__init__(engine)
        self._baton = baton
        self._watch = sqlite3.connect(path, check_same_thread=False)
        self.appended: dict[TopicPartition, list[tuple[int, int]]] = {}
        """(log end, when it was reached), oldest first."""

    def close(self) -> None:
        self._watch.close()
        super().close()

    def clock(self) -> int:
        return self._baton.now_ms

    def moment(self, connection: Any, given: Moment | None = None) -> int:
        return super().moment(connection, self._baton.clock if given is None or given == self.clock else given)

    @contextmanager
    def transaction(self, *, snapshot: bool = False) -> Iterator[Any]:
        if self._baton.acting and self._baton.chance.random() < LOOKS:
            self._baton.pause("transaction")
        with super().transaction(snapshot=snapshot) as connection:
            yield connection

    def append(self, appends: Mapping[TopicPartition, Append], *arguments: Any, **options: Any) -> None:
        with self._commit("append"):
            super().append(appends, *arguments, **options)
        for at, append in appends.items():
            self.appended.setdefault(at, []).append((append.extents[-1].span.end, self._baton.now_ms))

    def replace(self, *arguments: Any, **options: Any) -> None:
        with self._commit("replace"):
            super().replace(*arguments, **options)
            self._baton.counts["extents marked"] += sum(extent.dead > 0 for extent in arguments[2])

    def level(self, *arguments: Any, **options: Any) -> None:
        with self._commit("level"):
            super().level(*arguments, **options)

    def forget(self, *arguments: Any, **options: Any) -> None:
        with self._commit("forget"):
            super().forget(*arguments, **options)

    @contextmanager
    def _commit(self, name: str) -> Iterator[None]:
        self._baton.pause(f"commit: {name}")
        before = self._version()
        with self._baton.alone():
            try:
                yield
            except CommitRefused:
                assert self._version() == before, f"a refused {name} has changed something"
                self._baton.counts[f"{name} refused"] += 1
                raise
            assert self._version() != before
            self._baton.counts[f"{name} committed"] += 1

    def _version(self) -> int:
        """Changes with each transaction that another connection commits."""
        return int(self._watch.execute("PRAGMA data_version").fetchone()[0])


def _forget_on_power_loss(raw: Any, record: object) -> None:
    """Here processes die, not machines: waiting for the disk would be most of the time."""
    del record
    raw.execute("PRAGMA synchronous=OFF")
