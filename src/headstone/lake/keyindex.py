"""The list of an extent's keys: which extents a compaction has to read is decided by it, not by reading them.

Sorted 64-bit digests, a CRC-32C behind them. No key is missing from its list; a digest that two keys share costs a needless
read and nothing else. The digest is fixed for ever, because lists are compared that were written years apart.
"""

from __future__ import annotations

from collections.abc import Iterable

import google_crc32c
import numpy as np
import numpy.typing as npt

from headstone.log import kernels
from headstone.log.reading import Chunk, Payloads, corrupt_record
from headstone.retention.keys import index_records
from headstone.retention.policy import NO_LIMIT

Keys = npt.NDArray[np.uint64]
DIGEST_BYTES = 8
CHECKSUM_BYTES = 4
EMPTY: Keys = np.zeros(0, dtype=np.uint64)


def section_bytes(keys: int) -> int:
    """What a list takes behind the batches of its extent; 0 if there is none."""
    return 0 if keys < 0 else keys * DIGEST_BYTES + CHECKSUM_BYTES


def key_section(keys: Keys) -> bytes:
    data = keys.astype("<u8").tobytes()
    checksum: bytes = google_crc32c.value(data).to_bytes(CHECKSUM_BYTES, "little")
    return data + checksum


def keys_of_section(section: bytes) -> Keys | None:
    """None if the checksum is wrong."""
    data, checksum = section[:-CHECKSUM_BYTES], section[-CHECKSUM_BYTES:]
    if google_crc32c.value(data) != int.from_bytes(checksum, "little"):
        return None
    return np.frombuffer(data, dtype="<u8").astype(np.uint64)


def keys_in(chunk: Chunk, payloads: Payloads) -> Keys:
    """The distinct keys of all records, sorted."""
    parts = [EMPTY]
    batches = chunk.batches
    for some, data, starts, ends in payloads.runs(chunk, np.flatnonzero(batches["count"] > 0)):
        counts = batches["count"][some].astype(np.int64)
        records = int(counts.sum())
        digests, ordinals = np.zeros((records, 2), dtype=np.uint64), np.cumsum(counts) - counts
        n, code, k, r = index_records(
            data, starts, ends, batches["base_offset"][some], batches["last_offset"][some], batches["count"][some],
            ordinals, np.uint64(0), np.uint64(0), NO_LIMIT, NO_LIMIT, np.zeros(records, dtype=np.uint8), 0, digests,
            np.zeros(records, dtype=np.int64), np.zeros(records, dtype=np.int64),
        )  # fmt: skip
        if code != kernels.OK:
            raise corrupt_record(chunk.path, chunk.in_file(int(some[k])), code, int(r))
        parts.append(digests[:n, 0].copy())
    return _distinct(np.concatenate(parts))


def union(lists: Iterable[Keys]) -> Keys:
    return _distinct(np.concatenate([EMPTY, *lists]))


def _distinct(keys: Keys) -> Keys:
    """Sorted. Not `np.unique`: since NumPy 2.3 that hashes first, which for millions of digests takes many times as long."""
    found = np.sort(keys)
    kept = np.ones(found.size, dtype=np.bool_)
    np.not_equal(found[1:], found[:-1], out=kept[1:])
    return found[kept]


def any_common(ours: Keys, theirs: Keys) -> bool:
    """Both sorted and distinct."""
    few, many = (ours, theirs) if ours.size < theirs.size else (theirs, ours)
    if few.size == 0:
        return False
    at = np.minimum(np.searchsorted(many, few), many.size - 1)
    return bool((many[at] == few).any())
