"""Of a topic that is dropped nothing is left, whoever shares its objects; one of the same name is not touched. What others were
to do for it is nobody's any more, and the rest is done."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import SQLAlchemyError

from headstone.cli.main import main
from headstone.errors import HeadstoneError, Unfinished, UsageError
from headstone.lake.jobs import compact_run, worker
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.erasure import carry_on_erasures, request_erasure
from headstone.lake.jobs.folding import fold
from headstone.lake.jobs.leased_jobs import compact_leased, level_leased
from headstone.lake.jobs.leveling import Leveled, level_partitions
from headstone.lake.jobs.proof import prove_erased
from headstone.lake.jobs.purging import purge_aged
from headstone.lake.jobs.rebuild import open_for_rebuild, rebuild
from headstone.lake.jobs.upkeep import Upkeep
from headstone.lake.lake import Lake, create_lake
from headstone.lake.metastore import catalog, schema
from headstone.lake.metastore.erasure_steps import CAME_AGAIN, ERASED, OBJECTS_REMOVED, REQUESTED, TOPIC_DROPPED, WHOLE
from headstone.lake.metastore.erasures import Erasures
from headstone.lake.metastore.leases import COMMITTED, Leases
from headstone.lake.metastore.rows import located
from headstone.lake.metastore.schema import UNLEVELED_BYTES_MIN
from headstone.lake.topics import drop_topic
from headstone.lake.transfer.reading import table
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from headstone.storage.stores import Store
from tests.lake.appending import log_of, put
from tests.lake.scene import Said
from tests.lake.single import worker as worker_of
from tests.lake.test_leveling import MERGED, spans, to_level
from tests.lake.town import GRACE_MS, PEOPLE, USERS, Town

KEPT = TopicPartition("kept", 0)
LATER_MS = 1000
SECRETS = (b"alice-the-key", b"bob-the-key")


class DroppingTown(Town):
    def drop(self) -> None:
        drop_topic(self.lake, "users", now_ms=self.now_ms)

    def later(self) -> None:
        self.now_ms += LATER_MS
        self.lake.metastore.give_clock(self.now_ms)

    def carry_on(self) -> None:
        carry_on_erasures(self.tools(upload_ms=200), ["users"])

    def step(self, key_digest: str = WHOLE) -> str:
        return next(one.step for one in Erasures(self.lake.metastore).of("users") if one.key_digest == key_digest)

    def settle(self) -> None:
        for _ in range(4):
            self.later()
            self.carry_on()


@pytest.fixture
def town(any_lake: Lake, tmp_path: Path) -> DroppingTown:
    made = DroppingTown(any_lake, tmp_path, now_ms=0)
    made.grow(users="N[alice-the-key] N[bob-the-key]", kept="N[x] N[y]")
    made.grow(users="N[alice-the-key] T[bob-the-key]", kept="N[x]")
    return made


def test_a_worker_leaves_no_byte_of_a_dropped_topic(town: DroppingTown) -> None:
    town.compact(KEPT, USERS)
    before = table(town.lake, KEPT)
    assert all(town.search(secret) for secret in SECRETS)
    town.drop()
    steps = [town.step()]
    care = Upkeep(tools=town.tools(upload_ms=200), gc_every_ms=0)
    for _ in range(3):
        town.later()
        care.look()
        steps.append(town.step())
    assert steps == [REQUESTED, OBJECTS_REMOVED, ERASED, ERASED]
    assert [town.search(secret) for secret in SECRETS] == [[], []]
    assert table(town.lake, KEPT) == before
    assert town.lake.metastore.check() == []
    assert prove_erased(town.lake, "users", None).verdict == "erased"


def test_the_verbs_of_upkeep_leave_no_byte_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], told: Said
) -> None:
    """As the issue tells it."""
    where = str(tmp_path / "mylake")
    for topic, text in (("users", "N[alice-the-key] N[bob-the-key]"), ("kept", "N[x] N[y]")):
        log_of(tmp_path / "logs", topic, text)
    now = ["--grace-ms", "0", "--upload-ms", "1"]
    assert main(["lake", "init", where]) == 0
    assert main(["lake", "ingest", where, str(tmp_path / "logs")]) == 0
    assert main(["lake", "topics", where, "drop", "users", "--yes", "--deadline", "2d"]) == 0
    assert main(["lake", "gc", where, "--apply", *now]) == 0
    assert main(["lake", "prove-erased", where, "users"]) == 1
    (asked,) = told("status", where)["erasures"]
    assert (asked["key_digest"], asked["step"]) == (WHOLE, REQUESTED)
    assert asked["deadline_ms"] - asked["requested_ms"] == 2 * 86_400_000
    assert told("compact", where, "--purge")["evacuated"]["extents"] == 1
    assert main(["lake", "gc", where, "--apply", *now]) == 0
    for path in Path(where).rglob("objects/**/*"):
        assert not path.is_file() or not any(secret in path.read_bytes() for secret in SECRETS), path
    (tmp_path / "keys").write_text("alice\n")
    keys_file = str(tmp_path / "keys")
    for keys in (["--key", "alice"], ["--key-hex", "00"], ["--keys-file", keys_file], ["--write-tombstone"]):
        capsys.readouterr()
        assert main(["lake", "erase", where, "users", *keys, *now]) == 2
        assert f"users was dropped: all of it is erased; leave out the keys (here {keys[0]})" in capsys.readouterr().err
    assert main(["lake", "erase", where, "users", *now]) == 0
    document = told("prove-erased", where, "users")
    assert (document["verdict"], document["key_hex"], document["remnants"]) == ("erased", None, [])
    assert main(["lake", "prove-erased", where, "kept"]) == 2
    assert main(["lake", "prove-erased", where, "nobody"]) == 2
    assert main(["lake", "erase", where, "nobody"]) == 2


def test_what_is_left_of_it_is_told_object_by_object(town: DroppingTown) -> None:
    town.drop()
    proof = prove_erased(town.lake, "users", None)
    assert (proof.verdict, sorted(remnant.records for remnant in proof.remnants)) == ("not erased", [2, 2])
    assert {remnant.state for remnant in proof.remnants} == {"committed"}


def test_an_upload_of_it_that_is_on_its_way_is_waited_for(town: DroppingTown) -> None:
    town.lake.metastore.register(1, now_ms=town.now_ms)
    town.drop()
    town.carry_on()
    town.now_ms += GRACE_MS + 1
    town.lake.metastore.give_clock(town.now_ms)
    town.carry_on()
    assert (town.step(), town.search(SECRETS[0])) == (OBJECTS_REMOVED, [])
    town.settle()
    assert town.step() == ERASED


@pytest.mark.parametrize("moment", ["before anything", "in between", "behind a fold"])
def test_a_metastore_that_is_rebuilt_goes_on_with_the_drop(town: DroppingTown, tmp_path: Path, moment: str) -> None:
    """Also of objects of which it has no rows to tell what else was in them."""
    town.drop()
    if moment == "in between":
        town.later()
        town.carry_on()
        assert town.step() == OBJECTS_REMOVED
    elif moment == "behind a fold":
        fold(town.lake)
    before = table(town.lake, KEPT)
    store = town.lake.store
    town.lake.close()
    town.lake = open_for_rebuild(f"sqlite:///{tmp_path / 'again.db'}", store.url)
    rebuild(town.lake)
    assert (town.step(), sorted(town.lake.metastore.topics())) == (REQUESTED, ["kept"])
    town.settle()
    assert (town.step(), [town.search(secret) for secret in SECRETS]) == (ERASED, [[], []])
    assert table(town.lake, KEPT) == before
    assert prove_erased(town.lake, "users", None).verdict == "erased"


def test_a_topic_that_is_made_again_is_another_one(town: DroppingTown) -> None:
    """Its keys are not erased, and those of the old one do not wait for them."""
    (digest,) = request_erasure(town.lake, "users", [SECRETS[0]], deadline_ms=5, clock=lambda: town.now_ms)
    town.drop()
    assert town.step(digest) == TOPIC_DROPPED
    town.forget_log("users")
    town.grow(users="N[alice-the-key] N[carol]", kept="N[z]")
    town.grow(users="N[carol]", kept="N[z]")
    town.compact(USERS)
    before = table(town.lake, USERS)
    assert prove_erased(town.lake, "users", None).verdict == "not erased"
    town.carry_on()
    assert [one.waits_for for one in Erasures(town.lake.metastore).of("users") if one.key_digest == digest] == [""]
    town.settle()
    assert (town.step(), town.step(digest)) == (ERASED, CAME_AGAIN)
    assert town.search(SECRETS[1]) == []
    assert table(town.lake, USERS) == before
    assert prove_erased(town.lake, "users", None).verdict == "erased"
    assert prove_erased(town.lake, "users", SECRETS[0]).verdict == "not erased"


def test_a_proof_of_a_dropped_topic_says_that_another_one_has_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else "erased" would pass for a proof about the records that are there."""
    where = str(tmp_path / "lake")
    log_of(tmp_path / "logs", "users", "N[alice]")
    filling = ["lake", "ingest", where, str(tmp_path / "logs")]
    for words in (["lake", "init", where], filling, ["lake", "topics", where, "drop", "users", "--yes"],
                  ["lake", "gc", where, "--apply", "--grace-ms", "0"]):  # fmt: skip
        assert main(words) == 0, words
    proving = ["lake", "prove-erased", where, "users"]
    told = []
    for fill in (False, True):
        assert not fill or main(filling) == 0
        capsys.readouterr()
        assert main(proving) == 0
        said = capsys.readouterr().out
        assert main([*proving, "--output", "json"]) == 0
        told.append(("users was made again since" in said, json.loads(capsys.readouterr().out)["made_again"]))
    assert told == [(False, False), (True, True)]


def test_a_topic_that_is_dropped_twice_is_erased_twice(town: DroppingTown) -> None:
    town.drop()
    town.carry_on()
    assert town.step() == OBJECTS_REMOVED
    town.forget_log("users")
    town.grow(users="N[alice-the-key] N[bob-the-key]", kept="N[z]")
    deadline_ms = Erasures(town.lake.metastore).of("users")[0].deadline_ms
    drop_topic(town.lake, "users", now_ms=town.now_ms, deadline_ms=2**40)
    assert town.step() == REQUESTED
    assert Erasures(town.lake.metastore).of("users")[0].deadline_ms == deadline_ms
    town.settle()
    assert (town.step(), [town.search(secret) for secret in SECRETS]) == (ERASED, [[], []])


def test_a_key_of_a_dropped_topic_is_erased_with_it_if_there_was_one(town: DroppingTown) -> None:
    keys = [SECRETS[0], b"nobody"]
    request_erasure(town.lake, "users", keys, deadline_ms=2**40, clock=lambda: town.now_ms)
    town.carry_on()
    town.drop()
    assert {one.state for one in prove_erased(town.lake, "users", keys[0]).sightings} == {"unreferenced"}
    town.settle()
    verdicts = [prove_erased(town.lake, "users", key).verdict for key in keys]
    assert verdicts == ["erased", "never seen here"]
    with pytest.raises(UsageError, match="was dropped: all of it is being erased"):
        request_erasure(town.lake, "users", keys, deadline_ms=2**40, clock=lambda: town.now_ms)


def test_a_collection_alone_ends_a_drop_whose_objects_nobody_shares(tmp_path: Path) -> None:
    lake = create_lake(f"sqlite:///{tmp_path / 'lake.db'}", f"file://{tmp_path / 'objects'}", now_ms=0)
    town = DroppingTown(lake, tmp_path, now_ms=0)
    town.grow(users="N[alice-the-key]")
    town.drop()
    town.later()
    collect(lake, garbage(lake, now_ms=town.now_ms, grace_ms=0))
    assert Store.open(lake.store.url).list("objects") == []
    assert main(["lake", "gc", f"sqlite:///{tmp_path / 'lake.db'}", "--apply", "--grace-ms", "0"]) == 0
    assert town.step() == ERASED
    lake.close()


DROPPED = TopicPartition("dropped", 0)


@pytest.fixture
def lake(any_lake: Lake) -> Lake:
    for name in (KEPT, DROPPED):
        any_lake.metastore.create_topic(name.topic, 1, {"delete.retention.ms": 0})
    return any_lake


class Aside(threading.Thread):
    """Does something meanwhile; `outcome` is what it answered or met."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act
        self.outcome: object = None

    def run(self) -> None:
        try:
            self.outcome = self._act()
        except (HeadstoneError, SQLAlchemyError) as error:
            self.outcome = error


def test_a_job_that_ends_while_its_topic_is_dropped_waits_and_is_not_remembered(lake: Lake) -> None:
    leases = Leases(lake.metastore)
    aside = Aside(lambda: leases.done(DROPPED, "w", COMMITTED, {}, started_ms=1, now_ms=1) or "went on")
    with lake.metastore.transaction() as connection:
        catalog.forget_topic(connection, "dropped")
        aside.start()
        aside.join(0.3)
        assert aside.is_alive()
    aside.join()
    assert (aside.outcome, leases.history()) == ("went on", [])
    leases.done(KEPT, "w", COMMITTED, {}, started_ms=1, now_ms=1)
    assert [row.partition for row in leases.history()] == [KEPT]


@pytest.mark.parametrize("metastore_url", ["postgresql"], indirect=True)
def test_a_request_waits_for_another_one_and_for_a_drop(lake: Lake) -> None:
    leases = Leases(lake.metastore)
    asides = [Aside(lambda: leases.request(DROPPED, now_ms=1) or "asked") for _ in range(2)]
    with lake.metastore.transaction() as connection:
        located(connection, DROPPED, lock=True)
        for aside in asides:
            aside.start()
            aside.join(0.2)
    for aside in asides:
        aside.join()
    assert ([aside.outcome for aside in asides], [*leases.requested()]) == (["asked", "asked"], [DROPPED])
    late = Aside(lambda: leases.request(DROPPED, now_ms=2))
    with lake.metastore.transaction() as connection:
        catalog.forget_topic(connection, "dropped")
        late.start()
        late.join(0.3)
    late.join()
    assert str(late.outcome) == "the lake has no partition dropped-0"


@pytest.mark.parametrize("metastore_url", ["postgresql"], indirect=True)
def test_a_request_is_not_answered_while_its_topic_is_dropped_and_nobody_waits(lake: Lake) -> None:
    """The drop waits for the lease that is looked at: who waited for the drop would wait for ever."""
    leases = Leases(lake.metastore)
    for name in (KEPT, DROPPED):
        leases.request(name, now_ms=1)
    aside = Aside(lambda: leases.take_due("w", 10, now_ms=2))
    with lake.metastore.transaction() as connection:
        of_topic = select(schema.partitions).join(schema.topics).where(schema.topics.c.name == "dropped")
        connection.execute(of_topic.with_for_update(of=schema.partitions)).all()
        aside.start()
        aside.join(60)
        assert (aside.is_alive(), aside.outcome) == (False, {})
        assert leases.requested() == {DROPPED: 1}
        catalog.forget_topic(connection, "dropped")
    assert [row.partition for row in leases.history()] == [KEPT]


@pytest.mark.parametrize("purge", [False, True])
def test_leveling_goes_on_without_a_topic_that_was_dropped(lake: Lake, purge: bool) -> None:
    """Before its leases are taken, and behind that."""
    drop_topic(lake, "dropped", now_ms=1)
    leased = level_leased(lake, [DROPPED, KEPT], InProcess(1), worker="w", purge=purge)
    assert isinstance(leased[KEPT], Leveled)
    assert str(leased[DROPPED]) == "another worker had it until now, or the topic was dropped"
    told: list[TopicPartition] = []
    leveled = level_partitions(
        lake, [DROPPED, KEPT], clock=lambda: 2, purge=purge, done=lambda name, outcome: told.append(name)
    )
    assert isinstance(leveled[KEPT], Leveled)
    assert (str(leveled[DROPPED]), told) == ("the lake has no partition dropped-0", [DROPPED, KEPT])


@pytest.mark.parametrize("flag", ["--level", "--purge"])
def test_a_drop_during_a_compaction_does_not_end_what_comes_behind(
    lake: Lake, metastore_url: str, monkeypatch: pytest.MonkeyPatch, told: Said, flag: str
) -> None:
    for name in (KEPT, DROPPED):
        put(lake, name, [(b"a", b"1"), (b"a", b"2")])

    def then_a_drop(*given: Any, **options: Any) -> object:
        outcomes = compact_leased(*given, **options)
        drop_topic(lake, "dropped", now_ms=10)
        return outcomes

    monkeypatch.setattr(compact_run, "compact_leased", then_a_drop)
    answer = told("compact", metastore_url, flag, "--now-ms", "10", code=3)
    assert sorted(one["partition"] for one in answer["partitions"]) == ["dropped-0", "kept-0"]
    assert [one["partition"] for one in answer["leveled"]] == ["kept-0"]
    assert [one["partition"] for one in answer["failed"]] == ["dropped-0"]


@pytest.mark.parametrize("metastore_url", ["sqlite"], indirect=True)
def test_what_a_compaction_did_is_told_though_a_purge_fails(
    lake: Lake, metastore_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(lake, KEPT, [(b"a", b"1"), (b"a", b"2")])

    def fails(*given: Any, **options: Any) -> object:
        raise Unfinished("the store does not answer")

    monkeypatch.setattr(compact_run, "evacuate_idle", fails)
    assert main(["lake", "compact", metastore_url, "--purge", "--now-ms", "10", "--output", "json"]) == 3
    out, err = capsys.readouterr()
    assert [one["partition"] for one in json.loads(out)["partitions"]] == ["kept-0"]
    assert "the store does not answer" in err


def test_what_is_dead_of_others_moves_though_a_topic_is_dropped(lake: Lake, tmp_path: Path) -> None:
    """Between the look at what there is and the move."""
    town = Town(lake, tmp_path)
    for text in (PEOPLE, "N[person3]"):
        town.grow(dropped=text, kept=text)
        town.compact(DROPPED, KEPT, now_ms=10)

    @contextmanager
    def dropping(name: TopicPartition) -> Iterator[None]:
        if name == KEPT:
            drop_topic(lake, "dropped", now_ms=11)
        yield

    purged = purge_aged(lake, clock=lambda: 12, age_ms_max=0, working_on=dropping)
    assert (purged.extents, purged.complete) == (1, True)


@pytest.mark.parametrize("moment", ["with_small_extents", "level_partitions"])
def test_a_worker_levels_others_though_a_topic_is_dropped(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Before their small extents are looked at, or while those of others are merged: of `dropped` there is nothing to merge."""
    names = to_level(lake, 2)
    put(lake, DROPPED, [(b"a", b"1" * 10)])
    with lake.metastore.transaction() as connection:
        connection.execute(update(schema.partitions).values(unleveled_bytes=UNLEVELED_BYTES_MIN, ripe_ms=1000))
    before: Callable[..., Any] = getattr(worker, moment)

    def dropping(*given: Any, **options: Any) -> object:
        monkeypatch.setattr(worker, moment, before)
        drop_topic(lake, "dropped", now_ms=15)
        return before(*given, **options)

    monkeypatch.setattr(worker, moment, dropping)
    assert worker_of(lake, now_ms=20).work() == 0
    assert spans(lake, names) == dict.fromkeys(names, MERGED)
    assert lake.metastore.unleveled(limit=10) == {}
