"""Our writer read by the oracle's parser and by our own walk, and the oracle's bytes read by us: all codecs, all fields."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from headstone.log.codecs import NAMES, NONE
from headstone.log.encoding import BatchHead, Columns, batch_bytes, encode_section, marker_bytes, pool
from headstone.log.kernels import OK, read_record, read_varint, varint_size, walk, write_varint
from headstone.log.layout import BATCH
from headstone.log.reading import PAYLOAD_BYTES_MAX
from tests.logs import batch_of
from tests.oracle.batches import Batch, Record, changed, encode, parse_batch, parse_log, sized, varint
from tests.oracle.notation import History

NUMBERS = sorted(
    {sign * (2**bits + step) for bits in range(63) for step in (-1, 0, 1) for sign in (1, -1)} | {2**63 - 1, -(2**63)}
)


def random_records(chance: random.Random, base: int, base_timestamp: int) -> tuple[Record, ...]:
    offset, records = base, []
    for _ in range(chance.randrange(1, 20)):
        key = None if chance.random() < 0.2 else chance.randbytes(chance.choice((0, 1, 63, 64, 200)))
        value = None if chance.random() < 0.3 else chance.randbytes(chance.choice((0, 1, 9, 8191, 9000)))
        headers = tuple((f"h{i}", chance.choice((None, b"", b"xyz"))) for i in range(chance.choice((0, 0, 1, 3))))
        stamp = base_timestamp + chance.choice((0, -1, 1, 64, -(2**40), 2**41))
        records.append(Record(offset=offset, timestamp=stamp, key=key, value=value, headers=headers))
        offset += chance.choice((1, 1, 200))
    return tuple(records)


def columns_of(records: tuple[Record, ...], base: int, base_timestamp: int) -> Columns:
    sections = [varint(len(r.headers)) + b"".join(sized(n.encode()) + sized(v) for n, v in r.headers) for r in records]
    keys, values, headers = pool([r.key for r in records]), pool([r.value for r in records]), pool(sections)
    return Columns(
        timestamp_deltas=np.array([r.timestamp - base_timestamp for r in records], dtype=np.int64),
        offset_deltas=np.array([r.offset - base for r in records], dtype=np.int64),
        key_pool=keys[0], key_starts=keys[1], key_sizes=keys[2],
        value_pool=values[0], value_starts=values[1], value_sizes=values[2],
        header_pool=headers[0], header_starts=headers[1], header_sizes=headers[2],
    )  # fmt: skip


def random_batch(seed: int, codec: int) -> Batch:
    chance = random.Random(seed)
    base, base_timestamp = chance.choice((0, 7, 2**45)), 1_700_000_000_000
    records = random_records(chance, base, base_timestamp)
    produced = {"producer_id": 2**40, "producer_epoch": 3, "base_sequence": 2**31 - 2, "transactional": True}
    return batch_of(*records, base_timestamp=base_timestamp, leader_epoch=5, codec=NAMES[codec], **produced)


def ours(batch: Batch) -> bytes:
    head = BatchHead(
        base_offset=batch.base_offset, last_offset_delta=batch.last_offset_delta, base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp, codec=NAMES.index(batch.codec), transactional=batch.transactional,
        log_append_time=batch.log_append_time, producer_id=batch.producer_id, producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence, leader_epoch=batch.leader_epoch,
    )  # fmt: skip
    section = encode_section(columns_of(batch.records, batch.base_offset, batch.base_timestamp))
    return batch_bytes(head, section, batch.count).tobytes()


@pytest.mark.parametrize("codec", range(5), ids=NAMES)
@pytest.mark.parametrize("seed", range(8))
def test_the_oracle_reads_what_we_write(seed: int, codec: int) -> None:
    batch = random_batch(seed, codec)
    assert parse_batch(ours(batch)) == batch
    if codec == NONE:
        assert ours(batch) == encode(batch)


def test_log_append_time_is_a_bit_of_the_batch() -> None:
    record = Record(offset=0, timestamp=50, key=b"k", value=b"v")
    batch = batch_of(record, base_timestamp=20, log_append_time=True)
    assert parse_batch(ours(batch)) == batch


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_is_the_one_that_the_oracle_writes(commit: bool) -> None:
    facts = {"commit": commit, "offset": 6, "timestamp": 77, "producer_id": 9, "producer_epoch": 2}
    history = History(leader_epoch=4)
    history.append("+6 C9e2@77" if commit else "+6 A9e2@77")
    made = marker_bytes(**facts, leader_epoch=4)
    assert (len(made), made.tobytes()) == (78, encode(history.segments[0].batches[0]))
    other = parse_batch(marker_bytes(**facts, coordinator_epoch=-8).tobytes())
    assert (other.marker, other.coordinator_epoch) == ("COMMIT" if commit else "ABORT", -8)


@pytest.mark.parametrize("seed", range(8))
def test_we_read_the_records_that_the_oracle_writes(seed: int) -> None:
    batch = random_batch(seed, NONE)
    data = np.frombuffer(encode(batch), dtype=np.uint8)
    at, found = 61, []
    for _ in range(batch.count):
        at, stamp, delta, key_at, key_size, value_at, value_size = read_record(data, at, data.size)
        key = None if key_size < 0 else data[key_at : key_at + key_size].tobytes()
        value = None if value_size < 0 else data[value_at : value_at + value_size].tobytes()
        found.append((batch.base_offset + delta, batch.base_timestamp + stamp, key, value))
    assert at == data.size
    assert found == [(r.offset, r.timestamp, r.key, r.value) for r in batch.records]


@pytest.mark.parametrize("codec", range(5), ids=NAMES)
def test_a_walk_meets_the_same_batches_as_the_oracles_parser(codec: int) -> None:
    batches = [random_batch(seed, codec) for seed in range(6)]
    data, at = b"", 0
    for batch in batches:
        records = tuple(replace(record, offset=record.offset - batch.base_offset + at) for record in batch.records)
        moved = changed(batch, base_offset=at, records=records)
        data += ours(moved)
        at = moved.next_offset
    table = np.zeros(6, dtype=BATCH)
    view = np.frombuffer(data, dtype=np.uint8)
    assert walk(view, 0, view.size, -1, True, PAYLOAD_BYTES_MAX, table) == (6, view.size, OK)
    parsed = parse_log(data)
    assert [(b.base_offset, b.last_offset, b.count, b.producer_id, b.max_timestamp) for b in parsed] == [
        (row["base_offset"], row["last_offset"], row["count"], row["producer_id"], row["max_timestamp"])
        for row in table
    ]


def test_varints_are_those_of_the_oracle() -> None:
    out = np.zeros(16, dtype=np.uint8)
    for number in NUMBERS:
        end = write_varint(out, 0, np.int64(number))
        assert out[:end].tobytes() == varint(number)
        assert varint_size(np.int64(number)) == end
        assert read_varint(out, 0, end) == (number, end)
        assert read_varint(out, 0, end - 1)[1] == -1


def test_a_varint_of_more_than_ten_bytes_is_none() -> None:
    assert read_varint(np.full(20, 0x80, dtype=np.uint8), 0, 20)[1] == -1
