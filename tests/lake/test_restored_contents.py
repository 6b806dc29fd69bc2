"""Two sides of a restore, compared by digests in shares, against plain dictionaries."""

from __future__ import annotations

import random
from io import BytesIO

import pytest

from headstone.lake.transfer.restored_contents import ROW, Comparison, Contents, compared, digest_of

Pair = tuple[bytes | None, bytes | None]


def pairs(chance: random.Random, count: int) -> list[Pair]:
    """Keys that come again, tombstones, keys of no value at all, records without a key, empty values."""
    return [
        (
            chance.choice([None, *[b"k%d" % number for number in range(30)]]),
            chance.choice([None, b"", *[b"v%d" % number for number in range(5)]]),
        )
        for _ in range(count)
    ]


def table_of(side: list[Pair]) -> dict[bytes, bytes]:
    newest = {key: value for key, value in side if key is not None}
    return {key: value for key, value in newest.items() if value is not None}


def compare(
    sent: list[Pair], back: list[Pair], *, share_bytes: int, memory_bytes: int, chunk_rows: int = 7
) -> Comparison:
    with (
        Contents(kept=True, memory_bytes=memory_bytes, chunk_rows=chunk_rows) as one,
        Contents(kept=True, memory_bytes=memory_bytes, chunk_rows=chunk_rows) as other,
    ):
        for contents, side in ((one, sent), (other, back)):
            for key, value in side:
                contents.put(key, value)
        return compared(one, other, share_bytes=share_bytes)


@pytest.mark.parametrize("seed", range(40))
def test_keys_that_differ_are_counted_and_one_is_named(seed: int) -> None:
    chance = random.Random(seed)
    sent = pairs(chance, chance.randrange(80))
    back = [pair for pair in sent if chance.random() < 0.95] + pairs(chance, chance.randrange(3))
    share_bytes, memory_bytes = chance.choice([1, 5, 1000]) * ROW.itemsize, chance.choice([1, 10**6])
    chunk_rows = chance.choice([1, 3, 1000])
    done = compare(sent, back, share_bytes=share_bytes, memory_bytes=memory_bytes, chunk_rows=chunk_rows)
    there, expected = table_of(back), table_of(sent)
    wrong = {key for key in expected.keys() | there.keys() if expected.get(key) != there.get(key)}
    assert (done.keys, done.wrong) == (len(expected), len(wrong))
    assert done.first_wrong in ({digest_of(key) for key in wrong} or {None})


@pytest.mark.parametrize("seed", range(5))
def test_a_cleaned_side_has_the_same_table(seed: int) -> None:
    sent = pairs(random.Random(seed), 60)
    cleaned: list[Pair] = [*table_of(sent).items()]
    same = Comparison(keys=len(cleaned), wrong=0, first_wrong=None)
    assert compare(sent, cleaned, share_bytes=3 * ROW.itemsize, memory_bytes=1) == same


def test_what_is_only_counted_has_no_row() -> None:
    with Contents(kept=False) as counted:
        for key, value in ((b"a", b"1"), (b"a", None), (None, b"2")):
            counted.put(key, value)
        assert (counted.records, counted.tombstones, counted.completed()) == (3, 1, 0)


def test_a_row_is_read_once_however_many_shares_there_are() -> None:
    class Counted(BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            read.append(len(data))
            return data

    read: list[int] = []
    with Contents(kept=True, chunk_rows=100) as one, Contents(kept=True, chunk_rows=100) as other:
        for contents in (one, other):
            contents._file = Counted()
            for number in range(1000):
                contents.put(b"k%d" % number, b"v")
        done = compared(one, other, share_bytes=10 * ROW.itemsize)
    assert (done, sum(read)) == (Comparison(keys=1000, wrong=0, first_wrong=None), 2 * 1000 * ROW.itemsize)
