"""Groups that outgrow a segment go on in a second one: same batches, right indexes, every abort entry with its marker.

Two GiB are not written here: the limit is lowered.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from headstone.pipeline import outputs
from headstone.retention.policy import NO_LIMIT, Policy
from tests.logs import compact_here, write_log
from tests.oracle.batches import Batch, to_bytes
from tests.oracle.files import read_partition
from tests.oracle.segments import AbortedTxn, Segment, make_segment

NAME = "t-0"
LOG = "N[a,b] P1[c] A1 P1[d] | N[e,~f] C1 P2[g] N[h]/zstd | A2 T[i] N[k,l,m] I3[n] | N[o]"
LIMITS = [1, 100, 150, 200, 300, 600]
BATCH_BYTES_MAX = 110


def made(root: Path, *, path: str, in_place: bool) -> list[Segment]:
    logs = write_log(root / "in", LOG, NAME)
    out = None if in_place else root / "out"
    policy = Policy(now_ms=9000, producer_id_expiration_ms=NO_LIMIT, plain_below=NO_LIMIT, index_interval_bytes=4096)
    report = compact_here(logs, out=out, policy=policy, path=path).partitions[0]
    segments = read_partition((out or logs) / NAME)
    assert report.segments_after == len(segments)
    assert report.bytes_after == sum(segment.size for segment in segments)
    assert report.records_after == sum(batch.count for batch in batches(segments))
    return segments


def batches(segments: list[Segment]) -> list[Batch]:
    return [batch for segment in segments for batch in segment.batches]


def rebuilt(segment: Segment) -> Segment:
    """The same segment with the indexes that Kafka would make."""
    return make_segment(
        base=segment.base, batches=list(segment.batches), mtime_ms=segment.mtime_ms, aborted=list(segment.aborted)
    )


@pytest.mark.parametrize(("path", "in_place"), [("whole", True), ("whole", False), ("shuffle", True)])
@pytest.mark.parametrize("limit", LIMITS)
def test_outputs_are_cut_at_batches(
    limit: int, path: str, in_place: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = made(tmp_path / "uncut", path=path, in_place=in_place)
    assert len(whole) == 2
    monkeypatch.setattr(outputs, "SEGMENT_BYTES_MAX", limit)
    cut = made(tmp_path / "cut", path=path, in_place=in_place)
    assert batches(cut) == batches(whole)
    assert [segment for segment in cut if segment != rebuilt(segment)] == []
    for segment, later in pairwise(cut):
        assert segment.size <= limit or len(segment.batches) == 1
        assert segment.base <= segment.batches[0].base_offset <= segment.next_offset <= later.base
        grown = segment.size + len(to_bytes(later.batches[0]))
        assert grown > limit or later is cut[-1]
    assert [(e, s.base) for s in cut for e in s.aborted] == [(e, home(e, cut)) for s in whole for e in s.aborted]


def home(entry: AbortedTxn, segments: list[Segment]) -> int:
    """The segment in which Kafka would look for the entry: the one of its marker."""
    return max(segment.base for segment in segments if segment.base <= entry.last_offset)


def test_the_limit_is_what_a_broker_can_open() -> None:
    assert outputs.SEGMENT_BYTES_MAX == 2**31 - 1
