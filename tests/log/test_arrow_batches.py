"""Arrow columns to record batches and back: every field survives, whatever the codec, gaps and nulls."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headstone.log import codecs
from headstone.log.arrow_batches import BYTES_MAX, RECORDS_MAX, batches_of
from headstone.log.columns import HEADER_TYPE, decode
from headstone.log.layout import LOG_APPEND_TIME
from headstone.log.listing import record_entries
from headstone.log.reading import Payloads, chunk_of

SCHEMA = pa.schema(
    [
        ("offset", pa.int64()), ("timestamp_ms", pa.int64()), ("log_append_time", pa.bool_()), ("key", pa.binary()),
        ("value", pa.binary()), ("headers", HEADER_TYPE),
    ]
)  # fmt: skip

Row = dict[str, Any]


def rows_of(seed: int, count: int) -> list[Row]:
    chance = random.Random(seed)
    offset, rows = chance.randrange(1000), []
    for _ in range(count):
        offset += 1 if chance.random() < 0.8 else chance.randrange(1, 5_000_000_000 if chance.random() < 0.01 else 50)
        headers = None
        if chance.random() < 0.5:
            content = [None, b"", b"x" * chance.randrange(300)]
            headers = [
                {"key": chance.choice(["", "h", "é"]), "value": chance.choice(content)}
                for _ in range(chance.randrange(4))
            ]
        rows.append({
            "offset": offset, "timestamp_ms": chance.choice([-1, 0, chance.randrange(1 << 42)]),
            "log_append_time": chance.random() < 0.1, "key": chance.choice([None, b"", b"k%d" % chance.randrange(99)]),
            "value": chance.choice([None, b"", chance.randbytes(chance.randrange(400))]), "headers": headers,
        })  # fmt: skip
    return rows


def written(rows: list[Row], codec: int, *, sliced: bool = False) -> list[Any]:
    table = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    if sliced:
        table = pa.RecordBatch.from_pylist([*rows[:3], *rows], schema=SCHEMA).slice(3)
    return list(batches_of(table, codec=codec))


def read(batches: list[Any]) -> list[Row]:
    found = []
    for batch in batches:
        chunk = chunk_of("test", batch.data)
        for data, spans in decode(chunk, np.arange(chunk.batches.size), Payloads()):
            for entry in record_entries(chunk.batches, data, spans):
                appended = bool(chunk.batches[0]["attributes"] & LOG_APPEND_TIME)
                headers = [{"key": name, "value": value} for name, value in entry.headers]
                found.append({
                    "offset": entry.offset, "timestamp_ms": entry.timestamp_ms, "log_append_time": appended, "key": entry.key,
                    "value": entry.value, "headers": headers,
                })  # fmt: skip
    return found


@pytest.mark.parametrize("codec", range(5), ids=codecs.NAMES)
@pytest.mark.parametrize("sliced", [False, True])
def test_every_field_survives(codec: int, sliced: bool) -> None:
    for seed in range(5):
        rows = rows_of(seed, 700)
        batches = written(rows, codec, sliced=sliced)
        assert read(batches) == [{**row, "headers": row["headers"] or []} for row in rows]
        assert sum(batch.records for batch in batches) == len(rows)
        assert max(batch.max_timestamp_ms for batch in batches) == max(row["timestamp_ms"] for row in rows)
        by_offset = {row["offset"]: row["timestamp_ms"] for row in rows}
        for batch in batches:
            stamps = [stamp for offset, stamp in by_offset.items() if batch.base_offset <= offset <= batch.last_offset]
            assert batch.oldest_timestamp_ms == min((stamp for stamp in stamps if stamp > 0), default=-1)
        assert [batch.base_offset for batch in batches] == sorted(batch.base_offset for batch in batches)


def test_batches_stay_small_and_a_large_record_is_one_of_its_own() -> None:
    common = {"timestamp_ms": 1, "log_append_time": False, "key": b"k", "headers": None}
    rows = [{**common, "offset": n, "value": b"v"} for n in range(RECORDS_MAX + 10)]
    assert [batch.records for batch in written(rows, codecs.NONE)] == [RECORDS_MAX, 10]
    large = [{**common, "offset": n, "value": b"v" * (BYTES_MAX + n)} for n in range(3)]
    assert [batch.records for batch in written(large, codecs.NONE)] == [1, 1, 1]


def test_nothing_makes_no_batch() -> None:
    assert written([], codecs.ZSTD) == []
