"""The crash-safe swap of a partition's old segments for new ones, in Kafka's own steps, and its recovery.

New files wait as `.cleaned`; all are renamed to `.swap` highest base first. The last of these renames commits the whole log at
once, because recovery throws away every `.swap` at or above the smallest `.cleaned`. Then old files become `.deleted` and
`.swap` is stripped. A broker that starts on any state in between finishes it in the same way.

What one step relies on is synced before the next begins: a power loss may undo unsynced renames, in any order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headstone.log.directory import CLEANED, DELETED, LOG, SEGMENT_SUFFIXES, SNAPSHOT, SWAP, numbered
from headstone.log.failpoint import reach
from headstone.log.reading import next_offset
from headstone.storage.durable import sync_directory

_ANY_NUMBERED = re.compile(r"(\d{20})(\.(?:log|index|timeindex|txnindex|snapshot))(\.cleaned|\.swap|\.deleted)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    directory: Path
    name: str
    offset: int
    suffix: str
    stage: str

    @property
    def path(self) -> Path:
        return self.directory / self.name


def recover(directory: Path) -> list[str]:
    """Finishes or undoes an interrupted swap as a starting broker does; returns what was done, one line each."""
    done: list[str] = []
    _remove(directory, _left_of_deleted(directory), done)
    if done:
        sync_directory(directory)  # without their `.log` nothing would show that they may go
    _remove(directory, [file for file in _files(directory) if file.stage == DELETED], done)
    cleaned = [file for file in _files(directory) if file.stage == CLEANED]
    if cleaned:
        smallest = min(file.offset for file in cleaned)
        undone = [file for file in _files(directory) if file.stage == SWAP and file.offset >= smallest]
        _remove(directory, undone, done)
        sync_directory(directory)  # a `.swap` that came back without the `.cleaned` would be taken for whole
        _remove(directory, sorted(cleaned, key=lambda file: -file.offset), done)
    swaps = [file for file in _files(directory) if file.stage == SWAP]
    logs = [file for file in swaps if file.suffix == LOG]
    if logs:
        start = min(file.offset for file in logs)
        end = max(next_offset(str(file.path), file.offset) for file in logs)
        replaced = {file.offset for file in logs}
        old = [f for f in _files(directory) if f.stage == "" and (start <= f.offset < end or f.offset in replaced)]
        _remove(directory, old, done)
        sync_directory(directory)  # an old file that came back beside a new one would be read as well
    _strip(directory, swaps)
    done += [f"took {file.name}" for file in sorted(swaps, key=_swap_order)]
    if done:
        sync_directory(directory)
    return done


def _strip(directory: Path, swaps: Sequence[_File]) -> None:
    """Takes `.swap` off, highest base first. Recovery deletes everything in the range of the `.log.swap` that are left. So no
    segment or index that already has its final name may lie there, whatever a power loss undoes."""
    for file in sorted(swaps, key=lambda file: (file.suffix != LOG, *_swap_order(file))):
        _rename(file.path, file.path.with_name(numbered(file.offset, file.suffix)))
        if file.suffix == LOG:
            sync_directory(directory)


def _left_of_deleted(directory: Path) -> list[_File]:
    """Index files of segments that were being deleted: their `.log` has its new name already.

    They go before it does. Other indexes without a `.log` show that a segment was lost: they stay, for a person to see.
    """
    files = _files(directory)
    logs = [file for file in files if file.suffix == LOG]
    deleted = {file.offset for file in logs if file.stage == DELETED}
    deleted -= {file.offset for file in logs if file.stage != DELETED}
    indexes = [file for file in files if file.suffix in SEGMENT_SUFFIXES and file.suffix != LOG]
    return [file for file in indexes if file.stage == "" and file.offset in deleted]


def replace_segments(
    directory: Path, *, new_bases: Sequence[int], old_bases: Sequence[int], stale_snapshots: range
) -> None:
    """Swaps the `.cleaned` segments named by new_bases in for the old ones. All `.cleaned` files are on disk already.

    Stale snapshots go first: a log without them is right too, and no recovery would find those after its last batch.
    """
    cleaned = [file for file in _files(directory) if file.stage == CLEANED]
    old = set(old_bases)
    assert {file.offset for file in cleaned} == set(new_bases)
    for file in _files(directory):
        if file.suffix == SNAPSHOT and file.stage == "" and file.offset in stale_snapshots:
            _rename(file.path, file.path.with_name(file.name + DELETED))
    sync_directory(directory)
    lowest = min(new_bases)
    higher = [file for file in cleaned if file.offset != lowest]
    for files in filter(None, (higher, [file for file in cleaned if file.offset == lowest])):
        for file in sorted(files, key=_swap_order):
            _rename(file.path, file.path.with_name(numbered(file.offset, file.suffix) + SWAP))
        sync_directory(directory)
    for file in _files(directory):
        if file.stage == "" and file.suffix in SEGMENT_SUFFIXES and file.offset in old:
            _rename(file.path, file.path.with_name(file.name + DELETED))
    sync_directory(directory)
    _strip(directory, [file for file in _files(directory) if file.stage == SWAP])
    sync_directory(directory)
    _remove(directory, [file for file in _files(directory) if file.stage == DELETED], [])


def remove_segments(directory: Path, bases: Sequence[int]) -> None:
    """Removes whole segments, oldest first, as retention does.

    Each `.log` goes before its other files, and before the next one. So a power loss leaves a log that begins later, but never
    one with a gap, or with data whose aborted transactions are unknown."""
    wanted = set(bases)
    gone = [file for file in _files(directory) if file.offset in wanted and file.stage == ""]
    for file in sorted(gone, key=lambda file: (file.suffix != LOG, file.offset)):
        _rename(file.path, file.path.with_name(file.name + DELETED))
        if file.suffix == LOG:
            sync_directory(directory)
    sync_directory(directory)
    _remove(directory, [file for file in _files(directory) if file.stage == DELETED], [])


def uncovered_base(new: Sequence[tuple[int, int]], old_bases: Sequence[int]) -> int | None:
    """The base at which an empty segment must stand so that recovery's range covers every old segment, or None.

    new is (base, next offset) of each output. Recovery deletes old files below the largest next offset only. If the last
    batches of the range vanished, an old segment would be left behind after a crash.
    """
    end = max(next_offset for _, next_offset in new)
    last = max(old_bases)
    return last if last >= end and last not in {base for base, _ in new} else None


def _swap_order(file: _File) -> tuple[int, int]:
    return -file.offset, SEGMENT_SUFFIXES.index(file.suffix)


def _files(directory: Path) -> list[_File]:
    files = []
    for name in sorted(os.listdir(directory)):
        match = _ANY_NUMBERED.fullmatch(name)
        if match:
            files.append(
                _File(directory=directory, name=name, offset=int(match[1]), suffix=match[2], stage=match[3] or "")
            )
    return files


def _rename(path: Path, target: Path) -> None:
    reach(f"rename {path.name} to {target.name}")
    os.replace(path, target)


def _remove(directory: Path, files: Sequence[_File], done: list[str]) -> None:
    for file in files:
        reach(f"remove {file.name}")
        os.unlink(directory / file.name)
        done.append(f"removed {file.name}")
