"""Checks that the store holds what the metastore points at: every object exists and is long enough, the journal is a chain;
and, on request, that every byte is what was written.

Reports what is wrong, where, and which records can't be read because of it. Objects that are not the lake's, or that the lake
has forgotten, are kept apart from damage. Changes nothing; `mending` decides what to do about damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby

import numpy as np

from headstone.errors import CorruptLog, HeadstoneError
from headstone.lake.format.extents import Extent
from headstone.lake.format.keyindex import section_bytes
from headstone.lake.format.objects import (
    is_object_path,
    is_of_another_lake,
    object_path,
    places,
    read_dead,
    read_extent,
    read_index,
    read_keys,
    stranger,
)
from headstone.lake.format.prefixes import MARKER, OWNER
from headstone.lake.format.spans import Span
from headstone.lake.lake import Lake
from headstone.lake.metastore.identity import owner_of
from headstone.lake.metastore.journal import (
    NO_ENTRY,
    JournalEnd,
    base_number,
    foreign_entries,
    read_all,
    seen_end,
    strange_problem,
    strangers,
    told_end,
)
from headstone.lake.metastore.journal_names import ENDS, FOLDER, is_journal_path
from headstone.lake.metastore.marker import expect_marker
from headstone.lake.metastore.surveys import Pointed, pointed_extents
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine
from headstone.pipeline.progress import Board, Meter
from headstone.storage.stores import MissingObject, Store
from headstone.units import count, size

OBJECT, INDEX, BATCHES, KEYS, DEAD, JOURNAL, END, STRANGE, IDENTITY = (
    "object", "index", "record batches", "list of keys", "list of dead records", "journal", "end of the journal",
    "stranger in the journal", "identity",
)  # fmt: skip
"""Which part of an object is damaged. END: the journal is whole, but the loss of its last entry could not be noticed. STRANGE:
its name tells of newer entries, but it is not the journal's. IDENTITY: the marker or owner of the store."""
SHARE_BYTES = 64 << 20
"""Bytes that one task reads; it has one extent in memory at a time."""
JOURNAL_READS = 3
"""It may be folded while it is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFinding:
    """Damage. Without a partition it concerns the journal, the marker or the owner: no record is lost by it."""

    path: str
    part: str
    problem: str
    partition: TopicPartition | None = None
    span: Span | None = None
    records: int = 0
    """Records of the extent that readers should see and that can't be read."""
    past: bool = False
    """Only readers of the past need it."""

    def __str__(self) -> str:
        lost = ""
        if self.partition is not None:
            when = "of the past, " if self.past else ""
            lost = f"; {self.partition} {self.span}, {when}{count(self.records, 'record')} can't be read"
        part = "" if self.part == self.path else f"{self.part}: "
        return f"{self.path}: {part}{self.problem}{lost}"


@dataclass(slots=True, kw_only=True)
class StoreCheck:
    objects: int = 0
    bytes: int = 0
    deep: bool = False
    findings: list[StoreFinding] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    """Objects that the metastore does not know: garbage of uploads that ended too late. Not damage."""
    foreign: list[str] = field(default_factory=list)
    """What is not the lake's at all."""


def _finding(pointed: Pointed, object_id: str, part: str, problem: str) -> StoreFinding:
    """Without its batches or its list of dead records no record can be read; without its keys or an index all can."""
    records = pointed.extent.records if part not in (KEYS, INDEX) else 0
    return StoreFinding(
        path=object_path(object_id), part=part, problem=problem, partition=pointed.partition, span=pointed.extent.span,
        records=records, past=pointed.past,
    )  # fmt: skip


def check_store(lake: Lake, *, engine: Engine | None = None, board: Board | None = None) -> StoreCheck:
    """`engine`: its tasks read every byte. Without one: one listing, and the journal."""
    # Listed before the rows are read: listed objects were registered before, and an object that a row points at but that was
    # not listed yet is looked up by its name.
    sizes = {entry.path: entry.size for entry in lake.store.entries()}
    check = StoreCheck(objects=len(sizes), bytes=sum(sizes.values()), deep=engine is not None)
    if board is not None and engine is not None:
        board.expect(sum(size for path, size in sizes.items() if path.startswith("objects/")))
    recorded, asked = {name: row.size for name, row in lake.metastore.objects().items()}, set[str]()
    for pointed in pointed_extents(lake.metastore):
        whole = _in_place(lake.store, pointed, sizes, recorded, check)
        if engine is not None:
            check.findings += _read(lake, whole, asked, engine, board)
    check.findings += check_journal(lake) + check_identity(lake)
    foreign = set(foreign_entries(lake.store, lake.metastore.lake_id, seen_end(lake.metastore).number))
    for path in sorted(sizes):
        if is_object_path(path):
            object_id = path.rpartition("/")[2]
            if object_id not in recorded:
                is_foreign = is_of_another_lake(lake.store, object_id, lake.metastore.lake_id)
                (check.foreign if is_foreign else check.orphans).append(path)
        elif path in foreign or (not is_journal_path(path) and path not in (MARKER, OWNER)):
            check.foreign.append(path)
    return check


def _in_place(
    store: Store, pointed: Sequence[Pointed], sizes: Mapping[str, int], recorded: Mapping[str, int], check: StoreCheck
) -> list[Pointed]:
    """Those whose objects exist and are long enough; the others become findings."""
    whole = []
    for each in pointed:
        problems = [
            (object_id, problem)
            for object_id, place in places(each.partition, each.extent)
            if (problem := _misfit(store, object_id, place.end, sizes, recorded)) is not None
        ]
        check.findings += [_finding(each, object_id, OBJECT, problem) for object_id, problem in problems]
        if not problems:
            whole.append(each)
    return whole


def _misfit(
    store: Store, object_id: str, end: int, sizes: Mapping[str, int], recorded: Mapping[str, int]
) -> str | None:
    path = object_path(object_id)
    size = sizes.get(path, -1)
    if size < 0:
        try:
            size = store.size(path)
        except MissingObject:
            return "it is missing"
    wanted = recorded.get(object_id, 0)
    if size < end or (wanted and size != wanted):
        length = f"it is {size:,} bytes long, and was written with {max(wanted, end):,}"
        return stranger(store, object_id) or length
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckWork:
    """Extents of which one task reads every byte, and objects whose index it reads."""

    store: Store
    lake_id: str
    extents: tuple[Extent, ...]
    object_ids: tuple[tuple[int, str], ...]
    """Each with one of the extents that point at it."""


Damage = tuple[int, str, str, str]
"""Which of the extents, the object, which part of it, and what is wrong."""


def check_share(work: CheckWork, meter: Meter) -> list[Damage]:
    """The body of a task."""
    damages: list[Damage] = []
    for number, extent in enumerate(work.extents):
        damages += [(number, *damage) for damage in damages_of(work.store, extent)]
        meter.add(_size(extent), extent.records)
    for number, object_id in work.object_ids:
        try:
            read_index(work.store, object_id, work.lake_id)
        except (CorruptLog, MissingObject) as error:
            damages.append((number, object_id, INDEX, problem_of(error)))
    return damages


def damages_of(store: Store, extent: Extent) -> Iterator[tuple[str, str, str]]:
    """The object, the part of it that can't be read, and why."""
    parts = [
        (extent.object_id, BATCHES, read_extent), (extent.object_id, KEYS, read_keys),
        (extent.dead_object or "", DEAD, read_dead),
    ]  # fmt: skip
    for object_id, part, read in parts:
        if (part == KEYS and extent.keys < 0) or (part == DEAD and extent.dead_object is None):
            continue
        try:
            read(store, extent)  # type: ignore[operator]
        except (CorruptLog, MissingObject) as error:
            yield object_id, part, problem_of(error)


def problem_of(error: HeadstoneError) -> str:
    """Without the file, which is shown anyway."""
    return error.problem if isinstance(error, CorruptLog) else "it is missing"


def _size(extent: Extent) -> int:
    return extent.length + section_bytes(extent.keys)


def _read(
    lake: Lake, pointed: Sequence[Pointed], asked: set[str], engine: Engine, board: Board | None
) -> Iterator[StoreFinding]:
    ends = np.cumsum([_size(each.extent) for each in pointed])
    works, shares = [], []
    for _, group in groupby(zip(pointed, ends.tolist(), strict=True), key=lambda pair: pair[1] // SHARE_BYTES):
        share = [each for each, _ in group]
        objects = {
            object_id: number
            for number, each in sorted(enumerate(share), key=lambda pair: not pair[1].past)  # current ones come last
            for object_id, _ in places(each.partition, each.extent)
            if object_id not in asked
        }
        asked |= objects.keys()
        shares.append(share)
        works.append(
            CheckWork(
                store=lake.store, lake_id=lake.metastore.lake_id, extents=tuple(each.extent for each in share),
                object_ids=tuple((number, object_id) for object_id, number in sorted(objects.items())),
            )
        )  # fmt: skip
    for share, damages in zip(shares, engine.each(check_share, works, board), strict=True):
        for number, object_id, part, problem in damages:
            yield _finding(share[number], object_id, part, problem)


def check_journal(lake: Lake) -> list[StoreFinding]:
    """Reads every object of it; it has to reach what the metastore has seen, or further."""
    for attempt in range(JOURNAL_READS):
        seen = seen_end(lake.metastore)
        if strange := strangers(lake.store, lake.metastore.lake_id, seen.number):
            return [StoreFinding(path=path, part=STRANGE, problem=strange_problem(seen.number)) for path in strange]
        base, end = base_number(lake.store), NO_ENTRY
        try:
            for newest, _ in read_all(lake.store, lake.metastore.lake_id):
                end = newest
        except (CorruptLog, MissingObject) as error:
            if attempt + 1 < JOURNAL_READS and base_number(lake.store) > base:
                continue
            path, _, problem = str(error).removeprefix(f"{lake.store.url}/").partition(": ")
            return [StoreFinding(path=path.partition(",")[0], part=JOURNAL, problem=problem)]
        break
    if end.number < seen.number:
        problem = f"it ends at number {end.number}, and the metastore has seen it at {seen.number}: entries are lost"
        return [StoreFinding(path=FOLDER, part=JOURNAL, problem=problem)]
    if end.number == seen.number and end.digest != seen.digest:
        problem = f"number {end.number} is not the one that the metastore knows: it is of another copy of the lake"
        return [StoreFinding(path=FOLDER, part=JOURNAL, problem=problem)]
    return _check_end(lake, seen)


def _check_end(lake: Lake, seen: JournalEnd) -> list[StoreFinding]:
    """An end is written before the metastore knows its number."""
    newest = told_end(lake.store, lake.metastore.lake_id, last=seen.number)
    if newest is not None and newest.number >= seen.number:
        return []
    problem = (
        "it is missing" if newest is None else f"it tells of number {newest.number}, the metastore of {seen.number}"
    )
    return [StoreFinding(path=ENDS, part=END, problem=f"{problem}: the loss of the last entry would go unnoticed")]


def check_identity(lake: Lake) -> list[StoreFinding]:
    """The marker must agree with the metastore. The owner may be missing: it is written when the lake is opened."""
    looks: Mapping[str, Callable[[], object]] = {
        MARKER: lambda: expect_marker(lake.metastore, lake.store),
        OWNER: lambda: owner_of(lake.store, lake.metastore.lake_id),
    }
    findings = []
    for path, look in looks.items():
        try:
            look()
        except (CorruptLog, MissingObject) as error:
            findings.append(StoreFinding(path=path, part=IDENTITY, problem=problem_of(error)))
    return findings


def check_document(check: StoreCheck) -> dict[str, object]:
    named = [
        {**asdict(finding), "partition": finding.partition and str(finding.partition)} for finding in check.findings
    ]
    return {**asdict(check), "findings": named}


def check_lines(check: StoreCheck) -> Iterator[str]:
    how = "every byte read" if check.deep else "there and as long as they should be; --deep reads every byte"
    if not check.findings:
        yield f"store: {count(check.objects, 'object')}, {size(check.bytes)}: {how}"
    yield from (f"not known to the metastore: {path}; `headstone lake gc --apply` deletes it" for path in check.orphans)
    yield from (f"not the lake's: {path}" for path in check.foreign)
    if check.findings and all(finding.past for finding in check.findings):
        yield "store: only the past is damaged; `headstone lake gc --apply` forgets it after its grace"
    elif check.findings:
        yield "store: `headstone lake mend` says what is lost with what is damaged; docs/lake.md, how to get it back"
