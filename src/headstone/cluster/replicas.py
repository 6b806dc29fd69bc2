"""Copies every replica of a partition, each from its own broker over the wire, into log directories.

READ is enough; nothing is changed, and the rate is limited. Copies the records below the replica's own high watermark exactly
as it stores them: what cleaning has removed there is missing here too.
"""

from __future__ import annotations

import bisect
import shutil
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from headstone import units
from headstone.cluster.connection import Connection, Host, WireSettings, wire_settings
from headstone.cluster.defaults import BYTES_PER_SECOND
from headstone.cluster.refusals import OUT_OF_RANGE, Passing, error_name, unfinished
from headstone.cluster.wire import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    BrokerConnection,
    ClusterState,
    PartitionState,
    ask_cluster,
)
from headstone.errors import CorruptLog, HeadstoneError, Unfinished, UsageError
from headstone.interruption import sleep
from headstone.log.checkpoints import (
    HIGH_WATERMARK,
    LOG_START,
    PARTITION_METADATA,
    read_offsets,
    write_offsets,
    write_topic_id,
)
from headstone.log.cluster_metadata import write_meta_properties
from headstone.log.directory import LOG, TXN_INDEX, numbered
from headstone.log.indexes import AbortedTxn, aborted_bytes
from headstone.log.layout import HEADER_BYTES, LAST_OFFSET_DELTA_AT
from headstone.log.listing import list_batches
from headstone.log.reading import SegmentFile
from headstone.log.shown import visible
from headstone.log.topic_partition import TOPIC_NAME, TOPIC_NAME_RULE, TopicPartition

FETCH_BYTES = 4 << 20
HEARD_SECONDS_MAX, HEARD_PAUSE_S = 5.0, 0.05
"""Ten times as long as a follower's fetch waits for records, unless that was configured higher."""
TAIL_FETCHES_MAX = 16
"""Bounds how much is read of what was written while a replica was read."""
SETTLE_SECONDS_MAX, SETTLE_PAUSE_S, SETTLE_TRIES_MAX = 30.0, 0.2, 10
"""For leaders that change and logs that move on while they are read: limits for one run, one pause, one replica."""
PREFIX = struct.Struct(">qi")
LAST_DELTA = struct.Struct(">i")

Tell = Callable[[str], None]
K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class Pace:
    """Limits the average rate over all brokers to this many bytes per second."""

    bytes_per_second: int
    started: float = field(default_factory=time.monotonic)
    taken: int = 0

    def take(self, size: int) -> None:
        self.taken += size
        ahead = self.taken / self.bytes_per_second - (time.monotonic() - self.started)
        if ahead > 0:
            sleep(ahead)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedReplicas:
    """By broker, a log directory; by partition, what could not be copied."""

    directories: Mapping[int, Path]
    stable: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """By partition and broker: the last stable offset that the broker reports to consumers."""
    problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    failures: Mapping[tuple[str, int], HeadstoneError] = field(default_factory=dict)
    """By partition and broker: why that replica was not read."""
    leaders: Mapping[str, int] = field(default_factory=dict)


class _Brokers:
    """One connection to each broker of a cluster; a broker that could not be reached is not tried again."""

    def __init__(
        self, connection: Connection, metadata: ClusterState, settings: WireSettings, stack: ExitStack
    ) -> None:  # fmt: skip
        self._connection = connection
        self._metadata = metadata
        self._settings = settings
        self._stack = stack
        self._reached: dict[int, BrokerConnection | str] = {}
        self._ids: dict[int, ClusterState | None] = {}
        self._patience_s = SETTLE_SECONDS_MAX

    def pause(self) -> bool:
        """False if this run has waited long enough for a cluster to settle."""
        if self._patience_s <= 0:
            return False
        self._patience_s -= SETTLE_PAUSE_S
        sleep(SETTLE_PAUSE_S)
        return True

    def leader_now(self, partition: TopicPartition) -> int | None:
        self._metadata = ask_cluster(self._connection, self._settings, [partition.topic], proved=True)
        state = self._metadata.topics.get(partition.topic, {}).get(partition.number)
        return None if state is None else state.leader

    def reach(self, number: int | None) -> BrokerConnection:
        if number is None:
            raise Passing("it has none")
        if number not in self._reached:
            try:
                self._reached[number] = self._stack.enter_context(self._connect(number))
            except Unfinished as error:
                self._reached[number] = str(error)
        broker = self._reached[number]
        if isinstance(broker, str):
            raise Unfinished(broker)
        return broker

    def ids(self, number: int) -> ClusterState | None:
        """What this broker itself says of its cluster and topics; asked once, when its first replica was read.

        On its own connection: a broker before 2.8 does not know the request, and closes the connection."""
        if number not in self._ids:
            try:
                with self._connect(number) as broker:
                    self._ids[number] = broker.metadata(sorted(self._metadata.topics), with_ids=True)
            except Unfinished:
                self._ids[number] = None
        return self._ids[number]

    def _connect(self, number: int) -> BrokerConnection:
        node = self._metadata.brokers.get(number)
        if node is None:
            raise Unfinished("its address is unknown to the cluster: it is down")
        return BrokerConnection(Host(node.host, node.port), self._settings, proved=True)


def copy_replicas(
    connection: Connection, topics: Sequence[str], to: Path, *, bytes_per_second: int, tell: Tell
) -> CopiedReplicas:
    """If `topics` is empty: every topic that is not internal."""
    settings = wire_settings(connection)
    metadata = ask_cluster(connection, settings, list(topics) or None)
    wanted = {name: states for name, states in metadata.topics.items() if topics or not name.startswith("__")}
    _refuse_unknown(wanted, topics)
    if not wanted:
        raise Unfinished(f"{connection.address} lists no topics: there are none, or this user may not describe any")
    copied: list[CopiedReplicas] = []
    pace = Pace(bytes_per_second)
    with ExitStack() as stack:
        brokers = _Brokers(connection, metadata, settings, stack)
        for topic, partitions in sorted(wanted.items()):
            for number, state in sorted(partitions.items()):
                partition = TopicPartition(topic, number)
                tell(f"{partition}: reading {units.count(len(state.replicas), 'replica')}")
                copied.append(_copy_partition(brokers, partition, state, to, pace))
    return CopiedReplicas(
        directories=_merged(one.directories for one in copied), stable=_merged(one.stable for one in copied),
        problems=_merged(one.problems for one in copied), failures=_merged(one.failures for one in copied),
        leaders=_merged(one.leaders for one in copied),
    )  # fmt: skip


def _merged(parts: Iterable[Mapping[K, V]]) -> dict[K, V]:
    return {key: value for part in parts for key, value in part.items()}


def copy_partition(
    connection: Connection, partition: TopicPartition, to: Path, *, last: int, bytes_per_second: int = BYTES_PER_SECOND
) -> CopiedReplicas:
    """One partition: its leader's replica first, that of broker `last` at the end. A follower learns what is committed with its
    next fetch, so each is given a moment to learn of everything that the leader called committed. The caller must have reached
    the cluster before."""
    settings = wire_settings(connection)
    metadata = ask_cluster(connection, settings, [partition.topic], proved=True)
    _refuse_unknown(metadata.topics, [partition.topic])
    state = metadata.topics[partition.topic].get(partition.number)
    if state is None:
        raise UsageError(f"topic {partition.topic}: no partition {partition.number}")
    with ExitStack() as stack:
        brokers = _Brokers(connection, metadata, settings, stack)
        return _copy_partition(brokers, partition, state, to, Pace(bytes_per_second), last=last)


def _copy_partition(
    brokers: _Brokers, partition: TopicPartition, state: PartitionState, to: Path, pace: Pace, *, last: int | None = None
) -> CopiedReplicas:  # fmt: skip
    """`last`: this broker is read at the end, after the leader; then each replica is given time to learn what the leader
    has."""
    name, committed = str(partition), 0
    try:
        leader, start = _beginning(brokers, partition, state.leader)
    except Unfinished as error:
        problem = f"its leader does not say where the log begins: {error}"
        failures = {(name, broker): error for broker in state.replicas}
        return CopiedReplicas(directories={}, problems={name: (problem,)}, failures=failures)
    directories: dict[int, Path] = {}
    stable: dict[tuple[str, int], int] = {}
    failed: dict[tuple[str, int], HeadstoneError] = {}
    order = state.replicas
    if last is not None:
        order = tuple(sorted(order, key=lambda broker: (broker == last, broker != leader)))
    for broker in order:
        try:
            reached = brokers.reach(broker)
            if last is not None:
                committed = max(committed, _wait_heard(reached, partition, start, committed))
            stable[name, broker] = _copy_settled(brokers, reached, partition, start, to / str(broker), pace)
            _note_ids(brokers, broker, partition, to / str(broker))
            directories[broker] = to / str(broker)
        except (Unfinished, CorruptLog) as error:
            failed[name, broker] = error
    problems = tuple(f"the replica on broker {broker} was not read: {error}" for (_, broker), error in failed.items())
    return CopiedReplicas(
        directories=directories, stable=stable, problems={name: problems} if problems else {}, failures=failed,
        leaders={name: leader},
    )  # fmt: skip


def _beginning(brokers: _Brokers, partition: TopicPartition, leader: int | None) -> tuple[int, int]:
    """The leader, and where it says that the log begins. Leaders change: asks the present one, after a pause if necessary."""
    while True:
        try:
            start = brokers.reach(leader).earliest(partition)
        except Unfinished as error:
            before, leader = leader, brokers.leader_now(partition)
            if (leader == before and not isinstance(error, Passing)) or not brokers.pause():
                raise
            continue
        assert leader is not None
        return leader, start


def _copy_settled(
    brokers: _Brokers, broker: BrokerConnection, partition: TopicPartition, start: int, log_dir: Path, pace: Pace
) -> int:
    """Copies again from the beginning if the log moved on while it was read, or its broker was just changing roles."""
    for tries in range(1, SETTLE_TRIES_MAX + 1):
        try:
            return _copy(broker, partition, start, log_dir, pace)
        except Passing:
            before = start
            _, start = _beginning(brokers, partition, brokers.leader_now(partition))
            if tries == SETTLE_TRIES_MAX or (start == before and not brokers.pause()):
                raise
            shutil.rmtree(log_dir / str(partition), ignore_errors=True)
    raise AssertionError("the last try raises")


def _note_ids(brokers: _Brokers, broker: int, partition: TopicPartition, log_dir: Path) -> None:
    """Writes beside the copy, as beside a log on disk, which topic of which cluster this broker takes it for."""
    state = brokers.ids(broker)
    if state is None:
        return
    write_meta_properties(log_dir, {"cluster.id": state.cluster_id})
    topic_id = state.topic_ids.get(partition.topic)
    if topic_id is not None:
        write_topic_id(log_dir / str(partition) / PARTITION_METADATA, topic_id)


def _refuse_unknown(described: Mapping[str, Mapping[int, object]], topics: Sequence[str]) -> None:
    """Before anything is copied. A broker may report topics that nobody asked for, and all names become folders here."""
    for topic in described:
        if not TOPIC_NAME.fullmatch(topic):
            raise Unfinished(
                f"topic {visible(topic)}: a broker reports this topic, but the name is invalid ({TOPIC_NAME_RULE}): nothing "
                "was copied"
            )
    for topic in topics or described:
        state = described.get(topic, {}).get(-1)
        if topic not in described or state is not None:
            why = error_name(state[0]) if isinstance(state, tuple) else "no such topic"
            raise UsageError(f"topic {topic}: {why}")


def _wait_heard(broker: BrokerConnection, partition: TopicPartition, start: int, committed: int) -> int:
    """Its replica's high watermark, once that has reached `committed`; or as it is when the time is over."""
    deadline = time.monotonic() + HEARD_SECONDS_MAX
    while True:
        answer = broker.fetch(partition, start, bytes_max=1, isolation=READ_UNCOMMITTED)
        if answer.error or answer.high_watermark >= committed or time.monotonic() > deadline:
            return answer.high_watermark
        sleep(HEARD_PAUSE_S)


def _copy(broker: BrokerConnection, partition: TopicPartition, start: int, log_dir: Path, pace: Pace) -> int:
    """Copies the replica from `start` to the high watermark at the time when the copy began, which counts; returns its last
    stable offset.

    Reads as read_committed as far as that goes, because then the broker reports which transactions it takes for aborted.

    Its cleaner runs meanwhile: a record that it removes before it was read is superseded by a later one. So the copy continues
    up to an answer that reaches the end: the comparison then sees that the key was written again, above what counts."""
    first = broker.fetch(partition, start, bytes_max=FETCH_BYTES, isolation=READ_COMMITTED)
    if first.error == OUT_OF_RANGE:
        raise Passing(f"offset {start}, where the leader's log starts, is out of its range")
    if first.error:
        raise unfinished(error_name(first.error), first.error)
    directory = log_dir / str(partition)
    directory.mkdir(parents=True)
    end, stable = first.high_watermark, min(first.last_stable_offset, first.high_watermark)
    log = directory / numbered(start, LOG)
    aborted = set(first.aborted)
    offset, answer, isolation = start, first, READ_COMMITTED
    behind_end = 0
    with open(log, "wb") as file:
        while True:
            reach = max(end, answer.high_watermark)
            whole, following = whole_batches(answer.records, offset, reach)
            file.write(whole)
            pace.take(len(answer.records))
            aborted.update(answer.aborted)
            if following >= end:
                behind_end += 1
                if following >= reach or behind_end > TAIL_FETCHES_MAX:
                    break
            stuck = following == offset
            if stuck and isolation == READ_UNCOMMITTED:
                raise Unfinished(f"no data after offset {offset}, although it has records up to {end}")
            offset, isolation = following, READ_UNCOMMITTED if stuck or following >= stable else READ_COMMITTED
            answer = broker.fetch(partition, offset, bytes_max=FETCH_BYTES, isolation=isolation)
            if answer.error == OUT_OF_RANGE:
                raise Passing(f"offset {offset} was deleted while it was read")
            if answer.error:
                raise unfinished(f"offset {offset}: {error_name(answer.error)}", answer.error)
    write_aborted_index(log, start, aborted)
    write_partition_offset(log_dir / HIGH_WATERMARK, partition, end)
    write_partition_offset(log_dir / LOG_START, partition, max(first.log_start, start))
    return stable


def write_aborted_index(log: Path, base: int, aborted: set[tuple[int, int]]) -> None:
    """The broker's own `.txnindex`, as far as it was reported: each transaction ends at its ABORT."""
    if not aborted:
        return
    size = log.stat().st_size
    segment = SegmentFile(path=str(log), base=base, size=size, mtime_ms=0, index_bytes=0, time_index_bytes=0)
    batches = list_batches(segment, with_records=False)
    markers: dict[int, list[int]] = {}
    for batch in batches:
        if batch.control == "ABORT":
            markers.setdefault(batch.producer_id, []).append(batch.base_offset)
    entries = []
    for producer_id, first_offset in sorted(aborted, key=lambda txn: txn[1]):
        ends = markers.get(producer_id, [])
        nearest = bisect.bisect_left(ends, first_offset)
        if nearest < len(ends):
            entries.append(
                AbortedTxn(
                    last_offset=ends[nearest], first_offset=first_offset, producer_id=producer_id, lso=first_offset
                )
            )
    if entries:
        log.with_suffix(TXN_INDEX).write_bytes(aborted_bytes(entries))


def whole_batches(data: bytes, offset: int, end: int) -> tuple[bytes, int]:
    """The whole batches of an answer below `end`, and the offset after them; the last may be cut off.

    A batch that begins at `end` or above shows that nothing is left below it: cleaning has left a gap there."""
    position = start = 0
    following = offset
    while position + LAST_OFFSET_DELTA_AT + LAST_DELTA.size <= len(data):
        base, length = PREFIX.unpack_from(data, position)
        if length < HEADER_BYTES - PREFIX.size:
            raise Unfinished(f"the data after offset {following} is not a record batch")
        last = base + LAST_DELTA.unpack_from(data, position + LAST_OFFSET_DELTA_AT)[0]
        if last >= end:
            return data[start:position], end
        if position + PREFIX.size + length > len(data):
            break
        position += PREFIX.size + length
        if last < offset:
            start = position
        following = max(following, last + 1)
    return data[start:position], following


def write_partition_offset(path: Path, partition: TopicPartition, offset: int) -> None:
    offsets = read_offsets(path) if path.exists() else {}
    write_offsets(path, {**offsets, partition: offset})
