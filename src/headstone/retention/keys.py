"""The key index: keyed 128-bit digests of record keys, and which record of a key is the newest.

Digests are SipHash-2-4-128 under a random key per job: a collision would delete a record, so it must be impossible to construct
one. Records are numbered by ordinal (their position in the partition), never by value or key.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headstone import units
from headstone.errors import Unfinished
from headstone.log.intrinsics import kernel, load_u64, prefetch
from headstone.log.kernels import BAD_RECORD, BAD_RECORD_OFFSET, OK, TRAILING_BYTES, read_record

SUPERSEDED = 0
NEWEST = 1
UNMAPPED = 2
KEYLESS = 3
CODE_MASK = 0x07
HELD = 0x40
"""A tombstone at or above MTRO: it stays, however old."""
TOMBSTONE = 0x80
"""The record's value is null."""

LOAD = 0.7
LOOKAHEAD = 16
LOW32 = np.uint64(0xFFFFFFFF)


def slots_for(keys: int) -> int:
    """Table slots for this many keys; 16 bytes each."""
    return max(64, int(keys / LOAD) + 1)


def table_bytes(keys: int) -> int:
    return slots_for(keys) * 16


def new_table(keys: int) -> npt.NDArray[np.uint64]:
    slots = slots_for(keys)
    assert slots < 1 << 32
    try:
        return np.zeros(slots * 2, dtype=np.uint64)
    except MemoryError as error:
        raise Unfinished(
            f"an index for {units.count(keys, 'key')} takes {table_bytes(keys) >> 20:,} MiB of memory, more than "
            "this process may have; give it more, or lower --task-memory-mb or --index-keys-max (task_memory_bytes, "
            "index_keys_max in a program)"
        ) from error


@dataclass(frozen=True, slots=True)
class HashKey:
    """A secret: printing a value that has it does not show it."""

    k0: int = field(repr=False)
    k1: int = field(repr=False)

    @classmethod
    def random(cls) -> HashKey:
        return cls(secrets.randbits(64), secrets.randbits(64))


@kernel
def _rotl(x: Any, b: int) -> Any:
    return (x << np.uint64(b)) | (x >> np.uint64(64 - b))


@kernel
def _round(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    v0 += v1
    v1 = _rotl(v1, 13) ^ v0
    v0 = _rotl(v0, 32)
    v2 += v3
    v3 = _rotl(v3, 16) ^ v2
    v0 += v3
    v3 = _rotl(v3, 21) ^ v0
    v2 += v1
    v1 = _rotl(v1, 17) ^ v2
    v2 = _rotl(v2, 32)
    return v0, v1, v2, v3


@kernel
def siphash128(data: Any, start: int, size: int, k0: Any, k1: Any) -> Any:
    v0 = k0 ^ np.uint64(0x736F6D6570736575)
    v1 = k1 ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    v2 = k0 ^ np.uint64(0x6C7967656E657261)
    v3 = k1 ^ np.uint64(0x7465646279746573)
    i = start
    whole = start + (size & ~7)
    while i < whole:
        m = load_u64(data, i)
        v3 ^= m
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= m
        i += 8
    m = np.uint64(size & 0xFF) << np.uint64(56)
    for k in range(start + size - i):
        m |= np.uint64(data[i + k]) << np.uint64(8 * k)
    v3 ^= m
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= m
    v2 ^= np.uint64(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    high = v0 ^ v1 ^ v2 ^ v3
    if low == np.uint64(0) and high == np.uint64(0):
        high = np.uint64(1)
    return low, high


@kernel
def index_records(data: Any, starts: Any, ends: Any, bases: Any, lasts: Any, counts: Any, ordinals: Any, k0: Any, k1: Any,
                  dirty_end: Any, tombstones_below: Any, states: Any, n: Any, digests: Any, entry_ordinals: Any,
                  entry_offsets: Any) -> Any:  # fmt: skip
    """Digests of the keyed records below dirty_end, in order, and a state byte for every record.

    ordinals[k] is where batch k's records begin in `states`; n entries are there already. Returns (entries, error code, batch,
    record).
    """
    for k in range(starts.size):
        i = starts[k]
        end = ends[k]
        previous = bases[k] - 1
        for r in range(counts[k]):
            i, _, delta, key_at, key_size, _, value_size = read_record(data, i, end)
            if i < 0:
                return n, BAD_RECORD, k, r
            offset = bases[k] + delta
            if offset <= previous or offset > lasts[k]:
                return n, BAD_RECORD_OFFSET, k, r
            previous = offset
            state = np.uint8(0)
            if value_size < 0:
                state = np.uint8(TOMBSTONE | HELD) if offset >= tombstones_below else np.uint8(TOMBSTONE)
            if offset >= dirty_end:
                state |= np.uint8(UNMAPPED)
            elif key_size < 0:
                state |= np.uint8(KEYLESS)
            else:
                low, high = siphash128(data, key_at, key_size, k0, k1)
                digests[n, 0] = low
                digests[n, 1] = high
                entry_ordinals[n] = ordinals[k] + r
                entry_offsets[n] = offset
                n += 1
            states[ordinals[k] + r] = state
        if i != end:
            return n, TRAILING_BYTES, k, counts[k]
    return n, OK, 0, 0


@kernel
def _siphash_spans(data: Any, starts: Any, sizes: Any, k0: Any, k1: Any, digests: Any) -> None:
    for i in range(starts.size):
        digests[i, 0], digests[i, 1] = siphash128(data, starts[i], sizes[i], k0, k1)


def siphash_spans(data: Any, starts: Any, sizes: Any, hash_key: HashKey) -> npt.NDArray[np.uint64]:
    """Digests of spans of bytes, for callers that have keys without their records."""
    digests = np.zeros((len(starts), 2), dtype=np.uint64)
    _siphash_spans(data, starts, sizes, np.uint64(hash_key.k0), np.uint64(hash_key.k1), digests)
    return digests


@kernel
def _slot(low: Any, slots: Any) -> Any:
    return np.int64(((low & LOW32) * np.uint64(slots)) >> np.uint64(32)) * 2


@kernel
def put(table: Any, low: Any, high: Any) -> Any:
    """True if the digest was not there yet. The table never fills: it is made for the number of entries."""
    slot = _slot(low, table.size // 2)
    while True:
        if table[slot] == low and table[slot + 1] == high:
            return False
        if table[slot] == np.uint64(0) and table[slot + 1] == np.uint64(0):
            table[slot] = low
            table[slot + 1] = high
            return True
        slot += 2
        if slot == table.size:
            slot = 0


@kernel
def has(table: Any, low: Any, high: Any) -> Any:
    slot = _slot(low, table.size // 2)
    while True:
        if table[slot] == low and table[slot + 1] == high:
            return True
        if table[slot] == np.uint64(0) and table[slot + 1] == np.uint64(0):
            return False
        slot += 2
        if slot == table.size:
            slot = 0


@kernel
def mark_newest(table: Any, digests: Any, dirty: Any, ordinals: Any, states: Any) -> Any:
    """Newest entries first (from the end): marks those whose key has not occurred yet; returns the keys added.

    A clean record only asks: it survives if no dirty record has its key, because clean records are unique already.
    """
    added = 0
    slots = table.size // 2
    for i in range(ordinals.size - 1, -1, -1):
        if i >= LOOKAHEAD:
            prefetch(table, _slot(digests[i - LOOKAHEAD, 0], slots))
        if dirty[i]:
            if put(table, digests[i, 0], digests[i, 1]):
                states[ordinals[i]] |= np.uint8(NEWEST)
                added += 1
        elif not has(table, digests[i, 0], digests[i, 1]):
            states[ordinals[i]] |= np.uint8(NEWEST)
    return added


@kernel
def fill_bounded(
    table: Any,
    used: Any,
    limit: Any,
    digests: Any,
    ordinals: Any,
    offsets: Any,
    firsts: Any,
    lasts: Any,
    dirty_start: Any,
    latest: Any,
) -> Any:
    """Kafka's bounded map over a run of batches, oldest first: (keys used, latest offset, full).

    firsts and lasts are each batch's first ordinal and last offset. Stops before the first put beyond the limit, even of
    a key that is there already; a batch that was read to its end moves the latest offset to its own end.
    """
    i = 0
    for b in range(firsts.size):
        end = firsts[b + 1] if b + 1 < firsts.size else np.iinfo(np.int64).max
        while i < offsets.size and ordinals[i] < end:
            if offsets[i] >= dirty_start:
                if used >= limit:
                    return used, latest, True
                if put(table, digests[i, 0], digests[i, 1]):
                    used += 1
                latest = offsets[i]
            i += 1
        if lasts[b] >= dirty_start:
            latest = lasts[b]
    return used, latest, False
