"""Objects that are whole and in the wrong place: files that were exchanged, the wrong backup, another lake's object under this
name. Whatever reads them refuses and says what it found; after the right ones are back, everything is right again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from headstone.cli.main import main
from headstone.errors import CorruptLog, HeadstoneError
from headstone.lake.format.objects import object_path, read_dead, read_index, read_keys
from headstone.lake.jobs.key_search import KeySearch, digest_of
from headstone.lake.jobs.proof import prove_erased
from headstone.lake.lake import Lake, create_lake, metastore_url, open_lake
from headstone.lake.transfer.export_cluster import brokers_of
from headstone.lake.transfer.export_run import requested, run_export
from headstone.lake.transfer.ingest import ingest
from headstone.log.directory import find_partitions
from headstone.pipeline.inprocess import InProcess
from tests.lake.scene import AT, Scene
from tests.lake.single import level_partition


def file_of(lake: Lake, object_id: str) -> Path:
    return Path(lake.store.url.removeprefix("file://")) / object_path(object_id)


def exchange(lake: Lake, one: str, other: str) -> None:
    first, second = file_of(lake, one), file_of(lake, other)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


@pytest.fixture
def twins(scene: Scene) -> Scene:
    """Two extents of the same size: in the first a value, in the second its deletion."""
    scene.write("N[a,b]")
    scene.write("N[c,d]")
    scene.write("T[a]")
    return scene


def refuse_all(scene: Scene, out: Path) -> Mapping[str, Callable[[], object]]:
    """Whatever reads a lake."""
    lake = scene.lake
    engine = InProcess(1)
    digest = digest_of(b"a", lake.metastore.hash_key)
    return {
        "compaction": lambda: scene.compact(now_ms=10),
        "records": scene.held,
        "table": scene.table,
        "leveling": lambda: level_partition(lake, AT, clock=lambda: 10, extent_bytes=300, engine=engine),
        "search": lambda: KeySearch(lake, engine).records("t", [digest]),
        "export": lambda: run_export(
            lake, requested(brokers_of([out]), ["t"], topic_ids={"t": "AAAAAAAAQACAAAAAAAAAAQ"}), brokers_of([out]), engine,
            reader="test",
        ),
    }  # fmt: skip


def test_exchanged_objects_are_refused_by_everybody_and_right_again_when_they_are_back(
    twins: Scene, tmp_path: Path
) -> None:
    lake = twins.lake
    first, second, _ = (extent.object_id for extent in lake.metastore.partition(AT).extents)
    before, table = lake.metastore.snapshot(), twins.table()
    exchange(lake, first, second)
    (tmp_path / "out").mkdir()
    for name, read in refuse_all(twins, tmp_path / "out").items():
        with pytest.raises(HeadstoneError) as refused:
            read()
        text = str(refused.value)
        assert f" of lake {lake.metastore.lake_id}: files were swapped" in text, name
        assert (first in text, second in text) == (True, True), name
    assert lake.metastore.snapshot() == before
    assert prove_erased(lake, "t", b"nobody").verdict == "unproven"
    exchange(lake, first, second)
    twins.compact(now_ms=10)
    assert (twins.table(), lake.metastore.check()) == (table, [])


def test_compacting_all_does_not_claim_what_it_knows_by_foreign_lists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in the issue: a deletion is compacted by the list of another extent, and served again later."""
    assert main(["lake", "init", str(tmp_path / "lake")]) == 0
    lake = open_lake(metastore_url(str(tmp_path / "lake")))
    scene = Scene(lake, tmp_path)
    scene.write("N[a]")
    scene.write("N[b]")
    scene.write("T[a]")
    value, other, _ = (extent.object_id for extent in lake.metastore.partition(AT).extents)
    exchange(lake, value, other)
    assert main(["lake", "compact", str(tmp_path / "lake"), "--all"]) != 0
    told = capsys.readouterr()
    assert "files were swapped, or another object's backup was restored here" in told.out + told.err
    assert lake.metastore.partition(AT).cleaned == ()
    exchange(lake, value, other)
    assert main(["lake", "compact", str(tmp_path / "lake"), "--all"]) == 0
    assert scene.table().keys() == {b"b"}
    lake.close()


def marked(scene: Scene) -> None:
    """Two extents with a list of dead records each, of the same length, in two objects."""
    for number in range(2):
        scene.write(*(f"N[k{number}x{i}]" for i in range(20)))
    scene.compact(now_ms=1)
    for number in range(2):
        scene.write(f"T[k{number}x{number}]")
        scene.compact(now_ms=10 + number)


def test_an_exchanged_list_of_dead_records_is_refused(scene: Scene) -> None:
    marked(scene)
    extents = [extent for extent in scene.lake.metastore.partition(AT).extents if extent.dead_object is not None]
    one, other = (str(extent.dead_object) for extent in extents)
    table = scene.table()
    exchange(scene.lake, one, other)
    for extent in extents:
        with pytest.raises(CorruptLog, match=f"this is object ({one}|{other})"):
            read_dead(scene.lake.store, extent)
    with pytest.raises(CorruptLog, match="this is object"):
        scene.held()
    exchange(scene.lake, one, other)
    assert scene.table() == table


def test_a_list_that_is_right_in_itself_and_not_this_extents_is_refused(scene: Scene) -> None:
    """Pasted into the object, so that not even the index tells: each part's own checksum is right."""
    scene.write("N[a]")
    scene.write("N[b]")
    first, second, *_ = scene.lake.metastore.partition(AT).extents
    source, target = (file_of(scene.lake, extent.object_id) for extent in (second, first))
    content, other = bytearray(target.read_bytes()), source.read_bytes()
    halves = first.position + first.length
    for start, end in ((halves, halves + 12), (halves + 12, halves + 12 + 24)):
        damaged = bytearray(content)
        damaged[start:end] = other[second.position + second.length + start - halves :][: end - start]
        target.write_bytes(damaged)
        with pytest.raises(CorruptLog, match="wrong CRC-32C of the list of keys"):
            read_keys(scene.lake.store, first)
    target.write_bytes(content)
    assert read_keys(scene.lake.store, first).offsets.tolist() == [0]


def test_an_object_of_another_lake_under_this_name_is_refused(scene: Scene, tmp_path: Path) -> None:
    """Another lake's secret makes other digests: by its lists nobody of this lake would be superseded."""
    other = create_lake(f"sqlite:///{tmp_path / 'other.db'}", f"file://{tmp_path / 'other'}", now_ms=0)
    scene.write("N[a]")
    other.metastore.create_topic("t", 1)
    ingest(other, find_partitions([tmp_path / "log" / "t-0"]), clock=lambda: 0)
    (mine,) = scene.lake.metastore.partition(AT).extents
    (theirs,) = other.metastore.partition(AT).extents
    shutil.copy(file_of(other, theirs.object_id), file_of(scene.lake, mine.object_id))
    found = f"this is object {theirs.object_id} of lake {other.metastore.lake_id}"
    with pytest.raises(CorruptLog, match=found):
        read_keys(scene.lake.store, mine)
    with pytest.raises(CorruptLog, match=found):
        read_index(scene.lake.store, mine.object_id, scene.lake.metastore.lake_id)
    other.close()
