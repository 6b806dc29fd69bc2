"""A key that never was in the lake is not called erased; and one that was erased and came in again is not, either."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.cli.main import main
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.compaction import compact_partition
from headstone.lake.jobs.erasure import Tools, carry_on_erasures, request_erasure
from headstone.lake.jobs.folding import fold
from headstone.lake.jobs.key_search import digest_of
from headstone.lake.jobs.proof import prove_erased, sealed
from headstone.lake.jobs.rebuild import open_for_rebuild, rebuild
from headstone.lake.lake import Lake
from headstone.lake.metastore.erasure_steps import (
    CAME_AGAIN,
    CAME_LATER,
    ERASED,
    KEY_REMOVED,
    NEVER_SEEN,
    REQUESTED,
    TOPIC_DROPPED,
)
from headstone.lake.metastore.erasures import Erasure, Erasures
from headstone.lake.topics import drop_topic
from headstone.pipeline.inprocess import InProcess
from tests.lake.appending import log_of
from tests.lake.scene import AT, RETENTION_MS, Said, Scene
from tests.oracle.notation import History

GRACE_MS = 100


@pytest.fixture
def scene(any_scene: Scene) -> Scene:
    return any_scene


def erasure_of(scene: Scene, key: bytes) -> Erasure:
    digest = digest_of(key, scene.lake.metastore.hash_key)
    return next(one for one in Erasures(scene.lake.metastore).of("t") if one.key_digest == digest)


def carry_on(scene: Scene, now_ms: int) -> None:
    scene.lake.metastore.give_clock(now_ms)
    tools = Tools(lake=scene.lake, engine=InProcess(1), clock=lambda: now_ms, grace_ms=GRACE_MS, upload_ms=GRACE_MS)
    carry_on_erasures(tools, ["t"])


def erase(scene: Scene, *keys: bytes, first_ms: int) -> int:
    """What is deleted already; when it was over."""
    request_erasure(scene.lake, "t", keys, deadline_ms=2**40, clock=lambda: first_ms)
    for now_ms in range(first_ms, first_ms + 10 * RETENTION_MS, RETENTION_MS):
        carry_on(scene, now_ms)
    return first_ms + 10 * RETENTION_MS


def rebuilt(scene: Scene, root: Path) -> Lake:
    """From the store alone."""
    again = open_for_rebuild(f"sqlite:///{root / 'again.db'}", scene.lake.store.url)
    rebuild(again)
    return again


def steps(scene: Scene, *keys: bytes) -> list[str]:
    return [erasure_of(scene, key).step for key in keys]


def verdicts(scene: Scene, *keys: bytes) -> list[str]:
    return [prove_erased(scene.lake, "t", key).verdict for key in keys]


def test_a_key_that_never_was_is_not_called_erased_before_or_after_it_was_asked_for(scene: Scene) -> None:
    scene.write("N[alice] N[bob]", "T[alice]")
    assert verdicts(scene, b"alise", b"bob") == ["never seen here", "not erased"]
    erase(scene, b"alice", b"alise", first_ms=10)
    assert steps(scene, b"alice", b"alise") == [ERASED, NEVER_SEEN]
    for _ in range(2):
        assert verdicts(scene, b"alice", b"alise") == ["erased", "never seen here"]
        fold(scene.lake)


def test_what_was_seen_is_remembered_by_a_rebuilt_metastore(scene: Scene, tmp_path: Path) -> None:
    scene.write("N[alice] N[bob]", "T[alice]")
    erase(scene, b"alice", b"alise", first_ms=10)
    again = rebuilt(scene, tmp_path)
    assert [prove_erased(again, "t", key).verdict for key in (b"alice", b"alise")] == ["erased", "never seen here"]
    again.close()


def test_a_key_that_was_erased_long_ago_and_is_asked_for_again_stays_erased(scene: Scene) -> None:
    scene.write("N[alice] N[bob]", "T[alice]")
    end_ms = erase(scene, b"alice", first_ms=10)
    erase(scene, b"alice", first_ms=end_ms)
    assert (steps(scene, b"alice"), verdicts(scene, b"alice")) == ([ERASED], ["erased"])


def test_a_key_that_only_the_past_has_was_seen(scene: Scene) -> None:
    """Compacted away, tombstone and all, just before somebody asks: its bytes are in objects that wait for their grace."""
    scene.write("N[alice] N[bob]", "T[alice]")
    for now_ms in (10, 10 + 2 * RETENTION_MS):
        scene.lake.metastore.give_clock(now_ms)
        compact_partition(scene.lake, AT, InProcess(1), now_ms=now_ms)
    assert [key for _, key, _ in scene.held()] == [b"bob"]
    erase(scene, b"alice", b"alise", first_ms=10 + 2 * RETENTION_MS)
    assert steps(scene, b"alice", b"alise") == [ERASED, NEVER_SEEN]


@pytest.mark.parametrize("term", ["N[alice]", "T[alice]"])
def test_a_key_that_comes_in_again_is_not_called_erased_any_more(scene: Scene, tmp_path: Path, term: str) -> None:
    scene.write("N[alice] N[bob]", "T[alice]")
    end_ms = erase(scene, b"alice", b"alise", first_ms=10)
    scene.write("N[carol]", now_ms=end_ms)
    assert steps(scene, b"alice") == [ERASED]
    scene.write(term, now_ms=end_ms)
    assert steps(scene, b"alice", b"alise") == [CAME_AGAIN, NEVER_SEEN]
    again = rebuilt(scene, tmp_path)
    scene.lake.close()
    scene.lake = again
    assert steps(scene, b"alice") == [CAME_AGAIN]
    scene.write("T[alice]", now_ms=end_ms)
    erase(scene, b"alice", first_ms=end_ms)
    assert (steps(scene, b"alice"), verdicts(scene, b"alice")) == ([ERASED], ["erased"])


def test_a_key_that_comes_in_while_its_last_objects_wait_is_looked_for_again(scene: Scene) -> None:
    """By whoever commits it: who has looked for it before may be about to say that it is erased."""
    scene.write("N[alice] N[bob]", "T[alice]")
    request_erasure(scene.lake, "t", [b"alice"], deadline_ms=2**40, clock=lambda: 10)
    now_ms = 10
    while erasure_of(scene, b"alice").step != KEY_REMOVED:
        now_ms += 60
        carry_on(scene, now_ms)
    stale = erasure_of(scene, b"alice")
    scene.write("N[alice]", now_ms=now_ms)
    assert steps(scene, b"alice") == [REQUESTED]
    assert Erasures(scene.lake.metastore).advance([(stale, ERASED)], now_ms=now_ms) == 0


def remove(scene: Scene, now_ms: int) -> int:
    """What is deleted leaves the log and the store, and nobody looks for keys meanwhile; when it was over."""
    for _ in range(3):
        now_ms += 2 * RETENTION_MS
        scene.lake.metastore.give_clock(now_ms)
        compact_partition(scene.lake, AT, InProcess(1), now_ms=now_ms)
        collect(scene.lake, garbage(scene.lake, now_ms=now_ms + 1, grace_ms=0, upload_ms=0))
    return now_ms


@pytest.mark.parametrize("term", ["N[alise]", "T[alise]"])
def test_a_key_that_comes_in_after_it_was_never_seen_was_not_erased_before(scene: Scene, term: str) -> None:
    scene.write("N[alice] N[bob]", "T[alice]")
    end_ms = erase(scene, b"alice", b"alise", first_ms=10)
    scene.write(term, now_ms=end_ms)
    assert steps(scene, b"alice", b"alise") == [ERASED, CAME_LATER]
    scene.write("T[alise] N[carol]", now_ms=end_ms)
    assert steps(scene, b"alise") == [CAME_LATER]
    erase(scene, b"alise", first_ms=end_ms)
    assert (steps(scene, b"alise"), verdicts(scene, b"alise")) == ([ERASED], ["erased"])


def test_a_key_that_came_in_was_seen_also_when_all_of_it_is_gone_again(scene: Scene, tmp_path: Path) -> None:
    scene.write("N[bob]")
    end_ms = erase(scene, b"zoe", first_ms=10)
    scene.write("N[zoe]", "T[zoe]", now_ms=end_ms)
    scene.write("N[carol]", now_ms=end_ms)
    end_ms = remove(scene, end_ms)
    assert (erasure_of(scene, b"zoe").step, verdicts(scene, b"zoe", b"zoo")) == (
        CAME_LATER, ["erased", "never seen here"],
    )  # fmt: skip
    again = rebuilt(scene, tmp_path)
    assert prove_erased(again, "t", b"zoe").verdict == "erased"
    again.close()
    erase(scene, b"zoe", first_ms=end_ms)
    assert steps(scene, b"zoe") == [ERASED]


def test_a_key_that_comes_and_goes_while_nobody_looks_is_erased_and_not_unknown(scene: Scene) -> None:
    """It is asked for; the next look finds nothing of it any more."""
    scene.write("N[bob]")
    request_erasure(scene.lake, "t", [b"zoe"], deadline_ms=2**40, clock=lambda: 10)
    stale = erasure_of(scene, b"zoe")
    scene.write("N[zoe]", "T[zoe]", now_ms=20)
    scene.write("N[carol]", now_ms=20)
    assert Erasures(scene.lake.metastore).advance([(stale, KEY_REMOVED)], now_ms=20) == 0
    assert (erasure_of(scene, b"zoe").step, erasure_of(scene, b"zoe").seen) == (REQUESTED, True)
    end_ms = remove(scene, 20)
    for now_ms in range(end_ms, end_ms + 5 * RETENTION_MS, RETENTION_MS):
        carry_on(scene, now_ms)
    assert (steps(scene, b"zoe"), verdicts(scene, b"zoe")) == ([ERASED], ["erased"])


def test_a_key_that_the_dropped_topic_never_had_was_not_erased_with_it(scene: Scene) -> None:
    scene.write("N[alice] N[bob]")
    request_erasure(scene.lake, "t", [b"alice", b"zoe"], deadline_ms=2**40, clock=lambda: 10)
    drop_topic(scene.lake, "t", now_ms=lambda: 20)
    assert steps(scene, b"alice", b"zoe") == [TOPIC_DROPPED] * 2
    scene.lake.metastore.create_topic("t", 1, {"delete.retention.ms": RETENTION_MS})
    scene.write("N[zoe] N[carol]", now_ms=30)
    assert steps(scene, b"alice", b"zoe") == [TOPIC_DROPPED, CAME_LATER]
    for now_ms in range(100, 100 + 10 * RETENTION_MS, RETENTION_MS):
        carry_on(scene, now_ms)
    scene.write("N[alice]", now_ms=100 + 10 * RETENTION_MS)
    assert steps(scene, b"alice", b"zoe") == [CAME_AGAIN, CAME_LATER]


def test_what_came_in_is_told_by_the_command_line(tmp_path: Path, said: Said, told: Said) -> None:
    history, where = History(), str(tmp_path / "lake")
    told("init", where)
    for step, terms in enumerate(("N[alice] N[bob] | T[alice]", "N[alice] N[zoe]")):
        log_of(tmp_path / str(step), "users", terms, history=history)
        told("ingest", where, str(tmp_path / str(step)))
        told("topics", where, "alter", "users", "--conf", "delete.retention.ms=0")
        for key, ends_with in (("alice", 0), ("zoe", 1)) if step == 0 else ():
            erasing = ["lake", "erase", where, "users", "--key", key, "--grace-ms", "0", "--upload-ms", "1"]
            while (exit_code := main(erasing)) == 3:
                pass
            assert exit_code == ends_with
    status = said("status", where).out.splitlines()
    ends = sorted(line.split(" in users: ")[1] for line in status if "erasure of" in line)
    assert [end.split(" at ")[0] for end in ends] == ["came in again", "came in later"]
    assert ends[0].endswith(", after it was erased; ask again to erase it")
    assert ends[1].endswith(", after no record of this key had been found; ask again to erase it")


def test_the_command_line_lets_no_typo_pass_for_a_proof(tmp_path: Path, said: Said, told: Said) -> None:
    where, proving = str(tmp_path / "lake"), ("prove-erased", str(tmp_path / "lake"), "users", "--key", "alise")
    told("init", where)
    told("ingest", where, str(log_of(tmp_path / "logs", "users", "N[alice] N[bob] | T[alice]")))
    document = told(*proving, code=1)
    assert (document["verdict"], document["was_seen"], sealed(document)) == ("never seen here", False, document)
    asked = told("erase", where, "users", "--key", "alise", "--grace-ms", "0", "--upload-ms", "1", code=1)
    assert [(erasure["step"], erasure["seen"]) for erasure in asked["erasures"]] == [(NEVER_SEEN, False)]
    assert "never seen here: no record of this key was found" in said("status", where).out
    said(*proving, code=1)
