"""Of a topic that is dropped nothing is left, whoever shares its objects; one of the same name is not touched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headstone.cli.main import main
from headstone.errors import UsageError
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.compaction import compact_partition
from headstone.lake.jobs.erasure import Tools, carry_on_erasures, request_erasure
from headstone.lake.jobs.folding import fold
from headstone.lake.jobs.proof import prove_erased
from headstone.lake.jobs.rebuild import open_for_rebuild, rebuild
from headstone.lake.jobs.upkeep import Upkeep
from headstone.lake.lake import Lake, create_lake
from headstone.lake.metastore.erasure_steps import CAME_AGAIN, ERASED, OBJECTS_REMOVED, REQUESTED, TOPIC_DROPPED, WHOLE
from headstone.lake.metastore.erasures import Erasures
from headstone.lake.topics import drop_topic
from headstone.lake.transfer.ingest import ingest
from headstone.lake.transfer.reading import table
from headstone.log.directory import find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from headstone.storage.stores import Store
from tests.oracle.notation import History

KEPT, USERS = TopicPartition("kept", 0), TopicPartition("users", 0)
GRACE_MS, UPLOAD_MS = 100, 200
LATER_MS = 1000
SECRETS = (b"alice-the-key", b"bob-the-key")


class Town:
    """A lake whose objects hold two topics each."""

    def __init__(self, lake: Lake, root: Path) -> None:
        self.lake, self._root, self.now_ms = lake, root, 0
        self._histories = {"kept": History(), "users": History()}

    def grow(self, **topics: str) -> None:
        """All of them in one object."""
        for topic, text in topics.items():
            history = self._histories.setdefault(topic, History())
            history.append(text)
            history.roll()
            history.write_partition(self._root / "logs", f"{topic}-0")
        found = [one for one in find_partitions([self._root / "logs"]) if one.topic in topics]
        ingest(self.lake, found, clock=lambda: self.now_ms, engine=InProcess(1))

    def forget_log(self, topic: str) -> None:
        self._histories[topic] = History()

    def drop(self) -> None:
        drop_topic(self.lake, "users", now_ms=self.now_ms)

    def later(self) -> None:
        self.now_ms += LATER_MS
        self.lake.metastore.give_clock(self.now_ms)

    def tools(self) -> Tools:
        return Tools(
            lake=self.lake, engine=InProcess(1), clock=lambda: self.now_ms, grace_ms=GRACE_MS, upload_ms=UPLOAD_MS
        )  # fmt: skip

    def step(self, key_digest: str = WHOLE) -> str:
        return next(one.step for one in Erasures(self.lake.metastore).of("users") if one.key_digest == key_digest)

    def settle(self) -> None:
        for _ in range(4):
            self.later()
            carry_on_erasures(self.tools(), ["users"])

    def where(self, what: bytes) -> list[str]:
        """A byte search over all that is stored."""
        root = Path(self.lake.store.url.removeprefix("file://"))
        paths = [path for path in root.rglob("*") if path.is_file() and what in path.read_bytes()]
        return sorted(path.relative_to(root).as_posix() for path in paths)


@pytest.fixture
def town(metastore_url: str, tmp_path: Path) -> Iterator[Town]:
    lake = create_lake(metastore_url, f"file://{tmp_path / 'lake' / 'objects'}", now_ms=0)
    made = Town(lake, tmp_path)
    made.grow(users="N[alice-the-key] N[bob-the-key]", kept="N[x] N[y]")
    made.grow(users="N[alice-the-key] T[bob-the-key]", kept="N[x]")
    yield made
    made.lake.close()


def test_a_worker_leaves_no_byte_of_a_dropped_topic(town: Town) -> None:
    for name in (KEPT, USERS):
        compact_partition(town.lake, name, InProcess(1), now_ms=0)
    before = table(town.lake, KEPT)
    assert all(town.where(secret) for secret in SECRETS)
    town.drop()
    steps = [town.step()]
    care = Upkeep(tools=town.tools(), gc_every_ms=0)
    for _ in range(3):
        town.later()
        care.look()
        steps.append(town.step())
    assert steps == [REQUESTED, OBJECTS_REMOVED, ERASED, ERASED]
    assert [town.where(secret) for secret in SECRETS] == [[], []]
    assert table(town.lake, KEPT) == before
    assert town.lake.metastore.check() == []
    assert prove_erased(town.lake, "users", None).verdict == "erased"


def test_the_verbs_of_upkeep_leave_no_byte_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the issue tells it."""
    where = str(tmp_path / "mylake")
    for topic, text in (("users", "N[alice-the-key] N[bob-the-key]"), ("kept", "N[x] N[y]")):
        history = History()
        history.append(text)
        history.roll()
        history.write_partition(tmp_path / "logs", f"{topic}-0")
    now = ["--grace-ms", "0", "--upload-ms", "1"]
    assert main(["lake", "init", where]) == 0
    assert main(["lake", "ingest", where, str(tmp_path / "logs")]) == 0
    assert main(["lake", "topics", where, "drop", "users", "--yes", "--deadline", "2d"]) == 0
    assert main(["lake", "gc", where, "--apply", *now]) == 0
    assert main(["lake", "prove-erased", where, "users"]) == 1
    capsys.readouterr()
    assert main(["lake", "status", where, "--output", "json"]) == 0
    (asked,) = json.loads(capsys.readouterr().out)["erasures"]
    assert (asked["key_digest"], asked["step"]) == (WHOLE, REQUESTED)
    assert asked["deadline_ms"] - asked["requested_ms"] == 2 * 86_400_000
    assert main(["lake", "compact", where, "--purge"]) == 0
    assert main(["lake", "gc", where, "--apply", *now]) == 0
    for path in Path(where).rglob("objects/**/*"):
        assert not path.is_file() or not any(secret in path.read_bytes() for secret in SECRETS), path
    (tmp_path / "keys").write_text("alice\n")
    for keys in (
        ["--key", "alice"],
        ["--key-hex", "00"],
        ["--keys-file", f"{tmp_path / 'keys'}"],
        ["--write-tombstone"],
    ):
        capsys.readouterr()
        assert main(["lake", "erase", where, "users", *keys, *now]) == 2
        assert f"users was dropped: all of it is erased; leave out the keys (here {keys[0]})" in capsys.readouterr().err
    assert main(["lake", "erase", where, "users", *now]) == 0
    capsys.readouterr()
    assert main(["lake", "prove-erased", where, "users", "--output", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["verdict"], document["key_hex"], document["remnants"]) == ("erased", None, [])
    assert main(["lake", "prove-erased", where, "kept"]) == 2
    assert main(["lake", "prove-erased", where, "nobody"]) == 2
    assert main(["lake", "erase", where, "nobody"]) == 2


def test_what_is_left_of_it_is_told_object_by_object(town: Town) -> None:
    town.drop()
    proof = prove_erased(town.lake, "users", None)
    assert (proof.verdict, sorted(remnant.records for remnant in proof.remnants)) == ("not erased", [2, 2])
    assert {remnant.state for remnant in proof.remnants} == {"committed"}


def test_an_upload_of_it_that_is_on_its_way_is_waited_for(town: Town) -> None:
    town.lake.metastore.register(1, now_ms=town.now_ms)
    town.drop()
    carry_on_erasures(town.tools(), ["users"])
    town.now_ms += GRACE_MS + 1
    town.lake.metastore.give_clock(town.now_ms)
    carry_on_erasures(town.tools(), ["users"])
    assert (town.step(), town.where(SECRETS[0])) == (OBJECTS_REMOVED, [])
    town.settle()
    assert town.step() == ERASED


@pytest.mark.parametrize("moment", ["before anything", "in between", "behind a fold"])
def test_a_metastore_that_is_rebuilt_goes_on_with_the_drop(town: Town, tmp_path: Path, moment: str) -> None:
    """Also of objects of which it has no rows to tell what else was in them."""
    town.drop()
    if moment == "in between":
        town.later()
        carry_on_erasures(town.tools(), ["users"])
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
    assert (town.step(), [town.where(secret) for secret in SECRETS]) == (ERASED, [[], []])
    assert table(town.lake, KEPT) == before
    assert prove_erased(town.lake, "users", None).verdict == "erased"


def test_a_topic_that_is_made_again_is_another_one(town: Town) -> None:
    """Its keys are not erased, and those of the old one do not wait for them."""
    (digest,) = request_erasure(town.lake, "users", [SECRETS[0]], deadline_ms=5, clock=lambda: town.now_ms)
    town.drop()
    assert town.step(digest) == TOPIC_DROPPED
    town.forget_log("users")
    town.grow(users="N[alice-the-key] N[carol]", kept="N[z]")
    town.grow(users="N[carol]", kept="N[z]")
    compact_partition(town.lake, USERS, InProcess(1), now_ms=town.now_ms)
    before = table(town.lake, USERS)
    assert prove_erased(town.lake, "users", None).verdict == "not erased"
    carry_on_erasures(town.tools(), ["users"])
    assert [one.waits_for for one in Erasures(town.lake.metastore).of("users") if one.key_digest == digest] == [""]
    town.settle()
    assert (town.step(), town.step(digest)) == (ERASED, CAME_AGAIN)
    assert town.where(SECRETS[1]) == []
    assert table(town.lake, USERS) == before
    assert prove_erased(town.lake, "users", None).verdict == "erased"
    assert prove_erased(town.lake, "users", SECRETS[0]).verdict == "not erased"


def test_a_proof_of_a_dropped_topic_says_that_another_one_has_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else "erased" would pass for a proof about the records that are there."""
    where, history = str(tmp_path / "lake"), History()
    history.append("N[alice]")
    history.roll()
    history.write_partition(tmp_path / "logs", "users-0")
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


def test_a_topic_that_is_dropped_twice_is_erased_twice(town: Town) -> None:
    town.drop()
    carry_on_erasures(town.tools(), ["users"])
    assert town.step() == OBJECTS_REMOVED
    town.forget_log("users")
    town.grow(users="N[alice-the-key] N[bob-the-key]", kept="N[z]")
    deadline_ms = Erasures(town.lake.metastore).of("users")[0].deadline_ms
    drop_topic(town.lake, "users", now_ms=town.now_ms, deadline_ms=2**40)
    assert town.step() == REQUESTED
    assert Erasures(town.lake.metastore).of("users")[0].deadline_ms == deadline_ms
    town.settle()
    assert (town.step(), [town.where(secret) for secret in SECRETS]) == (ERASED, [[], []])


def test_a_key_of_a_dropped_topic_is_erased_with_it_if_there_was_one(town: Town) -> None:
    keys = [SECRETS[0], b"nobody"]
    request_erasure(town.lake, "users", keys, deadline_ms=2**40, clock=lambda: town.now_ms)
    carry_on_erasures(town.tools(), ["users"])
    town.drop()
    town.settle()
    verdicts = [prove_erased(town.lake, "users", key).verdict for key in keys]
    assert verdicts == ["erased", "never seen here"]
    with pytest.raises(UsageError, match="was dropped: all of it is being erased"):
        request_erasure(town.lake, "users", keys, deadline_ms=2**40, clock=lambda: town.now_ms)


def test_a_collection_alone_ends_a_drop_whose_objects_nobody_shares(tmp_path: Path) -> None:
    lake = create_lake(f"sqlite:///{tmp_path / 'lake.db'}", f"file://{tmp_path / 'objects'}", now_ms=0)
    town = Town(lake, tmp_path)
    town.grow(users="N[alice-the-key]")
    town.drop()
    town.later()
    collect(lake, garbage(lake, now_ms=town.now_ms, grace_ms=0))
    assert Store.open(lake.store.url).list("objects") == []
    assert main(["lake", "gc", f"sqlite:///{tmp_path / 'lake.db'}", "--apply", "--grace-ms", "0"]) == 0
    assert town.step() == ERASED
    lake.close()
