"""What a worker does for the lake beside compaction: erasures, retention, bytes of old dead records, garbage and the journal's
garbage.

Each in its turn, a limited amount at a time, and garbage only now and then. An error is reported and tried again at the next
look; the others have their turn all the same. Each module decides what it does and when it is due; the worker decides how often
there is a look while partitions are due.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from headstone.errors import HeadstoneError
from headstone.lake.defaults import GC_EVERY_MS, GC_OBJECTS_AT_ONCE, UPKEEP_BYTES_AT_ONCE
from headstone.lake.jobs.collection import collect, worker_garbage
from headstone.lake.jobs.erasure import Tools, carry_on_erasures
from headstone.lake.jobs.expiry import expire
from headstone.lake.jobs.folding import fold, is_worth_folding
from headstone.lake.jobs.purging import purge_aged
from headstone.lake.jobs.turns import Turn
from headstone.lake.metastore.holds import Holds
from headstone.lake.metastore.leases import Leases
from headstone.units import DAY_MS

FORGOTTEN_AFTER_MS = DAY_MS
"""How long workers not seen since, and expired holds, are kept: `status` shows such workers this long."""


@dataclass(slots=True, kw_only=True)
class Upkeep:
    """`dead_age_ms_max`: for topics without a limit of their own. `gc` False: garbage is collected elsewhere."""

    tools: Tools
    dead_age_ms_max: int | None = None
    gc: bool = True
    gc_every_ms: int = GC_EVERY_MS
    objects_at_once: int = GC_OBJECTS_AT_ONCE
    bytes_at_once: int = UPKEEP_BYTES_AT_ONCE
    collected_ms: int = -1
    """When it last collected; what was left then waits for the next time."""
    is_spent: bool = False
    """The bytes of the last look were not enough: there is more to do."""

    def look(self, go_on: Callable[[], bool] = lambda: True) -> int:
        """Returns how much there was to do. `go_on` False: the rest waits for another look."""
        done, self.is_spent = 0, False
        for name, turn in (
            ("erasures", self._erasures), ("retention", self._retention), ("dead records", self._dead), ("gc", self._garbage)
        ):  # fmt: skip
            if not go_on():
                break
            try:
                done += turn(go_on)
            except HeadstoneError as error:
                self.tools.tell(f"{name}: retrying later: {error}")
        return done

    def _erasures(self, go_on: Callable[[], bool]) -> int:
        del go_on  # erasures have deadlines
        return carry_on_erasures(self.tools)

    def _retention(self, go_on: Callable[[], bool]) -> int:
        del go_on  # moves no bytes
        return len(expire(self.tools.lake, clock=self.tools.clock, tell=self.tools.tell))

    def _dead(self, go_on: Callable[[], bool]) -> int:
        tools, turn = self.tools, Turn(bytes_left=self.bytes_at_once, go_on=go_on)
        purged = purge_aged(
            tools.lake, clock=tools.clock, age_ms_max=self.dead_age_ms_max, worker=tools.worker, working_on=tools.working_on,
            turn=turn, engine=tools.engine,
        )  # fmt: skip
        for text in purged.busy:
            tools.tell(f"dead records: retrying later: {text}")
        self.is_spent = turn.is_spent and purged.extents > 0
        return purged.extents

    def _garbage(self, go_on: Callable[[], bool]) -> int:
        tools, now_ms = self.tools, self.tools.clock()
        if not self.gc or 0 <= self.collected_ms > now_ms - self.gc_every_ms:
            return 0
        self.collected_ms = now_ms
        self._fold(go_on)
        self._forget(now_ms)
        collectable = worker_garbage(tools.lake, now_ms=now_ms, grace_ms=tools.grace_ms, upload_ms=tools.upload_ms)
        return len(collect(tools.lake, replace(collectable, rows=collectable.rows[: self.objects_at_once])))

    def _forget(self, now_ms: int) -> None:
        """Killed processes could not do it themselves."""
        metastore = self.tools.lake.metastore
        Leases(metastore).forget_workers(unseen_since_ms=now_ms - FORGOTTEN_AFTER_MS, now_ms=now_ms)
        Holds(metastore).forget(expired_by_ms=now_ms - FORGOTTEN_AFTER_MS)

    def _fold(self, go_on: Callable[[], bool]) -> None:
        """However often folding fails, garbage is still collected."""
        tools = self.tools
        try:
            if is_worth_folding(tools.lake):
                fold(tools.lake, stop=lambda: not go_on())
        except HeadstoneError as error:
            tools.tell(f"journal: folding it again later: {error}")
