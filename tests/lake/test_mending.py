"""Damaged objects: the check names what is damaged and what is lost with it, mending goes on without, and nothing older of a
lost key comes back unless somebody accepts that."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import select

from headstone.cli.main import main
from headstone.lake.format.objects import object_path, read_live
from headstone.lake.format.spans import Span
from headstone.lake.jobs.folding import fold
from headstone.lake.jobs.mending import mend, planned
from headstone.lake.jobs.rebuild import rebuild
from headstone.lake.jobs.store_check import BATCHES, DEAD, INDEX, JOURNAL, KEYS, OBJECT, StoreCheck, check_store
from headstone.lake.lake import Lake, metastore_url, open_lake
from headstone.lake.metastore import schema
from headstone.lake.metastore.losses import Loss, losses
from headstone.pipeline.inprocess import InProcess
from tests.lake.scene import AT, Scene
from tests.lake.test_exchanged_objects import exchange, file_of, marked

ORPHAN = "00000000-0000-4000-8000-000000000000"
ENGINE = InProcess(1)


def deep(lake: Lake) -> StoreCheck:
    return check_store(lake, engine=ENGINE)


def flip(lake: Lake, object_id: str, position: int) -> Callable[[], object]:
    """What undoes it."""
    path = file_of(lake, object_id)
    content = path.read_bytes()
    path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
    return lambda: path.write_bytes(content)


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
    extent = next(one for one in lake.metastore.partition(AT).extents if one.dead_object is not None)
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
        findings = [one for one in deep(lake).findings if not one.past]
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
        assert [one for one in deep(lake).findings if not one.past] == []
        assert (scene.table(), lake.metastore.check(), known_losses(lake)) == (table, [], [])


def test_what_is_written_again_has_none_of_its_dead_records(scene: Scene) -> None:
    """Their deletions may be gone by then."""
    marked(scene)
    lake = scene.lake
    extent = next(one for one in lake.metastore.partition(AT).extents if one.dead_object is not None)
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
    check = deep(scene.lake)
    assert ([one for one in check.findings if not one.past], scene.lake.metastore.check()) == ([], [])
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
    place = next(
        number for number, one in enumerate(scene.lake.metastore.partition(AT).extents) if one.span == Span(2, 3)
    )
    lose(scene.lake, place, keys_too=True)
    plan = planned(scene.lake, check_store(scene.lake))
    assert all(one.is_safe for one in plan.mends)
    assert mend(scene.lake, plan, ENGINE) == []
    assert b"a" not in scene.table()
    assert not any(loss.older_values for loss in known_losses(scene.lake))


def test_the_verbs_name_the_damage_show_its_cost_and_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = str(tmp_path / "lake")
    assert main(["lake", "init", name]) == 0
    lake = open_lake(metastore_url(name))
    scene = Scene(lake, tmp_path)
    scene.write("N[a,b]")
    scene.write("N[a]")
    first, second = (extent.object_id for extent in lake.metastore.partition(AT).extents)
    assert main(["lake", "status", name, "--check", "--deep"]) == 0
    exchange(lake, first, second)
    capsys.readouterr()
    assert main(["lake", "status", name, "--deep"]) == 1
    assert f"this is object {second} of lake" in capsys.readouterr().out
    exchange(lake, first, second)
    undo = flip(lake, second, 30)
    assert main(["lake", "status", name, "--deep", "--output", "json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["store"]["findings"]
    assert (finding["path"], finding["partition"], finding["span"], finding["records"]) == (
        object_path(second), "t-0", [2, 3], 1
    )  # fmt: skip
    assert main(["lake", "mend", name]) == 1
    assert "t-0 [2, 3): loses 1 record, the newest of 1 key" in capsys.readouterr().out
    undo()
    assert main(["lake", "mend", name]) == 0
    assert "nothing is damaged" in capsys.readouterr().out
    flip(lake, second, 30)
    assert main(["lake", "mend", name, "--apply"]) == 0
    capsys.readouterr()
    assert main(["lake", "status", name, "--check"]) == 0
    assert "LOST: t-0 [2, 3): lost 1 record, the newest of 1 key" in capsys.readouterr().out
    assert scene.table().keys() == {b"b"}
    with lake.metastore.transaction() as connection:
        assert connection.execute(select(schema.losses.c.records)).scalars().all() == [1]
    lake.close()


def test_a_journal_that_ends_before_what_the_metastore_has_seen_is_named(scene: Scene) -> None:
    """As when an older backup of the store was put there: in itself it is whole."""
    store = scene.lake.store

    def journal() -> dict[str, bytes]:
        paths = [path for path in store.list() if path.startswith("journal")]
        return {path: store.read(path, 0, store.size(path)) for path in paths}

    scene.write("N[a]")
    older = journal()
    scene.write("N[b]")
    store.delete(journal().keys() - older.keys())
    for path, content in older.items():
        store.put(path, content)
    (finding,) = check_store(scene.lake).findings
    assert (finding.part, finding.problem) == (
        JOURNAL, "it ends at number 4, and the metastore has seen it at 5: entries are lost"
    )  # fmt: skip


def test_of_damage_of_the_past_the_check_and_mending_say_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    capsys.readouterr()
    assert main(["lake", "status", name, "--deep"]) == 1
    said = capsys.readouterr().out
    assert "only the past is damaged; `headstone lake gc --apply` forgets it after its grace" in said
    assert "`headstone lake mend` says" not in said
    for apply in ([], ["--apply"]):
        assert main(["lake", "mend", name, *apply]) == 1
        said = capsys.readouterr().out
        assert "of the past, 2 records can't be read; it is not mended" in said
        assert "nothing is damaged" not in said
    assert main(["lake", "gc", name, "--apply", "--grace-ms", "0", "--now-ms", "2"]) == 0
    assert main(["lake", "status", name, "--deep"]) == 0
    assert main(["lake", "mend", name]) == 0
