"""What a compaction leaves beside the segments: the checkpoints a broker starts from. In process, in place and to `--out`."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from headstone.log.checkpoints import CLEANER, HIGH_WATERMARK, LOG_START, read_offsets, write_offsets
from headstone.log.directory import UNFINISHED, as_partition
from headstone.pipeline import commit
from headstone.pipeline.commit import copy_untouched
from headstone.retention.policy import Policy
from tests.logs import compact_here, files_of, offsets_of, write_log
from tests.oracle.files import read_partition

NAME = ("t", 0)
DELETING = Policy(now_ms=9_000, cleanup_delete=True, retention_ms=1_000)
REMOTE = "N[x,y,z] | "
"""A first segment that is in remote storage only."""


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "--out"])
@pytest.mark.parametrize(
    ("log", "log_start", "high_watermark", "bases", "entry"),
    [
        pytest.param("N[a] N[b] | N[c] N[d]", 4, 4, [2], 4, id="deleted to the end"),
        pytest.param("N[a] N[b] | N[c] N[d]", 3, 4, [2], 3, id="deleted inside the active segment"),
        pytest.param("N[a] N[b]", 2, 2, [0], 2, id="one active segment, all deleted"),
        pytest.param("N[a] N[b]", 1, 2, [0], 1, id="one active segment, nothing to compact"),
        pytest.param("N[a] N[b] | N[c] N[d]", 2, 1, [0, 2], 2, id="an older high watermark keeps the segment before"),
        pytest.param("N[a] N[b] | N[c] N[d]", 2, 4, [2], None, id="log start is the first segment"),
        pytest.param("N[a] N[a] | N[c] N[d]", None, 4, [0, 2], None, id="no entry"),
        pytest.param(REMOTE + "N[a] N[a] | N[b]", 1, 6, [3, 5], 1, id="older segments are in remote storage"),
        pytest.param(REMOTE + "N[a]", 0, 4, [3], 0, id="remote storage from 0, nothing to compact"),
    ],
)  # fmt: skip
def test_records_that_were_deleted_stay_deleted(
    log: str,
    log_start: int | None,
    high_watermark: int,
    bases: list[int],
    entry: int | None,
    in_place: bool,
    tmp_path: Path,
) -> None:
    source = write_log(tmp_path / "in", log)
    for moved in (source / "t-0").glob("0" * 20 + ".*") if log.startswith(REMOTE) else ():
        moved.unlink()
    write_offsets(source / HIGH_WATERMARK, {NAME: high_watermark})
    write_offsets(source / LOG_START, {("other", 1): 9} if log_start is None else {("other", 1): 9, NAME: log_start})
    out = None if in_place else tmp_path / "out"
    report = compact_here(source, out=out).partitions[0]
    made = source if out is None else out
    assert [segment.base for segment in read_partition(made / "t-0")] == bases
    others = {("other", 1): 9} if in_place else {}
    assert read_offsets(made / LOG_START) == ({**others} if entry is None else {**others, NAME: entry})
    assert read_offsets(made / CLEANER)[NAME] == report.dirty_end >= report.log_start


@pytest.mark.parametrize(
    ("files", "left", "notes"),
    [
        pytest.param({}, [2, 3, 4], [], id="a backup without the file"),
        pytest.param({"meta.properties": "version=1\n"}, [0, 1, 2, 3, 4], [0], id="a broker's directory without the file"),
        pytest.param({HIGH_WATERMARK: ""}, [0, 1, 2, 3, 4], [0], id="an empty file"),
        pytest.param({HIGH_WATERMARK: "0\n1\nother 0 5\n"}, [0, 1, 2, 3, 4], [0], id="entries of others only"),
        pytest.param(
            {HIGH_WATERMARK: "0\n0\n", LOG_START: "0\n1\nt 0 2\n"}, [1, 2, 3, 4], [2], id="from the log start on"
        ),
        pytest.param({HIGH_WATERMARK: "0\n1\nt 0 5\n"}, [2, 3, 4], [], id="its own entry"),
    ],
)  # fmt: skip
def test_without_a_high_watermark_nothing_above_log_start_was_replicated(
    files: dict[str, str], left: list[int], notes: list[int], tmp_path: Path
) -> None:
    write_log(tmp_path, "N[a] | N[a] N[a] | N[b] N[c]")
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    told: list[str] = []
    compact_here(tmp_path, tell=told.append, force_offline=True, topics=("t",))
    assert offsets_of(tmp_path / "t-0") == left
    assert [line for line in told if "no high watermark" in line] == [
        f"t-0: no high watermark in {HIGH_WATERMARK}: it begins at log start {start}, as in a broker" for start in notes
    ]


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "--out"])
@pytest.mark.parametrize(
    ("checkpoint", "dirty_from", "written"),
    [
        pytest.param(2, None, 6, id="from the checkpoint on"),
        pytest.param(2, 0, 6, id="from further back"),
        pytest.param(2, 2, 6, id="the checkpoint by name"),
        pytest.param(2, 4, 2, id="from beyond it: what lies between was not looked at"),
        pytest.param(2, 6, 2, id="nothing was cleaned"),
        pytest.param(None, 4, 0, id="no checkpoint: nothing is known to be clean"),
        pytest.param(99, 4, 0, id="a checkpoint above the log end tells nothing"),
        pytest.param(6, 0, 6, id="all of it again"),
    ],
)
def test_the_checkpoint_rises_only_over_what_was_cleaned(
    checkpoint: int | None, dirty_from: int | None, written: int, in_place: bool, tmp_path: Path
) -> None:
    """It is the replica's MCCO: a record below it that is superseded would outlive its tombstone elsewhere."""
    source = write_log(tmp_path / "in", "N[a] N[b] | N[a] N[b] | N[c] N[d] | N[e]")
    if checkpoint is not None:
        # Copied by --out too, which compacts what the checkpoint beside the input says.
        write_offsets(source / CLEANER, {NAME: checkpoint})
    out = None if in_place else tmp_path / "out"
    notes: list[str] = []
    compact_here(source, out=out, tell=notes.append, dirty_from=dirty_from)
    assert read_offsets((out or source) / CLEANER) == {NAME: written}
    says = [note for note in notes if f"the checkpoint stays at {written}" in note]
    assert len(says) == (dirty_from is not None and dirty_from > written)


def without_timestamps(root: Path, written: list[int]) -> Path:
    """A segment of each age."""
    write_log(root, "N[a]@-1 | N[b]@-1 | N[c]@-1 | N[d]@-1")
    for file, written_ms in zip(sorted((root / "t-0").glob("*.log")), written, strict=True):
        os.utime(file, ns=(written_ms * 1_000_000, written_ms * 1_000_000))
    return root


WRITTEN_LONG_AGO, WRITTEN_JUST_NOW = 1_000, 8_900


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "--out"])
@pytest.mark.parametrize(
    ("written", "bases"),
    [
        pytest.param([WRITTEN_JUST_NOW] * 4, [0, 1, 2, 3], id="nothing expires"),
        pytest.param([WRITTEN_LONG_AGO, *[WRITTEN_JUST_NOW] * 3], [1, 2, 3], id="what was rewritten stays"),
        pytest.param([*[WRITTEN_LONG_AGO] * 3, WRITTEN_JUST_NOW], [3], id="what was carried along stays"),
        pytest.param([WRITTEN_LONG_AGO] * 4, [4], id="everything expires"),
    ],
)  # fmt: skip
def test_records_without_timestamps_are_as_old_as_their_file(
    written: list[int], bases: list[int], in_place: bool, tmp_path: Path
) -> None:
    """Producers before Kafka 0.10 have written such. By their timestamps, -1, retention would take all of them at once."""
    source = without_timestamps(tmp_path / "in", written)
    out = None if in_place else tmp_path / "out"
    compact_here(source, out=out, policy=replace(DELETING, segment_bytes=1))
    left = read_partition((out or source) / "t-0")
    assert [segment.base for segment in left] == bases
    assert [segment.mtime_ms for segment in left if segment.batches] == written[4 - len(bases) :] * (bases != [4])
    assert read_offsets((out or source) / CLEANER) == {NAME: max(3, bases[0])}


def test_segments_that_become_one_are_as_old_as_the_last_of_their_files(tmp_path: Path) -> None:
    source = without_timestamps(tmp_path / "in", [2_000, 3_000, 8_500, 8_600])
    compact_here(source, policy=DELETING)
    left = read_partition(source / "t-0")
    assert [(segment.base, segment.mtime_ms) for segment in left] == [(0, 8_500), (3, 8_600)]


@pytest.mark.parametrize(("retention_ms", "bases"), [(1_000, [2, 3]), (9_000, [0, 1, 2, 3])])
def test_retention_takes_from_a_log_that_is_not_dirty_enough_to_be_compacted(
    tmp_path: Path, retention_ms: int, bases: list[int]
) -> None:
    write_log(tmp_path, "N[a]@1000 | N[a]@1000 | N[b]@8900 | N[b]@8900")
    policy = replace(DELETING, retention_ms=retention_ms, min_cleanable_dirty_ratio=1.0)
    compact_here(tmp_path, policy=policy, eligible_only=True)
    left = read_partition(tmp_path / "t-0")
    assert [(segment.base, len(segment.batches)) for segment in left] == [(base, 1) for base in bases]


def test_a_partition_that_is_only_copied_appears_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    partition = write_log(source, "N[a] | N[b]", "__cluster_metadata-0") / "__cluster_metadata-0"
    out.mkdir()
    directory = as_partition(partition)
    assert directory is not None

    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(commit.os, "rename", full)
        with pytest.raises(OSError, match="No space left"):
            copy_untouched(directory, out)
    assert list(out.iterdir()) == []
    copy_untouched(directory, out)
    assert [child.name for child in out.iterdir()] == [partition.name]
    # The sign stays until the checkpoints tell of it.
    assert files_of(out / partition.name) == {**files_of(partition), UNFINISHED: b""}
