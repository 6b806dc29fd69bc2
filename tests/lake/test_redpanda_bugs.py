"""Every bug that Redpanda's Cloud Topics compaction had, by its number, as a thing that does not happen here.

29092 and 31124 are in test_commits and test_compaction too, 31442 and the inverted queue in test_scheduling.
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
from headstone.lake.format.objects import object_path, writing_object
from headstone.lake.format.spans import Span
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.compaction import compact_partition
from headstone.lake.jobs.job import JobControl
from headstone.lake.lake import Lake
from headstone.lake.metastore import metastore as metastore_module
from headstone.lake.metastore.commits import Append, CommitRefused
from headstone.lake.metastore.holds import Holds
from headstone.lake.metastore.scheduling import queue
from headstone.lake.transfer.ingest import ingest
from headstone.lake.transfer.reading import record_batches
from headstone.log.directory import LOG, find_partitions, numbered
from headstone.log.encoding import BatchHead, Columns, batch_bytes, encode_section
from headstone.pipeline.inprocess import InProcess
from headstone.storage.stores import MissingObject, Sink, Store
from tests.lake.oracle import eligibility_of
from tests.lake.scene import AT, RETENTION_MS, Scene
from tests.lake.single import level_partition


class BreakingStore(Store):
    """Uploads break off behind the first bytes."""

    @contextmanager
    def writing(self, path: str, *, part_bytes: int = 8 << 20) -> Iterator[Sink]:
        with super().writing(path, part_bytes=part_bytes) as sink:
            sink.write(b"some bytes")
            raise Unfinished(f"{path}: 503 slow down")
            yield sink

    def put(self, path: str, content: bytes, *, create: bool = False) -> bool:
        raise Unfinished(f"{path}: 503 slow down")


def test_29092_a_commit_of_objects_alone_carries_the_epoch(scene: Scene) -> None:
    """Two jobs that commit in parts: the second is refused at its first part, though it claims nothing yet."""
    for _ in range(3):
        scene.write("N[a]", "N[b]")
    faster = iter([True])

    def overtaken() -> None:
        if next(faster, False):
            scene.compact(now_ms=10)

    with pytest.raises(CommitRefused, match="stale compaction epoch 0"):
        scene.compact(now_ms=11, commit_bytes=1, control=JobControl(before_commit=overtaken))
    assert (len(scene.held()), scene.lake.metastore.check()) == (2, [])


def test_29168_an_error_of_the_store_is_not_data(scene: Scene, tmp_path: Path) -> None:
    """An extent that cannot be read ends the job; nothing is claimed clean, nothing is rewritten."""
    scene.write("N[a]")
    scene.write("N[a]")
    before = scene.lake.metastore.partition(AT)
    (tmp_path / "objects" / object_path(before.extents[0].object_id)).unlink()
    with pytest.raises(MissingObject):
        scene.compact(now_ms=10)
    assert scene.lake.metastore.partition(AT) == before


def test_29268_what_a_reader_pinned_stays(scene: Scene) -> None:
    Holds(scene.lake.metastore).hold("iceberg", AT, 0, expires_ms=10**9)
    scene.write("N[a]", "T[a]")
    scene.compact(now_ms=10)
    scene.compact(now_ms=10 + 100 * RETENTION_MS)
    assert [(offset, value) for offset, _, value in scene.held()] == [(1, None)]


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


@pytest.mark.parametrize("span", [Span(6, 6), Span(7, 6)])
def test_29914_an_inverted_extent_is_refused(scene: Scene, lake: Lake, span: Span) -> None:
    scene.write("N[a]", "N[b]", "N[c]", "N[d]", "N[e]", "N[f]")
    (object_id,) = lake.metastore.register(1, now_ms=1)
    with writing_object(lake.store, object_id, lake.metastore.lake_id) as writer:
        extent = writer.add("t", 0, span, [], records=0, max_timestamp_ms=-1)
    with pytest.raises(CommitRefused, match="empty or inverted"):
        lake.metastore.append(
            {AT: Append(expected_next=6, extents=(extent,))}, {object_id: writer.size}, now_ms=1
        )  # fmt: skip


def test_30043_lag_is_a_deadline_and_not_only_a_condition(scene: Scene) -> None:
    scene.write("N[a]@1000", "N[b]@1000")
    partition = scene.lake.metastore.partition(AT)
    late = eligibility_of(partition, {"max.compaction.lag.ms": 500, "min.cleanable.dirty.ratio": 1.1}, now_ms=1501)
    dirty = eligibility_of(partition, {}, now_ms=1501)
    assert (late.eligible, late.deadline_ms) == (True, 1500)
    assert [at.number for at, _ in queue([(AT._replace(number=1), dirty), (AT, late)], now_ms=1501)] == [0, 1]


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


def test_31104_retention_does_not_apply_to_a_compacted_topic(scene: Scene) -> None:
    """Old records of keys that nobody has written since are live data."""
    scene.lake.metastore.create_topic("other", 1, {"retention.ms": 1, "retention.bytes": 1})
    with scene.lake.metastore.transaction() as connection:
        connection.exec_driver_sql("""UPDATE topics SET settings = '{"retention.ms": 1, "retention.bytes": 1}'""")
    scene.write("N[old]@1", "N[a]@1")
    scene.write("N[a]@2")
    scene.compact(now_ms=10**12)
    assert (set(scene.table()), scene.lake.metastore.partition(AT).start_offset) == ({b"old", b"a"}, 0)


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


def test_31442_timestamps_of_the_future_block_nothing(scene: Scene) -> None:
    scene.write("N[a]@99999999", "N[a]@99999999")
    assert scene.compact(now_ms=10).committed
    assert len(scene.held()) == 1
