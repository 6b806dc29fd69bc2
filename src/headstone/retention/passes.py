"""One cleaning pass over a partition, which goes through a segment's chunks twice.

First it indexes (which record of a key is newest), then it rewrites (verdicts applied). Each takes chunks of bytes and returns
arrays or bytes; the caller knows which file they come from and go to. Ordinals number the records of the rewritten part of a
partition from its first segment on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headstone.log import kernels
from headstone.log.reading import Chunk, ChunkReader, Payloads, corrupt_record
from headstone.retention import keys
from headstone.retention.policy import Policy, horizon_after
from headstone.retention.rewrite import Rewriter, RewrittenChunk, changed
from headstone.retention.survey import SegmentSurvey, seals
from headstone.retention.transactions import COMMITTED, DATA, OPEN, Roles
from headstone.retention.verdicts import REASONS, judge, kept_headers
from headstone.storage.ranges import open_ranges

States = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningPass:
    """What holds for the whole of one pass over one partition. Keys are mapped in [dirty_start, dirty_end)."""

    policy: Policy
    hash_key: keys.HashKey
    dirty_start: int
    dirty_end: int
    """Where the pass ends: the next first dirty offset. Below `uncleanable` if a bounded map was full before that."""
    uncleanable: int
    active: npt.NDArray[Any]
    """Rows of `producers.PRODUCER` that have not expired."""


@dataclass(slots=True, kw_only=True)
class Piece:
    """One chunk of a segment with its roles and the ordinal of each batch's first record, counted from the chunk."""

    chunk: Chunk
    roles: Roles
    ordinals: npt.NDArray[np.int64]
    record: int
    """Segment-wide ordinal of the chunk's first record."""
    records: int


class PieceReader:
    """Cuts a segment file into pieces, forwards or backwards: exactly the surveyed bytes, with checksums verified.

    `may_grow`: for callers that only read. They ignore later appends; a caller that replaces the file would lose them."""

    def __init__(self, *, may_grow: bool = False) -> None:
        self._reader = ChunkReader()
        self._may_grow = may_grow

    def pieces(self, segment: SegmentSurvey, *, backwards: bool) -> Iterator[Piece]:
        if segment.batches == 0:
            return
        roles = segment.roles()
        cuts = segment.cuts
        order = range(cuts.size - 2, -1, -1) if backwards else range(cuts.size - 1)
        within = int(cuts[0]["position"]), int(cuts[-1]["position"])
        file = segment.file
        with open_ranges(file.path, file.access, size=file.size, within=within, backwards=backwards) as ranges:
            if ranges.size != segment.size and not (self._may_grow and ranges.size > segment.size):
                raise changed(file.path, 0, segment.base)
            for i in order:
                here, there = cuts[i], cuts[i + 1]
                batches = int(there["batch"] - here["batch"])
                chunk = self._reader.read(
                    ranges, int(here["position"]), int(there["position"]), batches=batches, previous=-1, with_crc=True
                )
                if chunk.batches.size != batches or _sealed(chunk) != (int(there["seal"]) - int(here["seal"])) % 2**64:
                    raise changed(file.path, chunk.position, int(chunk.batches[0]["base_offset"]))
                counts = chunk.batches["count"].astype(np.int64)
                yield Piece(
                    chunk=chunk,
                    roles=roles[int(here["batch"]) : int(there["batch"])],
                    ordinals=np.cumsum(counts) - counts,
                    record=int(here["record"]),
                    records=int(there["record"] - here["record"]),
                )


def _sealed(chunk: Chunk) -> int:
    return int(seals(chunk.batches).sum(dtype=np.uint64))


@dataclass(slots=True, kw_only=True)
class Entries:
    """Keyed records of one piece in offset order; valid until the next piece is indexed."""

    digests: npt.NDArray[np.uint64]
    ordinals: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]


class Indexer:
    """Parses and digests the records of a piece. Buffers are reused, and grow only for records whose bytes are there."""

    def __init__(self, cleaning: CleaningPass) -> None:
        self._cleaning = cleaning
        self._payloads = Payloads()
        self._digests = np.zeros((1 << 8, 2), dtype=np.uint64)
        self._ordinals = np.zeros(1 << 8, dtype=np.int64)
        self._offsets = np.zeros(1 << 8, dtype=np.int64)

    def _make_room(self, used: int, records: int) -> None:
        needed = used + records
        if needed > self._ordinals.size:
            size = needed + needed // 4
            self._digests = _grown(self._digests, used, size)
            self._ordinals = _grown(self._ordinals, used, size)
            self._offsets = _grown(self._offsets, used, size)

    def index(self, piece: Piece, states: States, *, chosen: npt.NDArray[np.int64] | None = None) -> Entries:
        """Fills states (of this piece's records) with flags and codes; keyed ones are left to be marked newest."""
        if chosen is None:
            chosen = np.flatnonzero((piece.roles == DATA) | (piece.roles == COMMITTED))
        batches = piece.chunk.batches
        n = 0
        for some, data, starts, ends in self._payloads.runs(piece.chunk, chosen):
            counts = batches["count"][some]
            self._make_room(n, int(counts.sum(dtype=np.int64)))
            n, code, k, r = keys.index_records(
                data, starts, ends, batches["base_offset"][some], batches["last_offset"][some],
                counts, piece.ordinals[some], np.uint64(self._cleaning.hash_key.k0),
                np.uint64(self._cleaning.hash_key.k1), self._cleaning.dirty_end, self._cleaning.policy.tombstones_below,
                states, n, self._digests, self._ordinals, self._offsets,
            )  # fmt: skip
            if code != kernels.OK:
                raise corrupt_record(piece.chunk.path, piece.chunk.in_file(int(some[k])), code, int(r))
        return Entries(digests=self._digests[:n], ordinals=self._ordinals[:n], offsets=self._offsets[:n])


def _grown(buffer: npt.NDArray[Any], used: int, size: int) -> npt.NDArray[Any]:
    grown = np.zeros((size, *buffer.shape[1:]), dtype=buffer.dtype)
    grown[:used] = buffer[:used]
    return grown


class PieceRewriter:
    """Judges and rewrites pieces; `reasons` counts every verdict by `verdicts.REASONS`."""

    def __init__(self, cleaning: CleaningPass) -> None:
        self._cleaning = cleaning
        policy = cleaning.policy
        self._horizon = horizon_after(policy.now_ms, policy.delete_retention_ms)
        self._rewriter = Rewriter(now_ms=policy.now_ms, plain_below=policy.plain_below)
        self.reasons = np.zeros(len(REASONS), dtype=np.int64)

    def rewrite(self, piece: Piece, states: States) -> RewrittenChunk:
        batches = piece.chunk.batches
        if (piece.roles == OPEN).any():
            raise AssertionError(f"{piece.chunk.path}: a range to rewrite may not reach into an open transaction")
        actions = np.zeros(batches.size, dtype=np.uint8)
        horizons = np.zeros(batches.size, dtype=np.int64)
        kept = kept_headers(batches, self._cleaning.active, uncleanable=self._cleaning.uncleanable)
        policy = self._cleaning.policy
        judge(
            batches, piece.roles, kept, piece.ordinals, states, policy.now_ms, self._horizon, policy.markers_below,
            policy.plain_below, actions, horizons, self.reasons,
        )  # fmt: skip
        return self._rewriter.rewrite(piece.chunk, actions, piece.roles, horizons, states, piece.ordinals)


def bounded_end(
    segments: list[SegmentSurvey], cleaning: CleaningPass, keys_max: int, reader: PieceReader | None = None
) -> tuple[int, int]:
    """How far Kafka's map of keys_max keys reaches from dirty_start: (dirty_end, keys)."""
    # No more slots than there are records: a larger map would only take memory.
    table = keys.new_table(min(keys_max, sum(segment.records for segment in segments)) + 1)
    reader, indexer = reader or PieceReader(), Indexer(cleaning)
    used, latest = 0, cleaning.dirty_start - 1
    for i, segment in enumerate(segments):
        for piece in reader.pieces(segment, backwards=False):
            entries = indexer.index(piece, np.zeros(piece.records, dtype=np.uint8))
            used, latest, full = keys.fill_bounded(
                table, used, keys_max, entries.digests, entries.ordinals, entries.offsets, piece.ordinals,
                piece.chunk.batches["last_offset"], cleaning.dirty_start, latest,
            )  # fmt: skip
            if full:
                return latest + 1, used
        end = segments[i + 1].base if i + 1 < len(segments) else cleaning.uncleanable
        latest = max(latest, end - 1)
    return latest + 1, used
