"""What can be wrong with a `.log` file: an error names file, position, offset and finding; `compact` then writes nothing."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from headstone.errors import CorruptLog
from headstone.log.reading import ChunkReader, next_offset, walk_segment
from headstone.retention.policy import Policy, kafka_rules
from headstone.storage.ranges import open_ranges
from tests.logs import batch_of, compact_here, files_of, history_of, write_log
from tests.oracle.batches import Batch, Record, crc32c, encode, encode_record, to_bytes
from tests.oracle.compression import CODECS, compress

BATCH_BYTES = 71
"""Of each of the batches below; the third one starts at twice this position."""
THIRD_AT = 2 * BATCH_BYTES
IMPOSSIBLE = "impossible record count or offset delta in the batch header"
LENGTH_AT, MAGIC_AT, CRC_AT, ATTRIBUTES_AT, DELTA_AT, COUNT_AT = 8, 16, 17, 21, 23, 57


def log() -> bytearray:
    """Six batches of one record each, at offsets 0 to 5."""
    parts = [to_bytes(batch) for batch in history_of("N[a] N[b] N[a] N[c] N[d] N[e]").segments[0].batches]
    assert {len(part) for part in parts} == {BATCH_BYTES}
    return bytearray(b"".join(parts))


def put(data: bytearray, at: int, layout: str, value: int, *, seal: bool = True) -> bytes:
    """Sets a field of the third batch; `seal` makes its checksum right again."""
    struct.pack_into(layout, data, THIRD_AT + at, value)
    if seal:
        body = bytes(data[THIRD_AT + ATTRIBUTES_AT : THIRD_AT + BATCH_BYTES])
        struct.pack_into(">I", data, THIRD_AT + CRC_AT, crc32c(body))
    return bytes(data)


def with_records(body: bytes, *, count: int = 1, codec: str = "none", control: bool = False) -> bytes:
    """The third batch with another record section, its length and checksum right."""
    data = bytes(log())
    empty = Batch(base_offset=2, last_offset_delta=1, records=(), count=0, base_timestamp=1002, max_timestamp=1002)
    head = bytearray(encode(empty) + body)
    struct.pack_into(">i", head, LENGTH_AT, len(head) - 12)
    struct.pack_into(">h", head, ATTRIBUTES_AT, CODECS.index(codec) | (0x20 if control else 0))
    struct.pack_into(">i", head, COUNT_AT, count)
    struct.pack_into(">I", head, CRC_AT, crc32c(bytes(head[ATTRIBUTES_AT:])))
    fourth = bytearray(data[3 * BATCH_BYTES :])
    for number in range(3):
        struct.pack_into(">q", fourth, number * BATCH_BYTES, 10 + number)
    return data[:THIRD_AT] + bytes(head) + bytes(fourth)


def record(offset: int = 2, key: bytes = b"a") -> bytes:
    made = Record(offset=offset, timestamp=1002, key=key, value=b"v2")
    return encode_record(batch_of(made, base_offset=2), made)


@dataclass(frozen=True, slots=True)
class Corruption:
    name: str
    data: Callable[[], bytes]
    problem: str
    position: int = THIRD_AT
    offset: int = 2
    in_header: bool = True
    """Seen by a walk over headers, before any record is read."""


def claimed(count: int, codec: str) -> bytes:
    """The third batch is the last and has a byte of payload: offsets for as many records as it claims, room for few."""
    batch = Batch(
        base_offset=2, last_offset_delta=count - 1, records=(), count=0, base_timestamp=1002, max_timestamp=1002
    )
    data = bytearray(bytes(log()[:THIRD_AT]) + encode(batch) + b"\0")
    struct.pack_into(">i", data, THIRD_AT + LENGTH_AT, len(data) - THIRD_AT - 12)
    struct.pack_into(">h", data, THIRD_AT + ATTRIBUTES_AT, CODECS.index(codec))
    struct.pack_into(">i", data, THIRD_AT + COUNT_AT, count)
    struct.pack_into(">I", data, THIRD_AT + CRC_AT, crc32c(bytes(data[THIRD_AT + ATTRIBUTES_AT :])))
    return bytes(data)


def flipped() -> bytes:
    data = log()
    data[THIRD_AT + 65] ^= 0x01
    return bytes(data)


CORRUPTIONS = [
    Corruption("torn in the middle of the last batch", lambda: bytes(log()[:-1]),
               "torn tail: the batch says 71 bytes but 70 are left in the file", position=5 * BATCH_BYTES, offset=5),
    Corruption("torn inside the header of the last batch", lambda: bytes(log()[: 5 * BATCH_BYTES + 16]),
               "torn tail: the batch says 71 bytes but 16 are left in the file", position=5 * BATCH_BYTES, offset=5),
    Corruption("torn before the offset of the last batch can be read", lambda: bytes(log()[: 5 * BATCH_BYTES + 5]),
               "torn tail: the batch says 12 bytes but 5 are left in the file", position=5 * BATCH_BYTES, offset=5),
    Corruption("length beyond the file", lambda: put(log(), LENGTH_AT, ">i", 10_000, seal=False),
               "torn tail: the batch says 10012 bytes but 284 are left in the file"),
    Corruption("length below a header", lambda: put(log(), LENGTH_AT, ">i", 48, seal=False),
               "wrong length: the batch says 60 bytes, less than a batch header"),
    Corruption("negative length", lambda: put(log(), LENGTH_AT, ">i", -5, seal=False),
               "wrong length: the batch says 7 bytes, less than a batch header"),
    Corruption("magic 0", lambda: put(log(), MAGIC_AT, ">b", 0, seal=False),
               "record format v0: only v2 (Kafka 0.11 and later) is supported"),
    Corruption("magic 1", lambda: put(log(), MAGIC_AT, ">b", 1, seal=False),
               "record format v1: only v2 (Kafka 0.11 and later) is supported"),
    Corruption("no magic", lambda: put(log(), MAGIC_AT, ">b", -31),
               "no batch of Kafka's: where a batch tells the version of its format, -31 stands"),
    Corruption("offsets go backwards", lambda: put(log(), 0, ">q", 1, seal=False),
               "offsets go backwards: base offset 1 after offset 1", offset=1),
    Corruption("negative offset delta", lambda: put(log(), DELTA_AT, ">i", -1), IMPOSSIBLE),
    Corruption("negative record count", lambda: put(log(), COUNT_AT, ">i", -1), IMPOSSIBLE),
    Corruption("more records than offsets", lambda: put(log(), COUNT_AT, ">i", 2), IMPOSSIBLE),
    Corruption("records in a batch that says it has none", lambda: put(log(), COUNT_AT, ">i", 0), IMPOSSIBLE),
    Corruption("more records than zstd makes of a byte", lambda: claimed((128 << 10) // 4 // 7 + 1, "zstd"),
               IMPOSSIBLE),
    Corruption("more records than gzip makes of a byte", lambda: claimed(1032 // 7 + 1, "gzip"), IMPOSSIBLE),
    Corruption("unknown codec", lambda: put(log(), ATTRIBUTES_AT, ">h", 5), "unknown codec 5"),
    Corruption("control batch with a key that is no control key", lambda: with_records(record(key=b"abc"), control=True),
               "control batch without a readable control record"),
    Corruption("wrong checksum", flipped, "wrong CRC-32C: the batch is not what the broker wrote", in_header=False),
    Corruption("record longer than its batch", lambda: with_records(record()[:-2]),
               "record 0 of the batch does not fill its declared length", in_header=False),
    Corruption("record that ends before its length", lambda: with_records(bytes([record()[0] + 2]) + record()[1:] + b"\0"),
               "record 0 of the batch does not fill its declared length", in_header=False),
    Corruption("bytes after the last record", lambda: with_records(record() + b"\0"),
               "bytes left over behind the last record of the batch", in_header=False),
    Corruption("two records at one offset", lambda: with_records(record() + record(), count=2),
               "record 1 of the batch has an offset out of order", in_header=False),
    Corruption("record outside its batch", lambda: with_records(record(offset=4)),
               "record 0 of the batch has an offset out of order", in_header=False),
    Corruption("compressed batch with too few records", lambda: with_records(compress("gzip", record()), count=2, codec="gzip"),
               IMPOSSIBLE, in_header=False),
]  # fmt: skip
EACH = pytest.mark.parametrize("wrong", CORRUPTIONS, ids=[c.name for c in CORRUPTIONS])


def compacted(root: Path, out: Path | None, path: str = "whole") -> None:
    compact_here(root, out=out, policy=kafka_rules(Policy(now_ms=10**6)), path=path)


def spoiled_partition(root: Path, data: bytes) -> Path:
    """The broken file is the first segment; a sound one is active behind it."""
    file = write_log(root, "+100 N[a] | N[z]") / "t-0" / f"{0:020d}.log"
    file.write_bytes(data)
    return file


def is_absent_or_empty(directory: Path) -> bool:
    return not directory.exists() or not any(directory.iterdir())


def facts(error: CorruptLog) -> tuple[str, int, int, str]:
    return error.file, error.position, error.offset, error.problem


@pytest.mark.parametrize(
    "wrong", [c for c in CORRUPTIONS if c.in_header], ids=[c.name for c in CORRUPTIONS if c.in_header]
)
def test_a_walk_reports_the_first_batch_that_is_wrong(wrong: Corruption, tmp_path: Path) -> None:
    file = tmp_path / "00000000000000000000.log"
    file.write_bytes(wrong.data())
    seen: list[int] = []
    tables = walk_segment(str(file), base=0)
    with pytest.raises(CorruptLog) as caught:
        seen.extend(position for table in tables for position in table["position"].tolist())
    assert facts(caught.value) == (str(file), wrong.position, wrong.offset, wrong.problem)
    assert seen == list(range(0, wrong.position, BATCH_BYTES))


@EACH
@pytest.mark.parametrize("path", ["whole", "shuffle"])
def test_compaction_of_a_broken_log_writes_nothing(wrong: Corruption, path: str, tmp_path: Path) -> None:
    file = spoiled_partition(tmp_path / "in", wrong.data())
    before = files_of(tmp_path)
    with pytest.raises(CorruptLog) as caught:
        compacted(tmp_path / "in", tmp_path / "out", path)
    assert facts(caught.value) == (str(file), wrong.position, wrong.offset, wrong.problem)
    assert files_of(tmp_path) == before
    assert is_absent_or_empty(tmp_path / "out")


@pytest.mark.parametrize("wrong", CORRUPTIONS[-7:], ids=[c.name for c in CORRUPTIONS[-7:]])
def test_compaction_in_place_of_a_broken_log_leaves_it_as_it_was(wrong: Corruption, tmp_path: Path) -> None:
    spoiled_partition(tmp_path, wrong.data())
    before = files_of(tmp_path)
    with pytest.raises(CorruptLog):
        compacted(tmp_path, None)
    assert files_of(tmp_path) == before
    assert [path.name for path in (tmp_path / "t-0").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("codec", CODECS[1:])
def test_compressed_data_that_does_not_decompress_is_reported_with_its_batch(codec: str, tmp_path: Path) -> None:
    file = spoiled_partition(tmp_path / "in", with_records(compress(codec, record())[:-3], codec=codec))
    before = files_of(tmp_path)
    with pytest.raises(CorruptLog, match=rf"{codec} data that does not decompress") as caught:
        compacted(tmp_path / "in", tmp_path / "out")
    assert (caught.value.file, caught.value.position, caught.value.offset) == (str(file), THIRD_AT, 2)
    assert files_of(tmp_path) == before


def test_a_second_segment_may_not_begin_below_the_end_of_the_first(tmp_path: Path) -> None:
    file = spoiled_partition(tmp_path / "in", bytes(log()))
    second = file.with_name("00000000000000000003.log")
    second.write_bytes(bytes(log()[3 * BATCH_BYTES :]))
    with pytest.raises(
        CorruptLog, match="the segment begins inside the one before, which goes up to offset 5"
    ) as caught:
        compacted(tmp_path / "in", tmp_path / "out")
    assert (caught.value.file, caught.value.position, caught.value.offset) == (str(second), 0, 3)


def test_a_batch_below_the_base_of_its_segment_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "00000000000000000003.log"
    file.write_bytes(bytes(log()))
    with pytest.raises(CorruptLog, match="offsets go backwards: base offset 0 after offset 2"):
        list(walk_segment(str(file), base=0, previous=2))


def test_the_message_says_where_what_and_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    file.write_bytes(bytes(log()[:-1]))
    with pytest.raises(CorruptLog) as caught:
        list(walk_segment(str(file), base=0))
    assert str(caught.value) == (
        f"{file}, position 355, offset 5: torn tail: the batch says 71 bytes but 70 are left in the file; "
        "start the broker once so that it recovers the log, or restore the file from a replica"
    )


@pytest.mark.parametrize(("count", "codec"), [((128 << 10) // 4 // 7, "zstd"), (1032 // 7, "gzip")])
def test_a_walk_believes_as_many_records_as_a_payload_can_hold(count: int, codec: str, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(claimed(count, codec))
    assert np.concatenate(list(walk_segment(str(tmp_path / "x.log"), base=0)))["count"].tolist() == [1, 1, count]


def test_an_empty_file_has_no_batches(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(b"")
    assert list(walk_segment(str(tmp_path / "x.log"), base=0)) == []


def test_a_walk_with_checksums_finds_the_batch_that_a_walk_without_passes_over(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    file.write_bytes(flipped())
    assert np.concatenate(list(walk_segment(str(file), base=0))).size == 6
    with pytest.raises(CorruptLog, match="wrong CRC-32C") as caught:
        list(walk_segment(str(file), base=0, with_crc=True))
    assert (caught.value.position, caught.value.offset) == (THIRD_AT, 2)


def test_a_file_that_became_shorter_meanwhile_is_not_read_as_zeros(tmp_path: Path) -> None:
    path = write_log(tmp_path, "N[a] N[b]") / "t-0" / f"{0:020d}.log"
    size = path.stat().st_size
    with open_ranges(str(path)) as ranges:
        os.truncate(path, size // 2)
        with pytest.raises(CorruptLog, match="became shorter while it was read") as caught:
            ChunkReader().read(ranges, 0, size, batches=2, previous=-1, with_crc=True)
    assert caught.value.position == size // 2


def test_a_segment_spans_as_many_offsets_as_an_index_can_tell_and_ends_behind_the_last(tmp_path: Path) -> None:
    def written(gap: int) -> str:
        path = tmp_path / f"{gap}.log"
        path.write_bytes(b"".join(map(to_bytes, history_of(f"N[a] +{gap} N[b]").segments[0].batches)))
        return str(path)

    assert next_offset(written(2**31 - 2), 0) == 2**31
    with pytest.raises(CorruptLog, match=f"offset {2**31} is more than 2\\^31 above the segment's base 0"):
        next_offset(written(2**31 - 1), 0)
    (tmp_path / "empty.log").write_bytes(b"")
    assert next_offset(str(tmp_path / "empty.log"), 17) == 17
