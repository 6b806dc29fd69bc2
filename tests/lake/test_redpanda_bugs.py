"""Every bug that Redpanda's Cloud Topics compaction had, by its number, as a thing that does not happen here.

Others are where their rule is: 29092, and 29268 among the holds, in test_compaction; 29168 in test_job_of_many; 29914's
inverted extents in test_commits; 30043, 31442 and the inverted queue in test_queue; 31104 in test_topics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from sqlalchemy.exc import OperationalError

from headstone.errors import Unfinished
from headstone.lake.format.spans import Span
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.compaction import compact_partition
from headstone.lake.jobs.job import JobControl
from headstone.lake.lake import Lake
from headstone.lake.metastore import metastore as metastore_module
from headstone.lake.transfer.ingest import ingest
from headstone.lake.transfer.reading import record_batches
from headstone.log.directory import LOG, find_partitions, numbered
from headstone.log.encoding import BatchHead, Columns, batch_bytes, encode_section
from headstone.pipeline.inprocess import InProcess
from headstone.storage.stores import ByteSink, Store
from tests.lake.oracle import eligibility_of
from tests.lake.scene import AT, RETENTION_MS, Scene
from tests.lake.single import level_partition


class BreakingStore(Store):
    """Uploads break off behind the first bytes."""

    @contextmanager
    def writing(self, path: str, *, part_bytes: int = 8 << 20) -> Iterator[ByteSink]:
        with super().writing(path, part_bytes=part_bytes) as sink:
            sink.write(b"some bytes")
            raise Unfinished(f"{path}: 503 slow down")
            yield sink

    def put(self, path: str, content: bytes, *, create: bool = False) -> bool:
        raise Unfinished(f"{path}: 503 slow down")


def test_29914_an_upload_that_breaks_off_commits_nothing(scene: Scene, lake: Lake) -> None:
    for _ in range(3):
        scene.write("N[a]", "N[b]")
    before = lake.metastore.partition(AT)
    broken = replace(lake, store=BreakingStore.open(lake.store.url))
    scene.lake = broken
    with pytest.raises(Unfinished, match="slow down"):
        scene.compact(now_ms=10)
    assert (lake.metastore.partition(AT), lake.metastore.check()) == (before, [])
    scene.lake = lake
    scene.compact(now_ms=20)
    assert len(scene.held()) == 2


def test_31052_a_metastore_that_fails_within_a_commit_has_changed_nothing(
    scene: Scene, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And 30775. The last step of the transaction fails: extents, epoch, claims and objects are as before."""
    for _ in range(3):
        scene.write("N[a]", "T[b]")
    before, objects = lake.metastore.partition(AT), lake.metastore.objects()
    real = metastore_module.release

    def fails(*arguments: object) -> None:
        raise OperationalError("UPDATE objects", {}, OSError("disk I/O error"))

    monkeypatch.setattr(metastore_module, "release", fails)
    with pytest.raises(Unfinished, match="does not answer: disk I/O error"):
        scene.compact(now_ms=10)
    after = {one: row for one, row in lake.metastore.objects().items() if row.state != "registered"}
    assert (lake.metastore.partition(AT), after, lake.metastore.check()) == (before, objects, [])
    monkeypatch.setattr(metastore_module, "release", real)
    scene.compact(now_ms=20)
    assert len(scene.held()) == 2


@pytest.mark.parametrize("every", [2, 5], ids=["rewritten", "marked"])
def test_30740_30759_the_filter_of_a_batch_is_not_quadratic(lake: Lake, tmp_path: Path, every: int) -> None:
    """Two million records in one batch: by a filter that looks at a batch once for each record it would not end today."""
    records = 2_000_000
    lake.metastore.create_topic("t", 1, {})
    logs = tmp_path / "log"
    one_batch(logs / "t-0", np.arange(records), 0)
    ingest(lake, find_partitions([logs / "t-0"]), clock=lambda: 0)
    compact_partition(lake, AT, InProcess(1), now_ms=10)
    one_batch(logs / "t-0", np.arange(0, records, every), records)
    ingest(lake, find_partitions([logs / "t-0"]), clock=lambda: 10)
    done = compact_partition(lake, AT, InProcess(1), now_ms=20)
    assert (done.records_after, done.extents_marked) == (records, int(every == 5))
    level_partition(lake, AT, clock=lambda: 30, extent_bytes=1, purge=True)
    partition = lake.metastore.partition(AT)
    assert [(extent.records, extent.dead) for extent in partition.extents] == [
        (records - records // every, 0), (records // every, 0),
    ]  # fmt: skip
    held = np.concatenate(
        [batch.column("offset").to_numpy() for batch in record_batches(lake.store, AT, partition.extents, 0)]
    )
    kept = np.setdiff1d(np.arange(records), np.arange(0, records, every))
    assert np.array_equal(held, np.concatenate([kept, np.arange(records, records + records // every)]))


def one_batch(directory: Path, keys: npt.NDArray[np.int64], start: int) -> None:
    """A segment from offset `start` on: one batch, a record for each of these keys."""
    directory.mkdir(parents=True, exist_ok=True)
    steps, eights = np.arange(keys.size), np.full(keys.size, 8)
    data, zeros = keys.astype(">i8").view(np.uint8), np.zeros(keys.size, dtype=np.int64)
    columns = Columns(
        timestamp_deltas=zeros, offset_deltas=steps, key_pool=data, key_starts=steps * 8, key_sizes=eights,
        value_pool=data, value_starts=steps * 8, value_sizes=eights, header_pool=np.zeros(1, dtype=np.uint8),
        header_starts=zeros, header_sizes=zeros + 1,
    )  # fmt: skip
    head = BatchHead(base_offset=start, last_offset_delta=keys.size - 1, base_timestamp=0, max_timestamp=0, codec=0)
    batch = batch_bytes(head, encode_section(columns), keys.size)
    (directory / numbered(start, LOG)).write_bytes(batch.tobytes())
    (directory / numbered(start + keys.size, LOG)).touch()


def test_31124_emptied_ranges_are_clean(scene: Scene) -> None:
    """An extent that lost everything keeps its span, is claimed, and is not compacted again."""
    scene.write("N[a]", "N[b]")
    scene.write("N[a]", "N[b]")
    scene.compact(now_ms=10)
    partition = scene.lake.metastore.partition(AT)
    assert next((extent.span, extent.records, extent.length) for extent in partition.extents) == (Span(0, 2), 0, 0)
    state = eligibility_of(partition, {"min.cleanable.dirty.ratio": 0}, now_ms=10**9)
    assert (state.eligible, state.reason) == (False, "nothing is dirty")
    assert not scene.compact(now_ms=10**9).committed


def test_31176_a_job_longer_than_an_upload_may_take_still_gets_there(scene: Scene, lake: Lake) -> None:
    """What it has registered is registered anew as time goes by, so that garbage collection does not take it away."""
    for _ in range(4):
        scene.write("N[a]", "N[b]")
    clock = [10]

    def collected() -> None:
        clock[0] += 60
        collect(lake, garbage(lake, now_ms=clock[0], grace_ms=0, upload_ms=100))

    control = JobControl(before_commit=collected, clock=lambda: clock[0])
    done = scene.compact(now_ms=10, control=control, commit_bytes=1, renew_ms=50)
    assert clock[0] > 10 + 100
    assert (done.commits, len(scene.held()), lake.metastore.check()) == (3, 2, [])


def test_31357_a_log_ends_where_it_ended(scene: Scene) -> None:
    """The last records of the log are superseded or gone: the next offset stays, so that the next write is accepted."""
    scene.write("N[a]", "T[a]")
    scene.compact(now_ms=10)
    scene.compact(now_ms=10 + RETENTION_MS)
    assert (scene.held(), scene.lake.metastore.partition(AT).next_offset) == ([], 2)
    scene.write("N[z]")
    assert [offset for offset, _, _ in scene.held()] == [2]
