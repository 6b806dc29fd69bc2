"""One run of `lake erase`: requests the keys, does everything that can be done now, and reports what is left.

Owns the caller's choices (`ErasureRequest`) and the result of a run. The steps are in `erasure`, what comes next in
`erasures`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headstone import units
from headstone.bounds import DEADLINE_MS, DURATION_MS, INTERVAL_MS, expect_all
from headstone.errors import UsageError
from headstone.lake.defaults import ERASURE_DEADLINE_MS, GRACE_MS, UPLOAD_MS
from headstone.lake.jobs.erasure import Tools, carry_on_erasures, earliest_end_ms, request_erasure, undeleted_keys
from headstone.lake.jobs.job import JobControl
from headstone.lake.jobs.keeping import leased, name_of_worker
from headstone.lake.jobs.key_search import KeySearch
from headstone.lake.lake import Lake
from headstone.lake.metastore.erasure_steps import CAME_AGAIN, CAME_LATER, NEVER_SEEN, WHOLE
from headstone.lake.metastore.erasures import Erasure, Erasures
from headstone.pipeline.engine import Engine, Stop
from headstone.retention.settings import SOURCE, SOURCE_LAKE
from headstone.spelling import instead


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRequest:
    topic: str
    keys: tuple[bytes, ...] | None
    """None: all of a dropped topic."""
    deadline_ms: int = ERASURE_DEADLINE_MS
    """From now."""
    write_tombstone: bool = False
    """Where it is missing, even if the lake's log is not yet the only one."""
    grace_ms: int = GRACE_MS
    upload_ms: int = UPLOAD_MS

    def __post_init__(self) -> None:
        expect_all(self, {"deadline_ms": DEADLINE_MS, "grace_ms": DURATION_MS, "upload_ms": INTERVAL_MS})


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRun:
    now_ms: int
    """When the run began."""
    erasures: tuple[Erasure, ...]
    """Of the requested keys."""
    undeleted: bool
    """Readers still see a value of one of the keys: it has to be deleted first."""
    stopped: bool
    """By a signal, with something left to do."""

    @property
    def left(self) -> int:
        return sum(erasure.is_open for erasure in self.erasures)

    @property
    def needs_somebody(self) -> bool:
        """It will not finish without a person's action."""
        return self.undeleted or any(each.step in (NEVER_SEEN, CAME_AGAIN, CAME_LATER) for each in self.erasures)


def is_dropped(lake: Lake, topic: str) -> bool:
    """And not created again: then all of it is erased, whichever keys are named."""
    if topic in lake.metastore.topics():
        return False
    if any(erasure.is_whole for erasure in Erasures(lake.metastore).of(topic)):
        return True
    raise _never_there(lake, topic)


def expect_provable(lake: Lake, topic: str, key: bytes | None, *, anywhere: bool) -> None:
    """A key's erasure can be proved for any topic that was ever here; a topic's, without a key, only if it was dropped."""
    asked = Erasures(lake.metastore).of(topic)
    if topic not in lake.metastore.topics() and not asked:
        raise _never_there(lake, topic)
    if key is None and not any(erasure.is_whole for erasure in asked):
        raise UsageError(f"{topic} was not dropped; name a key with --key or --key-hex")
    if key is None and anywhere:
        raise UsageError("--anywhere searches for a key; name it with --key or --key-hex")


def _never_there(lake: Lake, topic: str) -> UsageError:
    there = instead(topic, lake.metastore.topics(), what="it has")
    return UsageError(f"the lake has no topic {topic}, and no topic of this name was dropped{there}")


def run_erasure(
    lake: Lake, request: ErasureRequest, engine: Engine, *, stop: Stop, tell: Callable[[str], None],
    warn: Callable[[str], None], progress: bool,
) -> ErasureRun:  # fmt: skip
    """Call it again until no erasure is open: each run does what can be done at its time."""
    clock, search = lake.metastore.clock, KeySearch(lake, engine, progress=progress)
    now_ms, worker, topic = clock(), name_of_worker("erase"), request.topic
    digests = [WHOLE] if request.keys is None else _requested(lake, request, request.keys, search, now_ms, warn)
    tools = Tools(
        lake=lake, engine=engine, clock=clock, worker=worker, working_on=partial(leased, lake, worker=worker),
        grace_ms=request.grace_ms, upload_ms=request.upload_ms, tell=tell, search=search,
        control=JobControl(stop=stop, progress=progress),
    )  # fmt: skip
    carry_on_erasures(tools, [topic])
    undeleted = [] if stop() or request.keys is None else undeleted_keys(search, topic, digests)
    wanted = frozenset(digests)
    erasures = tuple(
        erasure for erasure in Erasures(lake.metastore).of(topic)
        if erasure.key_digest in wanted or (request.keys is None and erasure.is_open)
    )  # fmt: skip
    return ErasureRun(
        now_ms=now_ms, erasures=erasures, undeleted=bool(undeleted),
        stopped=stop() and any(erasure.is_open for erasure in erasures),
    )  # fmt: skip


def _requested(
    lake: Lake, request: ErasureRequest, keys: tuple[bytes, ...], search: KeySearch, now_ms: int,
    warn: Callable[[str], None],
) -> list[str]:  # fmt: skip
    """Their digests. A deadline that can't be met is reported, and counts all the same."""
    topic, settings = request.topic, lake.metastore.topics().get(request.topic, {})
    end_ms = earliest_end_ms(settings, now_ms=now_ms, grace_ms=request.grace_ms)
    digests = request_erasure(
        lake, topic, keys, deadline_ms=now_ms + request.deadline_ms, clock=lake.metastore.clock, search=search,
        write=request.write_tombstone or settings.get(SOURCE) == SOURCE_LAKE,
    )  # fmt: skip
    if end_ms > now_ms + request.deadline_ms:
        warn(
            f"headstone: the deadline cannot be met: tombstones of {topic} are kept for delete.retention.ms, then for the "
            f"grace, {units.exact_duration(end_ms - now_ms)} in all; the deadline is in "
            f"{units.exact_duration(request.deadline_ms)}"
        )
    return digests
