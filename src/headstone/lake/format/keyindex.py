"""The list of an extent's keys: the index of a compaction. Compaction finds superseded records by these lists alone and reads
no batch for it.

Behind the batches, one entry per record with a key, in the order of their offsets:

    first halves (8 each)  CRC-32C (4)  lowest offset (8)  second halves (8 each)  above it (4 each)  CRC-32C (4)

The first part alone tells whether an extent is affected. In the last number, the top bit marks a tombstone; the other bits are
the record's distance from the lowest offset. The digests are the ones that a pass uses, SipHash-2-4-128, under a secret of the
lake: records are deleted by them, so it must be impossible to construct two keys with the same digest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import google_crc32c
import numpy as np
import numpy.typing as npt

from headstone.log import kernels
from headstone.log.reading import Chunk, Payloads, corrupt_record
from headstone.retention.keys import TOMBSTONE, HashKey, index_records
from headstone.retention.policy import NO_LIMIT

Halves = npt.NDArray[np.uint64]
"""First halves of digests."""
Offsets = npt.NDArray[np.int64]
HALF_BYTES, LOWEST_BYTES, ABOVE_BYTES, CHECKSUM_BYTES = 8, 8, 4, 4
ABOVE_MAX = (1 << 31) - 1
TOMBSTONE_BIT = 1 << 31
NO_HALVES: Halves = np.zeros(0, dtype=np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class KeyList:
    """Entries in the order of offsets. Records without a key are not in it."""

    digests: npt.NDArray[np.uint64]
    offsets: Offsets
    tombstones: npt.NDArray[np.bool_]

    @property
    def fits(self) -> bool:
        """Whether it can be written. It can't if its offsets are too far apart."""
        return self.offsets.size == 0 or int(self.offsets[-1] - self.offsets[0]) <= ABOVE_MAX

    def only(self, chosen: npt.NDArray[np.bool_]) -> KeyList:
        return KeyList(self.digests[chosen], self.offsets[chosen], self.tombstones[chosen])


NO_KEYS = KeyList(np.zeros((0, 2), dtype=np.uint64), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_))


def halves_bytes(keys: int) -> int:
    return keys * HALF_BYTES + CHECKSUM_BYTES


def rest_bytes(keys: int) -> int:
    return LOWEST_BYTES + keys * (HALF_BYTES + ABOVE_BYTES) + CHECKSUM_BYTES


def section_bytes(keys: int) -> int:
    """Size of the list behind the batches of its extent; 0 if there is none."""
    return 0 if keys < 0 else halves_bytes(keys) + rest_bytes(keys)


def checksum_of(data: bytes) -> int:
    """CRC-32C; the extent's row stores it too. 32 bits protect against mistakes: of exchanged lists, one in four thousand
    million would pass. An attacker who can write to the store could make one that passes, and could do anything else."""
    return int(google_crc32c.value(data))


def section_checksum(section: bytes) -> int:
    """The checksum that ends a part of a list. Not the CRC of the whole part: data followed by their CRC give a constant."""
    return int.from_bytes(section[-CHECKSUM_BYTES:], "little")


def with_checksum(data: bytes) -> bytes:
    return data + checksum_of(data).to_bytes(CHECKSUM_BYTES, "little")


def verified(section: bytes) -> bytes | None:
    """The bytes before the checksum; None if the checksum is wrong."""
    data = section[:-CHECKSUM_BYTES]
    return data if checksum_of(data) == section_checksum(section) else None


def key_section(keys: KeyList) -> tuple[bytes, bytes]:
    """Its two parts."""
    low, high = keys.digests[:, 0].astype("<u8"), keys.digests[:, 1].astype("<u8")
    lowest = int(keys.offsets[0]) if keys.offsets.size else 0
    above = ((keys.offsets - lowest) | np.where(keys.tombstones, TOMBSTONE_BIT, 0)).astype("<u4")
    rest = lowest.to_bytes(LOWEST_BYTES, "little") + high.tobytes() + above.tobytes()
    return with_checksum(low.tobytes()), with_checksum(rest)


def halves_of(section: bytes) -> Halves | None:
    """First halves from the first part of a section; None if its checksum is wrong."""
    data = verified(section)
    return None if data is None else np.frombuffer(data, dtype="<u8").astype(np.uint64)


def keys_of(halves: Halves, section: bytes) -> KeyList | None:
    """The whole list, from its first part and the bytes of the second; None if the checksum is wrong."""
    data = verified(section)
    if data is None:
        return None
    lowest = int.from_bytes(data[:LOWEST_BYTES], "little")
    high = np.frombuffer(data, dtype="<u8", count=halves.size, offset=LOWEST_BYTES)
    above = np.frombuffer(data, dtype="<u4", offset=LOWEST_BYTES + halves.size * HALF_BYTES)
    return KeyList(
        np.stack([halves, high.astype(np.uint64)], axis=1),
        (above & np.uint32(ABOVE_MAX)).astype(np.int64) + lowest,
        (above & np.uint32(TOMBSTONE_BIT)) != 0,
    )


def keys_in(chunks: Iterable[Chunk], hash_key: HashKey) -> KeyList:
    """The list of all records with a key."""
    payloads = Payloads()
    return joined(found for chunk in chunks for found in _runs(chunk, payloads, hash_key))


def _runs(chunk: Chunk, payloads: Payloads, hash_key: HashKey) -> Iterable[KeyList]:
    batches = chunk.batches
    for some, data, starts, ends in payloads.runs(chunk, np.flatnonzero(batches["count"] > 0)):
        counts = batches["count"][some].astype(np.int64)
        records = int(counts.sum())
        digests, ordinals = np.zeros((records, 2), dtype=np.uint64), np.cumsum(counts) - counts
        offsets, entries = np.zeros(records, dtype=np.int64), np.zeros(records, dtype=np.int64)
        states = np.zeros(records, dtype=np.uint8)
        n, code, k, r = index_records(
            data, starts, ends, batches["base_offset"][some], batches["last_offset"][some], batches["count"][some],
            ordinals, np.uint64(hash_key.k0), np.uint64(hash_key.k1), NO_LIMIT, NO_LIMIT, states, 0, digests, entries, offsets,
        )  # fmt: skip
        if code != kernels.OK:
            raise corrupt_record(chunk.path, chunk.in_file(int(some[k])), code, int(r))
        yield KeyList(digests[:n], offsets[:n], states[entries[:n]] & TOMBSTONE != 0)


def joined(lists: Iterable[KeyList]) -> KeyList:
    """One list made of consecutive ones."""
    parts = list(lists)
    return KeyList(
        np.concatenate([NO_KEYS.digests, *(part.digests for part in parts)]),
        np.concatenate([NO_KEYS.offsets, *(part.offsets for part in parts)]),
        np.concatenate([NO_KEYS.tombstones, *(part.tombstones for part in parts)]),
    )


def union(lists: Iterable[Halves]) -> Halves:
    """Sorted, without repetition. Not `np.unique`: since NumPy 2.3 it hashes first, which is many times slower for millions."""
    halves = np.sort(np.concatenate([NO_HALVES, *lists]))
    kept = np.ones(halves.size, dtype=np.bool_)
    np.not_equal(halves[1:], halves[:-1], out=kept[1:])
    return halves[kept]


def any_common(halves: Halves, wanted: Halves) -> bool:
    """Whether any key may be in both; False is certain. `wanted` is a union."""
    return bool(common(halves, wanted).any())


def common(halves: Halves, wanted: Halves) -> npt.NDArray[np.bool_]:
    """For each of `halves`, whether it is in `wanted`, a union."""
    if wanted.size == 0:
        return np.zeros(halves.size, dtype=np.bool_)
    places = np.minimum(np.searchsorted(wanted, halves), wanted.size - 1)
    return np.asarray(wanted[places] == halves)
