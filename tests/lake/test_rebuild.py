"""The drill: a lake that was filled, compacted, marked and leveled loses its metastore, or gets an old one back."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import select, text

from headstone.cli.main import main
from headstone.errors import Unfinished, UsageError
from headstone.lake.format.objects import writing_object
from headstone.lake.format.spans import Span
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.compaction import compact_partition
from headstone.lake.jobs.folding import fold
from headstone.lake.jobs.rebuild import Rebuilt, open_for_rebuild, rebuild
from headstone.lake.lake import Lake, create_lake, open_lake, rebuilt_place, unchecked_lake
from headstone.lake.metastore import schema
from headstone.lake.metastore.erasures import Erasures
from headstone.lake.metastore.holds import Holds
from headstone.lake.metastore.journal import SetBack, record
from headstone.lake.metastore.journal_names import object_of
from headstone.lake.metastore.leader_epochs import known_leader_epochs, note_leader_epochs
from headstone.lake.metastore.listeners import Listeners
from headstone.lake.topics import drop_topic
from headstone.lake.transfer.ingest import LogIngestSettings, ingest
from headstone.lake.transfer.reading import records
from headstone.log.directory import find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline import progress
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import Board
from headstone.storage.redaction import without_secrets
from headstone.storage.stores import MissingObject, Store
from tests.lake.appending import put
from tests.lake.databases import another, back_up, make_another
from tests.lake.scene import AT, RETENTION_MS, Said, Scene
from tests.lake.single import level_partition


@pytest.fixture
def scene(any_scene: Scene) -> Scene:
    return any_scene


def known(lake: Lake) -> tuple[object, ...]:
    """All that commits have made of it."""
    metastore = lake.metastore
    return metastore.snapshot(), metastore.topics(), metastore.kafka_ids(), known_leader_epochs(metastore, AT)


def fill(scene: Scene) -> None:
    scene.history.leader_epoch = 3
    scene.write("N[a]", "N[b]", "N[c]", "N[d]")
    scene.write("T[a]", "N[e]")
    scene.compact(now_ms=10)
    scene.write("N[b]", "N[f]", now_ms=20)
    scene.compact(now_ms=30)  # b is marked dead where it lies


def grow(scene: Scene) -> None:
    """What a metastore of before does not know: an append, a compaction that drops a tombstone, a leveling, a new start."""
    later_ms = 40 + RETENTION_MS
    scene.lake.metastore.give_clock(later_ms)
    scene.write("N[c]", "N[g]", now_ms=later_ms)
    scene.compact(now_ms=later_ms)
    scene.write("N[h]", now_ms=later_ms)
    leveled = level_partition(scene.lake, AT, clock=lambda: later_ms, extent_bytes=400)
    assert leveled.extents_after < leveled.extents_before
    scene.lake.metastore.start_at(AT, 1, now_ms=later_ms)
    scene.lake.metastore.create_topic("u", 2, {"cleanup.policy": "delete"}, kafka_id="AAAAAAAAQACAAAAAAAAAAQ")
    scene.lake.metastore.add_partitions("t", 2)
    scene.lake.metastore.create_topic("dropped", 1)
    drop_topic(scene.lake, "dropped")


def test_a_lake_whose_metastore_is_lost_is_the_same_after_a_rebuild(
    scene: Scene, metastore_url: str, tmp_path: Path
) -> None:
    fill(scene)
    grow(scene)
    before, table = known(scene.lake), scene.table()
    scene.lake.close()
    make_another(metastore_url)
    lake = open_for_rebuild(another(metastore_url), f"file://{tmp_path / 'objects'}")
    done = rebuild(lake)
    assert (done.topics, done.partitions, done.changed, done.missing) == (2, 1, ("t-0",), ())
    scene.lake = lake
    assert (known(lake), scene.table(), lake.metastore.check()) == (before, table, [])
    assert lake.metastore.hash_key == scene.lake.metastore.hash_key
    now_ms = lake.metastore.clock()
    assert garbage(lake, now_ms=now_ms, grace_ms=100).rows == []
    collect(lake, garbage(lake, now_ms=now_ms + 101, grace_ms=100))
    assert sorted(lake.metastore.objects()) == sorted(path.rpartition("/")[2] for path in lake.store.list("objects"))
    assert (known(lake), scene.table()) == (before, table)
    scene.write("N[z]", now_ms=now_ms + 200)
    scene.compact(now_ms=now_ms + 300)
    assert scene.table() == {**table, b"z": scene.table()[b"z"]}


def test_a_metastore_that_was_set_back_is_noticed_and_brought_up_to_date(scene: Scene, metastore_url: str) -> None:
    fill(scene)
    back_up(scene.lake, metastore_url)
    grow(scene)
    now_ms = scene.lake.metastore.clock()
    collect(scene.lake, garbage(scene.lake, now_ms=now_ms + 10**6, grace_ms=0))
    before, table, stored = known(scene.lake), scene.table(), scene.lake.store.list("objects")
    store = scene.lake.store
    scene.lake.close()
    with pytest.raises(SetBack, match="it was set back in time"):
        unchecked_lake(another(metastore_url))
    lake = open_for_rebuild(another(metastore_url), None)
    with pytest.raises(SetBack):
        garbage(lake, now_ms=10**9)
    assert rebuild(lake).changed == ("t-0",)
    scene.lake = lake
    assert (known(lake), scene.table(), lake.metastore.check()) == (before, table, [])
    collect(lake, garbage(lake, now_ms=now_ms, grace_ms=100))
    assert store.list("objects") == stored
    assert rebuild(lake).changed == ()
    lake.close()
    unchecked_lake(another(metastore_url)).close()


@pytest.mark.parametrize("folded", [False, True])
def test_who_commits_with_a_metastore_that_was_set_back_is_told(scene: Scene, metastore_url: str, folded: bool) -> None:
    fill(scene)
    back_up(scene.lake, metastore_url)
    lake = unchecked_lake(another(metastore_url))
    grow(scene)
    if folded:
        fold(scene.lake)
    with pytest.raises(SetBack, match="stop all workers"):
        lake.metastore.create_topic("mine", 1)
    rebuild(lake)
    assert known(lake) == known(scene.lake)


def leave_untold(scene: Scene) -> None:
    """Commits of which the store has not heard: it did not answer, or their process was killed behind them."""
    metastore, tell = scene.lake.metastore, scene.lake.metastore.after_commit
    metastore.after_commit = Listeners()
    scene.write("N[y]")
    note_leader_epochs(metastore, AT, [(5, 0)])
    metastore.create_topic("untold", 1)
    put(scene.lake, TopicPartition("untold", 0), [(b"k", b"v")])
    metastore.after_commit = tell


def test_what_was_committed_and_not_told_to_the_store_is_told_before_a_rebuild(
    scene: Scene, metastore_url: str
) -> None:
    scene.write("N[a]")
    leave_untold(scene)
    before, table = known(scene.lake), scene.table()
    scene.lake.close()
    scene.lake = open_for_rebuild(metastore_url, None)
    done = rebuild(scene.lake)
    assert (done.changed, done.unused, done.missing) == ((), (), ())
    assert (known(scene.lake), scene.table(), scene.lake.metastore.check()) == (before, table, [])


def test_what_a_metastore_had_not_told_when_it_was_set_back_is_in_the_journal_once(
    scene: Scene, metastore_url: str
) -> None:
    """The other copy has told the same since, and more."""
    scene.write("N[a]")
    leave_untold(scene)
    back_up(scene.lake, metastore_url)
    scene.write("N[b]")
    lake = open_for_rebuild(another(metastore_url), None)
    number = len(lake.store.list("journal"))
    rebuild(lake)
    assert (known(lake), lake.metastore.check()) == (known(scene.lake), [])
    assert len(lake.store.list("journal")) == number


def collect_later(lake: Lake) -> None:
    lake.metastore.give_clock(lake.metastore.clock() + 10**9)
    collect(lake, garbage(lake, now_ms=lake.metastore.clock()))


def test_what_came_first_into_a_partition_by_a_metastore_that_was_set_back_is_taken_out(
    scene: Scene, metastore_url: str
) -> None:
    """The store was never told of it: whoever ingests reads it again, and nobody points at its object any more."""
    second = TopicPartition("t", 1)
    scene.lake.metastore.add_partitions("t", 2)
    back_up(scene.lake, metastore_url)
    lake = unchecked_lake(another(metastore_url))
    scene.write("N[a]")
    intrusions: list[Callable[[], object]] = [
        lambda: put(lake, second, [(b"k", b"v")]), lambda: note_leader_epochs(lake.metastore, second, [(1, 0)]),
        lambda: lake.metastore.add_partitions("t", 3),
    ]  # fmt: skip
    for intrusion in intrusions:
        with pytest.raises(SetBack):
            intrusion()
    done = rebuild(lake)
    assert (done.changed, len(done.unused)) == (("t-0", "t-1"), 1)
    assert (known(lake), lake.metastore.check()) == (known(scene.lake), [])
    assert known_leader_epochs(lake.metastore, second) == ()
    with lake.metastore.transaction() as connection:
        first_added_ms = select(schema.partitions.c.first_added_ms).order_by(schema.partitions.c.number)
        assert list(connection.scalars(first_added_ms)) == [0, -1]
    for _ in range(2):
        collect_later(lake)
    assert sorted(lake.metastore.objects()) == sorted(path.rpartition("/")[2] for path in lake.store.list("objects"))
    put(lake, second, [(b"k", b"w")], now_ms=lake.metastore.clock())
    assert [entry.value for entry in records(lake, second)] == [b"w"]


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("collected", [False, True])
def test_a_topic_that_was_dropped_and_made_again_is_the_new_one(
    scene: Scene, metastore_url: str, collected: bool, folded: bool
) -> None:
    """Nothing of the old one is served, though the metastore is of its time; holds on it are nobody's, where that is told."""
    scene.write("N[a]", "N[b]")
    Holds(scene.lake.metastore).hold("reader", AT, 0, expires_ms=10**12)
    note_leader_epochs(scene.lake.metastore, AT, [(1, 0)])
    back_up(scene.lake, metastore_url)
    drop_topic(scene.lake, "t", now_ms=10)
    scene.lake.metastore.create_topic("t", 1)
    if collected:
        collect(scene.lake, garbage(scene.lake, now_ms=10**9))
    if folded:
        fold(scene.lake)
    lake = open_for_rebuild(another(metastore_url), None)
    rebuild(lake)
    assert (known(lake), lake.metastore.check(), list(records(lake, AT))) == (known(scene.lake), [], [])
    assert bool(Holds(lake.metastore).all(now_ms=0)) == folded
    for _ in range(2):
        collect_later(lake)
    assert lake.store.list("objects") == []


def test_a_log_that_began_with_its_first_append_begins_there_after_a_rebuild(local: Scene, tmp_path: Path) -> None:
    local.history.append("N[a] N[b]")
    local.history.append("N[c] N[d]")
    local.history.roll()
    local.history.write_partition(tmp_path / "logs", "t-0")
    (tmp_path / "logs" / "log-start-offset-checkpoint").write_text("0\n1\nt 0 3\n")
    ingest(
        local.lake, find_partitions([tmp_path / "logs"]), clock=lambda: 1, settings=LogIngestSettings(extent_bytes=1)
    )
    before = known(local.lake)
    assert local.lake.metastore.log_ends([AT]) == {AT: (3, 4)}
    with local.lake.metastore.transaction() as connection:
        connection.execute(text("UPDATE partitions SET start_offset = 0"))
    rebuild(local.lake)
    assert (known(local.lake), local.lake.metastore.check()) == (before, [])


def test_leader_epochs_of_a_partition_without_records_are_dropped_with_it(local: Scene) -> None:
    note_leader_epochs(local.lake.metastore, AT, [(1, 0)])
    drop_topic(local.lake, "t")
    local.lake.metastore.create_topic("t", 1)
    rebuild(local.lake)
    assert known_leader_epochs(local.lake.metastore, AT) == ()


def test_holds_on_a_topic_that_was_dropped_and_made_again_before_the_backup_stay(local: Scene) -> None:
    drop_topic(local.lake, "t")
    local.lake.metastore.create_topic("t", 1)
    Holds(local.lake.metastore).hold("reader", AT, 0, expires_ms=10**12)
    rebuild(local.lake)
    assert [hold.reader for hold in Holds(local.lake.metastore).all(now_ms=0)] == ["reader"]


def test_a_topic_of_another_id_in_kafka_is_another_topic(scene: Scene, metastore_url: str) -> None:
    """A base tells of no topic that was dropped before it."""
    ids = ("AAAAAAAAQACAAAAAAAAAAQ", "AAAAAAAAQACAAAAAAAAAAg")
    scene.lake.metastore.identify("t", ids[0])
    Holds(scene.lake.metastore).hold("reader", AT, 0, expires_ms=10**12)
    back_up(scene.lake, metastore_url)
    drop_topic(scene.lake, "t", now_ms=10)
    scene.lake.metastore.create_topic("t", 1, kafka_id=ids[1])
    fold(scene.lake)
    lake = open_for_rebuild(another(metastore_url), None)
    rebuild(lake)
    assert (Holds(lake.metastore).all(now_ms=0), lake.metastore.kafka_ids()) == ([], {"t": ids[1]})


class Cutting(Store):
    """Its answers are lost: what is put is there, and nobody hears of it."""

    def put(self, path: str, content: bytes, *, create: bool = False) -> bool:
        super().put(path, content, create=create)
        raise Unfinished("the answer was lost")


def test_what_the_store_was_not_told_of_is_told_by_the_next_who_commits(local: Scene) -> None:
    lake, tell = local.lake, local.lake.metastore.after_commit
    lake.metastore.after_commit = Listeners()  # killed behind the commit
    local.write("N[a]")
    number = len(lake.store.list("journal"))
    cutting = Cutting(lake.store.url, lake.store._store)
    with pytest.raises(Unfinished):
        record(lake.metastore, cutting)  # killed behind the upload
    lake.metastore.after_commit = tell
    local.write("N[b]")
    assert len(lake.store.list("journal")) == number + 2
    record(lake.metastore, lake.store)
    assert len(lake.store.list("journal")) == number + 2
    assert rebuild(lake).changed == ()
    assert [key for _, key, _ in local.held()] == [b"a", b"b"]


def test_what_was_uploaded_and_never_committed_is_nobodys(local: Scene) -> None:
    """As a compaction leaves it that was refused: it looks like a newer extent, and lacks everything."""
    local.write("N[a]", "T[a]")
    before = known(local.lake)
    with writing_object(local.lake.store, str(uuid.uuid4()), local.lake.metastore.lake_id) as writer:
        writer.add("t", 0, Span(0, 2), [], records=0, max_timestamp_ms=9)
    assert (rebuild(local.lake), known(local.lake)) == (
        Rebuilt(
            topics=1, partitions=1, extents=1, changes=4, changed=(), dropped=(), erasures=0, unused=(writer.object_id,),
            missing=(), doubt="",
        ), before,
    )  # fmt: skip
    assert local.lake.metastore.objects()[writer.object_id].state == "unreferenced"


def test_what_is_missing_is_told(local: Scene) -> None:
    local.write("N[a]")
    (path,) = local.lake.store.list("objects")
    local.lake.store.delete([path])
    assert rebuild(local.lake).missing == (path.rpartition("/")[2],)
    local.write("N[b]")
    local.lake.store.delete([object_of(2)])
    with pytest.raises(Unfinished, match=r"journal/0+2: no such object, but the journal continues to number"):
        rebuild(local.lake)


def test_the_verb_rebuilds_a_lake_in_a_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], told: Said
) -> None:
    lake = str(tmp_path / "lake")
    told("init", lake)
    opened = open_lake(f"sqlite:///{lake}/metastore.db")
    Scene(opened, tmp_path).write("N[a]")
    opened.close()
    (tmp_path / "lake" / "metastore.db").unlink()
    done = told("rebuild", lake)
    assert (done["changed"], done["missing"]) == (["t-0"], [])
    assert told("rebuild", lake)["changed"] == []
    assert main(["lake", "rebuild", f"sqlite:///{tmp_path}/none.db"]) == 2
    assert "name the objects of the lost lake with --objects" in capsys.readouterr().err
    with pytest.raises(UsageError, match="is missing there"):
        open_for_rebuild(f"sqlite:///{tmp_path}/none.db", f"file://{tmp_path / 'nothing'}")


def test_a_lake_that_is_named_by_reference_is_rebuilt_and_its_password_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_lake(f"sqlite:///{tmp_path / 'metastore.db'}", f"file://{tmp_path / 'objects'}", now_ms=0).close()
    (tmp_path / "metastore.db").unlink()
    monkeypatch.setenv("LAKE", str(tmp_path))
    assert main(["lake", "rebuild", "env:LAKE"]) == 0
    assert main(["lake", "status", "env:LAKE", "--check"]) == 0
    url = "postgresql://lake:never%2Dshown@db/lake"
    assert rebuilt_place(url, None) == (url, None)
    assert without_secrets("it is never-shown") == "it is ***"
    monkeypatch.setenv("LAKE", str(tmp_path / "elsewhere"))
    with pytest.raises(UsageError, match="no such directory; name the lake's directory"):
        rebuilt_place("env:LAKE", None)


def test_how_far_a_rebuild_is_counts_the_journal_and_then_rows(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of objects, those that nobody points at included, of extents, and of erasures."""
    scene.write("N[a]", "N[b]")
    scene.write("N[b]", "N[c]")
    scene.compact(now_ms=1)
    Erasures(scene.lake.metastore).request("t", ["00" * 16], deadline_ms=9, now_ms=1)
    boards: list[Board] = []

    def board() -> Board:
        boards.append(Board())
        return boards[-1]

    monkeypatch.setattr(progress, "Board", board)
    done = rebuild(scene.lake, progress=True)
    size = sum(entry.size for entry in scene.lake.store.entries("journal"))
    rows = len(scene.lake.store.list("objects")) + done.extents + 1
    assert (len(done.unused) > 0, done.erasures) == (True, 1)
    assert [(one.expected, one.total()) for one in boards] == [(size, (size, done.changes)), (rows, (rows, 0))]


SEEDS = 20
TOPICS = ("s", "t")
LATER_MS = 10**9


class Handyman:
    """Does one thing after the other to a lake, as its seed has it."""

    def __init__(self, lake: Lake, chance: random.Random) -> None:
        self.lake, self._chance, self._now_ms = lake, chance, 1

    def work(self, jobs: int) -> None:
        for _ in range(jobs):
            self._now_ms += 1
            self._chance.choice(
                (self.append, self.append, self.append, self.compact, self.start, self.create, self.drop, self.lead)
            )()

    def append(self) -> None:
        for name in self._some():
            put(self.lake, name, [(self._chance.choice((b"a", b"b")), b"%d" % self._now_ms)], now_ms=self._now_ms)

    def compact(self) -> None:
        for name in self._some():
            compact_partition(self.lake, name, InProcess(1), now_ms=self._now_ms)

    def start(self) -> None:
        for name in self._some():
            start, end = self.lake.metastore.log_ends([name])[name]
            self.lake.metastore.start_at(name, self._chance.randint(start, end), now_ms=self._now_ms)

    def create(self) -> None:
        """One that is there gets more partitions."""
        topic, partitions = self._chance.choice(TOPICS), self._chance.randint(1, 3)
        if topic in self.lake.metastore.topics():
            self.lake.metastore.add_partitions(topic, partitions)
        else:
            self.lake.metastore.create_topic(topic, partitions)

    def drop(self) -> None:
        for name in self._some():
            drop_topic(self.lake, name.topic, now_ms=self._now_ms)

    def lead(self) -> None:
        for name in self._some():
            note_leader_epochs(
                self.lake.metastore, name, [(self._now_ms, self.lake.metastore.log_ends([name])[name][1])]
            )

    def _some(self) -> list[TopicPartition]:
        """One, if there is any."""
        return self._chance.sample(self.lake.metastore.partitions(), 1) if self.lake.metastore.partitions() else []


def all_of(lake: Lake) -> tuple[object, ...]:
    """All that commits have made of it, and every record."""
    metastore, names = lake.metastore, lake.metastore.partitions()
    epochs = {name: known_leader_epochs(metastore, name) for name in names}
    return metastore.snapshot(), metastore.topics(), epochs, {name: list(records(lake, name)) for name in names}


def collect_all(lake: Lake) -> None:
    collect(lake, garbage(lake, now_ms=LATER_MS, grace_ms=0, upload_ms=0))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_old_copy_that_was_worked_with_is_the_lake_again(metastore_url: str, tmp_path: Path, seed: int) -> None:
    """The model is the lake that was never set back."""
    chance = random.Random(seed)
    lake = create_lake(metastore_url, f"file://{tmp_path / 'objects'}", now_ms=0)
    handyman = Handyman(lake, chance)
    handyman.create()
    handyman.work(chance.randint(0, 8))
    back_up(lake, metastore_url)
    old = unchecked_lake(another(metastore_url))
    handyman.work(chance.randint(0, 8))
    lake.metastore.create_topic("ahead", 1)
    for upkeep in chance.sample((fold, collect_all), chance.randint(0, 2)):
        upkeep(lake)
    intruder = Handyman(old, chance)
    for _ in range(chance.randint(0, 6)):
        with suppress(SetBack, MissingObject):  # behind its commit; or what it would read was collected
            intruder.work(1)
    rebuild(old)
    assert (all_of(old), old.metastore.check(), rebuild(old).changed) == (all_of(lake), [], ())
    lake.close()
    before = all_of(old)
    for _ in range(2):
        old.metastore.give_clock(old.metastore.clock() + LATER_MS)
        collect(old, garbage(old, now_ms=old.metastore.clock()))
    assert all_of(old) == before
    Handyman(old, chance).work(3)
    assert old.metastore.check() == []
    old.close()
