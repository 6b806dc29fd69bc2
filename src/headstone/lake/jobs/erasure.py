"""Erases keys: their records leave the log, then the objects, then the store. Continues where the last run ended.

First a tombstone, from Kafka or, where the lake's log is the only one, from here. Then the shared compaction, a rewrite of
extents that hold the key's dead records, evacuation of objects with data that is in no log any more, and collection. Nothing
here removes data in a way of its own. `lake/metastore/erasures` records how far each erasure is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import pyarrow as pa

from headstone import units
from headstone.errors import HeadstoneError, UsageError
from headstone.lake.defaults import GRACE_MS, UPLOAD_MS
from headstone.lake.format.extents import Extent
from headstone.lake.format.keyindex import keys_in
from headstone.lake.format.objects import writing_object
from headstone.lake.format.spans import Span
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.compaction import compact_partition
from headstone.lake.jobs.job import JobControl, Stopped
from headstone.lake.jobs.key_search import KeyRecord, KeySearch, digest_of
from headstone.lake.jobs.purging import evacuate_idle, objects_to_leave
from headstone.lake.jobs.rewriting import rewrite_runs
from headstone.lake.jobs.turns import Turn
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Append, CommitRefused, TombstoneRange, no_topic
from headstone.lake.metastore.erasure_steps import (
    CAME_AGAIN,
    CAME_LATER,
    ERASED,
    KEY_REMOVED,
    OBJECTS_REMOVED,
    REQUESTED,
    TOPIC_DROPPED,
    VALUES_GONE,
    VALUES_REMOVED,
)
from headstone.lake.metastore.erasures import RETRY_MS, Erasure, Erasures, UnusedObjects, patience_ms
from headstone.lake.metastore.scheduling import not_compacted
from headstone.log.arrow_batches import batches_of
from headstone.log.columns import HEADER_TYPE
from headstone.log.reading import chunk_of
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import OBJECTS, ProgressLine
from headstone.retention.settings import SOURCE, SOURCE_LAKE, setting_of

GONE = {VALUES_REMOVED: VALUES_GONE, KEY_REMOVED: ERASED, OBJECTS_REMOVED: ERASED}
"""The step that follows when the objects are collected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What an erasure works with. `working_on` holds a partition's lease for `worker` while the partition is changed.

    `control.stop`: the current partition, object or batch is finished, and its step is left for a later run."""

    lake: Lake
    engine: Engine
    clock: Callable[[], int]
    worker: str | None = None
    working_on: Callable[[TopicPartition], AbstractContextManager[object]] = nullcontext
    control: JobControl = field(default_factory=JobControl)
    grace_ms: int = GRACE_MS
    upload_ms: int = UPLOAD_MS
    tell: Callable[[str], None] = lambda text: None
    search: KeySearch | None = None
    """A search that was used before; None: a new one for each topic."""


def earliest_end_ms(settings: Mapping[str, object], *, now_ms: int, grace_ms: int = GRACE_MS) -> int:
    """When the last byte of a key that is deleted now can be gone, after its tombstone has had its time."""
    lag_ms, retention_ms = (setting_of(settings, name) for name in ("min.compaction.lag.ms", "delete.retention.ms"))
    return now_ms + int(lag_ms) + int(retention_ms) + 2 * grace_ms


def request_erasure(
    lake: Lake, topic: str, keys: Collection[bytes], *, deadline_ms: int, clock: Callable[[], int], write: bool = False,
    search: KeySearch | None = None,
) -> list[str]:  # fmt: skip
    """Requests the erasure of the keys and returns their digests. `write`: writes missing tombstones here."""
    topics = lake.metastore.topics()
    settings = topics.get(topic)
    if settings is None:
        if any(erasure.is_whole for erasure in Erasures(lake.metastore).of(topic)):
            raise UsageError(f"{topic} was dropped: all of it is being erased, so keys need not be named")
        raise no_topic(topic, topics)
    if reason := not_compacted(settings):
        raise UsageError(f"{topic}: {reason}, so the records of a key stay until retention deletes them")
    digests = {digest_of(key, lake.metastore.hash_key): key for key in keys}
    Erasures(lake.metastore).request(topic, digests, deadline_ms=deadline_ms, now_ms=clock())
    if write:
        _write_tombstones(lake, topic, digests, clock, search or KeySearch(lake, InProcess()))
    return sorted(digests)


def _write_tombstones(
    lake: Lake, topic: str, keys: Mapping[str, bytes], clock: Callable[[], int], search: KeySearch
) -> None:
    """Appends tombstones to every partition in which the newest record of a key is a value. It guesses no partition."""
    missing: dict[TopicPartition, list[bytes]] = {}
    under_way = {erasure.key_digest for erasure in Erasures(lake.metastore).open_of(topic)}
    search.records(topic, under_way.union(keys))  # all of them now, as the next steps will, so that lists are read once
    for record in undeleted_keys(search, topic, keys):
        missing.setdefault(record.partition, []).append(keys[record.digest])
    if missing:
        make_lakes_own(lake, topic)  # first, so that no offset assigned here is taken for Kafka's
    for topic_partition, some in sorted(missing.items()):
        _append(lake, topic_partition, some, clock)


def undeleted_keys(search: KeySearch, topic: str, digests: Collection[str]) -> list[KeyRecord]:
    """The newest record of each key in each partition, where that is a value."""
    by_digest = _by_digest(search.records(topic, digests))
    return [record for records in by_digest.values() for record in undeleted(records)]


def _append(lake: Lake, topic_partition: TopicPartition, keys: Sequence[bytes], clock: Callable[[], int]) -> None:
    """CommitRefused: another writer has appended meanwhile; run it again."""
    now_ms, start = clock(), lake.metastore.partition(topic_partition).next_offset
    columns = {
        "offset": pa.array(range(start, start + len(keys)), pa.int64()),
        "timestamp_ms": pa.array([now_ms] * len(keys), pa.int64()),
        "log_append_time": pa.array([False] * len(keys)),
        "key": pa.array(keys, pa.binary()),
        "value": pa.nulls(len(keys), pa.binary()),
        "headers": pa.array([[] for _ in keys], HEADER_TYPE),
    }
    batches = [written.data for written in batches_of(pa.RecordBatch.from_pydict(columns))]
    (object_id,) = lake.metastore.register(1, now_ms=now_ms)
    with writing_object(lake.store, object_id, lake.metastore.lake_id) as writer:
        extent = writer.add(
            topic_partition.topic, topic_partition.number, Span(start, start + len(keys)), batches, records=len(keys),
            max_timestamp_ms=now_ms,
            keys=keys_in((chunk_of(str(topic_partition), batch) for batch in batches), lake.metastore.hash_key),
        )  # fmt: skip
    append = {topic_partition: Append(expected_next=start, extents=(extent,))}
    lake.metastore.append(append, {object_id: writer.size}, now_ms=clock)


def carry_on_erasures(tools: Tools, topics: Collection[str] | None = None) -> int:
    """Does everything that can be done now, topic by topic; returns the number of steps. `topics` None: those that are due.

    An error is reported and tried again later: it does not stop the other topics. After a stop nothing is set to wait."""
    erasures, done = Erasures(tools.lake.metastore), 0
    for topic in erasures.open_topics(now_ms=tools.clock()) if topics is None else sorted(topics):
        try:
            done += _carry_on(tools, erasures, topic) + carry_on_drop(tools, topic)
        except Stopped:
            break
        except HeadstoneError as error:
            tools.tell(f"erasure in {topic}: retrying later: {error}")
            drop = erasures.open_drop(topic)
            waiting = [*erasures.open_of(topic), *([drop] if drop is not None else [])]
            erasures.wait(waiting, str(error), until_ms=tools.clock() + RETRY_MS)
    return done


def carry_on_drop(tools: Tools, topic: str, *, evacuate: bool = True) -> int:
    """Moves a dropped topic out of objects that are still in use, and then out of the store, with its requested keys.

    A new topic with its name keeps its records. `evacuate` False: moves nothing, for callers that only collect."""
    erasures, done = Erasures(tools.lake.metastore), 0
    drop = erasures.open_drop(topic)
    if drop is not None and drop.step == REQUESTED:
        if evacuate:
            _evacuate(tools, topic)
        elif objects_to_leave(tools.lake, [topic], indexes=False):
            return 0
        done += erasures.advance([(drop, OBJECTS_REMOVED)], now_ms=tools.clock())
        drop = erasures.open_drop(topic)
    if drop is None or drop.step != OBJECTS_REMOVED:
        return done
    if evacuate:
        _collect(tools)
    unused = erasures.unused_objects()
    if unused.since(drop.step_ms):
        waits_for, until_ms = _grace(tools, drop, unused)
        erasures.wait([drop], waits_for, until_ms=until_ms)
        return done
    keys = {erasure.key_digest: erasure for erasure in erasures.of(topic) if erasure.step == TOPIC_DROPPED}
    search = KeySearch(tools.lake, tools.engine)
    again = {record.digest for record in search.records(topic, keys)} | search.in_the_past(topic, keys)
    came = {digest: CAME_AGAIN if keys[digest].seen else CAME_LATER for digest in again}
    erasures.saw(topic, again)
    ends = [(erasure, came.get(digest, ERASED)) for digest, erasure in keys.items()]
    return done + erasures.advance([(drop, ERASED), *ends], now_ms=tools.clock())


class _Searched:
    """The erasures of a topic whose keys are searched for: those that are open now.

    One requested later, or again, is not included: a search that began before it and found nothing proves nothing about it."""

    def __init__(self, erasures: Erasures, topic: str) -> None:
        self._erasures, self.topic = erasures, topic
        self._asked = {erasure.key_digest: erasure.requested_ms for erasure in erasures.open_of(topic)}

    @property
    def digests(self) -> set[str]:
        return set(self._asked)

    def open(self) -> list[Erasure]:
        """Those that are not done yet, each at the step that it has reached by now."""
        still = self._erasures.open_of(self.topic)
        return [erasure for erasure in still if self._asked.get(erasure.key_digest) == erasure.requested_ms]


def _carry_on(tools: Tools, erasures: Erasures, topic: str) -> int:
    _expect_to_go_on(tools)
    searched = _Searched(erasures, topic)
    if not searched.digests:
        return 0
    left, done = _brought_out(tools, erasures, searched), 0
    come_again = [
        erasure for erasure in searched.open() if erasure.step == KEY_REMOVED and left.get(erasure.key_digest)
    ]
    erasures.advance([(erasure, REQUESTED) for erasure in come_again], now_ms=tools.clock())
    while steps := _leave(tools, erasures, searched, left) + _collected(tools, erasures, searched):
        done += steps
    _expect_to_go_on(tools)
    alike: dict[tuple[str, int], list[Erasure]] = {}
    reasons = _Reasons(tools, erasures.unused_objects(), left)
    for erasure in searched.open():
        alike.setdefault(reasons.of(erasure), []).append(erasure)
    for (waits_for, until_ms), some in alike.items():
        erasures.wait(some, waits_for, until_ms=until_ms)
    return done


def _expect_to_go_on(tools: Tools) -> None:
    if tools.control.stop():
        raise Stopped("stopped between two steps; run it again to continue")


def _by_digest(records: Sequence[KeyRecord]) -> dict[str, list[KeyRecord]]:
    grouped: dict[str, list[KeyRecord]] = {}
    for record in records:
        grouped.setdefault(record.digest, []).append(record)
    return grouped


def _brought_out(tools: Tools, erasures: Erasures, searched: _Searched) -> dict[str, list[KeyRecord]]:
    """Compacts partitions that show one of the keys, and rewrites extents that only have it dead. Returns what is left."""
    topic, digests = searched.topic, searched.digests
    lake, search = tools.lake, tools.search or KeySearch(tools.lake, tools.engine)
    records = search.records(topic, digests)
    seen = {record.digest for record in records}
    unseen = {erasure.key_digest for erasure in searched.open() if not erasure.seen} - seen
    erasures.saw(topic, seen | search.in_the_past(topic, unseen))
    for topic_partition in sorted({record.partition for record in records if record.shown}):
        with tools.working_on(topic_partition):
            control = replace(tools.control, clock=tools.clock)
            compact_partition(lake, topic_partition, tools.engine, now_ms=tools.clock(), control=control)
    hiding: dict[TopicPartition, set[Extent]] = {}
    for record in search.records(topic, digests) if records else ():
        if not record.shown:
            hiding.setdefault(record.partition, set()).add(record.extent)
    _rewrite(tools, hiding)
    return _by_digest(search.records(topic, digests)) if records else {}


def _rewrite(tools: Tools, extents: Mapping[TopicPartition, Collection[Extent]]) -> None:
    with ProgressLine(enabled=tools.control.progress) as line:
        line.expect(sum(extent.length for some in extents.values() for extent in some))
        for topic_partition, some in sorted(extents.items()):
            _expect_to_go_on(tools)
            spans = {extent.span for extent in some}
            with tools.working_on(topic_partition):
                partition = tools.lake.metastore.partition(topic_partition)
                runs = [[extent] for extent in partition.extents if extent.span in spans]
                rewrite_runs(
                    tools.lake, topic_partition, partition, runs, clock=tools.clock, engine=tools.engine,
                    worker=tools.worker, board=line.board,
                )  # fmt: skip


def _leave(tools: Tools, erasures: Erasures, searched: _Searched, left: Mapping[str, Sequence[KeyRecord]]) -> int:
    """When a key's values, or the whole key, have left the log, moves them out of the objects in use."""
    steps = [(erasure, next_left(erasure, left.get(erasure.key_digest, []))) for erasure in searched.open()]
    ready = [(erasure, step) for erasure, step in steps if step is not None]
    if ready:
        _evacuate(tools, searched.topic)
    return erasures.advance(ready, now_ms=tools.clock())


def _evacuate(tools: Tools, topic: str) -> None:
    """All of it, or an error: a step is not done while an object holds data that has left the log."""
    turn = Turn(go_on=lambda: not tools.control.stop())
    with ProgressLine(enabled=tools.control.progress) as line:
        moved = evacuate_idle(
            tools.lake, [topic], clock=tools.clock, worker=tools.worker, working_on=tools.working_on, engine=tools.engine,
            indexes=False, turn=turn, board=line.board,
        )  # fmt: skip
    if moved.busy:
        raise CommitRefused("; ".join(moved.busy))
    if not moved.complete:
        raise Stopped("stopped before all objects were rewritten; run it again to continue")


def _collected(tools: Tools, erasures: Erasures, searched: _Searched) -> int:
    """What has left is gone once no object exists that was already unreferenced, or uploading, when it left."""
    waiting = [erasure for erasure in searched.open() if erasure.step in GONE]
    if waiting:
        _collect(tools)
    unused = erasures.unused_objects()
    gone = [erasure for erasure in waiting if not unused.since(erasure.step_ms)]
    return erasures.advance([(erasure, GONE[erasure.step]) for erasure in gone], now_ms=tools.clock())


def _collect(tools: Tools) -> None:
    limits = {"grace_ms": tools.grace_ms, "upload_ms": tools.upload_ms}
    collectable = garbage(tools.lake, now_ms=tools.clock(), **limits)
    with ProgressLine(enabled=tools.control.progress, unit=OBJECTS) as line:
        collect(tools.lake, collectable, line.board, stop=tools.control.stop)


def _grace(tools: Tools, erasure: Erasure, unused: UnusedObjects) -> tuple[str, int]:
    """What an erasure that has left the log waits for, and until when."""
    objects, now_ms = unused.since(erasure.step_ms), tools.clock()
    ends = (erasure.step_ms + wait_ms + 1 for wait_ms in (tools.grace_ms, tools.upload_ms))
    until_ms = min((end for end in ends if end > now_ms), default=now_ms + RETRY_MS)
    return (
        f"the time of grace, or readers' pins, of {units.count(objects, 'object')} unreferenced or on the way",
        until_ms,
    )


class _Reasons:
    """Why erasures wait, and until when. Facts that many of them need are looked up once."""

    def __init__(self, tools: Tools, unused: UnusedObjects, left: Mapping[str, Sequence[KeyRecord]]) -> None:
        self._tools, self._unused, self._left = tools, unused, left
        self._now_ms = tools.clock()
        self._retention_ms: dict[str, int] = {}
        self._tombstones: dict[TopicPartition, tuple[TombstoneRange, ...]] = {}

    def of(self, erasure: Erasure) -> tuple[str, int]:
        now_ms, left = self._now_ms, self._left.get(erasure.key_digest, [])
        if newest := undeleted(left):
            where = ", ".join(f"{record.partition} at offset {record.offset}" for record in newest)
            until_ms = now_ms + patience_ms(erasure, now_ms)
            return f"a value in {where}: delete it in Kafka first, ingest, run again", until_ms
        if erasure.step in GONE:
            return _grace(self._tools, erasure, self._unused)
        if any(not record.tombstone for record in left):
            return "compaction of a superseded value: min.compaction.lag.ms is not over", now_ms + RETRY_MS
        ends_ms = [self._tombstone_end_ms(record) for record in left]
        until_ms = max((end for end in ends_ms if end is not None), default=now_ms + RETRY_MS)
        if until_ms > now_ms:
            return "the tombstone, which stays for delete.retention.ms", until_ms
        return "the tombstone, which a reader holds or which has dirty data below it", now_ms + RETRY_MS

    def _tombstone_end_ms(self, record: KeyRecord) -> int | None:
        """None: its time has not begun, because it was not cleaned yet."""
        name, metastore = record.partition, self._tools.lake.metastore
        if name not in self._tombstones:
            settings = metastore.topics()[name.topic]
            self._retention_ms[name.topic] = int(setting_of(settings, "delete.retention.ms"))
            self._tombstones[name] = metastore.partition(name).tombstones
        ranges = self._tombstones[name]
        place = bisect_right(ranges, record.offset, key=lambda tombstones: tombstones.span.start) - 1
        if place < 0 or record.offset >= ranges[place].span.end:
            return None
        return ranges[place].cleaned_at_ms + self._retention_ms[name.topic]


def undeleted(records: Sequence[KeyRecord]) -> list[KeyRecord]:
    """In each partition the newest shown record of the key, where that is a value: the key has to be deleted first."""
    newest = {record.partition: record for record in sorted(records, key=lambda record: record.offset) if record.shown}
    return [record for _, record in sorted(newest.items()) if not record.tombstone]


def next_left(erasure: Erasure, records: Sequence[KeyRecord]) -> str | None:
    """The step that is done once the objects with these past records are emptied; None: too much is left in the log."""
    if erasure.step == REQUESTED and not any(not record.tombstone for record in records):
        return VALUES_REMOVED if records else KEY_REMOVED
    return KEY_REMOVED if erasure.step == VALUES_GONE and not records else None


def make_lakes_own(lake: Lake, topic: str) -> None:
    """From now on the lake's log is the only one: continuing from another log would lose the records written here."""
    lake.metastore.configure(topic, {SOURCE: SOURCE_LAKE})
