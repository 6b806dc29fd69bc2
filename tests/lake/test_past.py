"""How far back the past is known: never farther than garbage collection and rebuilds have left of it, by partition."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.errors import UsageError
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.rebuild import open_for_rebuild, rebuild
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Append
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.transfer.export_cluster import brokers_of
from headstone.lake.transfer.export_run import requested, run_export
from headstone.lake.transfer.reading import records
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from tests.lake.scene import AT, Scene
from tests.lake.test_metastore import SIZE, extent
from tests.lake.test_rebuild import another, back_up
from tests.lake.test_worker import put

OTHER = TopicPartition("u", 0)


def keys_as_of(lake: Lake, at: TopicPartition, moment_ms: int) -> list[bytes | None] | None:
    """None: that is not known any more, and an error says so."""
    try:
        return [record.key for record in records(lake, at, as_of_ms=moment_ms)]
    except UsageError:
        return None


def replace_by(metastore: Metastore, at: TopicPartition, object_id: str, now_ms: int) -> None:
    epoch = metastore.partition(at).compaction_epoch
    metastore.replace(at, epoch, [extent(0, 10, object_id)], None, {object_id: SIZE}, now_ms=now_ms)


def collect_all(metastore: Metastore, object_ids: list[str], now_ms: int) -> None:
    limits = {"unreferenced_before_ms": now_ms, "registered_before_ms": 0, "now_ms": now_ms}
    assert metastore.condemn(object_ids, **limits) == sorted(object_ids)
    metastore.forget(object_ids)


def is_known(metastore: Metastore, at: TopicPartition, moment_ms: int) -> bool:
    try:
        metastore.partition_as_of(at, moment_ms)
    except UsageError as error:
        return "gc has removed what was replaced" not in str(error)
    return True


@pytest.mark.parametrize("at_once", [True, False])
def test_the_past_is_known_from_the_last_collected_object_on(metastore: Metastore, at_once: bool) -> None:
    """Of two that are collected together, the later; of one that is collected after another, also the later. Of a partition
    from which nothing was collected all of it."""
    metastore.create_topic("t", 1)
    metastore.create_topic("u", 1)
    for at in (AT, OTHER):
        first, second, third = metastore.register(3, now_ms=0)
        metastore.append({at: Append(expected_next=0, extents=(extent(0, 10, first),))}, {first: SIZE}, now_ms=1)
        replace_by(metastore, at, second, 10)
        replace_by(metastore, at, third, 20)
        if at == AT:
            old = [first, second]
    metastore.give_clock(100)
    for some in [old] if at_once else [[one] for one in old]:
        collect_all(metastore, some, 100)
    assert [is_known(metastore, AT, moment_ms) for moment_ms in (5, 9, 10, 19, 20, 50)] == [False] * 4 + [True] * 2
    assert [is_known(metastore, OTHER, moment_ms) for moment_ms in (5, 10, 50)] == [True] * 3
    assert metastore.check() == []


def test_what_is_collected_out_of_its_order_leaves_the_past_no_farther(metastore: Metastore) -> None:
    metastore.create_topic("t", 1)
    first, second, third = metastore.register(3, now_ms=0)
    metastore.append({AT: Append(expected_next=0, extents=(extent(0, 10, first),))}, {first: SIZE}, now_ms=1)
    replace_by(metastore, AT, second, 10)
    replace_by(metastore, AT, third, 20)
    metastore.give_clock(100)
    collect_all(metastore, [second], 100)
    collect_all(metastore, [first], 100)
    assert [is_known(metastore, AT, moment_ms) for moment_ms in (5, 15, 19, 20)] == [False, False, False, True]


def test_a_rebuilt_lake_knows_no_past_before_it_was_rebuilt(scene: Scene, tmp_path: Path) -> None:
    """What was replaced before is not in the journal: without it the log of then lacks records."""
    lake = scene.lake
    lake.metastore.give_clock(1)
    scene.write("N[a]", now_ms=1)
    lake.metastore.give_clock(10)
    scene.write("N[b]", now_ms=10)
    lake.metastore.give_clock(20)
    scene.write("N[a]", now_ms=20)
    scene.compact(now_ms=20, dead_share_max=0)
    lake.metastore.create_topic("u", 1)
    put(lake, OTHER, [(b"k", b"v")], now_ms=20)
    lake.metastore.give_clock(30)
    assert keys_as_of(lake, AT, 15) == [b"a", b"b"]
    made = open_for_rebuild(f"sqlite:///{tmp_path / 'again.db'}", lake.store.url)
    made.metastore.give_clock(40)
    rebuild(made)
    assert [keys_as_of(made, AT, moment_ms) for moment_ms in (15, 25, 39)] == [None] * 3
    assert [keys_as_of(made, OTHER, moment_ms) for moment_ms in (15, 25, 39)] == [None] * 3
    assert (keys_as_of(made, AT, 40), keys_as_of(made, OTHER, 40)) == ([b"b", b"a"], [b"k"])
    out = tmp_path / "out"
    out.mkdir()
    brokers = brokers_of([out])
    request = requested(brokers, ["t"], topic_ids={"t": "AAAAAAAAQACAAAAAAAAAAQ"}, as_of_ms=15)
    with pytest.raises(UsageError, match="gc has removed what was replaced"):
        run_export(made, request, brokers, InProcess(1), reader="test")
    made.close()


def test_a_metastore_that_was_set_back_knows_the_past_of_what_has_changed_since_from_the_rebuild_on(
    lake: Lake, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'lake.db'}"
    scene = Scene(lake, tmp_path)
    lake.metastore.create_topic("u", 1)
    put(lake, OTHER, [(b"k", b"v")], now_ms=1)
    scene.write("N[a]", now_ms=1)
    back_up(lake, url)
    lake.metastore.give_clock(20)
    scene.write("N[a]", now_ms=20)
    scene.compact(now_ms=20, dead_share_max=0)
    old = open_for_rebuild(another(url), None)
    old.metastore.give_clock(30)
    assert rebuild(old).changed == ("t-0",)
    assert [keys_as_of(old, AT, moment_ms) for moment_ms in (5, 25)] == [None, None]
    assert [keys_as_of(old, OTHER, moment_ms) for moment_ms in (5, 25)] == [[b"k"], [b"k"]]
    collect(old, garbage(old, now_ms=old.metastore.clock()))
    assert keys_as_of(old, AT, 30) == [b"a"]
    old.close()
