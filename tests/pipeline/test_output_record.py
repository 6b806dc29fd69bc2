"""`compact --out` after a partial failure, a kill or a changed input: the same command goes on, and another one is refused."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from headstone.errors import CorruptLog, UsageError
from headstone.log import checkpoints, failpoint
from headstone.log.directory import UNFINISHED, as_partition
from headstone.pipeline import compaction
from headstone.pipeline.compaction import CompactionResult
from headstone.pipeline.output_record import OUTPUT_RECORD
from headstone.retention.policy import Policy, kafka_rules
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from headstone.storage.access import FROM_ENVIRONMENT, Access
from headstone.storage.places import ObjectPlace, Place, children, object_place, place
from headstone.storage.stores import store_of
from headstone.storage.uploads import write_whole
from testbed.s3 import BUCKET
from tests.logs import compact_here, flip_a_byte, write_log

POLICY = kafka_rules(Policy(now_ms=1_800_000_000_000))
NAMES = ["t-0", "t-1", "t-2"]
LEFT = "__cluster_metadata-0"
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Of a broker that stopped cleanly, with a partition that is only copied."""
    settings = SampleSettings(topic="t", partitions=3, records=200, keys=40, segment_bytes=10_000, batch_bytes=2_000)
    root = write_sample(tmp_path / "logs", settings)[0]
    (root / checkpoints.META_PROPERTIES).write_text("version=1\nnode.id=1\n")
    (root / checkpoints.CLEAN_SHUTDOWN).write_text("{}")
    return write_log(root, "N[a] | N[b]", LEFT)


@pytest.fixture(autouse=True)
def each_partition_is_a_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "WAVE_PARTITIONS", 1)


def run(logs: Path, out: Place | None, **changes: Any) -> CompactionResult:
    return compact_here(logs, **{"out": out, "policy": POLICY, "all_topics": True, **changes})


def tree(root: Place, prefix: str = "") -> dict[str, bytes]:
    """Every file by its path, but for the lock that whoever is killed leaves behind."""
    files: dict[str, bytes] = {}
    for child in (child for child in children(root) if child.name != checkpoints.LOCK):
        name = f"{prefix}{child.name}"
        files |= tree(child, f"{name}/") if child.is_dir() else {name: child.read_bytes()}
    return files


def reported(result: CompactionResult) -> tuple[list[str], list[str], list[str]]:
    return [r.partition for r in result.partitions], [f.partition for f in result.failed], result.done_before


@pytest.fixture
def half_done(logs: Path, tmp_path: Path) -> Path:
    """An output that lacks t-1, whose log is as it should be again."""
    victim, content = flip_a_byte(logs / "t-1")
    assert reported(run(logs, tmp_path / "out")) == (["t-0", "t-2"], ["t-1"], [])
    victim.write_bytes(content)
    return tmp_path / "out"


def test_after_a_bad_partition_the_same_command_goes_on(logs: Path, half_done: Path, tmp_path: Path) -> None:
    run(logs, tmp_path / "whole")
    before = {name: (half_done / name).stat().st_ino for name in ("t-0", "t-2")}
    assert not (half_done / checkpoints.META_PROPERTIES).exists()
    assert reported(run(logs, half_done)) == (["t-1"], [], ["t-0", "t-2"])
    assert tree(half_done) == tree(tmp_path / "whole")
    assert {name: (half_done / name).stat().st_ino for name in before} == before
    assert {LEFT, checkpoints.CLEAN_SHUTDOWN, checkpoints.META_PROPERTIES} <= {p.name for p in half_done.iterdir()}
    with pytest.raises(UsageError, match="already exists"):
        run(logs, half_done)


def test_as_long_as_it_is_bad_it_is_told_and_nothing_else_is_done(logs: Path, tmp_path: Path) -> None:
    flip_a_byte(logs / "t-1")
    run(logs, tmp_path / "out")
    assert reported(run(logs, tmp_path / "out")) == ([], ["t-1"], ["t-0", "t-2"])


def test_where_nothing_could_be_done_nothing_is_left(logs: Path, tmp_path: Path) -> None:
    for name in NAMES:
        flip_a_byte(logs / name)
    with pytest.raises(CorruptLog):
        run(logs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_input_that_has_changed_since_is_compacted_again(logs: Path, half_done: Path, tmp_path: Path) -> None:
    newer = write_sample(
        tmp_path / "newer", SampleSettings(topic="t", partitions=3, records=300, keys=60, segment_bytes=10_000, seed=9)
    )[0]
    shutil.rmtree(logs / "t-2")
    shutil.copytree(newer / "t-2", logs / "t-2")
    shutil.copy(newer / checkpoints.HIGH_WATERMARK, logs)
    run(logs, tmp_path / "whole")
    assert reported(run(logs, half_done)) == (NAMES, [], [])  # of all of them the high watermark is another
    assert tree(half_done) == tree(tmp_path / "whole")


@pytest.mark.parametrize("what", ["a record of a segment", "the cleaner's checkpoint"])
def test_only_what_has_changed_is_done_again(what: str, logs: Path, half_done: Path, tmp_path: Path) -> None:
    if what == "the cleaner's checkpoint":
        checkpoints.write_offsets(logs / checkpoints.CLEANER, {("t", 2): 50})  # type: ignore[dict-item]
    else:
        segment = sorted((logs / "t-2").glob("*.log"))[0]
        os.utime(segment, ns=(1, segment.stat().st_mtime_ns + 1))
    run(logs, tmp_path / "whole")
    assert reported(run(logs, half_done)) == (["t-1", "t-2"], [], ["t-0"])
    assert tree(half_done) == tree(tmp_path / "whole")


def test_what_was_removed_by_hand_is_done_again(logs: Path, half_done: Path) -> None:
    shutil.rmtree(half_done / "t-0")
    assert reported(run(logs, half_done)) == (["t-0", "t-1"], [], ["t-2"])


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({"topics": ("t",), "all_topics": False}, "all_topics, topics"),
        ({"policy": Policy(now_ms=POLICY.now_ms)}, "markers_below, tombstones_below"),
        ({"dirty_from": 3}, "dirty_from"),
        ({"clock_given": True}, "now_ms"),
    ],
)
def test_another_command_is_refused(changes: dict[str, Any], differs: str, logs: Path, half_done: Path) -> None:
    before = tree(half_done)
    with pytest.raises(UsageError, match=rf"unfinished output of another command \(different: {differs}\)"):
        run(logs, half_done, **changes)
    assert tree(half_done) == before


def test_a_later_clock_is_the_same_command(logs: Path, half_done: Path) -> None:
    later = kafka_rules(Policy(now_ms=POLICY.now_ms + 1))
    assert reported(run(logs, half_done, policy=later)) == (["t-1"], [], ["t-0", "t-2"])


def test_somebody_elses_folder_is_never_touched(logs: Path, half_done: Path, tmp_path: Path) -> None:
    (half_done / "t-1").mkdir()
    before = tree(half_done)
    with pytest.raises(UsageError, match="t-1 already exists"):
        run(logs, half_done)
    (half_done / "t-1").rmdir()
    (half_done / "t-0" / "00000000000000000999.log").write_bytes(b"mine")
    with pytest.raises(UsageError, match="t-0 is not as an earlier run of this command left it"):
        run(logs, half_done)
    assert tree(half_done) == {**before, "t-0/00000000000000000999.log": b"mine"}
    (tmp_path / "other" / "t-0").mkdir(parents=True)
    with pytest.raises(UsageError, match="t-0 already exists"):
        run(logs, tmp_path / "other")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 1, "command": {}, "done": {"t-0": {}}}', "\x00"])
def test_a_record_that_cannot_be_read_decides_nothing(content: str, logs: Path, half_done: Path) -> None:
    (half_done / OUTPUT_RECORD).write_text(content)
    before = tree(half_done)
    with pytest.raises(UsageError, match="cannot be read"):
        run(logs, half_done)
    assert tree(half_done) == before


def appending(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """Somebody appends to the file between the survey and the rest."""
    survey = compaction.survey_each

    def and_then(*arguments: Any) -> Any:
        surveys = survey(*arguments)
        file.write_bytes(file.read_bytes() + b"half a batch")
        return surveys

    monkeypatch.setattr(compaction, "survey_each", and_then)


def test_what_a_running_broker_has_appended_since_is_not_in_the_output(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(logs, tmp_path / "whole")
    appending(monkeypatch, max((logs / "t-1").glob("*.log")))
    assert reported(run(logs, tmp_path / "out")) == (NAMES, [], [])
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_a_segment_that_grew_while_it_was_to_be_replaced_is_left_as_it_is(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever appends to it does without the lock; what came would be lost."""
    grown = min((logs / "t-1").glob("*.log"))
    appending(monkeypatch, grown)
    (failure,) = run(logs, None).failed
    assert (failure.partition, "changed while it was read" in str(failure.error)) == ("t-1", True)
    assert grown.read_bytes().endswith(b"half a batch")


def _killed_child(logs: Path, out: Place, step: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.environ[failpoint.VARIABLE] = str(step)
    failpoint._reached = 0
    compaction.WAVE_PARTITIONS = 1
    run(logs, out, access=out.access if isinstance(out, ObjectPlace) else FROM_ENVIRONMENT)
    os._exit(0)


def killed(context: Any, logs: Path, out: Place, step: int) -> bool:
    """False if it lived to its end."""
    child = context.Process(target=_killed_child, args=(logs, out, step))
    child.start()
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL)
    return bool(child.exitcode)


def test_killed_before_any_step_the_same_command_gives_what_an_undisturbed_one_gives(
    logs: Path, tmp_path: Path
) -> None:
    run(logs, tmp_path / "whole")
    expected, out, done = tree(tmp_path / "whole"), tmp_path / "out", set()
    for step in range(1, 500):
        if not killed(FORK, logs, out, step):
            break
        hidden = [name for name in (*NAMES, LEFT) if (out / name / UNFINISHED).exists()]
        assert [as_partition(out / name) for name in hidden] == [None] * len(hidden)
        done.add(len(run(logs, out).done_before))
        assert tree(out) == expected, step
        shutil.rmtree(out)
    assert done == {0, 1, 2, 3, 4}


def test_in_an_object_store_too(logs: Path, access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def there(out: ObjectPlace) -> dict[str, bytes]:
        return tree(place(out))

    whole, out = (object_place(f"s3://{BUCKET}/{tmp_path.name}/{name}", access) for name in ("whole", "out"))
    run(logs, whole, access=access)
    victim, content = flip_a_byte(logs / "t-1")
    assert reported(run(logs, out, access=access)) == (["t-0", "t-2"], ["t-1"], [])
    assert checkpoints.META_PROPERTIES not in there(out)
    victim.write_bytes(content)
    with pytest.raises(UsageError, match="unfinished output of another command"):
        run(logs, out, access=access, dirty_from=1)
    segment = sorted((logs / "t-2").glob("*.log"))[0]
    os.utime(segment, ns=(1, segment.stat().st_mtime_ns + 1))
    assert reported(run(logs, out, access=access)) == (["t-1", "t-2"], [], ["t-0"])
    assert there(out) == there(whole)
    with pytest.raises(UsageError, match="already exists"):
        run(logs, out, access=access)


def test_what_was_appended_since_is_not_in_an_object_store_either(
    logs: Path, access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = (object_place(f"s3://{BUCKET}/{tmp_path.name}/{name}", access) for name in ("whole", "out"))
    run(logs, whole, access=access)
    appending(monkeypatch, max((logs / "t-1").glob("*.log")))
    run(logs, out, access=access)
    assert tree(place(out)) == tree(place(whole))


def test_killed_in_an_object_store_it_goes_on_too(logs: Path, access: Access, tmp_path: Path) -> None:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    whole = object_place(f"s3://{BUCKET}/{tmp_path.name}/whole", access)
    run(logs, whole, access=access)
    done = []
    for step in range(1, 60, 8):
        out = object_place(f"s3://{BUCKET}/{tmp_path.name}/out-{step}", access)
        if not killed(server, logs, out, step):
            break
        done.append(len(run(logs, out, access=access).done_before))
        assert tree(place(out)) == tree(place(whole)), step
    assert len(set(done)) > 2
    assert not {name for name in tree(place(whole)) if "headstone" in name}


def test_a_folder_that_no_record_names_is_somebody_elses(logs: Path, access: Access, tmp_path: Path) -> None:
    out = object_place(f"s3://{BUCKET}/{tmp_path.name}/out", access)
    write_whole(out / "t-1" / "mine", b"mine")
    with pytest.raises(UsageError, match="t-1 already exists"):
        run(logs, out, access=access)
    assert tree(place(out)) == {"t-1/mine": b"mine"}
    assert not store_of(out.bucket, access).has((out / OUTPUT_RECORD).key)
