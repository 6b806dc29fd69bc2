"""The proof of an erasure: what it looks at, what it can't know, and the hash that seals it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from headstone.lake.format.objects import object_path
from headstone.lake.format.prefixes import MARKER, OWNER
from headstone.lake.jobs.erasure import request_erasure
from headstone.lake.jobs.folding import fold
from headstone.lake.jobs.proof import MENTIONS_MAX, Proof, prove_erased, sealed
from headstone.lake.lake import Lake
from headstone.lake.transfer.ingest import ingest
from headstone.log.directory import find_partitions
from headstone.pipeline.progress import Board
from tests.lake.appending import log_of
from tests.lake.scene import Said, Scene
from tests.oracle.notation import parse_term


def with_value(scene: Scene, term: str, value: bytes) -> None:
    batch = scene.history.make_batch(parse_term(term))
    scene.history.append_batch(replace(batch, records=(replace(batch.records[0], value=value),)))


def places(proof: Proof) -> set[int | None]:
    """Offsets of records in compressed batches; None: in the bytes as they are, where codecs leave short texts too."""
    return {mention.offset for mention in proof.mentions}


@pytest.mark.parametrize("codec", ["", "/zstd", "/gzip", "/snappy", "/lz4"])
def test_bytes_of_the_key_are_found_in_another_records_value(scene: Scene, codec: str) -> None:
    """A friend's record tells of alice: no value of hers, but her key all the same."""
    with_value(scene, f"N[bob]{codec}", b"knows alice, and carol")
    scene.write(f"N[carol]{codec}", f"N[dave]{codec}")
    proof = prove_erased(scene.lake, "t", b"alice")
    assert (proof.verdict, proof.mentions_count, proof.mentions) == ("never seen here", 0, [])
    proof = prove_erased(scene.lake, "t", b"alice", anywhere=True)
    assert (proof.verdict, proof.sightings) == ("not erased", [])
    assert {0} <= places(proof) <= {0, None} if codec else places(proof) == {None}
    assert prove_erased(scene.lake, "t", b"eve", anywhere=True).verdict == "never seen here"
    inside = places(prove_erased(scene.lake, "t", b"dav", anywhere=True))
    assert inside - {None} == ({2} if codec else set())


def test_other_topics_and_tombstones_hold_the_key_too(lake: Lake, tmp_path: Path) -> None:
    for topic, text in (("users", "T[alice]"), ("logins", "N[alice]/zstd")):
        log_of(tmp_path / "logs", topic, text)
    ingest(lake, find_partitions([tmp_path / "logs"]), clock=lambda: 5)
    proof = prove_erased(lake, "users", b"alice")
    assert (proof.verdict, [sighting.tombstone for sighting in proof.sightings]) == ("erased", [True])
    proof = prove_erased(lake, "users", b"alice", anywhere=True)
    assert (proof.verdict, places(proof)) == ("not erased", {0, None})


def test_a_short_key_is_everywhere_and_told_so_often(scene: Scene) -> None:
    with_value(scene, "N[bob]", b"x" * 200)
    scene.write("N[carol]")
    proof = prove_erased(scene.lake, "t", b"xx", anywhere=True)
    assert (len(proof.mentions), proof.mentions_count) == (MENTIONS_MAX, 199)
    assert prove_erased(scene.lake, "t", b"", anywhere=True).verdict == "never seen here"


def test_an_upload_that_is_on_its_way_proves_nothing(scene: Scene) -> None:
    """Whoever was asked for its object before may still bring it, with whatever it has read."""
    scene.write("N[a]")
    (object_id,) = scene.lake.metastore.register(1, now_ms=5)
    proof = prove_erased(scene.lake, "t", b"nobody")
    assert (proof.verdict, [unread.path for unread in proof.unread]) == ("unproven", [object_path(object_id)])
    assert prove_erased(scene.lake, "t", b"a").verdict == "not erased"


def test_that_a_key_was_erased_is_remembered_by_its_digest_and_counted(scene: Scene) -> None:
    scene.write("T[alice]", "N[bob]")
    request_erasure(scene.lake, "t", [b"alice"], deadline_ms=10**6, clock=lambda: 5)
    store = scene.lake.store
    for folders in (["journal", "journal-end"], ["journal-base", "journal-base-parts", "journal-end"]):
        objects = sum(len(store.list(folder)) for folder in folders)
        proofs = [prove_erased(scene.lake, "t", key) for key in (b"alice", b"bob")]
        facts = [(proof.verdict, proof.journal_objects, proof.journal_digests) for proof in proofs]
        assert facts == [("erased", objects, 1), ("not erased", objects, 0)]
        fold(scene.lake)


def test_a_document_that_was_edited_has_another_hash() -> None:
    document: dict[str, object] = {"verdict": "erased", "objects": [{"b": 1, "a": "\u00e4"}]}
    content = '{"objects":[{"a":"\u00e4","b":1}],"verdict":"erased"}'.encode()
    assert sealed(document) == {**document, "sha256": hashlib.sha256(content).hexdigest()}
    assert sealed(sealed(document)) == sealed(document)
    edited = {**sealed(document), "verdict": "not erased"}
    assert sealed(edited)["sha256"] != edited["sha256"]


def test_the_auditors_document_tells_what_was_looked_at(tmp_path: Path, said: Said, told: Said) -> None:
    where, logs = str(tmp_path / "lake"), str(tmp_path / "logs")
    log_of(tmp_path / "logs", "users", "N[alice] N[bob] | T[alice]")
    told("init", where, "--now-ms", "1000")
    told("ingest", where, logs, "--now-ms", "2000")
    proving = ("prove-erased", where, "users")
    document = told(*proving, "--key", "alice", code=1)
    assert (document["verdict"], document["started_ms"], document["finished_ms"]) == ("not erased", 2000, 2000)
    assert document["partitions"] == [
        {"partition": "users-0", "start_offset": 0, "next_offset": 3, "compaction_epoch": 0, "extents": 1}
    ]
    (path,) = (tmp_path / "lake" / "objects" / "objects").rglob("*-*")
    (searched,), content = document["objects"], path.read_bytes()
    assert (searched["bytes"], searched["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    assert (searched["records"], searched["digests"], document["bytes"]) == (3, 2, searched["bytes"])
    found = [(one["offset"], one["position"], one["state"]) for one in document["found"]]
    assert found == [(0, 8, "live"), (2, 8, "live")]
    journal = [path for path in (tmp_path / "lake" / "objects").glob("journal*/*") if path.is_file()]
    assert (document["journal"], journal != []) == ({"objects": len(journal), "digests": 0}, True)
    assert sealed(document) == document
    assert told(*proving, "--key-hex", b"alice".hex(), code=1) == document
    assert "the key's bytes in " in said(*proving, "--key", "alice", "--anywhere", code=1).out


def test_how_far_a_proof_is_counts_every_object_once(scene: Scene) -> None:
    scene.write("N[a]", "N[b]")
    scene.write("N[c]")
    board = Board()
    proof = prove_erased(scene.lake, "t", b"nobody", board=board)
    size = sum(entry.size for entry in scene.lake.store.entries() if entry.path not in (MARKER, OWNER))
    assert (board.expected, board.total(), len(proof.searched)) == (size, (size, 3), 2)
