"""What a replica can miss for good, in batches as brokers write them: tombstones, markers, and what a cleaner left of one."""

from __future__ import annotations

import pytest

from headstone.agent.deletions import EMPTIED, MARKER, TOMBSTONE, deletions_in
from headstone.log.reading import chunk_of
from headstone.sim.batches import marker_batch
from tests.oracle.batches import Batch, Record, encode


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_tombstones_markers_and_emptied_markers_are_told_apart(codec: str) -> None:
    records = tuple(Record(offset=3 + i, timestamp=1, key=b"k", value=None if i % 2 else b"v") for i in range(4))
    data = Batch(
        base_offset=3, last_offset_delta=3, records=records, count=4, base_timestamp=1, max_timestamp=1, codec=codec
    )
    emptied = Batch(
        base_offset=9, last_offset_delta=0, records=(), count=0, base_timestamp=1, max_timestamp=1, control=True,
        transactional=True,
    )  # fmt: skip
    before, behind = (
        marker_batch(base=base, producer_id=7, producer_epoch=0, commit=True, timestamp=5, leader_epoch=0).raw
        for base in (1, 8)
    )
    assert deletions_in(chunk_of("a log", before + encode(data) + behind + encode(emptied))).tolist() == [
        [1, MARKER], [4, TOMBSTONE], [6, TOMBSTONE], [8, MARKER], [9, EMPTIED],
    ]  # fmt: skip
