"""The stages on threads: what waits between two of them waits on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from headstone.errors import Unfinished
from headstone.pipeline import inprocess, splitting
from headstone.pipeline.blob_spool import BlobSpool, SpooledBlob
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import Meter


def test_what_is_put_into_a_spool_is_read_from_it() -> None:
    with BlobSpool() as spool:
        first, second = spool.put([b"abc", b"", b"de"]), spool.put([b"f"])
        assert [spool.read(place) for place in (*second, *reversed(first))] == [b"f", b"de", b"", b"abc"]


def test_a_spool_that_lost_bytes_ends_the_job() -> None:
    """A blob that is too short would be records too few."""
    with BlobSpool() as spool:
        (place,) = spool.put([b"abc"])
        with pytest.raises(Unfinished, match="lost 2 bytes"):
            spool.read(SpooledBlob(place.start + 2, place.size))


@dataclass(frozen=True)
class Counted:
    """A partition of one unit, which tells into how many buckets it was asked to go."""

    records: int

    @property
    def group_edges(self) -> tuple[int, ...]:
        return (0, self.records)

    @property
    def size(self) -> int:
        return 0

    def units(self) -> list[Counted]:
        return [self]

    def parts(self) -> list[Counted]:
        return [self]

    def index(self, bucket_count: int, meter: Meter) -> tuple[list[bytes], int]:
        return [b""] * bucket_count, 0

    def rewrite(self, blobs: Sequence[bytes], meter: Meter, *, keys_found: int, tombstones_lost: int) -> int:
        return len(blobs)


def test_the_number_of_buckets_grows_with_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Spark: a bucket's entries are what a thread has in memory."""
    monkeypatch.setattr(splitting, "BUCKET_BYTES", 100 * splitting.ENTRY_BYTES)
    many = 10 * splitting.BUCKET_BYTES // splitting.ENTRY_BYTES
    assert list(InProcess(2).split([Counted(1), Counted(many)])) == [(0, inprocess.BUCKETS), (1, 10)]
