"""What crosses the shuffle: 24-byte index entries one way, survivors back. Layouts and their compiled loops.

An entry is a key digest and a word: the record's ordinal and, in the top byte, its state. A survivor is four bytes, or a word
in a group with very many records. Keys and values never cross.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headstone.log.intrinsics import kernel, prefetch
from headstone.retention.keys import CODE_MASK, HELD, KEYLESS, LOOKAHEAD, NEWEST, TOMBSTONE, UNMAPPED, _slot, has, put

CLEAN = 0x20
"""State flag on an entry from below dirty_start: it only asks whether a dirty record has its key."""
STATE_SHIFT = np.uint64(56)
ORDINAL_MASK = np.uint64((1 << 56) - 1)
SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""Spreads entries that have no key digest over the buckets."""
Rows = npt.NDArray[np.uint64]
"""(digest, digest, word) each."""
Digests = npt.NDArray[np.uint64]
SURVIVOR_BITS = 28
SURVIVORS_MAX = 1 << SURVIVOR_BITS
"""Records of a rewrite group that four bytes can number. Only records that compress to a few bytes each are more."""


@kernel
def collect(digests: Any, dirty: Any, ordinals: Any, states: Any, record: Any, out: Any) -> Any:
    """Rows of a piece that are not superseded yet, newest first: (rows, tombstones superseded here)."""
    n = 0
    lost = 0
    for i in range(ordinals.size - 1, -1, -1):
        state = states[ordinals[i]]
        if state & CODE_MASK != NEWEST:
            lost += state & TOMBSTONE != 0
            continue
        mark = (state & ~CODE_MASK) | (0 if dirty[i] else CLEAN)
        out[n, 0] = digests[i, 0]
        out[n, 1] = digests[i, 1]
        out[n, 2] = np.uint64(record + ordinals[i]) | (np.uint64(mark) << STATE_SHIFT)
        n += 1
    for r in range(states.size):
        code = states[r] & CODE_MASK
        if code == UNMAPPED or code == KEYLESS:
            out[n, 0] = np.uint64(record + r)
            out[n, 1] = np.uint64(record + r) * SPREAD
            out[n, 2] = np.uint64(record + r) | (np.uint64(states[r]) << STATE_SHIFT)
            n += 1
    return n, lost


@kernel
def _bucket(digest: Any, count: Any) -> Any:
    return np.int64(((digest >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))


@kernel
def _scatter(rows: Any, count: Any, ends: Any, out: Any) -> None:
    for i in range(rows.shape[0]):
        ends[_bucket(rows[i, 1], count)] += 1
    start = 0
    for b in range(count):
        size = ends[b]
        ends[b] = start
        start += size
    for i in range(rows.shape[0]):
        b = _bucket(rows[i, 1], count)
        for k in range(3):
            out[ends[b], k] = rows[i, k]
        ends[b] += 1


def survivors(
    digests: Digests, dirty: npt.NDArray[np.bool_], ordinals: npt.NDArray[np.int64], states: npt.NDArray[np.uint8], record: int
) -> tuple[Rows, int]:  # fmt: skip
    """Rows that may still survive, newest first, and those that certainly do; and the tombstones superseded here.

    `record` is the ordinal of the first of `states`."""
    out = np.zeros((states.size, 3), dtype=np.uint64)
    n, lost = collect(digests, dirty, ordinals, states, record, out)
    return out[:n], lost


def split(parts: Sequence[Rows], count: int) -> list[bytes]:
    """Rows by bucket, in the same order."""
    rows = np.concatenate([np.zeros((0, 3), np.uint64), *parts])
    out = np.zeros_like(rows)
    ends = np.zeros(count, dtype=np.int64)
    _scatter(rows, count, ends, out)
    starts = [0, *ends[:-1].tolist()]
    return [out[start:end].tobytes() for start, end in zip(starts, ends.tolist(), strict=True)]


@kernel
def race(table: Any, rows: Any, out: Any) -> Any:
    """Newest first: words of the survivors with their final state: (survivors, keys added, tombstones superseded)."""
    n = 0
    added = 0
    lost = 0
    slots = table.size // 2
    for i in range(rows.shape[0]):
        if i + LOOKAHEAD < rows.shape[0]:
            prefetch(table, _slot(rows[i + LOOKAHEAD, 0], slots))
        state = np.uint8(rows[i, 2] >> STATE_SHIFT)
        ordinal = rows[i, 2] & ORDINAL_MASK
        if state & CODE_MASK != 0:
            out[n] = rows[i, 2]
            n += 1
            continue
        if state & CLEAN:
            wins = not has(table, rows[i, 0], rows[i, 1])
        else:
            wins = put(table, rows[i, 0], rows[i, 1])
            added += wins
        if wins:
            out[n] = ordinal | (np.uint64((state & ~CLEAN) | NEWEST) << STATE_SHIFT)
            n += 1
        else:
            lost += state & TOMBSTONE != 0
    return n, added, lost


def by_group(words: npt.NDArray[np.uint64], edges: npt.NDArray[np.int64]) -> list[bytes]:
    """Survivors per rewrite group, numbered from its start; edges are the groups' first ordinals and the end."""
    ordinals = (words & ORDINAL_MASK).astype(np.int64)
    group = np.searchsorted(edges[:-1], ordinals, side="right") - 1
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(np.bincount(group, minlength=edges.size - 1))
    parts = np.split(words[order], ends[:-1])
    return [
        _packed(part - np.uint64(start), int(end - start)).tobytes()
        for part, start, end in zip(parts, edges[:-1], edges[1:], strict=True)
    ]


def _packed(words: npt.NDArray[np.uint64], records: int) -> npt.NDArray[Any]:
    if records > SURVIVORS_MAX:
        return words
    states = (words >> STATE_SHIFT).astype(np.uint32)
    flags = (states & (TOMBSTONE | HELD)) << 24 | (states & CODE_MASK) << SURVIVOR_BITS
    return words.astype(np.uint32) | flags


def apply(blob: bytes, states: npt.NDArray[np.uint8]) -> None:
    """Sets the state byte of every surviving record of a group; the others stay superseded."""
    if states.size > SURVIVORS_MAX:
        _apply_wide(np.frombuffer(blob, dtype=np.uint64), states)
    else:
        _apply(np.frombuffer(blob, dtype=np.uint32), states)


@kernel
def _apply_wide(survivors: Any, states: Any) -> None:
    for i in range(survivors.size):
        state = np.uint8(survivors[i] >> STATE_SHIFT)
        states[survivors[i] & ORDINAL_MASK] = state & np.uint8(TOMBSTONE | HELD | CODE_MASK)


@kernel
def _apply(survivors: Any, states: Any) -> None:
    for i in range(survivors.size):
        word = survivors[i]
        state = (word >> np.uint32(24)) & np.uint32(TOMBSTONE | HELD) | (word >> np.uint32(SURVIVOR_BITS)) & np.uint32(
            3
        )
        states[word & np.uint32(SURVIVORS_MAX - 1)] = np.uint8(state)
