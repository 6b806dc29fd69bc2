"""The way out for damaged objects: writes again what can be written, and gives up what can't be read, after confirmation.

What is given up is recorded for good (`losses`), also in the journal. A lost record may be the newest of its key: then the
records it superseded must not come back. In a clean range nothing older of its keys is left. Elsewhere the list of its keys
decides, if it can be read: the partition is compacted by the lists, without reading batches, before the records are given up.
If it can't, the affected keys are unknown, and mending is refused unless older values are accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from headstone.errors import CorruptLog, HeadstoneError
from headstone.lake.format.dead import is_live
from headstone.lake.format.extents import Extent
from headstone.lake.format.keyindex import NO_KEYS, keys_in
from headstone.lake.format.objects import object_path, read_dead, read_keys, read_live, writing_object
from headstone.lake.format.spans import touching
from headstone.lake.jobs.compaction import compact_partition
from headstone.lake.jobs.folding import fold
from headstone.lake.jobs.job_plan import JobSettings
from headstone.lake.jobs.store_check import (
    DEAD,
    END,
    IDENTITY,
    INDEX,
    JOURNAL,
    KEYS,
    OBJECT,
    STRANGE,
    StoreCheck,
    damages_of,
)
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import CommitRefused, Partition
from headstone.lake.metastore.identity import expect_own
from headstone.lake.metastore.journal import record, record_nothing, seen_end, tell_end
from headstone.lake.metastore.losses import Loss, give_up
from headstone.lake.metastore.marker import mend_marker
from headstone.lake.metastore.scheduling import dirty_spans, not_compacted
from headstone.log.reading import chunk_of
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine
from headstone.storage.stores import MissingObject
from headstone.units import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Mend:
    """What is to be done about an extent."""

    partition: TopicPartition
    extent: Extent
    problems: tuple[str, ...]
    is_lost: bool
    """Otherwise every record can be read, and the extent is written again."""
    keys: int | None = None
    is_safe: bool = True
    """Nothing older can come back."""

    def __str__(self) -> str:
        where = f"{self.partition} {self.extent.span}"
        if not self.is_lost:
            return f"{where}: written again, nothing is lost ({'; '.join(self.problems)})"
        keys = "of unknown keys" if self.keys is None else f"the newest of {count(self.keys, 'key')}"
        text = f"{where}: loses {count(self.extent.records, 'record')}, {keys} ({'; '.join(self.problems)})"
        return text if self.is_safe else f"{text}; older values of these keys would be served: --accept-older-values"


@dataclass(frozen=True, slots=True, kw_only=True)
class MendPlan:
    mends: tuple[Mend, ...]
    journal: tuple[str, ...] = ()
    """What is wrong with the journal. It is written anew from the metastore."""
    end: tuple[str, ...] = ()
    """What is wrong with the object that names the journal's last entry, if nothing else in the journal is."""
    identity: tuple[str, ...] = ()
    """What is wrong with the marker or the owner of the store. They are written again from the metastore."""
    strange: tuple[str, ...] = ()
    """Objects that may or may not be the journal's. They are left alone: a person has to remove or repair them."""
    past: tuple[str, ...] = ()
    """What only readers of the past need. It is left alone."""

    @property
    def damaged(self) -> bool:
        """Whether there is anything to mend."""
        return bool(self.mends or self.journal or self.end or self.identity)


def mend_document(plan: MendPlan, left: Sequence[str], *, applied: bool) -> dict[str, object]:
    """`left`: what was not mended."""
    extents = [
        {
            "partition": str(each.partition), "span": list(each.extent.span), "records": each.extent.records,
            "is_lost": each.is_lost, "keys": each.keys, "is_safe": each.is_safe, "problems": each.problems,
        }
        for each in plan.mends
    ]  # fmt: skip
    return {
        "applied": applied, "extents": extents, "journal": plan.journal, "journal_end": plan.end,
        "identity": plan.identity, "strange": plan.strange, "past": plan.past, "left": left,
    }  # fmt: skip


def planned(lake: Lake, check: StoreCheck) -> MendPlan:
    """For the findings of a check. What only the past needs is left alone: it goes with time."""
    concerned = {finding.partition for finding in check.findings if finding.partition is not None and not finding.past}
    unindexed = {finding.path for finding in check.findings if finding.part in (INDEX, OBJECT)}
    mends: list[Mend] = []
    for name, partition in sorted(lake.metastore.snapshot(present_only=True).items()):
        own = [extent for extent in partition.extents if name in concerned or _objects(extent) & unindexed]
        mends += _mends(lake, name, partition, own, unindexed)
    journal, end, strange, identity = (
        tuple(str(each) for each in check.findings if each.part == part) for part in (JOURNAL, END, STRANGE, IDENTITY)
    )
    past = tuple(str(each) for each in check.findings if each.past)
    return MendPlan(mends=tuple(mends), journal=journal, end=end, strange=strange, identity=identity, past=past)


def _mends(
    lake: Lake, name: TopicPartition, partition: Partition, extents: Sequence[Extent], unindexed: set[str]
) -> Iterator[Mend]:
    for extent in extents:
        damages = list(damages_of(lake.store, extent))
        problems = tuple(f"{object_path(object_id)}: {part}: {problem}" for object_id, part, problem in damages)
        parts = {part for _, part, _ in damages}
        if parts - {KEYS}:
            keys = _live_keys(lake, extent) if KEYS not in parts and extent.keys >= 0 else None
            safe = keys is not None and DEAD not in parts
            yield Mend(
                partition=name, extent=extent, problems=problems, is_lost=True, keys=keys,
                is_safe=safe or not _may_revive(lake, name, partition, extent),
            )  # fmt: skip
        elif parts or _objects(extent) & unindexed:
            yield Mend(partition=name, extent=extent, problems=problems or ("its object is damaged",), is_lost=False)


def _objects(extent: Extent) -> set[str]:
    return {object_path(object_id) for object_id in (extent.object_id, extent.dead_object) if object_id is not None}


def _live_keys(lake: Lake, extent: Extent) -> int:
    keys = read_keys(lake.store, extent)
    try:
        live = is_live(keys.offsets, read_dead(lake.store, extent))
    except (CorruptLog, MissingObject):
        live = np.ones(keys.offsets.size, dtype=np.bool_)
    return len(np.unique(keys.digests[live], axis=0))


def _may_revive(lake: Lake, name: TopicPartition, partition: Partition, extent: Extent) -> bool:
    """Whether there may be older records of its keys: not below a clean range, nor in a topic that is not compacted."""
    if not touching(dirty_spans(partition), extent.span):
        return False
    return not_compacted(lake.metastore.topics().get(name.topic, {})) is None


def mend(lake: Lake, plan: MendPlan, engine: Engine, *, accept_older_values: bool = False) -> list[str]:
    """Returns what was not done, and why. Each extent is a commit of its own: after a kill, the next run continues."""
    left: list[str] = []
    expect_own(lake.metastore, lake.store, mends=bool(plan.identity))  # first: a copy is refused by it
    if plan.identity:
        mend_marker(lake.metastore, lake.store)
    for each in sorted(plan.mends, key=lambda each: each.is_safe):  # no compaction may meet an unreadable list
        try:
            if not each.is_lost:
                _write_again(lake, each)
            else:
                _give_up(lake, each, engine, accept_older_values=accept_older_values)
        except HeadstoneError as error:
            left.append(f"{each.partition} {each.extent.span}: {error}")
    if plan.journal:
        record_nothing(lake.metastore, lake.store)
        fold(lake)
    elif plan.end:
        _tell_end(lake)
    return left


def _tell_end(lake: Lake) -> None:
    record(lake.metastore, lake.store)
    tell_end(lake.store, lake.metastore.lake_id, seen_end(lake.metastore))


def _write_again(lake: Lake, each: Mend) -> None:
    extent, metastore = each.extent, lake.metastore
    epoch = metastore.snapshot([each.partition])[each.partition].compaction_epoch
    data = read_live(lake.store, extent)
    (object_id,) = metastore.register(1)
    with writing_object(lake.store, object_id, metastore.lake_id) as writer:
        chunks = [chunk_of(str(each.partition), data)] if data else []
        again = writer.add(
            each.partition.topic, each.partition.number, extent.span, [data] if data else [], records=extent.records,
            max_timestamp_ms=extent.max_timestamp_ms, oldest_timestamp_ms=extent.oldest_timestamp_ms,
            keys=keys_in(chunks, metastore.hash_key) if extent.keys >= 0 or not data else None,
        )  # fmt: skip
    metastore.level(each.partition, epoch, [again], {object_id: writer.size})


def _give_up(lake: Lake, each: Mend, engine: Engine, *, accept_older_values: bool) -> None:
    metastore, name = lake.metastore, each.partition
    now = metastore.snapshot([name])[name]
    if _may_revive(lake, name, now, each.extent) and each.is_safe:
        with suppress(*((CorruptLog, MissingObject) if accept_older_values else ())):
            compact_partition(lake, name, engine, now_ms=metastore.clock(), settings=JobSettings(dead_share_max=1.0))
        now = metastore.snapshot([name])[name]
    may_revive = _may_revive(lake, name, now, each.extent)
    if may_revive and not accept_older_values:
        raise CommitRefused(
            "older values of the lost keys would be served; restore the object from a backup, ingest the topic again, or pass "
            "--accept-older-values"
        )
    (extent,) = (extent for extent in now.extents if extent.span == each.extent.span)
    (object_id,) = metastore.register(1)
    with writing_object(lake.store, object_id, metastore.lake_id) as writer:
        hole = writer.add(
            name.topic, name.number, extent.span, [], records=0, max_timestamp_ms=extent.max_timestamp_ms,
            oldest_timestamp_ms=extent.oldest_timestamp_ms, keys=NO_KEYS,
        )  # fmt: skip
    loss = Loss(
        partition=name, span=extent.span, records=extent.records, older_values=may_revive, moment_ms=0,
        keys=None if each.keys is None else _live_keys(lake, extent),
    )  # fmt: skip
    give_up(metastore, name, now.compaction_epoch, hole, writer.size, loss)
