"""Consumers of a compacted log against consumers of the same log never compacted: fresh ones, and those that cross.

A rule that drops tombstones too early still gives a fresh reader the right table; only a crossing one sees the harm.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.oracle.batches import Record
from tests.oracle.cleaner import Pass
from tests.oracle.reader import CrossingReader, LogView, read_committed, read_uncommitted, view
from tests.retention.stories import (
    DAY_MS,
    FOREVER,
    Cleaning,
    Files,
    Marker,
    Step,
    Story,
    Teller,
    quick_directory,
    story,
)

SEEDS = range(25)
BATCHES_MAX = 12


def told(seed: int, **changes: object) -> Story:
    """A story whose cleanings follow the checkpoint, as a cleaner's do."""
    made = story(seed)
    steps = (replace(s, dirty_share=None if s.dirty_share else s.dirty_share) if isinstance(s, Cleaning) else s
             for s in made.steps)  # fmt: skip
    return replace(made, steps=tuple(with_settings(step, **changes) for step in steps))


def with_settings(step: Step, passes_ms: int | None = None, **changes: object) -> Step:
    if not isinstance(step, Cleaning):
        return step
    waited = step.passes_ms if passes_ms is None else passes_ms
    return replace(step, settings=replace(step.settings, **changes), passes_ms=waited)  # type: ignore[arg-type]


def insistent(made: Story) -> Story:
    """Every cleaning three times over the whole log: what may go by then, goes."""
    steps = ((replace(s, dirty_share=0.0),) * 3 if isinstance(s, Cleaning) else (s,) for s in made.steps)
    return replace(made, steps=tuple(step for some in steps for step in some))


def committed_only(made: Story) -> Story:
    """read_uncommitted delivers what is aborted later, which a compaction takes away; so nothing is."""
    return replace(made, steps=tuple(replace(s, decision="COMMIT") if isinstance(s, Marker) else s for s in made.steps))


@dataclass(slots=True)
class Twins:
    """The same story twice: `plain` is never compacted, `teller` and `files` are."""

    plain: Teller
    teller: Teller
    files: Files

    @classmethod
    def at(cls, root: Path, path: str) -> Twins:
        return cls(Teller(), Teller(), Files(root, path, in_place=True))

    def cleanings(self, made: Story) -> Iterator[Cleaning]:
        """Of both, step by step."""
        for step, _ in zip(self.plain.cleanings(made), self.teller.cleanings(made), strict=True):
            yield step

    def clean(self, step: Cleaning, *, watermark: int | None = None) -> Pass:
        self.plain.settings(step)
        settings = self.teller.settings(step)
        if watermark is not None:
            settings = replace(settings, mtro=watermark, mxro=watermark)
        self.files.write(self.teller.history)
        self.teller.next_dirty = self.files.compact(settings).dirty_end
        self.files.take_over(self.teller.history)
        return settings

    def full(self) -> LogView:
        return view(self.plain.history.segments, self.plain.history.producers)

    def compacted(self) -> LogView:
        return view(self.teller.history.segments, self.teller.history.producers)


def newest(records: list[Record]) -> dict[bytes, Record]:
    """The live record of each key, with offset, timestamp and headers."""
    table: dict[bytes, Record] = {}
    for record in records:
        if record.key is not None and record.value is None:
            table.pop(record.key, None)
        elif record.key is not None:
            table[record.key] = record
    return table


def check_fresh_readers(made: Story, path: str, read: Callable[[LogView], tuple[list[Record], object]]) -> None:
    with quick_directory() as root:
        twins = Twins.at(root, path)
        for step in twins.cleanings(made):
            twins.clean(step)
            assert newest(read(twins.compacted())[0]) == newest(read(twins.full())[0])


@pytest.mark.parametrize("path", ["whole", "shuffle"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_fresh_reader_finds_the_newest_committed_record_of_every_key(seed: int, path: str) -> None:
    check_fresh_readers(told(seed), path, read_committed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fresh_reader_of_uncommitted_data_finds_the_newest_record_of_every_key(seed: int) -> None:
    check_fresh_readers(committed_only(told(seed)), "whole", read_uncommitted)


def tables_after_crossing(
    seed: int, made: Story, *, committed: bool, watermark: Callable[[CrossingReader], int | None]
) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """A reader that goes on a little before some passes and to the end after the last; and one that met no pass."""
    chance = random.Random(seed)
    reader, untouched = CrossingReader(committed=committed), CrossingReader(committed=committed)
    with quick_directory() as root:
        twins = Twins.at(root, "whole")
        for step in twins.cleanings(made):
            reader.read(twins.compacted(), chance.choice((0, 0, chance.randrange(BATCHES_MAX))))
            twins.clean(step, watermark=watermark(reader))
        reader.read(twins.compacted())
        untouched.read(twins.full())
    return reader.table, untouched.table


def no_watermark(reader: CrossingReader) -> int | None:
    return None


def position(reader: CrossingReader) -> int | None:
    return reader.position


@pytest.mark.parametrize("rules", ["kafka", "coordinated"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_reader_back_within_delete_retention_misses_nothing(seed: int, rules: str) -> None:
    made = insistent(told(seed, rules=rules, delete_retention_ms=DAY_MS, passes_ms=1000))
    crossed, untouched = tables_after_crossing(seed, made, committed=True, watermark=no_watermark)
    assert crossed == untouched


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reader_of_uncommitted_data_back_within_delete_retention_misses_nothing(seed: int) -> None:
    made = committed_only(told(seed, delete_retention_ms=DAY_MS, passes_ms=1000))
    crossed, untouched = tables_after_crossing(seed, made, committed=False, watermark=no_watermark)
    assert crossed == untouched


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reader_behind_the_watermarks_misses_nothing_however_late_it_is(seed: int) -> None:
    made = insistent(told(seed, rules="coordinated", delete_retention_ms=0, passes_ms=1, keys_max=None, lag_ms=0))
    crossed, untouched = tables_after_crossing(seed, made, committed=True, watermark=position)
    assert crossed == untouched


def is_harmed(seed: int) -> bool:
    made = insistent(told(seed, rules="kafka", delete_retention_ms=0, passes_ms=1, keys_max=None, lag_ms=0))
    crossed, untouched = tables_after_crossing(seed, made, committed=True, watermark=no_watermark)
    return crossed != untouched


def test_a_reader_that_is_late_by_kafkas_rules_does_miss_tombstones() -> None:
    """Else the properties above would hold of any compaction."""
    assert sum(is_harmed(seed) for seed in range(10)) > 1


def test_forever_is_a_retention_like_any_other() -> None:
    made = told(3, rules="kafka", delete_retention_ms=FOREVER, passes_ms=3 * DAY_MS)
    crossed, untouched = tables_after_crossing(3, made, committed=True, watermark=no_watermark)
    assert crossed == untouched
