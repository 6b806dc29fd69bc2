"""After a power loss at any moment the old state is there or the new one: what was not synced may be lost, torn or reordered.

A sample of what `python -m campaigns.power_loss` tries. The records are made by strace.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.demanded import demanded
from tests.power.disks import Data, Entries, Mark, Recording, Size, Sync, Tree, crashes, sampled
from tests.power.recording import NoTracing, NotUnderstood
from tests.power.recoveries import JUDGES, Export, InPlace, Judge, interrupted_of_each_kind, judged, recorded

SHARED_MEMORY = Path("/dev/shm")
STATES = {
    "journal": 200,
    "objects": 40,
    "export": 400,
    "out, two topics": 200,
    "out, nothing carried over": 200,
    "out, metadata carried over": 240,
    "lake": 16,
    "offset map": 17,
    "view": 17,
    "in place, several partitions": 600,
    "in place, compact,delete": 400,
    "in place, bounded": 300,
}  # fmt: skip
NEXT_RUNS = 10
"""Every so many states the next run is tried, too."""
RECOVERY_KINDS = 4
RECOVERY_STATES = 400
"""More than there are."""
SEEN_BY_THE_NEXT_RUN = "indexes of what was deleted go"
"""A broker removes indexes without a segment; Headstone takes them for those of one that was lost."""


@pytest.fixture
def work() -> Iterator[Path]:
    """In memory where that can be had: what is synced is told by the record, not by the disk."""
    root = Path(tempfile.mkdtemp(dir=SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None))
    yield root
    shutil.rmtree(root)


def record_of(judge: Judge, work: Path) -> Recording:
    with demanded(NoTracing):
        return recorded(judge, work)


@pytest.mark.parametrize("program", STATES)
def test_a_power_loss_leaves_the_old_state_or_the_new(program: str, work: Path) -> None:
    judge = JUDGES[program](work / "reference")
    recording = record_of(judge, work / "recorded")
    left = sampled(recording, seed=0, limit=STATES[program])
    assert len(left) == STATES[program]
    problems = []
    for number, crash in enumerate(left):
        if isinstance(judge, InPlace | Export):
            judge.goes_on = number % NEXT_RUNS == 0
        problems.append(judged(judge, crash, work / "recorded" / "disk"))
    assert list(filter(None, problems)) == []


def test_a_power_loss_during_the_recovery_of_a_swap_leaves_the_old_log_or_the_new(work: Path) -> None:
    judge = InPlace("compact,delete", work / "reference")
    recording = record_of(judge, work / "recorded")
    interrupted = interrupted_of_each_kind(crashes(recording, random.Random(0)))
    assert len(interrupted) == RECOVERY_KINDS
    for kind, crash in sorted(interrupted.items()):
        again, place = judge.interrupted(crash), work / kind
        problems = []
        for number, each in enumerate(sampled(record_of(again, place), seed=0, limit=RECOVERY_STATES)):
            again.goes_on = number % NEXT_RUNS == 0 or kind == SEEN_BY_THE_NEXT_RUN
            problems.append(judged(again, each, place / "disk"))
        assert list(filter(None, problems)) == [], kind


ROOT, FILE, OTHER = 0, 1, 2


def recording_of(*steps: Entries | Data | Size | Sync | Mark) -> Recording:
    return Recording(before=Tree(), steps=steps, made={FILE: False, OTHER: False})


def entry(name: str, inode: int | None, *before: str) -> Entries:
    gone = tuple((ROOT, old, None) for old in before)
    return Entries(changes=(*gone, (ROOT, name, inode)), asked=f"{name}")


def left(recording: Recording, *, ended: bool = True) -> set[tuple[tuple[str, bytes | None], ...]]:
    return {
        tuple(crash.tree.items()) for crash in crashes(recording, random.Random(0)) if crash.ended is ended
    }  # fmt: skip


HALVES = Data(inode=FILE, position=0, content=b"ab")


def test_what_was_not_synced_is_lost_torn_or_there() -> None:
    states = left(recording_of(entry("a", FILE), HALVES))
    contents = {dict(state).get("a") for state in states}
    assert contents == {None, b"", b"a", b"ab", b"\0\0"}
    assert () in states


def test_a_synced_file_has_its_content_or_no_name() -> None:
    states = left(recording_of(entry("a", FILE), HALVES, Sync(inode=FILE, began=2, asked="fsync")))
    assert states == {(), (("a", b"ab"),)}


def test_a_synced_name_may_have_no_content() -> None:
    states = left(recording_of(entry("a", FILE), HALVES, Sync(inode=ROOT, began=2, asked="fsync")))
    assert (("a", b""),) in states
    assert () not in states


def test_a_sync_covers_what_was_asked_before_it_began() -> None:
    recording = recording_of(entry("a", FILE), entry("b", OTHER), Sync(inode=ROOT, began=1, asked="fsync"))
    assert left(recording) == {(("a", b""),), (("a", b""), ("b", b""))}


def test_names_come_in_any_order_and_the_steps_of_one_name_in_their_own() -> None:
    recording = recording_of(entry("a", FILE), entry("b", FILE, "a"), entry("c", OTHER))
    a, b, c = (("a", b""),), (("b", b""),), (("c", b""),)
    assert left(recording) == {(), a, b, c, a + c, b + c}


def test_what_was_said_belongs_to_the_state() -> None:
    recording = recording_of(entry("a", FILE), Mark(text="made"), entry("b", OTHER))
    said = {(crash.said, crash.ended) for crash in crashes(recording, random.Random(0))}
    assert said == {((), False), (("made",), True)}


def test_a_program_that_fails_is_not_taken_for_a_record(work: Path) -> None:
    class Unknown:
        program = "nobody knows it"

        def prepare(self, root: Path) -> None: ...

    with pytest.raises(NotUnderstood, match="ended with 1"):
        record_of(Unknown(), work)  # type: ignore[arg-type]
