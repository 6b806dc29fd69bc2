"""Damaged objects, and whole ones in the wrong place: whoever reads them refuses and names them, the check tells what is lost
with them, mending goes on without, and nothing older of a lost key comes back unless somebody accepts that."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from sqlalchemy import select

from headstone.cli.main import main
from headstone.errors import CorruptLog, HeadstoneError
from headstone.lake.format.extents import Extent
from headstone.lake.format.objects import object_path, read_dead, read_index, read_keys, read_live
from headstone.lake.format.spans import Span
from headstone.lake.jobs.folding import fold
from headstone.lake.jobs.key_search import KeySearch, digest_of
from headstone.lake.jobs.mending import mend, planned
from headstone.lake.jobs.proof import prove_erased
from headstone.lake.jobs.rebuild import rebuild
from headstone.lake.jobs.store_check import (
    BATCHES,
    DEAD,
    INDEX,
    JOURNAL,
    KEYS,
    OBJECT,
    StoreCheck,
    StoreFinding,
    check_store,
)
from headstone.lake.lake import Lake, create_lake, metastore_url, open_lake
from headstone.lake.metastore import schema
from headstone.lake.metastore.losses import Loss, losses
from headstone.lake.transfer.export_cluster import brokers_of
from headstone.lake.transfer.export_run import requested, run_export
from headstone.lake.transfer.ingest import ingest
from headstone.log.directory import find_partitions
from headstone.pipeline.inprocess import InProcess
from tests.lake.damage import exchange, file_of, flip
from tests.lake.scene import AT, Said, Scene
from tests.lake.single import level_partition
from tests.lake.test_journal import contents, put_back

ORPHAN = "00000000-0000-4000-8000-000000000000"
ENGINE = InProcess(1)


def deep(lake: Lake) -> StoreCheck:
    return check_store(lake, engine=ENGINE)


def first_marked(lake: Lake) -> Extent:
    return next(extent for extent in lake.metastore.partition(AT).extents if extent.dead_object is not None)


def found_now(lake: Lake) -> list[StoreFinding]:
    """Of every byte, but for what is only of the past."""
    return [finding for finding in deep(lake).findings if not finding.past]


def known_losses(lake: Lake) -> list[Loss]:
    with lake.metastore.transaction() as connection:
        return losses(connection)


def test_a_whole_store_has_no_findings_and_tells_what_is_not_its_own(scene: Scene) -> None:
    marked(scene)
    lake = scene.lake
    lake.store.put("somebody/else", b"x")
    lake.store.put(object_path(ORPHAN), b"x")
    for check in (check_store(lake), deep(lake)):
        assert (check.findings, check.orphans, check.foreign) == ([], [object_path(ORPHAN)], ["somebody/else"])


def test_each_damage_is_named_with_what_is_lost_by_it(scene: Scene) -> None:
    marked(scene)
    lake = scene.lake
    extent = first_marked(lake)
    halves = extent.position + extent.length
    damages = [
        (extent.object_id, extent.position + 20, BATCHES, extent.records), (extent.object_id, halves, KEYS, 0),
        (extent.object_id, halves + 8 * extent.keys + 6, KEYS, 0),
        (str(extent.dead_object), extent.dead_position, DEAD, extent.records),
        (extent.object_id, file_of(lake, extent.object_id).stat().st_size - 30, INDEX, 0),
    ]  # fmt: skip
    for object_id, position, part, records in damages:
        undo = flip(lake, object_id, position)
        assert check_store(lake).findings == []
        findings = found_now(lake)
        assert [(one.path, one.part, one.records) for one in findings] == [(object_path(object_id), part, records)]
        undo()
    path = file_of(lake, extent.object_id)
    content = path.read_bytes()
    for problem, damage in (
        ("bytes long, and was written with", lambda: path.write_bytes(content[:-1])), ("it is missing", path.unlink),
    ):  # fmt: skip
        damage()
        for check in (check_store(lake), deep(lake)):
            named = {(one.part, one.partition) for one in check.findings if problem in one.problem}
            assert named == {(OBJECT, AT)}
        path.write_bytes(content)
    assert deep(lake).findings == []


def test_damage_of_the_journal_is_named_and_mended_from_the_metastore(scene: Scene) -> None:
    scene.write("N[a]")
    scene.write("N[b]")
    store = scene.lake.store
    table = scene.table()
    for path in [*store.list("journal"), *store.list("journal-end")]:
        content = store.read(path, 0, store.size(path))
        store.put(path, content[:-9])
        assert [(one.path, one.part) for one in check_store(scene.lake).findings] == [(path, JOURNAL)]
        store.put(path, content)
    for choose in (max, min):
        store.delete([choose(store.list("journal"))])
        check = check_store(scene.lake)
        assert [one.part for one in check.findings] == [JOURNAL]
        assert mend(scene.lake, planned(scene.lake, check), ENGINE) == []
        assert (check_store(scene.lake).findings, rebuild(scene.lake).changed, scene.table()) == ([], (), table)
        scene.write("N[c]")
        scene.write("N[d]")
        table = scene.table()


def test_what_can_be_read_is_written_again_and_nothing_is_lost(scene: Scene) -> None:
    marked(scene)
    table, lake = scene.table(), scene.lake
    for place in ("keys", "index"):
        extent = lake.metastore.partition(AT).extents[0]
        size = file_of(lake, extent.object_id).stat().st_size
        flip(lake, extent.object_id, extent.position + extent.length if place == "keys" else size - 30)
        plan = planned(lake, deep(lake))
        assert plan.mends != ()
        assert not any(one.is_lost for one in plan.mends)
        assert mend(lake, plan, ENGINE) == []
        again = lake.metastore.partition(AT).extents[0]
        # Retention and compaction lags go by these.
        assert (again.max_timestamp_ms, again.oldest_timestamp_ms) == (
            extent.max_timestamp_ms, extent.oldest_timestamp_ms
        )  # fmt: skip
        assert found_now(lake) == []
        assert (scene.table(), lake.metastore.check(), known_losses(lake)) == (table, [], [])


def test_what_is_written_again_has_none_of_its_dead_records(scene: Scene) -> None:
    """Their deletions may be gone by then."""
    marked(scene)
    lake = scene.lake
    extent = first_marked(lake)
    shown = read_live(lake.store, extent)
    flip(lake, extent.object_id, extent.position + extent.length)
    assert mend(lake, planned(lake, deep(lake)), ENGINE) == []
    again = next(one for one in lake.metastore.partition(AT).extents if one.span == extent.span)
    assert (again.records, again.dead, read_live(lake.store, again)) == (extent.records, 0, shown)


def lose(lake: Lake, number: int, *, keys_too: bool) -> None:
    """The batches of an extent, by its place in the log, or all of its object."""
    extent = lake.metastore.partition(AT).extents[number]
    if keys_too:
        file_of(lake, extent.object_id).unlink()
    else:
        flip(lake, extent.object_id, extent.position + 20)


@pytest.mark.parametrize("term", ["N[a]", "T[a]"])
def test_a_lost_newest_record_does_not_bring_back_an_older_one(scene: Scene, term: str) -> None:
    """Not compacted yet: its list of keys says what it superseded."""
    scene.write("N[a,b]")
    scene.write(term)
    scene.write("N[c]")
    lose(scene.lake, 1, keys_too=False)
    plan = planned(scene.lake, deep(scene.lake))
    assert [(one.is_lost, one.keys, one.is_safe) for one in plan.mends] == [(True, 1, True)]
    assert mend(scene.lake, plan, ENGINE) == []
    assert scene.table().keys() == {b"b", b"c"}
    (loss,) = known_losses(scene.lake)
    assert (loss.partition, loss.span, loss.records, loss.keys, loss.older_values) == (AT, Span(2, 3), 1, 1, False)
    assert (found_now(scene.lake), scene.lake.metastore.check()) == ([], [])
    rebuilt = rebuild(scene.lake)
    assert (rebuilt.changed, known_losses(scene.lake)) == ((), [loss])
    fold(scene.lake)
    rebuild(scene.lake)
    assert known_losses(scene.lake) == [loss]


def test_where_the_lost_keys_are_not_known_older_values_have_to_be_accepted(scene: Scene) -> None:
    scene.write("N[a,b]")
    scene.write("T[a]")
    before = scene.lake.metastore.snapshot()
    lose(scene.lake, 1, keys_too=True)
    plan = planned(scene.lake, check_store(scene.lake))
    assert [(one.is_lost, one.keys, one.is_safe) for one in plan.mends] == [(True, None, False)]
    (left,) = mend(scene.lake, plan, ENGINE)
    assert "older values of the lost keys would be served" in left
    assert (scene.lake.metastore.snapshot(), known_losses(scene.lake)) == (before, [])
    assert mend(scene.lake, plan, ENGINE, accept_older_values=True) == []
    assert scene.table().keys() == {b"a", b"b"}
    assert [(loss.keys, loss.older_values) for loss in known_losses(scene.lake)] == [(None, True)]


def test_in_a_clean_range_nothing_older_is_left_whatever_is_lost(scene: Scene) -> None:
    scene.write("N[a,b]")
    scene.write("N[a]")
    scene.write("N[c]")
    scene.compact(now_ms=1)
    spans = [extent.span for extent in scene.lake.metastore.partition(AT).extents]
    lose(scene.lake, spans.index(Span(2, 3)), keys_too=True)
    plan = planned(scene.lake, check_store(scene.lake))
    assert all(one.is_safe for one in plan.mends)
    assert mend(scene.lake, plan, ENGINE) == []
    assert b"a" not in scene.table()
    assert not any(loss.older_values for loss in known_losses(scene.lake))


def test_the_verbs_name_the_damage_show_its_cost_and_go_on(tmp_path: Path, said: Said, told: Said) -> None:
    name = str(tmp_path / "lake")
    assert main(["lake", "init", name]) == 0
    lake = open_lake(metastore_url(name))
    scene = Scene(lake, tmp_path)
    scene.write("N[a,b]")
    scene.write("N[a]")
    first, second = (extent.object_id for extent in lake.metastore.partition(AT).extents)
    assert main(["lake", "status", name, "--check", "--deep"]) == 0
    exchange(lake, first, second)
    assert f"this is object {second} of lake" in said("status", name, "--deep", code=1).out
    exchange(lake, first, second)
    undo = flip(lake, second, 30)
    (finding,) = told("status", name, "--deep", code=1)["store"]["findings"]
    facts = [finding[fact] for fact in ("path", "partition", "span", "records")]
    assert facts == [object_path(second), "t-0", [2, 3], 1]
    assert "t-0 [2, 3): loses 1 record, the newest of 1 key" in said("mend", name, code=1).out
    undo()
    assert "nothing is damaged" in said("mend", name).out
    flip(lake, second, 30)
    assert main(["lake", "mend", name, "--apply"]) == 0
    assert "LOST: t-0 [2, 3): lost 1 record, the newest of 1 key" in said("status", name, "--check").out
    assert scene.table().keys() == {b"b"}
    with lake.metastore.transaction() as connection:
        assert connection.execute(select(schema.losses.c.records)).scalars().all() == [1]
    lake.close()


def test_a_journal_that_ends_before_what_the_metastore_has_seen_is_named(scene: Scene) -> None:
    """As when an older backup of the store was put there: in itself it is whole."""
    store = scene.lake.store
    scene.write("N[a]")
    older = contents(store)
    scene.write("N[b]")
    store.delete(contents(store).keys() - older.keys())
    put_back(store, older)
    (finding,) = check_store(scene.lake).findings
    assert (finding.part, finding.problem) == (
        JOURNAL, "it ends at number 4, and the metastore has seen it at 5: entries are lost"
    )  # fmt: skip


def test_of_damage_of_the_past_the_check_and_mending_say_the_same(tmp_path: Path, said: Said) -> None:
    """Neither says that it can be mended, nor that nothing is damaged; collected, it is gone."""
    name = str(tmp_path / "lake")
    assert main(["lake", "init", name, "--now-ms", "0"]) == 0
    lake = open_lake(metastore_url(name))
    scene = Scene(lake, tmp_path)
    scene.write("N[a,b]")
    scene.write("N[a]")
    old = lake.metastore.partition(AT).extents[0]
    scene.compact(now_ms=1, dead_share_max=0.0)
    assert old not in lake.metastore.partition(AT).extents
    flip(lake, old.object_id, 30)
    lake.close()
    status = said("status", name, "--deep", code=1).out
    assert "only the past is damaged; `headstone lake gc --apply` forgets it after its grace" in status
    assert "`headstone lake mend` says" not in status
    for apply in ([], ["--apply"]):
        answer = said("mend", name, *apply, code=1).out
        assert "of the past, 2 records can't be read; it is not mended" in answer
        assert "nothing is damaged" not in answer
    assert main(["lake", "gc", name, "--apply", "--grace-ms", "0", "--now-ms", "2"]) == 0
    assert main(["lake", "status", name, "--deep"]) == 0
    assert main(["lake", "mend", name]) == 0


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
    request = requested(brokers_of([out]), ["t"], topic_ids={"t": "AAAAAAAAQACAAAAAAAAAAQ"})
    digest = digest_of(b"a", lake.metastore.hash_key)
    return {
        "compaction": lambda: scene.compact(now_ms=10),
        "records": scene.held,
        "table": scene.table,
        "leveling": lambda: level_partition(lake, AT, clock=lambda: 10, extent_bytes=300, engine=ENGINE),
        "search": lambda: KeySearch(lake, ENGINE).records("t", [digest]),
        "export": lambda: run_export(lake, request, brokers_of([out]), ENGINE, reader="test"),
    }


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
