"""A topic back into Kafka: into an empty or a new one, in order, and verified as a consumer sees it; and its map of offsets."""

from __future__ import annotations

import pickle
import random
import struct
import tracemalloc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headstone.errors import NotResumable, Unfinished, UsageError
from headstone.lake.defaults import GRACE_MS
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.transfer import offset_map, offset_runs
from headstone.lake.transfer.group_offsets import committed_in
from headstone.lake.transfer.offset_map import OffsetMap, read_map
from headstone.lake.transfer.offset_runs import GrowingRuns, Runs, translated
from headstone.lake.transfer.reading import records
from headstone.lake.transfer.restore import Restored, finished_map, translate_group
from headstone.lake.transfer.restore_request import RestoreMeans, RestoreRequest
from headstone.lake.transfer.restore_run import RestoreRun, restore_document, run_restore
from headstone.lake.transfer.restored_contents import ROW, Comparison, Contents, compared, digest_of
from headstone.log.listing import RecordEntry
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import LocalStop, never
from headstone.pipeline.inprocess import InProcess
from tests.lake.restoring import restored
from tests.lake.scene import AT, Scene
from tests.lake.twin import TwinCluster, TwinTopic

TARGET = AT._replace(topic="again")


def test_records_go_back_as_they_are_into_a_topic_with_the_lakes_settings(scene: Scene) -> None:
    scene.write("N[a]", "N[b]", "T[a]")
    cluster, said = TwinCluster(), list[str]()
    done, _ = restored(scene.lake, "t", "again", cluster, copies=2, tell=said.append)
    assert done == [Restored(partition=AT, records=3, tombstones=1, keys=1, verified=True)]
    assert cluster.topics["again"].logs == [list(records(scene.lake, AT))]
    assert cluster.topics["again"].settings == {"cleanup.policy": "compact", "delete.retention.ms": "1000"}
    assert (cluster.copies, said) == ({"again": 2}, [])


def test_a_topic_that_is_there_is_used_if_it_is_empty_and_fits(scene: Scene) -> None:
    scene.write("N[a]")
    (record,) = records(scene.lake, AT)
    empty, full = TwinTopic(logs=[[]], first=7), TwinTopic(logs=[[record]], first=7)
    cluster = TwinCluster({"empty": empty, "full": full, "more": TwinTopic(logs=[[], []])})
    assert restored(scene.lake, "t", "empty", cluster)[0][0].verified
    for topic, said in (
        ("full", r"full-0 is not empty \(\[7, 8\)\): restore into a new topic"),
        ("more", "topic more has 2 partitions, but the lake's has 1"),
    ):
        with pytest.raises(UsageError, match=said):
            restored(scene.lake, "t", topic, cluster)
    assert (full.logs, cluster.topics["more"].logs) == ([[record]], [[], []])


def test_what_did_not_arrive_is_noticed_unless_nobody_looks(scene: Scene) -> None:
    scene.write("N[a]", "N[b]")
    with pytest.raises(Unfinished, match="again-0: differs from the lake in 1 key, such as b; do not use this topic"):
        restored(scene.lake, "t", "again", TwinCluster(broken=[TARGET]))
    ((unverified,), _) = restored(scene.lake, "t", "again", TwinCluster(broken=[TARGET]), verify=False)
    assert unverified == Restored(partition=AT, records=2, tombstones=0, keys=None, verified=False)


def test_a_key_that_the_lake_does_not_have_is_named(scene: Scene) -> None:
    """Somebody else has written into the topic meanwhile."""

    class Written(TwinCluster):
        def consume(self, partition: TopicPartition) -> Iterator[tuple[bytes | None, bytes | None]]:
            yield from super().consume(partition)
            yield b"strange", b"1"

    scene.write("N[a]", "N[b]")
    with pytest.raises(Unfinished, match="again-0: differs from the lake in 1 key, such as strange"):
        restored(scene.lake, "t", "again", Written())


def test_a_table_is_the_same_whatever_the_cluster_has_cleaned(scene: Scene) -> None:
    """The deletion of a key that was not there before is lost on the way: nobody sees a difference."""
    scene.write("N[a]", "T[b]")
    assert restored(scene.lake, "t", "again", TwinCluster(broken=[TARGET]))[0][0].verified


def test_of_a_topic_that_is_not_compacted_every_record_counts(scene: Scene) -> None:
    scene.write("N[a]", "T[b]")
    scene.lake.metastore.configure("t", {"cleanup.policy": "delete"})
    with pytest.raises(Unfinished, match="again-0: 1 record found, 2 sent, and they differ"):
        restored(scene.lake, "t", "again", TwinCluster(broken=[TARGET]))


def test_a_topic_whose_policy_nobody_knows_is_not_made(scene: Scene) -> None:
    scene.write("N[a]")
    scene.lake.metastore.configure("t", {"cleanup.policy": "unknown"})
    cluster = TwinCluster()
    with pytest.raises(UsageError, match="or create the topic again yourself, then restore into it"):
        restored(scene.lake, "t", "again", cluster)
    assert cluster.topics == {}
    with pytest.raises(UsageError, match="the lake has no topic nothing"):
        restored(scene.lake, "nothing", "again", cluster)


def test_the_past_is_restored_as_it_was(scene: Scene) -> None:
    scene.write("N[a]", now_ms=10)
    scene.write("T[a]", now_ms=20)
    cluster = TwinCluster()
    ((done,), _) = restored(scene.lake, "t", "again", cluster, as_of_ms=15)
    assert replace(done, partition=TARGET) == Restored(partition=TARGET, records=1, tombstones=0, keys=1, verified=True)


def interrupted(scene: Scene, cluster: TwinCluster, map_file: Path, *, taken: int = 1) -> None:
    """A restore that ends when so many records were taken."""
    cluster.taken_max = taken
    with pytest.raises(Unfinished):
        restored(scene.lake, "t", "again", cluster, map_file=map_file)


def fill(scene: Scene) -> None:
    """Offsets 1, 3, 4, 5 are left."""
    scene.write("N[a]", "N[b]", "N[a]", "N[c]")
    scene.write("N[a]", "N[d]")
    scene.compact(now_ms=1)
    scene.lake.metastore.give_clock(1)
    assert [offset for offset, _, _ in scene.held()] == [1, 3, 4, 5]


@pytest.mark.parametrize("taken", range(5))
def test_a_restore_that_was_interrupted_goes_on_where_it_was(scene: Scene, tmp_path: Path, taken: int) -> None:
    fill(scene)
    expected = list(records(scene.lake, AT))
    cluster, file = TwinCluster({"again": TwinTopic(logs=[[]], first=7)}), tmp_path / "map.json"
    if taken < len(expected):
        interrupted(scene, cluster, file, taken=taken)
        scene.write("N[b]", now_ms=2)  # since then the lake has gone on, too
        scene.compact(now_ms=3)
    cluster.taken_max = 100
    (done,), offsets = restored(scene.lake, "t", "again", cluster, map_file=file)
    assert (done.records, cluster.topics["again"].logs) == (4, [expected])
    assert {number: tuple(runs) for number, runs in offsets.runs.items()} == {0: ((1, 7, 1), (3, 8, 3))}
    assert read_map(file) == offsets
    with pytest.raises(UsageError, match="t was restored into again: the offset map is complete"):
        restored(scene.lake, "t", "again", cluster, map_file=file)


def test_only_the_same_restore_goes_on_and_only_where_nobody_else_writes(scene: Scene, tmp_path: Path) -> None:
    fill(scene)
    cluster, file = TwinCluster(), tmp_path / "map.json"
    interrupted(scene, cluster, file)
    with pytest.raises(UsageError, match="the offset map is for t into again"):
        restored(scene.lake, "t", "other", cluster, map_file=file)
    with pytest.raises(UsageError, match=r"again-0 is not empty \(\[0, 1\)\): restore into a new topic"):
        restored(scene.lake, "t", "again", cluster, map_file=tmp_path / "another.json")
    cluster.topics["again"].logs[0] *= 9
    with pytest.raises(NotResumable, match="has 9 records more than before the restore, but t-0 has only 4: something"):
        restored(scene.lake, "t", "again", cluster, map_file=file)
    (tmp_path / "strange.json").write_text("[]")
    with pytest.raises(UsageError, match="not an offset map"):
        restored(scene.lake, "t", "again", cluster, map_file=tmp_path / "strange.json")


def test_a_task_that_runs_again_sends_nothing_twice(scene: Scene) -> None:
    """As on Spark, when an executor is lost: the same task once more, elsewhere."""
    fill(scene)
    expected, cluster = list(records(scene.lake, AT)), TwinCluster()
    cluster.taken_max = 3

    class Lost(InProcess):
        def as_they_end(self, *given: Any, **options: Any) -> Iterator[tuple[int, Any]]:
            ((_, error),) = super().as_they_end(*given, **options)
            assert isinstance(error, Unfinished)
            cluster.taken_max = 100
            return super().as_they_end(*given, **options)

    (done,), offsets = restored(scene.lake, "t", "again", cluster, engine=Lost())
    assert (done.records, cluster.topics["again"].logs) == (4, [expected])
    assert offsets.translate(0, 5) == 3


class Watched(TwinCluster):
    """Whoever asks is told to stop from the time on at which so many records have been asked for, sent or consumed."""

    def __init__(self, topics: Mapping[str, TwinTopic], patience: int) -> None:
        super().__init__(topics)
        self._patience, self.asked, self.sent = patience, 0, list[int]()

    def stop(self) -> bool:
        self.asked += 1
        return self.asked > self._patience

    def send(self, partition: TopicPartition, entries: Iterable[RecordEntry], *, offset: int) -> None:
        before = self.log_end(partition)
        super().send(partition, entries, offset=offset)
        self.sent.append(self.log_end(partition) - before)


def test_a_restore_that_is_stopped_anywhere_goes_on_and_sends_every_record_once(scene: Scene, tmp_path: Path) -> None:
    """At the first question, then at the second, until it asks no more. What was sent of a partition is waited for."""
    fill(scene)
    expected, file = list(records(scene.lake, AT)), tmp_path / "map.json"
    topics, sent, stops = {"again": TwinTopic(logs=[[]], first=7)}, list[int](), 11
    for patience in range(stops):
        cluster = Watched(topics, patience)
        with pytest.raises(Unfinished, match="stopped: 0 of 1 partition restored; run the same command again"):
            restored(scene.lake, "t", "again", cluster, map_file=file, stop=cluster.stop)
        sent += cluster.sent
    cluster = Watched(topics, stops)
    (done,), offsets = restored(scene.lake, "t", "again", cluster, map_file=file, stop=cluster.stop)
    assert (cluster.asked, done.records, topics["again"].logs, sum(sent)) == (stops, 4, [expected], 4)
    assert (max(sent) < 4, read_map(file)) == (True, offsets)


def test_no_partition_is_begun_after_a_stop_and_without_a_map_nobody_goes_on(scene: Scene) -> None:
    scene.lake.metastore.create_topic("many", 3)
    stop = chain([False] * 3, repeat(True)).__next__
    with pytest.raises(Unfinished, match="stopped: 1 of 3 partitions restored; without an offset"):
        restored(scene.lake, "many", "again", TwinCluster(), stop=stop)


def test_a_task_elsewhere_hears_no_stop() -> None:
    """It is ended by its engine; whatever the stop is made of stays here."""
    here = LocalStop(lambda: True)
    assert (here(), pickle.loads(pickle.dumps(here))()) == (True, False)


class Haunted(TwinCluster):
    """A task that was given up lives on, and sends a record when so many of ours are there, (4) when ours has sent all, or (5)
    when it has looked at what has arrived."""

    def __init__(self, sends_at: int) -> None:
        super().__init__()
        self._sends_at = sends_at

    def _haunt(self, partition: TopicPartition, entry: RecordEntry) -> None:
        self.topics[partition.topic].logs[partition.number].append(entry)

    def send(self, partition: TopicPartition, entries: Iterable[RecordEntry], *, offset: int) -> None:
        def haunted() -> Iterator[RecordEntry]:
            for number, entry in enumerate(entries):
                if number == self._sends_at:
                    self._haunt(partition, entry)
                yield entry
            if self._sends_at == 4:
                self._haunt(partition, entry)

        super().send(partition, haunted(), offset=offset)

    def consume(self, partition: TopicPartition) -> Iterator[tuple[bytes | None, bytes | None]]:
        yield from super().consume(partition)
        if self._sends_at == 5:
            self._haunt(partition, self.topics[partition.topic].logs[partition.number][-1])


@pytest.mark.parametrize("sends_at", range(6))
def test_a_twin_that_still_sends_ends_the_restore_for_good(scene: Scene, tmp_path: Path, sends_at: int) -> None:
    fill(scene)
    cluster, file = Haunted(sends_at), tmp_path / "map.json"
    with pytest.raises(NotResumable, match=r"got another offset|ends at 5, expected 4 after 4 records") as caught:
        restored(scene.lake, "t", "again", cluster, map_file=file)
    assert str(caught.value).endswith("; delete the topic and the offset map, then start over")
    with pytest.raises(NotResumable, match="cannot resume again: again-0"):
        restored(scene.lake, "t", "again", TwinCluster(cluster.topics), map_file=file)


def test_a_record_that_is_refused_for_good_ends_the_restore_for_good(scene: Scene, tmp_path: Path) -> None:
    """Whoever went on behind it, and counted by the end of the log, would lose records and double others."""
    fill(scene)
    cluster, file = TwinCluster(refused=[b"c"]), tmp_path / "map.json"
    with pytest.raises(NotResumable, match="again-0: Broker: Invalid timestamp; delete the topic and the offset map"):
        restored(scene.lake, "t", "again", cluster, map_file=file)
    with pytest.raises(NotResumable, match="cannot resume again: again-0: Broker: Invalid timestamp; delete the topic"):
        restored(scene.lake, "t", "again", TwinCluster(cluster.topics), map_file=file)
    file.unlink()
    anew = TwinCluster()
    assert restored(scene.lake, "t", "again", anew, map_file=file)[0][0].verified


def test_that_nobody_can_go_on_is_written_down_before_others_have_ended(scene: Scene, tmp_path: Path) -> None:
    class Killed(InProcess):
        def as_they_end(self, *arguments: Any, **options: Any) -> Iterator[tuple[int, Any]]:
            yield from super().as_they_end(*arguments, **options)
            raise KeyboardInterrupt

    fill(scene)
    cluster, file = TwinCluster(refused=[b"c"]), tmp_path / "map.json"
    with pytest.raises(KeyboardInterrupt):
        restored(scene.lake, "t", "again", cluster, map_file=file, engine=Killed(1))
    with pytest.raises(NotResumable, match="cannot resume again"):
        restored(scene.lake, "t", "again", TwinCluster(cluster.topics), map_file=file)


def test_a_topic_that_was_made_anew_is_not_gone_on_with(scene: Scene, tmp_path: Path) -> None:
    fill(scene)
    cluster, file = TwinCluster({"again": TwinTopic(logs=[[]], first=7)}), tmp_path / "map.json"
    interrupted(scene, cluster, file)
    with pytest.raises(NotResumable, match="again-0 ends at 0, but ended at 7 before the restore: it is another topic"):
        restored(scene.lake, "t", "again", TwinCluster({"again": TwinTopic(logs=[[]])}), map_file=file)


def test_a_restore_that_goes_on_pins_the_moment_that_it_reads(scene: Scene, tmp_path: Path) -> None:
    """What was compacted away since is collected a moment after it was begun again, while it reads."""
    scene.write("N[a]", "N[b]", "N[a]", "N[b]", now_ms=1000)
    scene.lake.metastore.give_clock(1000)
    expected, cluster, file = list(records(scene.lake, AT)), TwinCluster(), tmp_path / "map.json"
    interrupted(scene, cluster, file)
    scene.lake.metastore.give_clock(2000)
    scene.compact(now_ms=2000, dead_share_max=0.0)

    class Slow(TwinCluster):
        def send(self, partition: TopicPartition, entries: Iterable[RecordEntry], *, offset: int) -> None:
            now_ms = 2000 + GRACE_MS + 1
            scene.lake.metastore.give_clock(now_ms)
            assert collect(scene.lake, garbage(scene.lake, now_ms=now_ms)) == []
            super().send(partition, entries, offset=offset)

    scene.lake.metastore.give_clock(2000 + GRACE_MS - 1000)
    again = Slow(cluster.topics)
    assert restored(scene.lake, "t", "again", again, map_file=file)[0][0].verified
    assert again.topics["again"].logs == [expected]


def test_a_commit_that_was_under_way_when_a_restore_began_is_not_taken_for_a_part_of_it(
    scene: Scene, tmp_path: Path
) -> None:
    """Its time is older than the restore's, and it came later: what was sent is counted against another log."""
    fill(scene)
    cluster, file = TwinCluster(), tmp_path / "map.json"
    interrupted(scene, cluster, file)
    scene.write("N[b]", now_ms=1)
    with pytest.raises(NotResumable, match=r"t-0 as of 1970-01-01 00:00:00 UTC \(1\) has changed since the restore"):
        restored(scene.lake, "t", "again", cluster, map_file=file)
    assert len(cluster.topics["again"].logs[0]) == 1


def test_a_group_goes_on_at_the_first_record_that_it_has_not_seen(scene: Scene) -> None:
    fill(scene)
    cluster = TwinCluster()
    _, offsets = restored(scene.lake, "t", "again", cluster)
    assert [offsets.translate(0, offset) for offset in range(8)] == [0, 0, 1, 1, 2, 3, 4, 4]
    cluster.groups["readers", "t"] = {0: 3}
    assert translate_group(scene.lake, cluster, "readers", offsets) == {0: (3, 1)}
    assert cluster.groups["readers", "again"] == {0: 1}
    with pytest.raises(UsageError, match="group others has no committed offsets for t"):
        translate_group(scene.lake, cluster, "others", offsets)


def test_partitions_that_came_after_a_restore_are_passed_over_and_told_of(scene: Scene) -> None:
    fill(scene)
    cluster, said = TwinCluster(), list[str]()
    _, offsets = restored(scene.lake, "t", "again", cluster)
    cluster.groups["readers", "t"] = {0: 3, 2: 9, 1: 5}
    assert translate_group(scene.lake, cluster, "readers", offsets, tell=said.append) == {0: (3, 1)}
    assert cluster.groups["readers", "again"] == {0: 1}
    assert said == [
        "group readers: partitions 1, 2 of t are not in the map and not set in again: they were added after the restore"
    ]


def test_nothing_is_kept_for_a_map_that_nobody_wants(scene: Scene, tmp_path: Path) -> None:
    fill(scene)
    done, offsets = restored(scene.lake, "t", "again", TwinCluster(), groups=())
    assert ([part.records for part in done], offsets.finished, offsets.runs) == ([4], False, {})
    with pytest.raises(AssertionError, match="nobody has kept the runs"):
        offsets.translate(0, 3)
    file = tmp_path / "map.json"
    _, written = restored(scene.lake, "t", "again", TwinCluster(), groups=(), map_file=file)
    assert (written.translate(0, 3), read_map(file)) == (1, written)


def test_groups_are_translated_again_by_the_map_of_a_restore_that_is_complete(scene: Scene, tmp_path: Path) -> None:
    """Whoever was killed in between, or had a group with members, has not lost the translation; nor has a group its place."""
    fill(scene)
    cluster, file = TwinCluster(), tmp_path / "map.json"
    request = RestoreRequest(topic="t", to_topic="again", map_file=file)
    assert finished_map(scene.lake, request) is None
    interrupted(scene, cluster, file)
    assert finished_map(scene.lake, request) is None
    cluster.taken_max = 100
    _, offsets = restored(scene.lake, "t", "again", cluster, map_file=file)
    assert finished_map(scene.lake, request) == offsets
    with pytest.raises(UsageError, match="the offset map is for t into again"):
        finished_map(scene.lake, replace(request, to_topic="other"))
    cluster.groups["readers", "t"] = {0: 3}
    for _ in range(2):
        assert translate_group(scene.lake, cluster, "readers", offsets, again=True) == {0: (3, 1)}
    cluster.groups["readers", "again"] = {0: 4}
    moved_on = "group readers has already moved on in again: partition 0 is at 4, the map says 1"
    with pytest.raises(UsageError, match=moved_on):
        translate_group(scene.lake, cluster, "readers", offsets, again=True)
    assert cluster.groups["readers", "again"] == {0: 4}


def test_a_groups_offsets_are_read_from_the_lake_where_the_cluster_has_none() -> None:
    def key(version: int, group: str, number: int = 0) -> bytes:
        texts = b"".join(struct.pack(">h", len(text)) + text.encode() for text in (group, "t"))
        return struct.pack(">h", version) + texts + struct.pack(">i", number)

    def entry(key: bytes | None, offset: int | None) -> RecordEntry:
        value = None if offset is None else struct.pack(">hq", 3, offset) + b"more"
        return RecordEntry(offset=0, sequence=-1, timestamp_ms=0, key=key, value=value, headers=())

    told = [
        entry(key(1, "g"), 5), entry(key(1, "g", 1), 6), entry(key(2, "g"), 7), entry(key(0, "other"), 8), entry(None, 1),
        entry(key(1, "g"), 9), entry(key(1, "g", 1), None),
    ]  # fmt: skip
    assert committed_in(told, "g", "t") == {0: 9}


@contextmanager
def means() -> Iterator[RestoreMeans]:
    yield RestoreMeans(engine=InProcess(1), board=None, stop=never)


@contextmanager
def no_means() -> Iterator[RestoreMeans]:
    raise AssertionError("an engine is started for nothing")
    yield


def test_a_second_run_translates_groups_by_the_map_and_starts_no_engine(scene: Scene, tmp_path: Path) -> None:
    scene.write("N[a]", "N[b]", "N[a]", "N[b]")
    cluster, remarks = TwinCluster(), list[str]()
    cluster.groups["readers", "t"] = {0: 3}
    request = RestoreRequest(topic="t", to_topic="again", map_file=tmp_path / "map.json", groups=("readers",))
    first = run_restore(scene.lake, request, cluster, means(), tell=remarks.append, warn=remarks.append)
    assert (sum(part.records for part in first.partitions), remarks) == (4, [])
    second = run_restore(scene.lake, request, cluster, no_means(), tell=remarks.append, warn=remarks.append)
    assert second == RestoreRun(partitions=(), groups=first.groups)
    assert remarks == ["t is already restored into again: translating groups only"]
    assert restore_document(second) == {"partitions": [], "groups": first.groups}
    cluster.groups["readers", "again"] = {0: 4}
    with pytest.raises(UsageError, match="group readers has already moved on in again"):
        run_restore(scene.lake, request, cluster, no_means(), tell=remarks.append, warn=remarks.append)


Pair = tuple[bytes | None, bytes | None]


def pairs(chance: random.Random, count: int) -> list[Pair]:
    """Keys that come again, tombstones, keys of no value at all, records without a key, empty values."""
    keys = [None, *[b"k%d" % number for number in range(30)]]
    values = [None, b"", *[b"v%d" % number for number in range(5)]]
    return [(chance.choice(keys), chance.choice(values)) for _ in range(count)]


def table_of(side: list[Pair]) -> dict[bytes, bytes]:
    newest = {key: value for key, value in side if key is not None}
    return {key: value for key, value in newest.items() if value is not None}


def compare(
    sent: list[Pair], back: list[Pair], *, share_bytes: int, memory_bytes: int, chunk_rows: int = 7
) -> Comparison:
    with (
        Contents(kept=True, memory_bytes=memory_bytes, chunk_rows=chunk_rows) as one,
        Contents(kept=True, memory_bytes=memory_bytes, chunk_rows=chunk_rows) as other,
    ):
        for contents, side in ((one, sent), (other, back)):
            for key, value in side:
                contents.put(key, value)
        return compared(one, other, share_bytes=share_bytes)


@pytest.mark.parametrize("seed", range(40))
def test_keys_that_differ_are_counted_and_one_is_named(seed: int) -> None:
    chance = random.Random(seed)
    sent = pairs(chance, chance.randrange(80))
    back = [pair for pair in sent if chance.random() < 0.95] + pairs(chance, chance.randrange(3))
    share_bytes, memory_bytes = chance.choice([1, 5, 1000]) * ROW.itemsize, chance.choice([1, 10**6])
    chunk_rows = chance.choice([1, 3, 1000])
    done = compare(sent, back, share_bytes=share_bytes, memory_bytes=memory_bytes, chunk_rows=chunk_rows)
    there, expected = table_of(back), table_of(sent)
    wrong = {key for key in expected.keys() | there.keys() if expected.get(key) != there.get(key)}
    assert (done.keys, done.wrong) == (len(expected), len(wrong))
    assert done.first_wrong in ({digest_of(key) for key in wrong} or {None})


@pytest.mark.parametrize("seed", range(5))
def test_a_cleaned_side_has_the_same_table(seed: int) -> None:
    sent = pairs(random.Random(seed), 60)
    cleaned: list[Pair] = [*table_of(sent).items()]
    same = Comparison(keys=len(cleaned), wrong=0, first_wrong=None)
    assert compare(sent, cleaned, share_bytes=3 * ROW.itemsize, memory_bytes=1) == same


def test_what_is_only_counted_has_no_row() -> None:
    with Contents(kept=False) as counted:
        for key, value in ((b"a", b"1"), (b"a", None), (None, b"2")):
            counted.put(key, value)
        assert (counted.records, counted.tombstones, counted.completed()) == (3, 1, 0)


def test_a_row_is_read_once_however_many_shares_there_are() -> None:
    class Counted(BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            read.append(len(data))
            return data

    read: list[int] = []
    with Contents(kept=True, chunk_rows=100) as one, Contents(kept=True, chunk_rows=100) as other:
        for contents in (one, other):
            contents._file = Counted()
            for number in range(1000):
                contents.put(b"k%d" % number, b"v")
        done = compared(one, other, share_bytes=10 * ROW.itemsize)
    assert (done, sum(read)) == (Comparison(keys=1000, wrong=0, first_wrong=None), 2 * 1000 * ROW.itemsize)


RECORDS = 400_000


def plain(offsets: list[int], base: int) -> tuple[tuple[int, ...], ...]:
    runs: list[list[int]] = []
    for position, offset in enumerate(offsets, start=base):
        if runs and offset == runs[-1][0] + runs[-1][2]:
            runs[-1][2] += 1
        else:
            runs.append([offset, position, 1])
    return tuple(map(tuple, runs))


def grown(offsets: list[int], base: int) -> Runs:
    growing = GrowingRuns(base)
    for offset in offsets:
        growing.put(offset)
    return growing.ended()


@pytest.mark.parametrize("seed", range(20))
def test_runs_are_the_same_in_whatever_pieces_they_come(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(offset_runs, "OFFSETS_AT_ONCE", chance.choice([1, 2, 7]))
    monkeypatch.setattr(offset_runs, "RUNS_PER_CHUNK", chance.choice([1, 2, 5]))
    offsets = sorted(chance.sample(range(100), chance.randrange(60)))
    base = chance.randrange(1 << 40)
    runs = grown(offsets, base)
    assert tuple(runs) == plain(offsets, base)
    for offset in range(101):
        assert translated(runs, base, offset) == base + sum(each < offset for each in offsets)
    finished = OffsetMap(
        lake_id="id", topic="t", to_topic="again", as_of_ms=1, starts=(0, 0), bases=(base, 0), finished=True,
        fingerprints=("", ""), runs={0: runs, 1: Runs()},
    )  # fmt: skip
    finished.write(tmp_path / "map.json")
    monkeypatch.setattr(offset_map, "CHARACTERS_AT_ONCE", chance.choice([1, 2, 7, 1000]))
    assert read_map(tmp_path / "map.json") == finished
    text = (tmp_path / "map.json").read_text()
    (tmp_path / "map.json").write_text(text[: chance.randrange(len(text) - 1)])
    with pytest.raises(UsageError, match="not an offset map"):
        read_map(tmp_path / "map.json")


def test_a_map_takes_a_few_bytes_per_record_also_where_no_two_follow_each_other() -> None:
    """A list of 400,000 runs takes 96 MB, and the offsets alone 3.2 MB."""
    chance, growing, offset = random.Random(1), GrowingRuns(7), 0
    tracemalloc.start()
    for _ in range(RECORDS):
        offset += 2 + int(chance.expovariate(0.1))
        growing.put(offset)
    runs = growing.ended()
    assert translated(runs, 7, offset) == 7 + RECORDS - 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    sent = len(pickle.dumps(runs))
    assert (sent < 4 * RECORDS, peak < sent + (8 << 20)) == (True, True), (sent, peak)


def test_a_map_is_read_in_a_few_bytes_per_run(tmp_path: Path) -> None:
    """As one document of Python's numbers it took 177."""
    rows = np.column_stack((np.arange(RECORDS) * 3, np.arange(RECORDS), np.ones(RECORDS, np.int64)))
    written = OffsetMap(
        lake_id="id", topic="t", to_topic="again", as_of_ms=1, starts=(0,), bases=(0,), finished=True, fingerprints=("",),
        runs={0: offset_runs.runs_in(rows)}, not_resumable='of, "runs": {',
    )  # fmt: skip
    written.write(tmp_path / "map.json")
    tracemalloc.start()
    assert read_map(tmp_path / "map.json") == written
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20, peak


def test_the_map_of_a_dense_log_is_next_to_nothing() -> None:
    runs = grown(list(range(5, 5 + 3 * offset_runs.OFFSETS_AT_ONCE)), 0)
    assert (tuple(runs), len(pickle.dumps(runs)) < 500) == (((5, 0, 3 * offset_runs.OFFSETS_AT_ONCE),), True)
