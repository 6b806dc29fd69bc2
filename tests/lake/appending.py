"""What comes into a lake in tests: extents that nobody reads, batches of keys and values, log directories in the notation of
the acceptance cases (tests/oracle/notation.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from headstone.lake.format.extents import Extent
from headstone.lake.format.objects import writing_object
from headstone.lake.format.spans import Span
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Append
from headstone.lake.metastore.metastore import Metastore
from headstone.log.topic_partition import TopicPartition
from tests.oracle.batches import Batch, Record, encode
from tests.oracle.notation import History

SIZE = 1000
Pairs = Sequence[tuple[bytes, bytes | None]]


def extent(
    start: int, end: int, object_id: str = "o", position: int = 0, length: int = 100, *, records: int | None = None,
    newest_ms: int = 17, oldest_ms: int = -1,
) -> Extent:  # fmt: skip
    return Extent(
        span=Span(start, end), object_id=object_id, position=position, length=length,
        records=end - start if records is None else records, max_timestamp_ms=newest_ms, oldest_timestamp_ms=oldest_ms,
        checksum=0xFFFFFFFF,
    )  # fmt: skip


def append(store: Metastore, name: TopicPartition, start: int, end: int, *, now_ms: int = 1) -> str:
    """One extent in an object of its own, whose name is returned."""
    (made,) = store.register(1, now_ms=now_ms)
    added = Append(expected_next=start, extents=(extent(start, end, made),))
    store.append({name: added}, {made: SIZE}, now_ms=now_ms)
    return made


def batch_of(start: int, pairs: Pairs, now_ms: int) -> Batch:
    records = tuple(
        Record(offset=start + n, timestamp=now_ms, key=key, value=value) for n, (key, value) in enumerate(pairs)
    )
    return Batch(
        base_offset=start, last_offset_delta=len(pairs) - 1, records=records, count=len(pairs), base_timestamp=now_ms,
        max_timestamp=now_ms,
    )  # fmt: skip


def put(lake: Lake, name: TopicPartition, pairs: Pairs, *, now_ms: int = 1) -> None:
    """One batch, one extent, one object."""
    put_all(lake, {name: pairs}, now_ms=now_ms)


def put_all(lake: Lake, pairs: Mapping[TopicPartition, Pairs], *, now_ms: int = 1) -> None:
    """A batch to the end of each log: one object, one commit."""
    (object_id,) = lake.metastore.register(1, now_ms=now_ms)
    starts, appends = lake.metastore.next_offsets(list(pairs)), dict[TopicPartition, Append]()
    with writing_object(lake.store, object_id, lake.metastore.lake_id) as writer:
        for name, rows in pairs.items():
            start = starts[name]
            data, span = encode(batch_of(start, rows, now_ms)), Span(start, start + len(rows))
            made = writer.add(name.topic, name.number, span, [data], records=len(rows), max_timestamp_ms=now_ms)
            appends[name] = Append(expected_next=start, extents=(made,))
    lake.metastore.append(appends, {object_id: writer.size}, now_ms=now_ms)


def log_of(root: Path, topic: str, text: str, number: int = 0, *, history: History | None = None) -> Path:
    """The directory of a partition under `root`; with a history, its log goes on."""
    history = History() if history is None else history
    history.append(f"{text} |")
    return history.write_partition(root, f"{topic}-{number}")
