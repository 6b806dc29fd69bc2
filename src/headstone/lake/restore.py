"""A topic of the lake back into Kafka, tombstones included, and the proof that it arrived: a task per partition.

Into an empty topic, in offset order: keys, values, headers and timestamps are kept, offsets are new, and an offset map tells
which. A record without a timestamp, or with 0, gets that of the restore: clients have no way to say so. Verification reads the
topic back as a read_committed consumer and compares its table with the lake's.

With an offset map a restore that was interrupted goes on: it remembers the moment that is restored and where each partition
ended before. Records arrive in order and once each, so as many are there as the log has grown by. Nobody else may write to the
topic meanwhile.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

from headstone.errors import Unfinished, UsageError
from headstone.lake.commits import Extent
from headstone.lake.group_offsets import GROUPS, committed_in
from headstone.lake.lake import Lake
from headstone.lake.live import LiveCluster, LiveTopic
from headstone.lake.offset_map import OffsetMap, Run, read_map, runs_of
from headstone.lake.reading import records, records_in, snapshots
from headstone.lake.restored_contents import Contents, compared, digest_of
from headstone.lake.scheduling import POLICY, POLICY_UNKNOWN, not_compacted
from headstone.log.listing import RecordEntry
from headstone.log.shown import shown_bytes
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import Board, Meter
from headstone.retention.settings import kafka_settings
from headstone.storage.stores import Store

RECORDS_PER_TOLD = 10_000

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    partition: TopicPartition
    records: int
    """Those included that an earlier run has sent."""
    tombstones: int
    keys: int | None
    """That have a value; None: nobody has looked."""
    verified: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreWork:
    """A task: one partition."""

    partition: TopicPartition
    target: TopicPartition
    store: Store
    extents: tuple[Extent, ...]
    start_offset: int
    cluster: LiveCluster
    base: int
    sent: int
    """Records that are there already."""
    verify: bool
    whole: bool
    """Every record counts, not only the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRestored:
    restored: Restored
    runs: tuple[Run, ...]


def restore(
    lake: Lake, topic: str, to_topic: str, cluster: LiveCluster, *, engine: Engine | None = None,
    as_of_ms: int | None = None, verify: bool = True, copies: int = 1, map_file: Path | None = None,
    board: Board | None = None, tell: Tell = lambda text: None,
) -> tuple[list[Restored], OffsetMap]:  # fmt: skip
    """A topic that is not there is made, with the lake's number of partitions. `map_file`: the offset map, and to go on by."""
    partitions = [partition for partition in lake.metastore.partitions() if partition.topic == topic]
    if not partitions:
        raise UsageError(f"the lake has no topic {topic}")
    settings = lake.metastore.topics()[topic]
    live = _made_or_found(cluster, to_topic, len(partitions), settings, copies)
    before = read_map(map_file) if map_file is not None else None
    if before is not None:
        begun = _gone_on(before, lake, topic, to_topic, as_of_ms, tell)
    else:
        _refuse_full(to_topic, live)
        moment_ms = lake.metastore.clock() if as_of_ms is None else as_of_ms
        first_states = snapshots(lake, partitions, as_of_ms)
        begun = OffsetMap(
            lake_id=lake.metastore.lake_id, topic=topic, to_topic=to_topic, as_of_ms=moment_ms, bases=live.ends,
            starts=tuple(first_states[partition].start_offset for partition in partitions),
        )  # fmt: skip
        if map_file is not None:
            begun.write(map_file)
    states = snapshots(lake, partitions, begun.as_of_ms if map_file is not None else as_of_ms)
    works = [
        RestoreWork(
            partition=partition, target=TopicPartition(to_topic, partition.number), store=lake.store,
            extents=states[partition].extents, start_offset=start, cluster=cluster, base=base,
            sent=end - base, verify=verify, whole=not_compacted(settings) is not None,
        )
        for partition, start, base, end in zip(partitions, begun.starts, begun.bases, live.ends, strict=True)
    ]  # fmt: skip
    if board is not None:
        board.expect(sum(extent.length for work in works for extent in work.extents))
    done = (engine or InProcess(1)).each(restore_partition, works, board)
    finished = replace(begun, finished=True, runs={one.restored.partition.number: one.runs for one in done})
    if map_file is not None:
        finished.write(map_file)
    return [one.restored for one in done], finished


def _made_or_found(
    cluster: LiveCluster, topic: str, partitions: int, settings: Mapping[str, object], copies: int
) -> LiveTopic:
    live = cluster.describe([topic]).get(topic)
    if live is None:
        config = {POLICY: "compact"} | kafka_settings(settings)
        if config[POLICY] == POLICY_UNKNOWN:
            raise UsageError(f"{not_compacted(settings)}; or make the topic {topic} yourself, then restore into it")
        cluster.create_topic(topic, partitions=partitions, copies=copies, settings=config)
        live = cluster.describe([topic])[topic]
    if len(live.starts) != partitions:
        raise UsageError(f"topic {topic} has {len(live.starts)} partitions, the lake's has {partitions}")
    return live


def _refuse_full(topic: str, live: LiveTopic) -> None:
    for number, (start, end) in enumerate(zip(live.starts, live.ends, strict=True)):
        if start != end:
            target = TopicPartition(topic, number)
            raise UsageError(
                f"{target} is not empty ([{start}, {end})): restore into a new topic, or with the --offset-map of the restore "
                "that was interrupted"
            )


def finished_map(
    lake: Lake, topic: str, to_topic: str, map_file: Path, *, as_of_ms: int | None = None
) -> OffsetMap | None:
    """Of this restore, if it is complete: nothing is left to do but to translate groups by it."""
    offsets = read_map(map_file)
    if offsets is None:
        return None
    _expect_same(offsets, lake, topic, to_topic, as_of_ms)
    return offsets if offsets.finished else None


def _expect_same(before: OffsetMap, lake: Lake, topic: str, to_topic: str, as_of_ms: int | None) -> None:
    wanted = (lake.metastore.lake_id, topic, to_topic, as_of_ms if as_of_ms is not None else before.as_of_ms)
    if (before.lake_id, before.topic, before.to_topic, before.as_of_ms) != wanted:
        raise UsageError(
            f"the offset map is that of {before.topic} into {before.to_topic} as of {before.as_of_ms}; name another file"
        )


def _gone_on(before: OffsetMap, lake: Lake, topic: str, to_topic: str, as_of_ms: int | None, tell: Tell) -> OffsetMap:
    _expect_same(before, lake, topic, to_topic, as_of_ms)
    if before.finished:
        raise UsageError(f"{before.topic} was restored into {before.to_topic}: the offset map is complete")
    tell(f"going on with the restore of {topic} as of {before.as_of_ms}")
    return before


def restore_partition(work: RestoreWork, meter: Meter) -> PartitionRestored:
    """The body of a task. What an earlier run has sent is read again for the map, and not sent."""
    offsets = array("q")
    with Contents(kept=work.verify) as sent:
        entries = _noted(work, sent, offsets, meter)
        there = sum(1 for _ in islice(entries, work.sent))
        if there < work.sent:
            raise UsageError(
                f"{work.target} has {work.sent} records more than before the restore, {work.partition} only {there}: somebody "
                "else writes there; restore into a new topic"
            )
        work.cluster.send(work.target, entries)
        keys = _verified_keys(work, sent) if work.verify else None
        restored = Restored(
            partition=work.partition, records=sent.records, tombstones=sent.tombstones, keys=keys, verified=work.verify
        )  # fmt: skip
    return PartitionRestored(restored=restored, runs=runs_of(offsets, work.base))


def _noted(work: RestoreWork, sent: Contents, offsets: array[int], meter: Meter) -> Iterator[RecordEntry]:
    """Bytes by the share of the records: an entry does not tell how many it was made of."""
    total = max(sum(extent.records for extent in work.extents), 1)
    size, metered = sum(extent.length for extent in work.extents), 0
    for entry in records_in(work.store, work.extents, work.start_offset):
        yield entry
        sent.put(entry.key, entry.value)
        offsets.append(entry.offset)
        if sent.records - metered == RECORDS_PER_TOLD:
            meter.add(size * RECORDS_PER_TOLD // total, RECORDS_PER_TOLD)
            metered = sent.records
    meter.add(size * (sent.records - metered) // total, sent.records - metered)


def translate_group(
    lake: Lake, cluster: LiveCluster, group: str, offsets: OffsetMap, *, again: bool = False
) -> dict[int, tuple[int, int]]:
    """The group's offsets in the restored topic, set by the map: by partition (in the lake, in the topic).

    As it committed them for the topic in this cluster; if it did not, as the lake's copy of `__consumer_offsets` tells.
    `again`: it may have been done, so a group that has gone on since is refused."""
    committed = dict(cluster.group_offsets(group, offsets.topic)) if offsets.topic != offsets.to_topic else {}
    if not committed and GROUPS in lake.metastore.topics():
        parts = [partition for partition in lake.metastore.partitions() if partition.topic == GROUPS]
        entries = (entry for partition in parts for entry in records(lake, partition))
        committed = committed_in(entries, group, offsets.topic)
    if not committed:
        raise UsageError(
            f"group {group} has committed no offset of {offsets.topic}, as far as the cluster and the lake know"
        )
    moved = {number: (offset, offsets.translate(number, offset)) for number, offset in sorted(committed.items())}
    if again:
        for number, present in sorted(cluster.group_offsets(group, offsets.to_topic).items()):
            if number in moved and present != moved[number][1]:
                raise UsageError(
                    f"group {group} has gone on in {offsets.to_topic}: partition {number} is at {present}, the map says "
                    f"{moved[number][1]}; it is left as it is"
                )
    cluster.set_group_offsets(group, offsets.to_topic, {number: new for number, (_, new) in moved.items()})
    return moved


def _verified_keys(work: RestoreWork, sent: Contents) -> int:
    """The table that a consumer of the restored partition sees is the lake's, whatever the cluster has cleaned meanwhile.

    Of a topic that is not compacted every record, one after the other. How many keys have a value."""
    with Contents(kept=True) as consumed:
        for key, value in work.cluster.consume(work.target):
            consumed.put(key, value)
        tables = compared(sent, consumed)
        if tables.first_wrong is not None:
            key = _key_of(work, tables.first_wrong)
            raise Unfinished(
                f"{work.target}: {tables.wrong} keys are not as in the lake, such as {shown_bytes(key)}; do not use this topic"
            )
        if work.whole and consumed.order != sent.order:
            raise Unfinished(
                f"{work.target}: {consumed.records} records are there, {sent.records} were sent, and they are not the same; "
                "if retention.ms has taken some already, restore into a topic that keeps them"
            )
    return tables.keys


def _key_of(work: RestoreWork, digest: bytes) -> bytes | None:
    """Both sides are read once more: only digests were kept. None: the topic has changed meanwhile."""
    held = (entry.key for entry in records_in(work.store, work.extents, work.start_offset))
    consumed = (key for key, _ in work.cluster.consume(work.target))
    return next((key for key in chain(held, consumed) if key is not None and digest_of(key) == digest), None)
