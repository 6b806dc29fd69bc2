"""Copies of every replica of a partition, each read from its own broker over the wire, as log directories.

READ permission is enough, nothing is changed, and the rate is limited. Records below the replica's own high watermark, exactly
as it stores them: what cleaning has taken from it is missing here too.
"""

from __future__ import annotations

import bisect
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headstone.audit.views import ProducerSaid
from headstone.cluster.connection import Connection, Host, WireSettings, wire_settings
from headstone.cluster.refusals import OUT_OF_RANGE, error_name
from headstone.cluster.wire import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    BrokerConnection,
    ClusterState,
    PartitionState,
    ask_cluster,
)
from headstone.errors import CorruptLog, HeadstoneError, Unfinished, UsageError
from headstone.log.checkpoints import HIGH_WATERMARK, LOG_START, read_offsets, write_offsets
from headstone.log.directory import LOG, TXN_INDEX, numbered
from headstone.log.indexes import AbortedTxn, aborted_bytes
from headstone.log.layout import HEADER_BYTES, LAST_OFFSET_DELTA_AT
from headstone.log.listing import list_batches
from headstone.log.reading import SegmentFile
from headstone.log.shown import visible
from headstone.log.topic_partition import TOPIC_NAME, TOPIC_NAME_RULE, TopicPartition

if TYPE_CHECKING:
    from headstone.pipeline.auditing import PartitionAudit

FETCH_BYTES = 4 << 20
HEARD_SECONDS_MAX, HEARD_PAUSE_S = 5.0, 0.05
"""Ten times as long as a follower's fetch waits for records, unless somebody set that higher."""
BYTES_PER_SECOND = 50 << 20
PREFIX = struct.Struct(">qi")
LAST_DELTA = struct.Struct(">i")

Tell = Callable[[str], None]


@dataclass(slots=True)
class Pace:
    """So many bytes a second on the average, over all brokers."""

    bytes_per_second: int
    started: float = field(default_factory=time.monotonic)
    taken: int = 0

    def take(self, size: int) -> None:
        self.taken += size
        ahead = self.taken / self.bytes_per_second - (time.monotonic() - self.started)
        if ahead > 0:
            time.sleep(ahead)


@dataclass(slots=True, kw_only=True)
class Copied:
    """Directories by broker, one log directory each, and what could not be copied, by partition."""

    directories: dict[int, Path]
    stable: dict[tuple[str, int], int] = field(default_factory=dict)
    """By partition and broker: the last stable offset that the broker tells consumers."""
    problems: dict[str, list[str]] = field(default_factory=dict)
    failures: dict[tuple[str, int], HeadstoneError] = field(default_factory=dict)
    """By partition and broker: why that replica was not read."""
    leaders: dict[str, int] = field(default_factory=dict)

    def withheld(self, audited: PartitionAudit) -> dict[str, str]:
        """By replica: less is served to read_committed consumers than its own records say."""
        served = {
            facts.name: (self.stable[audited.partition, int(facts.name)], facts.stable_end)
            for facts in (audited.results[0].facts if audited.results else ())
        }
        return {
            name: f"broker {name} serves read_committed consumers up to {told} only; its records say {stable_end}"
            for name, (told, stable_end) in served.items()
            if told < stable_end
        }


class _Brokers:
    """Connections to the brokers of a cluster, one each; a broker that could not be reached is not asked again."""

    def __init__(self, metadata: ClusterState, settings: WireSettings, stack: ExitStack) -> None:
        self._metadata = metadata
        self._settings = settings
        self._stack = stack
        self._reached: dict[int, BrokerConnection | str] = {}

    def reach(self, number: int | None) -> BrokerConnection:
        if number is None:
            raise Unfinished("it has none")
        if number not in self._reached:
            try:
                self._reached[number] = self._stack.enter_context(self._connect(number))
            except Unfinished as error:
                self._reached[number] = str(error)
        broker = self._reached[number]
        if isinstance(broker, str):
            raise Unfinished(broker)
        return broker

    def _connect(self, number: int) -> BrokerConnection:
        node = self._metadata.brokers.get(number)
        if node is None:
            raise Unfinished("the cluster does not know where it is: it is off")
        return BrokerConnection(Host(node.host, node.port), self._settings)


def copy_replicas(
    connection: Connection, topics: Sequence[str], to: Path, *, bytes_per_second: int, tell: Tell
) -> Copied:
    """topics: none named is every topic that is not internal."""
    settings = wire_settings(connection)
    metadata = ask_cluster(connection, settings, list(topics) or None)
    wanted = {name: states for name, states in metadata.topics.items() if topics or not name.startswith("__")}
    _refuse_unknown(wanted, topics)
    if not wanted:
        raise Unfinished(f"{connection.address} shows no topic: there is none, or this user may describe none")
    copied = Copied(directories={})
    pace = Pace(bytes_per_second)
    with ExitStack() as stack:
        brokers = _Brokers(metadata, settings, stack)
        for topic, partitions in sorted(wanted.items()):
            for number, state in sorted(partitions.items()):
                partition = TopicPartition(topic, number)
                tell(f"{partition}: reading {len(state.replicas)} replicas")
                _copy_partition(brokers, partition, state, to, pace, copied)
    return copied


def copy_partition(
    connection: Connection, partition: TopicPartition, to: Path, *, last: int, bytes_per_second: int = BYTES_PER_SECOND
) -> Copied:
    """One partition: its leader's replica first and that of broker `last` at the end. A follower hears of what is committed
    with its next fetch: each is given a moment to have heard of all that the leader called so."""
    settings = wire_settings(connection)
    metadata = ask_cluster(connection, settings, [partition.topic])
    _refuse_unknown(metadata.topics, [partition.topic])
    state = metadata.topics[partition.topic].get(partition.number)
    if state is None:
        raise UsageError(f"topic {partition.topic}: it has no partition {partition.number}")
    leader = state.leader
    order = sorted(state.replicas, key=lambda broker: (broker == last, broker != leader))
    copied = Copied(directories={})
    with ExitStack() as stack:
        brokers = _Brokers(metadata, settings, stack)
        state = state._replace(replicas=tuple(order))
        _copy_partition(brokers, partition, state, to, Pace(bytes_per_second), copied, waits=True)
    return copied


def _copy_partition(
    brokers: _Brokers, partition: TopicPartition, state: PartitionState, to: Path, pace: Pace, copied: Copied, *,
    waits: bool = False,
) -> None:  # fmt: skip
    """`waits`: for those that are behind the first."""
    name, committed = str(partition), 0
    if state.leader is not None:
        copied.leaders[name] = state.leader
    try:
        start = brokers.reach(state.leader).earliest(partition)
    except Unfinished as error:
        copied.problems.setdefault(name, []).append(f"its leader does not say where the log begins: {error}")
        copied.failures.update({(name, broker): error for broker in state.replicas})
        return
    for broker in state.replicas:
        try:
            reached = brokers.reach(broker)
            if waits:
                committed = max(committed, _wait_heard(reached, partition, start, committed))
            copied.stable[name, broker] = _copy(reached, partition, start, to / str(broker), pace)
            copied.directories[broker] = to / str(broker)
        except (Unfinished, CorruptLog) as error:
            copied.failures[name, broker] = error
            problem = f"the replica on broker {broker} was not read: {error}"
            copied.problems.setdefault(name, []).append(problem)


def ask_producers(connection: Connection, partition: TopicPartition, broker: int) -> tuple[ProducerSaid, ...] | None:
    """What the broker says of producers on its replica; None if it does not: before 2.8 it does not know the question."""
    try:
        settings = wire_settings(connection)
        node = ask_cluster(connection, settings, [partition.topic]).brokers[broker]
        with BrokerConnection(Host(node.host, node.port), settings) as reached:
            return reached.producers(partition)
    except (Unfinished, KeyError):
        return None


def _refuse_unknown(described: Mapping[str, Mapping[int, object]], topics: Sequence[str]) -> None:
    """Before anything is copied. A broker may tell of topics that nobody asked for: all names become folders here."""
    for topic in described:
        if not TOPIC_NAME.fullmatch(topic):
            raise Unfinished(
                f"topic {visible(topic)}: no name of Kafka's ({TOPIC_NAME_RULE}), though a broker tells of it: nothing was "
                "copied"
            )
    for topic in topics or described:
        state = described.get(topic, {}).get(-1)
        if topic not in described or state is not None:
            why = error_name(state[0]) if isinstance(state, tuple) else "no such topic"
            raise UsageError(f"topic {topic}: {why}")


def _wait_heard(broker: BrokerConnection, partition: TopicPartition, start: int, committed: int) -> int:
    """The high watermark of its replica, once that is at `committed`; or what it is when the time is over."""
    deadline = time.monotonic() + HEARD_SECONDS_MAX
    while True:
        answer = broker.fetch(partition, start, bytes_max=1, isolation=READ_UNCOMMITTED)
        if answer.error or answer.high_watermark >= committed or time.monotonic() > deadline:
            return answer.high_watermark
        time.sleep(HEARD_PAUSE_S)


def _copy(broker: BrokerConnection, partition: TopicPartition, start: int, log_dir: Path, pace: Pace) -> int:
    """The replica from `start` to the high watermark that it had when the copy began; its last stable offset.

    As read_committed as far as that goes, because then the broker tells which transactions it takes for aborted."""
    first = broker.fetch(partition, start, bytes_max=FETCH_BYTES, isolation=READ_COMMITTED)
    if first.error == OUT_OF_RANGE:
        raise Unfinished(f"offset {start}, where its leader's log begins, is out of its range")
    if first.error:
        raise Unfinished(error_name(first.error))
    directory = log_dir / str(partition)
    directory.mkdir(parents=True)
    end, stable = first.high_watermark, min(first.last_stable_offset, first.high_watermark)
    log = directory / numbered(start, LOG)
    aborted = set(first.aborted)
    offset, answer, isolation = start, first, READ_COMMITTED
    with open(log, "wb") as file:
        while True:
            whole, following = whole_batches(answer.records, offset, end)
            file.write(whole)
            pace.take(len(answer.records))
            aborted.update(answer.aborted)
            if following >= end:
                break
            stuck = following == offset
            if stuck and isolation == READ_UNCOMMITTED:
                raise Unfinished(f"nothing came behind offset {offset}, though it has records up to {end}")
            offset, isolation = following, READ_UNCOMMITTED if stuck or following >= stable else READ_COMMITTED
            answer = broker.fetch(partition, offset, bytes_max=FETCH_BYTES, isolation=isolation)
            if answer.error:
                raise Unfinished(f"offset {offset}: {error_name(answer.error)}")
    write_aborted_index(log, start, aborted)
    write_partition_offset(log_dir / HIGH_WATERMARK, partition, end)
    write_partition_offset(log_dir / LOG_START, partition, max(first.log_start, start))
    return stable


def write_aborted_index(log: Path, base: int, aborted: set[tuple[int, int]]) -> None:
    """The broker's own `.txnindex`, as far as it told: where each ends is where its ABORT is."""
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
    """The batches of an answer that are whole and below `end`, and the offset behind them; the last may be cut off.

    A batch that begins at `end` or behind it says that there is nothing more before it: cleaning has left a gap there."""
    position = start = 0
    following = offset
    while position + LAST_OFFSET_DELTA_AT + LAST_DELTA.size <= len(data):
        base, length = PREFIX.unpack_from(data, position)
        if length < HEADER_BYTES - PREFIX.size:
            raise Unfinished(f"what it sent behind offset {following} is not a record batch")
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
