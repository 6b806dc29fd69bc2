"""A topic of the lake back into Kafka, tombstones included, and the proof that it arrived: a task per partition.

Into an empty topic, in offset order. Keys, values, headers and timestamps are kept; offsets are new, and an offset map records
them. A record without a timestamp, or with 0, gets the time of the restore: clients can't send it otherwise. Verification reads
the topic back as a read_committed consumer and compares its table with the lake's.

With an offset map an interrupted restore can continue: the map has the moment that is restored, what the log consisted of then,
and where each partition ended before. Records arrive in order, once each, and none without all before it. So the number of
records that are there is the growth of the log. A task asks for it when it begins, because it may not be the first to run.
Nothing else may write to the topic meanwhile. A task that was given up but is still running could, but every record is
acknowledged with its offset: if one is not in its place, or the log has another end, the restore ends for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

from headstone import units
from headstone.errors import NotResumable, Unfinished, UsageError
from headstone.lake.format.extents import Extent
from headstone.lake.jobs.job import Stopped
from headstone.lake.jobs.keeping import name_of_worker
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Partition, no_topic
from headstone.lake.metastore.pins import pinned
from headstone.lake.metastore.scheduling import POLICY, POLICY_UNKNOWN, not_compacted
from headstone.lake.transfer.group_offsets import GROUPS, committed_in
from headstone.lake.transfer.live import LiveTopic, SourceCluster
from headstone.lake.transfer.offset_map import OffsetMap, read_map
from headstone.lake.transfer.offset_runs import GrowingRuns, Runs
from headstone.lake.transfer.reading import records, records_in, snapshots
from headstone.lake.transfer.restore_request import RestoreMeans, RestoreRequest
from headstone.lake.transfer.restored_contents import Contents, compared, digest_of
from headstone.log.listing import RecordEntry
from headstone.log.shown import shown_bytes
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import LocalStop, Stop, never
from headstone.pipeline.progress import Meter
from headstone.pipeline.work import answers
from headstone.retention.settings import kafka_settings
from headstone.storage.stores import Store

RECORDS_PER_TOLD = 10_000
ANEW = "delete the topic and the offset map, then start over"

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    partition: TopicPartition
    records: int
    """Including those that an earlier run has sent."""
    tombstones: int
    keys: int | None
    """Number of keys with a value; None if it was not verified."""
    verified: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreWork:
    """A task: one partition."""

    partition: TopicPartition
    target: TopicPartition
    store: Store
    extents: tuple[Extent, ...]
    start_offset: int
    cluster: SourceCluster
    base: int
    """Where the target ended before its first record came."""
    verify: bool
    whole: bool
    """Compare every record, not only the table."""
    mapped: bool
    """Record the new offsets."""
    stop: Stop = never
    """Send no further record; what was sent is acknowledged first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRestored:
    restored: Restored
    runs: Runs | None


def restore(
    lake: Lake, request: RestoreRequest, cluster: SourceCluster, means: RestoreMeans, *, tell: Tell = lambda text: None
) -> tuple[list[Restored], OffsetMap]:
    """Creates a missing topic with the lake's number of partitions. The returned offset map is finished only if one was
    requested."""
    topic, to_topic, map_file = request.topic, request.to_topic, request.map_file
    partitions = [partition for partition in lake.metastore.partitions() if partition.topic == topic]
    if not partitions:
        raise no_topic(topic, lake.metastore.topics())
    before = read_map(map_file) if map_file is not None else None
    if before is not None:
        _expect_unfinished(before, lake, request)
        tell(f"resuming the restore of {topic} as of {units.exact_moment(before.as_of_ms)}")
    settings = lake.metastore.topics()[topic]
    pinned_ms = request.as_of_ms if before is None else before.as_of_ms
    with pinned(lake.metastore, name_of_worker("restore"), as_of_ms=pinned_ms):
        live = _made_or_found(cluster, to_topic, len(partitions), settings, request.copies)
        if before is None:
            _refuse_full(to_topic, live)
        moment_ms = lake.metastore.clock() if pinned_ms is None else pinned_ms
        states = snapshots(lake, partitions, moment_ms if map_file is not None else request.as_of_ms)
        begun = before or _begun(lake, request, moment_ms, states, live)
        _refuse_changed(begun, states)
        if before is None and map_file is not None:
            begun.write(map_file)
        works = [
            RestoreWork(
                partition=partition, target=TopicPartition(to_topic, partition.number), store=lake.store,
                extents=states[partition].extents, start_offset=start, cluster=cluster, base=base, verify=request.verify,
                whole=not_compacted(settings) is not None, mapped=request.mapped, stop=LocalStop(means.stop),
            )
            for partition, start, base in zip(partitions, begun.starts, begun.bases, strict=True)
        ]  # fmt: skip
        done = _run(works, means, begun, map_file)
    runs = {one.restored.partition.number: one.runs for one in done if one.runs is not None}
    ended = replace(begun, finished=len(runs) == len(done), runs=runs)
    if map_file is not None:
        ended.write(map_file)
    return [one.restored for one in done], ended


def _begun(
    lake: Lake, request: RestoreRequest, moment_ms: int, states: Mapping[TopicPartition, Partition], live: LiveTopic
) -> OffsetMap:
    now = snapshots(lake, sorted(states), request.as_of_ms)
    return OffsetMap(
        lake_id=lake.metastore.lake_id, topic=request.topic, to_topic=request.to_topic, as_of_ms=moment_ms, bases=live.ends,
        starts=tuple(now[partition].start_offset for partition in sorted(states)), fingerprints=_fingerprints(states),
    )  # fmt: skip


def _fingerprints(states: Mapping[TopicPartition, Partition]) -> tuple[str, ...]:
    """Of what the log of each partition consists of."""
    return tuple(
        digest_of("".join(map(_line, states[partition].extents)).encode()).hex() for partition in sorted(states)
    )


def _line(extent: Extent) -> str:
    return f"{extent.span.start} {extent.span.end} {extent.object_id} {extent.position} {extent.dead_object} {extent.dead}\n"


def _refuse_changed(begun: OffsetMap, states: Mapping[TopicPartition, Partition]) -> None:
    """A commit under way when the restore began has an older time: the first run did not see it, the next one does."""
    for partition, then, now in zip(sorted(states), begun.fingerprints, _fingerprints(states), strict=True):
        if then != now:
            raise NotResumable(
                f"{partition} as of {units.exact_moment(begun.as_of_ms)} has changed since the restore began: a commit was in "
                f"progress then, or it is another lake; {ANEW}"
            )


def _run(
    works: Sequence[RestoreWork], means: RestoreMeans, begun: OffsetMap, map_file: Path | None
) -> list[PartitionRestored]:
    if means.board is not None:
        means.board.expect(sum(extent.length for work in works for extent in work.extents))
    ended: dict[int, PartitionRestored | Exception] = {}
    for number, answer in means.engine.as_they_end(restore_partition, works, means.board, stop=works[0].stop):
        ended[number] = answer
        if isinstance(answer, NotResumable) and map_file is not None:
            # At once: if this process is killed before the others end, the next run would continue as if nothing had happened.
            replace(begun, not_resumable=str(answer)).write(map_file)
    outcomes = [ended[number] for number in sorted(ended)]
    for outcome in outcomes:
        if isinstance(outcome, NotResumable):
            raise NotResumable(f"{outcome}; {ANEW}")
    done: list[PartitionRestored] = answers([outcome for outcome in outcomes if not isinstance(outcome, Stopped)])
    if len(done) < len(works):
        goes_on = "run the same command again to continue"
        begins = "without an offset map it cannot be resumed: delete the topic, then start over"
        advice = begins if map_file is None else goes_on
        raise Unfinished(f"stopped: {len(done)} of {units.count(len(works), 'partition')} restored; {advice}")
    return done


def _made_or_found(
    cluster: SourceCluster, topic: str, partitions: int, settings: Mapping[str, object], copies: int
) -> LiveTopic:
    live = cluster.describe([topic]).get(topic)
    if live is None:
        config = {POLICY: "compact"} | kafka_settings(settings)
        if config[POLICY] == POLICY_UNKNOWN:
            raise UsageError(f"{not_compacted(settings)}; or create the topic {topic} yourself, then restore into it")
        cluster.create_topic(topic, partitions=partitions, copies=copies, settings=config)
        live = cluster.describe([topic])[topic]
    if len(live.starts) != partitions:
        raise UsageError(
            f"topic {topic} has {units.count(len(live.starts), 'partition')}, but the lake's has {partitions}"
        )
    return live


def _refuse_full(topic: str, live: LiveTopic) -> None:
    for number, (start, end) in enumerate(zip(live.starts, live.ends, strict=True)):
        if start != end:
            target = TopicPartition(topic, number)
            raise UsageError(
                f"{target} is not empty ([{start}, {end})): restore into a new topic, or resume with the --offset-map of the "
                "interrupted restore"
            )


def finished_map(lake: Lake, request: RestoreRequest) -> OffsetMap | None:
    """The map of this restore if it is complete: then only groups are left to translate."""
    offsets = read_map(request.map_file) if request.map_file is not None else None
    if offsets is None:
        return None
    _expect_same(offsets, lake, request)
    return offsets if offsets.finished else None


def _expect_same(before: OffsetMap, lake: Lake, request: RestoreRequest) -> None:
    as_of_ms = before.as_of_ms if request.as_of_ms is None else request.as_of_ms
    wanted = (lake.metastore.lake_id, request.topic, request.to_topic, as_of_ms)
    if (before.lake_id, before.topic, before.to_topic, before.as_of_ms) != wanted:
        raise UsageError(
            f"the offset map is for {before.topic} into {before.to_topic} as of {units.exact_moment(before.as_of_ms)}; name "
            "another file"
        )


def _expect_unfinished(before: OffsetMap, lake: Lake, request: RestoreRequest) -> None:
    _expect_same(before, lake, request)
    if before.finished:
        raise UsageError(f"{before.topic} was restored into {before.to_topic}: the offset map is complete")
    if before.not_resumable:
        raise NotResumable(f"cannot resume {before.to_topic}: {before.not_resumable}; {ANEW}")


def restore_partition(work: RestoreWork, meter: Meter) -> PartitionRestored:
    """The body of a task. Reads again, for the map, what an earlier run or an earlier restore has sent."""
    runs = GrowingRuns(work.base) if work.mapped else None
    end = work.cluster.log_end(work.target)
    if end < work.base:
        raise NotResumable(
            f"{work.target} ends at {end}, but ended at {work.base} before the restore: it is another topic"
        )
    with Contents(kept=work.verify) as sent:
        entries = _noted(work, sent, runs, meter)
        there = sum(1 for _ in islice(entries, end - work.base))
        _expect_to_go_on(work)
        if there < end - work.base:
            raise NotResumable(
                f"{work.target} has {units.count(end - work.base, 'record')} more than before the restore, but "
                f"{work.partition} has only {there}: something else writes to it"
            )
        work.cluster.send(work.target, entries, offset=end)
        _expect_end(work, sent.records)
        _expect_to_go_on(work)
        keys = _verified_keys(work, sent) if work.verify else None
        restored = Restored(
            partition=work.partition, records=sent.records, tombstones=sent.tombstones, keys=keys, verified=work.verify
        )  # fmt: skip
        _expect_end(work, sent.records)  # whoever was given up and lives on has had all this time
    return PartitionRestored(restored=restored, runs=None if runs is None else runs.ended())


def _expect_to_go_on(work: RestoreWork) -> None:
    if work.stop():
        raise Stopped(f"{work.target}: stopped; what was sent is acknowledged")


def _expect_end(work: RestoreWork, sent: int) -> None:
    end, expected = work.cluster.log_end(work.target), work.base + sent
    if end != expected:
        raise NotResumable(
            f"{work.target} ends at {end}, expected {expected} after {units.count(sent, 'record')} of {work.partition}: "
            "something else writes to it, or a task that was given up"
        )


def _noted(work: RestoreWork, sent: Contents, runs: GrowingRuns | None, meter: Meter) -> Iterator[RecordEntry]:
    """Ends early at a stop. Bytes by the share of the records: an entry does not tell how many bytes it was made of."""
    total = max(sum(extent.records for extent in work.extents), 1)
    size, metered = sum(extent.length for extent in work.extents), 0
    for entry in records_in(work.store, work.extents, work.start_offset):
        if work.stop():
            break  # no error: the sender then waits for records under way
        yield entry
        sent.put(entry.key, entry.value)
        if runs is not None:
            runs.put(entry.offset)
        if sent.records - metered == RECORDS_PER_TOLD:
            meter.add(size * RECORDS_PER_TOLD // total, RECORDS_PER_TOLD)
            metered = sent.records
    meter.add(size * (sent.records - metered) // total, sent.records - metered)


def translate_group(
    lake: Lake,
    cluster: SourceCluster,
    group: str,
    offsets: OffsetMap,
    *,
    again: bool = False,
    tell: Tell = lambda text: None,
) -> dict[int, tuple[int, int]]:
    """Sets the group's offsets in the restored topic by the map. Returns, by partition, (offset in the lake, in the topic).

    Uses what it committed for the topic in this cluster; if nothing, what the lake's copy of `__consumer_offsets` says.
    Partitions added to the topic later are not in the map: they are skipped and reported. `again`: this may have been done
    before, so a group that has moved on since is refused."""
    committed = dict(cluster.group_offsets(group, offsets.topic)) if offsets.topic != offsets.to_topic else {}
    if not committed and GROUPS in lake.metastore.topics():
        parts = [partition for partition in lake.metastore.partitions() if partition.topic == GROUPS]
        entries = (entry for partition in parts for entry in records(lake, partition))
        committed = committed_in(entries, group, offsets.topic)
    if not committed:
        raise UsageError(
            f"group {group} has no committed offsets for {offsets.topic}, neither in the cluster nor in the lake"
        )
    moved = {
        number: (offset, offsets.translate(number, offset))
        for number, offset in sorted(committed.items())
        if number in offsets.partitions
    }
    if unknown := sorted(committed.keys() - moved.keys()):
        tell(
            f"group {group}: partitions {', '.join(map(str, unknown))} of {offsets.topic} are not in the map and not set in "
            f"{offsets.to_topic}: they were added after the restore"
        )
    if again:
        for number, present in sorted(cluster.group_offsets(group, offsets.to_topic).items()):
            if number in moved and present != moved[number][1]:
                raise UsageError(
                    f"group {group} has already moved on in {offsets.to_topic}: partition {number} is at {present}, the map "
                    f"says {moved[number][1]}; nothing was set"
                )
    if moved:
        cluster.set_group_offsets(group, offsets.to_topic, {number: new for number, (_, new) in moved.items()})
    return moved


def _verified_keys(work: RestoreWork, sent: Contents) -> int:
    """A consumer of the restored partition gets the lake's table, whatever the cluster has cleaned meanwhile.

    For a topic that is not compacted, compares every record in order. Returns the number of keys with a value."""
    with Contents(kept=True) as consumed:
        for key, value in work.cluster.consume(work.target):
            _expect_to_go_on(work)
            consumed.put(key, value)
        tables = compared(sent, consumed)
        if tables.first_wrong is not None:
            key = _key_of(work, tables.first_wrong)
            raise Unfinished(
                f"{work.target}: differs from the lake in {units.count(tables.wrong, 'key')}, such as {shown_bytes(key)}; do "
                "not use this topic"
            )
        if work.whole and consumed.order != sent.order:
            raise Unfinished(
                f"{work.target}: {units.count(consumed.records, 'record')} found, {sent.records} sent, and they differ; if "
                "retention.ms has deleted some already, restore into a topic that keeps them"
            )
    return tables.keys


def _key_of(work: RestoreWork, digest: bytes) -> bytes | None:
    """Reads both sides once more, because only digests were kept. None: the topic has changed meanwhile."""
    held = (entry.key for entry in records_in(work.store, work.extents, work.start_offset))
    consumed = (key for key, _ in work.cluster.consume(work.target))
    return next((key for key in chain(held, consumed) if key is not None and digest_of(key) == digest), None)
