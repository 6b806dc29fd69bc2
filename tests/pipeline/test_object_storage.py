"""Compaction, inspection and audit of logs in an object store, on a real S3 API: the same bytes and answers as on a disk."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from headstone.errors import CorruptLog, UsageError
from headstone.log.directory import UNFINISHED, find_partitions
from headstone.pipeline import new_objects
from headstone.pipeline.auditing import audit, replicas_of
from headstone.pipeline.commit import WORK_PREFIX
from headstone.pipeline.compaction import CompactionResult
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.inspection import inspect
from headstone.pipeline.output_record import OUTPUT_RECORD
from headstone.retention.policy import Policy, kafka_rules
from headstone.sim.synth import SampleSettings, write_sample
from headstone.storage import ranges
from headstone.storage.access import Access
from headstone.storage.places import ObjectPlace, Place, object_place
from headstone.storage.stores import Store, store_of
from testbed.s3 import BUCKET
from tests.logs import compact_here, files_of, flip_a_byte, write_log

POLICY = kafka_rules(Policy(now_ms=1_800_000_000_000))


@pytest.fixture
def prefix(access: Access, request: pytest.FixtureRequest) -> ObjectPlace:
    """One of its own for each test."""
    name = re.sub(r"\W+", "-", request.node.name)
    return object_place(f"s3://{BUCKET}/{name}", access)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = SampleSettings(
        topic="t", partitions=2, records=2_000, keys=300, segment_bytes=60_000, batch_bytes=4_000, transactions=0.4
    )
    return write_sample(tmp_path_factory.mktemp("object-storage") / "logs", settings)[0]


def put(root: Path, target: ObjectPlace) -> ObjectPlace:
    """As a plain copy tool does."""
    for file in root.rglob("*"):
        if file.is_file():
            store_of(target.bucket, target.access).put(f"{target.key}/{file.relative_to(root)}", file.read_bytes())
    return target


def contents(place: Place) -> dict[str, bytes]:
    if isinstance(place, Path):
        return files_of(place)
    store = store_of(place.bucket, place.access)
    return {e.path.removeprefix(place.key + "/"): store.read(e.path, 0, e.size) for e in store.entries(place.key)}


def run(source: Place, out: Place | None, access: Access, **settings: Any) -> CompactionResult:
    return compact_here(source, engine=InProcess(2), **{"out": out, "access": access, "policy": POLICY, **settings})


@pytest.mark.parametrize("path", ["whole", "shuffle"])
def test_from_and_to_object_storage_the_bytes_are_those_of_a_disk(
    logs: Path, prefix: ObjectPlace, access: Access, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "WINDOW_BYTES", 50_000)
    source = put(logs, prefix / "in")
    run(logs, tmp_path / "out", access, path=path)
    expected = contents(tmp_path / "out")
    run(source, prefix / "out", access, path=path)
    assert contents(prefix / "out") == expected
    run(source, tmp_path / "back", access, path=path)
    assert contents(tmp_path / "back") == expected
    run(logs, prefix / "up", access, path=path)
    assert contents(prefix / "up") == expected


@pytest.mark.parametrize(
    "terms",
    [
        "N[a]@1000 | N[b]@8900 | N[c]@8900 | N[d]@8900",
        "P1[a]@1000 | N[b]@1000 | N[c]@8900 | N[d]@8900",
        "N[a]@1000 | N[b]@1000 | N[c]@1000 | N[d]@1000",
    ],
    ids=["of what was rewritten", "of what was carried along", "all of it"],
)
def test_what_has_expired_does_not_come_into_object_storage_either(
    terms: str, prefix: ObjectPlace, access: Access, tmp_path: Path
) -> None:
    write_log(tmp_path / "in", terms)
    policy = Policy(now_ms=9_000, cleanup_delete=True, retention_ms=1_000, segment_bytes=1)
    run(tmp_path / "in", tmp_path / "out", access, policy=policy)
    expected = contents(tmp_path / "out")
    assert f"t-0/{0:020d}.log" not in expected
    run(tmp_path / "in", prefix / "up", access, policy=policy)
    assert contents(prefix / "up") == expected
    run(put(tmp_path / "in", prefix / "in"), prefix / "out", access, policy=policy)
    assert contents(prefix / "out") == expected


def test_a_log_is_read_three_times_and_no_more(
    logs: Path, prefix: ObjectPlace, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for its headers, once for its keys, once to be rewritten; what is carried once more, to check it."""
    monkeypatch.setattr(ranges, "WINDOW_BYTES", 50_000)
    source = put(logs, prefix / "in")
    traffic = store_of(source.bucket, access).traffic
    before = traffic.bytes_read
    run(source, prefix / "out", access)
    size = sum(file.stat().st_size for file in logs.rglob("*.log"))
    others = sum(file.stat().st_size for file in logs.rglob("*") if file.is_file()) - size
    assert traffic.bytes_read - before <= 3 * size + 2 * others


def test_an_output_that_exists_is_refused_and_so_is_one_inside_the_input(
    logs: Path, prefix: ObjectPlace, access: Access
) -> None:
    source = put(logs, prefix / "in")
    run(source, prefix / "out", access)
    with pytest.raises(UsageError, match="out/t-0 already exists"):
        run(source, prefix / "out", access)
    before = contents(source)
    store_of(source.bucket, access).put((source / "t-9" / UNFINISHED).key, b"")
    with pytest.raises(UsageError, match="lies inside the input"):
        run(source, prefix / "in" / "deeper", access)
    with pytest.raises(UsageError, match="lies inside the input"):
        run(source, source, access)
    assert contents(source) == {**before, f"t-9/{UNFINISHED}": b""}


class Killed(BaseException):
    """Like a kill: nobody cleans up."""


def test_a_partition_appears_whole_or_not_at_all(
    logs: Path, prefix: ObjectPlace, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever copy of a commit is the last one before the end: readers see nothing, and the next run finishes."""
    source = put(logs, prefix / "in")
    run(source, prefix / "whole", access)
    expected = contents(prefix / "whole")
    copy_whole = new_objects.copy_whole
    for last in (0, 1, 5):
        out, copies = prefix / f"out-{last}", []

        def copy(one: Place, other: Place, last: int = last, copies: list[Place] = copies) -> None:
            if len(copies) >= last:
                raise Killed
            copies.append(other)
            copy_whole(one, other)

        with monkeypatch.context() as patched:
            patched.setattr(new_objects, "copy_whole", copy)
            patched.setattr(new_objects, "COPIES_AT_ONCE", 1)
            with pytest.raises(Killed):
                run(source, out, access)
        assert f"t-0/{UNFINISHED}" in contents(out)
        with pytest.raises(UsageError, match="t-0 is unfinished"):
            find_partitions([str(out)], access)
        run(source, out, access)
        assert contents(out) == expected


@pytest.mark.parametrize("removed", [0, 1, 3])
def test_a_removal_of_leftovers_that_is_killed_leaves_the_sign(
    logs: Path, prefix: ObjectPlace, access: Access, monkeypatch: pytest.MonkeyPatch, removed: int
) -> None:
    """Whichever object was the last one to go: the rest is not taken for a partition, and the next run finishes."""
    run(logs, prefix / "whole", access)
    store, left, out = store_of(prefix.bucket, access), prefix / "whole" / "t-0", prefix / "out"
    for name, content in contents(left).items():
        store.put((out / "t-0" / name).key, content)
    store.put((out / "t-0" / UNFINISHED).key, b"")
    real = Store.delete

    def delete(self: Store, paths: Iterable[str]) -> None:
        real(self, list(paths)[:removed])
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Store, "delete", delete)
        with pytest.raises(Killed):
            run(logs, out, access)
    assert len(contents(out / "t-0")) == len(contents(left)) + 1 - removed
    with pytest.raises(UsageError, match="t-0 is unfinished"):
        find_partitions([str(out)], access)
    run(logs, out, access, clean=True)
    assert contents(out) == contents(prefix / "whole")


def test_what_a_killed_run_left_is_removed_by_the_next_one(logs: Path, prefix: ObjectPlace, access: Access) -> None:
    source, out = put(logs, prefix / "in"), prefix / "out"
    store = store_of(out.bucket, access)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    lock = f'{{"host": "{new_objects.socket.gethostname()}", "process": {dead.pid}}}'.encode()
    store.put((out / new_objects.LOCK).key, lock)
    store.put((out / f"{WORK_PREFIX}1" / "t-0" / "0.log.abc").key, b"garbage")
    run(source, out, access)
    assert not [name for name in contents(out) if "headstone" in name]


def test_only_one_of_two_goes_on_in_the_place_of_a_killed_run(
    logs: Path, prefix: ObjectPlace, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = put(logs, prefix / "in"), prefix / "out"
    store, key = store_of(out.bucket, access), (out / new_objects.LOCK).key
    faster = b'{"host": "another", "process": 1}'
    store.put(key, b"{}")
    read = store.read

    def overtaken(path: str, position: int, length: int) -> bytes:
        content = read(path, position, length)
        if path == key:
            store.put(key, faster)
        return content

    monkeypatch.setattr(store, "read", overtaken)
    with pytest.raises(UsageError, match="another run was faster"):
        run(source, out, access, clean=True)
    monkeypatch.undo()
    assert contents(out) == {new_objects.LOCK: faster}


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"host": 3}'])
def test_a_lock_that_is_none_of_ours_is_respected(
    logs: Path, prefix: ObjectPlace, access: Access, content: bytes
) -> None:
    out = prefix / "out"
    store_of(out.bucket, access).put((out / new_objects.LOCK).key, content)
    with pytest.raises(UsageError, match="somebody is writing there"):
        run(put(logs, prefix / "in"), out, access)
    assert contents(out) == {new_objects.LOCK: content}


@pytest.mark.parametrize("host", ["another", None])
def test_two_runs_do_not_write_to_the_same_place(
    logs: Path, prefix: ObjectPlace, access: Access, host: str | None
) -> None:
    source, out = put(logs, prefix / "in"), prefix / "out"
    lock = f'{{"host": "{host or new_objects.socket.gethostname()}", "process": {os.getpid()}}}'.encode()
    store_of(out.bucket, access).put((out / new_objects.LOCK).key, lock)
    with pytest.raises(UsageError, match=f"process {os.getpid()} on .* is writing there; .* say --clean"):
        run(source, out, access)
    assert set(contents(out)) == {new_objects.LOCK}
    run(source, out, access, clean=True)
    assert len(find_partitions([str(out)], access)) == 2


def test_a_bad_object_is_told_by_its_name_and_the_others_are_compacted(
    logs: Path, prefix: ObjectPlace, access: Access
) -> None:
    source, out = put(logs, prefix / "in"), prefix / "out"
    victim, content = flip_a_byte(logs / "t-1")
    store_of(source.bucket, access).put((source / "t-1" / victim.name).key, victim.read_bytes())
    victim.write_bytes(content)
    result = run(source, out, access)
    assert [report.partition for report in result.partitions] == ["t-0"]
    (failed,) = result.failed
    assert isinstance(failed.error, CorruptLog)
    assert failed.error.file == str(source / "t-1" / victim.name)
    assert not [
        name for name in contents(out) if name.startswith("t-1") or ("headstone" in name and name != OUTPUT_RECORD)
    ]


def test_in_place_needs_a_disk(logs: Path, prefix: ObjectPlace, access: Access) -> None:
    source = put(logs, prefix / "in")
    with pytest.raises(UsageError, match="needs a local directory"):
        run(source, None, access)


def test_inspection_and_audit_say_the_same_as_on_a_disk(logs: Path, prefix: ObjectPlace, access: Access) -> None:
    source = put(logs, prefix / "in")
    here = [facts.as_json() for facts in inspect(find_partitions([str(logs)]), POLICY, InProcess(2), None)]
    there = [facts.as_json() for facts in inspect(find_partitions([str(source)], access), POLICY, InProcess(2), None)]
    for facts in there:
        facts["directory"] = facts["directory"].replace(str(source), str(logs))
    assert there == here
    audited = audit(
        replicas_of([(str(logs), find_partitions([str(logs)])), (str(source), find_partitions([str(source)], access))]),
        InProcess(),
    )
    assert [(one.partition, one.problems, len(one.results)) for one in audited] == [("t-0", (), 1), ("t-1", (), 1)]
