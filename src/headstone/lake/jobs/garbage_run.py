"""One run of `lake gc`: finds garbage and, with `apply`, deletes it; then continues drops that waited for it, and folds the
journal.

Owns their order, and what a stop leaves. `collection` decides what is garbage, `folding` what of the journal is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass

from headstone import units
from headstone.lake.jobs.collection import Garbage, collect, garbage
from headstone.lake.jobs.erasure import Tools, carry_on_drop
from headstone.lake.jobs.folding import fold, is_worth_folding
from headstone.lake.lake import Lake
from headstone.lake.metastore.erasures import Erasures
from headstone.lake.metastore.object_states import ObjectRow
from headstone.lake.metastore.pins import Pin, Pins
from headstone.pipeline.engine import Stop
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import EXTENTS, OBJECTS, CountUnit, ProgressLine


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageRun:
    """What was done, or without `applied` what would be."""

    applied: bool
    collectable: Garbage
    rows: tuple[ObjectRow, ...]
    """Of objects that are gone, or would be."""
    missing: tuple[str, ...]
    """Of objects that were not in the store: forgotten, or would be."""
    drops: tuple[str, ...]
    """Dropped topics that are not completely erased."""
    pins: tuple[Pin, ...]
    to_fold: bool
    folded: int
    """Number up to which the journal was folded; 0 if it was not."""
    objects_left: int
    stopped: bool
    """By a signal, with something left to do."""

    @property
    def unfolded(self) -> bool:
        return self.to_fold and not self.folded


def collect_garbage(
    lake: Lake, *, apply: bool, grace_ms: int, upload_ms: int, hearing: AbstractContextManager[Stop],
    progress: Callable[[CountUnit], ProgressLine],
) -> GarbageRun:  # fmt: skip
    """`hearing`: the signal handlers, once the garbage is known. Entered only with `apply`."""
    pins, now_ms = Pins(lake.metastore).all(), lake.metastore.clock()
    collectable = garbage(lake, now_ms=now_ms, grace_ms=grace_ms, upload_ms=upload_ms)
    to_fold, folded, stopped = is_worth_folding(lake), 0, False
    gone, drops = {row.object_id for row in collectable.rows}, Erasures(lake.metastore).open_drops()
    if apply:
        with hearing as stop:
            with progress(OBJECTS) as shown:
                gone = set(collect(lake, collectable, shown.board, stop=stop))
            drops = drops if stop() else _note_drops(lake, grace_ms=grace_ms, upload_ms=upload_ms)
            with progress(EXTENTS) as shown:
                folded = fold(lake, shown.board, stop=stop) if to_fold and not stop() else 0
            stopped = stop() and (len(gone) < len(collectable.rows) or (to_fold and not folded))
    return GarbageRun(
        applied=apply, collectable=collectable, drops=tuple(drops), pins=tuple(pins), to_fold=to_fold, folded=folded,
        rows=tuple(row for row in collectable.rows if row.object_id in gone - collectable.missing),
        missing=tuple(sorted(gone & collectable.missing)), objects_left=len(collectable.rows) - len(gone), stopped=stopped,
    )  # fmt: skip


def _note_drops(lake: Lake, *, grace_ms: int, upload_ms: int) -> list[str]:
    """Dropped topics that are not completely erased. Moves nothing for them."""
    tools = Tools(
        lake=lake, engine=InProcess(1), clock=lake.metastore.clock, grace_ms=grace_ms, upload_ms=upload_ms
    )  # fmt: skip
    for topic in Erasures(lake.metastore).open_drops():
        carry_on_drop(tools, topic, evacuate=False)
    return Erasures(lake.metastore).open_drops()


def garbage_document(run: GarbageRun) -> dict[str, object]:
    return {
        "applied": run.applied, "objects": [asdict(row) for row in run.rows], "missing": list(run.missing),
        "orphans": run.collectable.orphans, "foreign": run.collectable.foreign, "drops": list(run.drops),
        "pins": [asdict(pin) for pin in run.pins], "journal_to_fold": run.to_fold, "journal_folded": run.folded,
    }  # fmt: skip


def garbage_lines(run: GarbageRun) -> Iterator[str]:
    yield from (f"{row.object_id} {row.state} {units.size(row.size)}" for row in run.rows)
    forgotten = "it is forgotten" if run.applied else "--apply forgets it"
    yield from (f"{object_id} is not in the store; {forgotten}" for object_id in run.missing)
    grace = (
        "the grace before it goes began when it was found" if run.applied else "--apply notes it, and its grace begins"
    )
    yield from (f"{object_id} not known to the metastore; {grace}" for object_id in run.collectable.orphans)
    yield from (f"{path} is not the lake's; it stays" for path in run.collectable.foreign)
    for pin in run.pins:
        since, until = units.exact_moment(pin.as_of_ms), units.moment(pin.expires_ms)
        yield f"{pin.reader} reads what was there at {since} or since: it stays until {until}"
    yield from (
        f"{topic}, which was dropped, is not gone yet: `headstone lake status` tells why" for topic in run.drops
    )
    if run.folded:
        yield f"the journal is folded up to number {run.folded}"
    if run.to_fold and not run.applied:
        yield "the journal is to be folded; --apply does it"
    size = units.size(sum(row.size for row in run.rows))
    yield f"{units.count(len(run.rows), 'object')}, {size} {'deleted' if run.applied else 'to delete; --apply does it'}"
