"""The key index: SipHash against its reference vectors, the table of digests, which record is newest, Kafka's bounded map."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from headstone.errors import Unfinished
from headstone.retention import keys
from headstone.retention.keys import NEWEST, HashKey
from tests.logs import history_of
from tests.oracle.cleaner import Pass, build_map
from tests.retention.stories import written

REFERENCE_KEY = bytes(range(16))


def digest(message: bytes, key: bytes = REFERENCE_KEY, *, start: int = 0) -> bytes:
    data = np.frombuffer(b"\xff" * start + message + b"\xff" * 8, dtype=np.uint8)
    k0, k1 = np.frombuffer(key, dtype="<u8").astype(np.uint64)
    low, high = keys.siphash128(data, start, len(message), k0, k1)
    return int(low).to_bytes(8, "little") + int(high).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
        (15, "5493e99933b0a8117e08ec0f97cfc3d9"),
    ],
)
def test_siphash_gives_the_reference_vectors(size: int, expected: str) -> None:
    assert digest(bytes(range(size))).hex() == expected


def test_a_digest_depends_on_the_message_and_the_key_alone() -> None:
    message = bytes(range(29))
    assert {digest(message, start=start) for start in range(9)} == {digest(message)}
    assert len({digest(bytes(size)) for size in range(300)}) == 300
    assert digest(message, bytes(16)) != digest(message)


def test_every_byte_of_a_key_counts() -> None:
    """Long keys with a common beginning, or a common end, would delete each other's records."""
    assert len({digest(bytes(at) + b"\1" + bytes(299 - at)) for at in range(300)}) == 300


def test_hash_keys_are_random() -> None:
    assert len({HashKey.random() for _ in range(50)}) == 50
    drawn = [HashKey.random() for _ in range(200)]
    assert max(key.k0 for key in drawn) > 1 << 60
    assert max(key.k1 for key in drawn) > 1 << 60


def digests_of(words: str) -> np.ndarray:
    rows = [np.frombuffer(hashlib.md5(word.encode()).digest(), dtype=np.uint64) for word in words.split()]
    return np.array(rows, dtype=np.uint64).reshape(-1, 2)


def newest(words: str, dirty_from: int = 0) -> tuple[list[int], int]:
    rows = digests_of(words)
    states = np.zeros(len(rows), dtype=np.uint8)
    ordinals = np.arange(len(rows))
    added = keys.mark_newest(keys.new_table(len(rows)), rows, ordinals >= dirty_from, ordinals, states)
    return np.flatnonzero(states == NEWEST).tolist(), added


def test_the_newest_record_of_each_key_is_marked() -> None:
    assert newest("a b a c b a") == ([3, 4, 5], 3)
    assert newest("") == ([], 0)


def test_a_clean_record_survives_unless_a_dirty_one_has_its_key() -> None:
    """Two clean records of a key both stay: below the first dirty offset nothing is looked up against itself."""
    assert newest("a b b c | a d".replace("| ", ""), dirty_from=4) == ([1, 2, 3, 4, 5], 2)
    assert newest("a b c", dirty_from=3) == ([0, 1, 2], 0)


def test_a_full_table_finds_every_key_and_no_other() -> None:
    rows = digests_of(" ".join(f"k{i}" for i in range(5000)))
    table = keys.new_table(len(rows))
    assert all(keys.put(table, low, high) for low, high in rows)
    assert not any(keys.put(table, low, high) for low, high in rows)
    assert all(keys.has(table, low, high) for low, high in rows)
    assert not any(keys.has(table, low, high) for low, high in digests_of(" ".join(f"x{i}" for i in range(5000))))
    assert table.nbytes == keys.table_bytes(len(rows))


def test_digests_that_share_a_slot_or_a_half_stay_apart() -> None:
    table = keys.new_table(8)
    rows = [(np.uint64(low), np.uint64(high)) for low in (0, 1, 2**63) for high in (1, 2, 2**63)]
    assert [bool(keys.put(table, low, high)) for low, high in rows] == [True] * len(rows)
    assert [bool(keys.has(table, low, high)) for low, high in rows] == [True] * len(rows)
    assert not keys.has(table, np.uint64(0), np.uint64(3))


def test_a_probe_wraps_around_the_end_of_the_table() -> None:
    table = keys.new_table(8)
    last = np.uint64(0xFFFFFFFF)
    rows = [(last, np.uint64(high)) for high in range(1, 9)]
    assert [bool(keys.put(table, low, high)) for low, high in rows] == [True] * 8
    assert [bool(keys.has(table, low, high)) for low, high in rows] == [True] * 8


def test_an_index_that_memory_cannot_hold_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(size: int, dtype: object) -> None:
        raise MemoryError(size, dtype)

    monkeypatch.setattr(keys.np, "zeros", full)
    with pytest.raises(Unfinished, match="an index for 70,000,000 keys takes 1,525 MiB of memory"):
        keys.new_table(70_000_000)


def bounded(text: str, *, keys_max: int, dirty_from: int) -> tuple[int, int]:
    """The first dirty offset after a pass with a bounded map: ours and the oracle's."""
    history = history_of(text)
    settings = Pass(now_ms=10**6, dirty_start=dirty_from, high_watermark=history.next_offset, keys_max=keys_max)
    latest = build_map(history.segments, settings, dirty_from, history.segments[-1].base).latest
    with written(history) as files:
        return files.compact(settings).dirty_end, latest + 1


@pytest.mark.parametrize(
    ("text", "keys_max", "dirty_from", "expected"),
    [
        ("N[0] N[1] N[2] N[3] N[4] | N[z]", 2, 2, 4),
        ("N[0,1,2] | N[z]", 2, 0, 2),
        ("N[0] N[0] N[0] | N[z]", 1, 0, 1),
        ("N[0] U U P1[b] A1 N[1] | N[z]", 1, 0, 5),
        ("N[0] | +7206177 N[1] | N[z]", 5, 0, 7206179),
        ("N[0] +10 | N[1] | N[z]", 1, 0, 11),
        ("N[0] N[1] N[0] | N[z]", 1 << 40, 0, 3),
    ],
)
def test_kafkas_bounded_map_ends_before_the_first_key_too_many(
    text: str, keys_max: int, dirty_from: int, expected: int
) -> None:
    """A known key put again also counts as one too many, because Kafka looks at the fill before it looks at the key."""
    assert bounded(text, keys_max=keys_max, dirty_from=dirty_from) == (expected, expected)
