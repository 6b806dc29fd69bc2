"""A topic as log directories from which brokers start: offsets, ends, indexes and checkpoints as they were."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headstone.errors import UsageError
from headstone.lake.format.extents import Extent
from headstone.lake.format.objects import writing_object
from headstone.lake.format.spans import Span
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Append, Claim
from headstone.lake.metastore.leader_epochs import known_leader_epochs, merged, note_leader_epochs, within
from headstone.lake.transfer.export import Exported, plan_export, segment_works, write_segments
from headstone.lake.transfer.export_cluster import TargetBroker, brokers_of, new_topics, placed
from headstone.lake.transfer.export_plan import PLAN_FILE
from headstone.lake.transfer.export_run import ExportEnded, requested, run_export
from headstone.log import checkpoints
from headstone.log.cluster_metadata import read_cluster_metadata
from headstone.log.directory import PartitionDir, find_partitions, list_segments
from headstone.log.encoding import BatchHead, batch_bytes
from headstone.log.indexes import read_time_index
from headstone.log.listing import BatchEntry, list_batches
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import Meter
from headstone.storage.access import Access
from headstone.storage.places import Place, place
from headstone.storage.stores import MissingObject
from testbed.s3 import BUCKET
from tests.lake.scene import AT, Said, Scene
from tests.lake.test_export_interrupted import BOOTSTRAP, formatted

FAR = 5 << 30
"""Offsets so far apart do not fit into one segment."""


def run(lake: Lake, outs: Sequence[Place], topics: Sequence[str] = ("t",), **asked: Any) -> ExportEnded:
    brokers = brokers_of([*outs])
    request = requested(brokers, topics, **{"topic_ids": {}, **asked})
    return run_export(lake, request, brokers, InProcess(2), reader="test")


def exported(lake: Lake, out: Place, *topics: str) -> list[Exported]:
    return run(lake, [out], topics or ("t",)).exported


def batches_in(out: Place, name: str = "t-0", *, records: bool = False) -> list[tuple[int, BatchEntry]]:
    """With the base of their segment."""
    (directory,) = (one for one in find_partitions([out]) if one.name == name)
    files = list_segments(directory)
    return [(file.base, batch) for file in files for batch in list_batches(file, with_records=records)]


def listed(out: Place, name: str = "t-0") -> list[tuple[int, int, int]]:
    """Segment base, last offset and records of each batch."""
    return [(base, batch.last_offset, batch.count) for base, batch in batches_in(out, name)]


def offsets(out: Place, file: str) -> Mapping[TopicPartition, int]:
    return checkpoints.read_offsets(out / file)


def test_every_record_is_where_it_was_and_the_directory_says_so(scene: Scene, tmp_path: Path) -> None:
    scene.history.leader_epoch = 4
    scene.write("N[a]", "N[b]")
    scene.write("T[a]", "N[c,d]/zstd")
    scene.compact(now_ms=1)
    scene.write("N[b]")
    out = tmp_path / "out"
    (done,) = exported(scene.lake, out)
    assert (done.start_offset, done.next_offset, done.records, done.segments) == (0, 6, 5, 1)
    records = [record for _, batch in batches_in(out, records=True) for record in batch.records or ()]
    assert [(record.offset, record.key, record.value) for record in records] == scene.held()
    assert sorted(path.name for path in (out / "t-0").iterdir()) == [
        "00000000000000000000.index", "00000000000000000000.log", "00000000000000000000.timeindex",
        "leader-epoch-checkpoint", "partition.metadata",
    ]  # fmt: skip
    assert checkpoints.read_leader_epochs(out / "t-0" / checkpoints.LEADER_EPOCHS) == [(4, 0)]
    assert checkpoints.read_topic_id(out / "t-0" / checkpoints.PARTITION_METADATA) == done.topic_id
    ends = {
        checkpoints.RECOVERY_POINT: 6,
        checkpoints.HIGH_WATERMARK: 6,
        checkpoints.LOG_START: 0,
        checkpoints.CLEANER: 5,
    }
    assert {file: offsets(out, file) for file in ends} == {file: {AT: offset} for file, offset in ends.items()}
    assert (out / checkpoints.CLEAN_SHUTDOWN).exists()


def test_the_first_dirty_offset_is_below_all_that_is_dirty(scene: Scene, tmp_path: Path) -> None:
    """Below it nothing supersedes anything: whoever takes it for that lets tombstones go too early."""
    scene.write("N[a]")
    scene.write("N[b]")
    scene.write("N[a]")
    scene.write("N[b]")
    claim = Claim(processed=Span(0, 4), cleaned=(Span(0, 1), Span(2, 3)))
    scene.lake.metastore.replace(AT, 0, [], claim, {}, now_ms=1)
    exported(scene.lake, tmp_path)
    assert offsets(tmp_path, checkpoints.CLEANER) == {AT: 1}


def test_of_a_moment_that_is_over_nothing_is_called_clean(scene: Scene, tmp_path: Path) -> None:
    """What was clean then is kept nowhere."""
    scene.lake.metastore.give_clock(10)
    scene.write("N[a]")
    scene.write("N[a]")
    scene.lake.metastore.give_clock(20)
    (done,) = run(scene.lake, [tmp_path], as_of_ms=15).exported
    assert (done.records, offsets(tmp_path, checkpoints.HIGH_WATERMARK)) == (2, {AT: 2})
    assert offsets(tmp_path, checkpoints.CLEANER) == {}


def test_a_log_that_begins_later_and_lost_its_tail_begins_and_ends_where_it_did(scene: Scene, tmp_path: Path) -> None:
    scene.write("N[a]", "N[b]", "N[c]")
    scene.write("N[x]", "P1[y]", "A1")  # the last two are nobody's: an aborted transaction
    scene.lake.metastore.start_at(AT, 2)
    (done,) = exported(scene.lake, tmp_path)
    assert (done.start_offset, done.next_offset) == (2, 6)
    assert listed(tmp_path) == [(2, 2, 1), (2, 3, 1), (2, 5, 0)]
    assert offsets(tmp_path, checkpoints.LOG_START) == {AT: 2}


def append(lake: Lake, span: Span, *batches: int | BatchHead) -> Extent:
    """An extent with a batch of one record at each of these offsets."""
    (object_id,) = lake.metastore.register(1)
    heads = [head_at(batch) if isinstance(batch, int) else batch for batch in batches]
    newest_ms = max((head.max_timestamp for head in heads), default=7)
    with writing_object(lake.store, object_id, lake.metastore.lake_id) as writer:
        chunks = [one_record(head) for head in heads]
        extent = writer.add("t", 0, span, chunks, records=len(batches), max_timestamp_ms=newest_ms)
    lake.metastore.append({AT: Append(expected_next=span.start, extents=(extent,))}, {object_id: writer.size})
    return extent


def head_at(offset: int, stamp: int = 7, *, epoch: int = 0, producer: int = -1) -> BatchHead:
    return BatchHead(
        base_offset=offset, last_offset_delta=0, base_timestamp=stamp, max_timestamp=stamp, leader_epoch=epoch,
        producer_id=producer, producer_epoch=min(producer, 0), base_sequence=min(producer, 0),
    )  # fmt: skip


def ages_ms(folder: Path) -> list[int]:
    """Of its segments' files."""
    return [file.stat().st_mtime_ns // 1_000_000 for file in sorted(folder.glob("*.log"))]


def one_record(head: BatchHead) -> bytes:
    record = bytes([14, 0, 0, 0, 2, 97, 2, 98, 0])  # key a, value b
    return batch_bytes(head, np.frombuffer(record, dtype=np.uint8), 1).tobytes()


def test_gaps_that_no_segment_spans_are_between_segments(scene: Scene, tmp_path: Path) -> None:
    append(scene.lake, Span(0, FAR + 1), FAR)
    append(scene.lake, Span(FAR + 1, 2 * FAR), FAR + 1)
    exported(scene.lake, tmp_path)
    assert listed(tmp_path) == [
        (0, 0, 0), (FAR, FAR, 1), (FAR + 1, FAR + 1, 1), (2 * FAR - 1, 2 * FAR - 1, 0),
    ]  # fmt: skip


def test_a_log_without_a_record_keeps_its_offsets(scene: Scene, tmp_path: Path) -> None:
    scene.lake.metastore.create_topic("nothing", 1)
    append(scene.lake, Span(0, 9))
    scene.lake.metastore.start_at(AT, 3)
    exported(scene.lake, tmp_path / "some", "t", "nothing")
    assert listed(tmp_path / "some") == [(3, 8, 0)]
    assert listed(tmp_path / "some", "nothing-0") == []
    scene.lake.metastore.start_at(AT, 9)
    exported(scene.lake, tmp_path / "none")
    assert sorted(path.name for path in (tmp_path / "none" / "t-0").glob("*.log")) == ["00000000000000000009.log"]


PARTS = {
    "one segment": (1 << 20, [9_000]),
    "a segment and a task for each": (1, [9_000, 5_000, 8_000]),
}
"""How large a segment is, and how old their files are."""


@pytest.mark.parametrize("name", PARTS)
def test_what_is_told_of_a_log_is_told_of_all_its_parts(scene: Scene, tmp_path: Path, name: str) -> None:
    """Its oldest extent has the highest producer id and the newest record, the last one nobody's."""
    segment_bytes, ages = PARTS[name]
    scene.lake.metastore.configure("t", {"segment.bytes": segment_bytes})
    for offset, (epoch, producer, stamp) in enumerate([(1, 2_500, 9_000), (2, 3, 5_000), (4, -1, 8_000)]):
        append(scene.lake, Span(offset, offset + 1), head_at(offset, stamp, epoch=epoch, producer=producer))
    assert known_leader_epochs(scene.lake.metastore, AT) == ()
    (done,) = exported(scene.lake, tmp_path)
    bases = [0, 0, 0] if len(ages) == 1 else [0, 1, 2]
    assert (done.segments, listed(tmp_path)) == (len(ages), [(base, n, 1) for n, base in enumerate(bases)])
    assert (done.leader_epochs, done.producer_id_max) == (((1, 0), (2, 1), (4, 2)), 2_500)
    assert checkpoints.read_leader_epochs(tmp_path / "t-0" / checkpoints.LEADER_EPOCHS) == list(done.leader_epochs)
    assert ages_ms(tmp_path / "t-0") == ages


def test_segments_of_one_task_are_each_as_old_as_their_own_newest_record(scene: Scene, tmp_path: Path) -> None:
    append(scene.lake, Span(0, FAR + 1), head_at(0, 9_000), head_at(FAR, 5_000))
    exported(scene.lake, tmp_path)
    assert (listed(tmp_path), ages_ms(tmp_path / "t-0")) == ([(0, 0, 1), (FAR, FAR, 1)], [9_000, 5_000])


def test_the_time_index_ends_with_the_newest_record(scene: Scene, tmp_path: Path) -> None:
    """By that a broker decides when a segment is old enough to go."""
    append(scene.lake, Span(0, 3), *(head_at(offset, stamp) for offset, stamp in enumerate((5, 9, 7))))
    exported(scene.lake, tmp_path)
    newest = read_time_index(tmp_path / "t-0" / "00000000000000000000.timeindex")[-1]
    assert (newest["timestamp"], newest["relative_offset"]) == (9, 1)


def test_records_without_timestamps_do_not_expire_at_once_where_they_come(scene: Scene, tmp_path: Path) -> None:
    """A broker takes them for as old as their file."""
    scene.lake.metastore.configure("t", {"segment.bytes": 1})
    append(scene.lake, Span(0, 1), head_at(0, -1))
    append(scene.lake, Span(1, 2), 1)
    before = time.time()
    exported(scene.lake, tmp_path)
    first, second = sorted((tmp_path / "t-0").glob("*.log"))
    assert first.stat().st_mtime > before - 1
    assert second.stat().st_mtime_ns == 7_000_000


def test_a_task_on_another_machine_says_that_it_does_not_see_the_drivers_disk(scene: Scene, tmp_path: Path) -> None:
    """A directory of that name that it made itself would hold segments that nobody ever looks at."""
    scene.write("N[a]")
    (planned,) = plan_export(scene.lake, ["t"], topic_ids={})
    (work,) = segment_works(planned, scene.lake.store, tmp_path / "out" / "made-by-the-driver" / "t-0")
    with pytest.raises(UsageError, match=r"made-by-the-driver/t-0: .* must have the same path for the driver and for"):
        write_segments(work, Meter())
    assert not (tmp_path / "out").exists()


def test_what_is_there_is_not_overwritten_and_an_error_leaves_nothing_but_the_plan(
    scene: Scene, tmp_path: Path
) -> None:
    scene.write("N[a]")
    scene.lake.metastore.create_topic("u", 1)
    out = tmp_path / "out"
    exported(scene.lake, out, "u")
    before = sorted(out.rglob("*"))
    scene.lake.store.delete(scene.lake.store.list("objects"))
    with pytest.raises(MissingObject):
        exported(scene.lake, out)
    assert sorted(out.rglob("*")) == sorted([*before, out / PLAN_FILE])
    with pytest.raises(UsageError, match="u-0 already exists and is not overwritten"):
        exported(scene.lake, out, "u")


@pytest.mark.parametrize(
    ("beside", "stopped", "clean"),
    [("other-0", False, False), ("other-0", True, True), ("__cluster_metadata-0", False, True)],
)
def test_a_broker_goes_over_what_was_there_unless_it_had_stopped(
    scene: Scene, tmp_path: Path, beside: str, stopped: bool, clean: bool
) -> None:
    scene.write("N[a]")
    out = tmp_path / "out"
    (out / beside).mkdir(parents=True)
    if stopped:
        (out / checkpoints.CLEAN_SHUTDOWN).touch()
    exported(scene.lake, out)
    assert (out / checkpoints.CLEAN_SHUTDOWN).exists() == clean


def test_into_an_object_store_a_partition_is_seen_when_all_of_it_is_there(
    scene: Scene, moto_settings: Mapping[str, str], tmp_path: Path
) -> None:
    scene.write("N[a]", "N[b]")
    access = Access.of(moto_settings)
    out = place(f"s3://{BUCKET}/exports/{tmp_path.name}", access)
    exported(scene.lake, out)
    again = place(str(out), access)
    assert listed(again) == [(0, 0, 1), (0, 1, 1)]
    assert sorted(child.name for child in again.iterdir()) == [
        ".kafka_cleanshutdown", "cleaner-offset-checkpoint", "log-start-offset-checkpoint", "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint", "t-0",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="t-0 already exists"):
        exported(scene.lake, again)


def test_leader_epochs_of_several_logs_become_one_history() -> None:
    assert merged([(0, 0), (3, 50)], [(0, 10), (2, 40), (-1, 5)]) == ((0, 0), (2, 40), (3, 50))
    assert merged([(0, 0), (1, 90)], [(2, 80)]) == ((0, 0), (2, 80))
    assert within(((0, 0), (2, 40), (3, 50)), 45, 50) == ((2, 45), (3, 50))
    assert within(((0, 0), (2, 40)), 0, 30) == ((0, 0),)


def test_leader_epochs_are_kept_beside_those_that_batches_tell(scene: Scene, tmp_path: Path) -> None:
    scene.history.leader_epoch = 2
    scene.write("N[a]")
    note_leader_epochs(scene.lake.metastore, AT, [(7, 1)])
    scene.write("N[b]")
    assert known_leader_epochs(scene.lake.metastore, AT) == ((2, 0), (7, 1))
    assert exported(scene.lake, tmp_path)[0].leader_epochs == ((2, 0), (7, 1))


@pytest.mark.parametrize("start", [3, 50])
def test_an_epoch_that_begins_behind_the_records_of_the_lake_does_not_begin_earlier(
    scene: Scene, tmp_path: Path, start: int
) -> None:
    """The batch without a record that ends the log is of the epoch before it."""
    scene.history.leader_epoch = 2
    scene.write("N[a]", "P1[b]", "A1")
    note_leader_epochs(scene.lake.metastore, AT, [(7, start)])
    (done,) = exported(scene.lake, tmp_path)
    assert done.leader_epochs == ((2, 0), (7, 3))[: 2 if start == 3 else 1]
    assert listed(tmp_path) == [(0, 0, 1), (0, 2, 0)]
    assert [batch.leader_epoch for _, batch in batches_in(tmp_path)] == [2, 2]


def test_the_metadata_of_every_broker_begins_with_the_topics(scene: Scene, tmp_path: Path) -> None:
    scene.write("N[a]")
    dirs, ids = formatted(tmp_path, 2), {"t": "AAAAAAAAQACAAAAAAAAAAQ"}
    brokers, planned = brokers_of([*dirs]), plan_export(scene.lake, ["t"], topic_ids=ids)
    assert placed(planned, brokers, copies=2) == [(planned[0], brokers)]
    ended = run(scene.lake, dirs, topic_ids=ids, copies=2)
    name = "00000000000000000007-0000000001.checkpoint"
    assert ended.metadata_snapshots == [one / "__cluster_metadata-0" / name for one in dirs]
    assert len({file.read_bytes() for file in ended.metadata_snapshots}) == 1
    assert (dirs[0] / "bootstrap.checkpoint").read_bytes() == BOOTSTRAP.read_bytes()
    log = dirs[0] / "__cluster_metadata-0"
    (log / "00000000000000000007.log").touch()
    metadata = read_cluster_metadata(PartitionDir(path=log, topic="__cluster_metadata", partition=0))
    assert metadata.topic_ids == ids
    expected = {"cleanup.policy": "compact", "delete.retention.ms": "1000"}
    assert metadata.topic_settings("t", broker=None) == expected


def test_a_topic_begins_with_its_own_settings_and_leaders_of_whom_no_consumer_has_heard(
    scene: Scene, tmp_path: Path
) -> None:
    """What consumers have committed may name leaders of after the lake was filled."""
    scene.history.leader_epoch = 4
    scene.write("N[a]")
    scene.lake.metastore.create_topic("u", 1, {"cleanup.policy": "compact,delete", "retention.ms": 5})
    done = exported(scene.lake, tmp_path, "t", "u")
    t, u = new_topics(done, {"t": [[1]], "u": [[1]]}, scene.lake.metastore.topics())
    assert t.settings == {"cleanup.policy": "compact", "delete.retention.ms": "1000"}
    assert u.settings == {"cleanup.policy": "compact,delete", "retention.ms": "5"}
    assert (t.leader_epochs, u.leader_epochs) == ((1004,), (1000,))


def test_a_topic_has_the_id_that_is_asked_for_or_its_own_or_a_new_one(scene: Scene) -> None:
    """A broker moves a folder of another id away as a stray."""
    own, asked = "AAAAAAAAQACAAAAAAAAAAQ", "AAAAAAAAQACAAAAAAAAAAg"
    scene.lake.metastore.create_topic("u", 1, kafka_id=own)
    scene.lake.metastore.create_topic("v", 1, kafka_id=own)
    scene.lake.metastore.create_topic("w", 2)
    planned = plan_export(scene.lake, ["u", "v", "w"], topic_ids={"v": asked})
    u, v, new, same = (one.topic_id for one in planned)
    assert (u, v, new == same, new in (own, asked)) == (own, asked, True, False)


def test_new_producers_of_the_cluster_get_ids_that_no_record_has(scene: Scene, tmp_path: Path) -> None:
    """With the id and epoch of one that has written, its first records would be taken for ones that came twice."""
    scene.lake.metastore.create_topic("u", 1)
    append(scene.lake, Span(0, 1), head_at(0, producer=2_500))
    (snapshot,) = run(scene.lake, formatted(tmp_path, 1), ["t", "u"]).metadata_snapshots
    content, nobody = snapshot.read_bytes(), -1
    assert [n for n in range(5_000) if struct.pack(">iqq", nobody, nobody, n) in content] == [3_000]


def test_the_metadata_of_brokers_that_have_run_is_left_alone(scene: Scene, tmp_path: Path) -> None:
    (log_dir,) = formatted(tmp_path, 1)
    (log_dir / "__cluster_metadata-0").mkdir()
    (log_dir / "__cluster_metadata-0" / "00000000000000000000.log").touch()
    assert run(scene.lake, [log_dir]).metadata_snapshots == []
    assert [path.name for path in (log_dir / "__cluster_metadata-0").iterdir()] == ["00000000000000000000.log"]


def test_a_quorum_whose_voters_are_in_its_metadata_is_refused(scene: Scene, tmp_path: Path) -> None:
    (log_dir,) = formatted(tmp_path, 1)
    (log_dir / "__cluster_metadata-0").mkdir()
    (log_dir / "__cluster_metadata-0" / "00000000000000000000-0000000000.checkpoint").touch()
    with pytest.raises(UsageError, match=r"format with controller\.quorum\.voters instead"):
        exported(scene.lake, log_dir)
    assert not (log_dir / "t-0").exists()


def test_several_directories_are_those_of_different_brokers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must belong to different brokers"):
        brokers_of([tmp_path, tmp_path / "other"])
    with pytest.raises(UsageError, match="there are 1 log directories"):
        placed([], [TargetBroker(log_dir=tmp_path, node=None)], copies=2)


def test_the_verb_plans_writes_and_refuses(scene: Scene, tmp_path: Path, said: Said) -> None:
    scene.write("N[a]", "N[b]")
    out = tmp_path / "out"
    command = ["export", "--log-dirs", str(out), f"sqlite:///{tmp_path / 'lake.db'}"]
    planned = rf"t-0: would write \[0, 2\), 2 records, \d+ bytes, to {re.escape(str(out))}\n"
    assert re.fullmatch(planned, said(*command, "t", "--dry-run").out)
    assert not out.exists()
    assert "no new broker's metadata was there" in said(*command, "--all-topics").out
    assert [offset for offset, _, _ in scene.held()] == [last for _, last, _ in listed(out)]
    for wrong in (["t", "--all-topics"], ["t", "--topic-id", "u=x"]):
        said(*command, *wrong, code=2)
    scene.lake.metastore.configure("t", {"cleanup.policy": "unknown"})
    assert "cleanup.policy is not known" in said(*command, "t", code=2).err
