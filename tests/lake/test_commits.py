"""The rules of commits, one by one, and in random order against a model that remembers every offset by itself."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

from headstone.lake.format.extents import Extent
from headstone.lake.format.spans import Span, covers, normal, overlap, touching, without
from headstone.lake.metastore.commits import (
    EMPTY,
    Claim,
    CommitRefused,
    LowestHold,
    Partition,
    TombstoneRange,
    appended,
    leveled,
    replaced,
    started_at,
    violations,
)
from tests.lake.appending import extent


def log(*edges: int) -> Partition:
    """Extents between the edges."""
    extents = [extent(start, end) for start, end in itertools.pairwise(edges)]
    return appended(EMPTY, 0, extents)


def spans(partition: Partition) -> list[tuple[int, int]]:
    return [tuple(one.span) for one in partition.extents]


def clean(start: int, end: int, **more: object) -> Claim:
    return Claim(processed=Span(start, end), cleaned=(Span(start, end),), **more)  # type: ignore[arg-type]


def test_appends_follow_each_other_and_leave_the_epoch_alone() -> None:
    partition = appended(log(0, 10), 10, [extent(10, 15), extent(15, 40)])
    assert spans(partition) == [(0, 10), (10, 15), (15, 40)]
    assert (partition.next_offset, partition.compaction_epoch) == (40, 0)


@pytest.mark.parametrize(
    ("expected", "extents", "why"),
    [
        (9, [extent(10, 12)], "the log ends at 10"),
        (10, [extent(11, 12)], "gap or overlaps"),
        (10, [extent(9, 12)], "gap or overlaps"),
        (10, [extent(10, 12), extent(13, 14)], "leave a gap"),
        (10, [extent(10, 10)], "empty or inverted"),
        (10, [extent(12, 10)], "empty or inverted"),
        (10, [], "no extents"),
    ],
)
def test_an_append_that_does_not_fit_is_refused(expected: int, extents: list[Extent], why: str) -> None:
    with pytest.raises(CommitRefused, match=why):
        appended(log(0, 10), expected, extents)


def test_a_replacement_takes_the_place_of_whole_extents_and_raises_the_epoch() -> None:
    partition = replaced(log(0, 10, 20, 30), 0, [extent(10, 30, "new")], None)
    assert spans(partition) == [(0, 10), (10, 30)]
    assert partition.compaction_epoch == 1


def test_several_runs_are_replaced_at_once() -> None:
    partition = replaced(log(0, 10, 20, 30), 0, [extent(20, 30, "b"), extent(0, 5, "a"), extent(5, 10, "a")], None)
    assert [(tuple(one.span), one.object_id) for one in partition.extents] == [
        ((0, 5), "a"), ((5, 10), "a"), ((10, 20), "o"), ((20, 30), "b")
    ]  # fmt: skip


def claim(processed: tuple[int, int], *cleaned: tuple[int, int]) -> Claim:
    return Claim(processed=Span(*processed), cleaned=tuple(Span(*span) for span in cleaned))


@pytest.mark.parametrize(
    ("new", "given", "why"),
    [
        *([[span], None, "does not match"] for span in ((5, 10), (0, 15), (5, 15), (20, 31), (30, 40), (10, 25))),
        ([(0, 20), (10, 20)], None, "does not match"),  # two for the same place
        ([], claim((10, 20), (10, 20)), "reach down to the log start 0"),
        ([], claim((0, 10), (0, 20)), "extends beyond"), ([], claim((0, 40), (0, 40)), "extends beyond"),
    ],
)  # fmt: skip
def test_a_replacement_that_does_not_fit_is_refused(new: list[tuple[int, int]], given: Claim | None, why: str) -> None:
    with pytest.raises(CommitRefused, match=why):
        replaced(log(0, 10, 20, 30), 0, [extent(*span) for span in new], given)


def test_only_one_of_two_compactions_wins() -> None:
    first = replaced(log(0, 10), 0, [extent(0, 10, "a")], None)
    with pytest.raises(CommitRefused, match="stale compaction epoch 0, current 1"):
        replaced(first, 0, [extent(0, 10, "b")], None)


def test_a_log_that_holds_nothing_may_begin_anywhere_in_what_is_appended() -> None:
    begun = appended(EMPTY, 0, [extent(0, 10), extent(10, 20)], log_start=12)
    assert (spans(begun), begun.start_offset, begun.next_offset, violations(begun)) == ([(10, 20)], 12, 20, [])
    emptied = appended(EMPTY, 0, [extent(0, 10)], log_start=10)
    assert (emptied, violations(emptied)) == (replace(EMPTY, start_offset=10, next_offset=10), [])
    later = appended(emptied, 10, [extent(10, 30)], log_start=25)
    assert (spans(later), later.start_offset) == ([(10, 30)], 25)
    with pytest.raises(CommitRefused, match=r"start offset 21 is not in \[0, 20\]"):
        appended(EMPTY, 0, [extent(0, 20)], log_start=21)


def test_the_start_of_a_log_that_has_begun_does_not_move_with_an_append() -> None:
    with pytest.raises(CommitRefused, match=r"start the log at 12, but the log is already \[0, 10\)"):
        appended(log(0, 10), 10, [extent(10, 20)], log_start=12)


def test_an_append_between_does_not_disturb_a_compaction() -> None:
    grown = appended(log(0, 10), 10, [extent(10, 20)])
    assert spans(replaced(grown, 0, [extent(0, 10, "a")], clean(0, 10))) == [(0, 10), (10, 20)]


def test_a_commit_of_objects_alone_checks_and_raises_the_epoch_too() -> None:
    """Redpanda 29092: an object-only commit carried no epoch."""
    first = replaced(log(0, 10), 0, [], clean(0, 10))
    with pytest.raises(CommitRefused, match="epoch"):
        replaced(first, 0, [extent(0, 10, "late")], None)
    assert replaced(first, 1, [extent(0, 10, "next")], None).compaction_epoch == 2


def test_marks_add_to_the_dead_of_an_extent_and_lose_none_of_its_records() -> None:
    (whole,) = log(0, 10).extents
    marked = replace(whole, records=7, dead=3, dead_object="d", dead_position=4)
    partition = replaced(log(0, 10), 0, [marked], None)
    assert partition.extents == (marked,)
    for dead in (2, 3):
        with pytest.raises(CommitRefused, match="marked in an extent that no longer exists"):
            replaced(partition, 1, [replace(marked, records=10 - dead, dead=dead, dead_object="e")], None)
    for records in (5, 7):
        with pytest.raises(CommitRefused, match="do not add up to the extent"):
            replaced(partition, 1, [replace(marked, records=records, dead=4, dead_object="e")], None)


def test_the_dead_of_an_extent_are_so_since_the_first_was_marked() -> None:
    (whole,) = log(0, 10).extents
    marked = replace(whole, records=7, dead=3, dead_object="d", dead_since_ms=99)
    once = replaced(log(0, 10), 0, [marked], None, now_ms=5)
    twice = replaced(once, 1, [replace(marked, records=6, dead=4, dead_object="e")], None, now_ms=8)
    assert [partition.extents[0].dead_since_ms for partition in (once, twice)] == [5, 5]
    assert replaced(twice, 2, [extent(0, 10, "new")], None, now_ms=9).extents[0].dead_since_ms == -1


def test_a_log_start_only_rises_and_not_beyond_the_log() -> None:
    partition = started_at(log(0, 10, 20), 12)
    for offset in (11, 21):
        with pytest.raises(CommitRefused, match="is not in"):
            started_at(partition, offset)
    assert started_at(partition, 20).extents == ()


def test_leveling_checks_the_epoch_and_leaves_it() -> None:
    partition = replaced(log(0, 10, 20), 0, [], clean(0, 20))
    with pytest.raises(CommitRefused, match="epoch"):
        leveled(partition, 0, [extent(0, 20)])
    merged = leveled(partition, 1, [extent(0, 20)])
    assert (spans(merged), merged.compaction_epoch, merged.cleaned) == ([(0, 20)], 1, (Span(0, 20),))


def test_a_clean_claim_may_be_of_the_upper_part_of_what_was_processed() -> None:
    assert replaced(log(0, 10, 20), 0, [], claim((0, 20), (10, 20))).cleaned == (Span(10, 20),)


def test_tombstone_ranges_are_tracked_until_they_are_removed() -> None:
    first = replaced(log(0, 10, 20), 0, [], clean(0, 20, tombstones=(Span(0, 20),)), now_ms=5)
    assert first.tombstones == (TombstoneRange(span=Span(0, 20), cleaned_at_ms=5),)
    with pytest.raises(CommitRefused, match="overlaps an existing one"):
        replaced(first, 1, [], clean(0, 20, tombstones=(Span(5, 8),)))
    second = replaced(first, 1, [], Claim(processed=Span(0, 20), cleaned=(), tombstones_removed=(Span(0, 12),)))
    assert second.tombstones == (TombstoneRange(span=Span(12, 20), cleaned_at_ms=5),)
    with pytest.raises(CommitRefused, match="none are tracked"):
        replaced(second, 2, [], Claim(processed=Span(0, 20), cleaned=(), tombstones_removed=(Span(0, 12),)))
    with pytest.raises(CommitRefused, match="not among the ranges claimed clean"):
        replaced(second, 2, [], Claim(processed=Span(0, 20), cleaned=(Span(0, 5),), tombstones=(Span(4, 6),)))


def test_a_start_that_moved_during_a_compaction_does_not_spoil_it() -> None:
    moved = started_at(log(0, 10, 20), 12)
    assert (spans(moved), moved.compaction_epoch) == ([(10, 20)], 0)
    done = replaced(moved, 0, [extent(0, 20, "new")], clean(0, 20))
    assert (spans(done), done.cleaned) == ([(0, 20)], (Span(12, 20),))
    assert violations(done) == []


def test_an_emptied_range_can_be_claimed_and_is_not_dirty_for_ever() -> None:
    """Redpanda 31124: ranges that lost all their records were never clean."""
    empty = extent(0, 20, "e", length=0, records=0)
    done = replaced(log(0, 10, 20), 0, [empty], clean(0, 20))
    assert (spans(done), done.cleaned, violations(done)) == ([(0, 20)], (Span(0, 20),), [])


@pytest.mark.parametrize("seed", range(40))
def test_random_commits_keep_the_invariants(seed: int) -> None:
    """Refused or not: what is left is a log without gap or overlap, and a refusal is never for a fitting proposal."""
    chance = random.Random(seed)
    partition = EMPTY
    owner: dict[int, str] = {}
    for step in range(120):
        action = chance.choice(("append", "replace", "replace", "level", "start", "stale"))
        if action == "append":
            edges = sorted({partition.next_offset, *(partition.next_offset + chance.randint(1, 9) for _ in range(3))})
            new = [extent(a, b, f"s{step}") for a, b in itertools.pairwise(edges)]
            partition = appended(partition, partition.next_offset, new)
            owner.update(dict.fromkeys(range(edges[0], edges[-1]), f"s{step}"))
        elif action == "start" and chance.random() < 0.2:
            partition = started_at(partition, chance.randint(partition.start_offset, partition.next_offset))
        elif action == "stale" and partition.compaction_epoch:
            with pytest.raises(CommitRefused):
                replaced(partition, partition.compaction_epoch - 1, [], None)
        elif partition.extents:
            first = chance.randrange(len(partition.extents))
            last = chance.randrange(first, len(partition.extents))
            span = Span(partition.extents[first].span.start, partition.extents[last].span.end)
            new = [extent(*span, f"s{step}")]
            if action == "level":
                partition = leveled(partition, partition.compaction_epoch, new)
            else:
                end = partition.extents[last].span.end
                claim = Claim(processed=Span(0, end), cleaned=(Span(chance.randint(0, end - 1), end),))
                partition = replaced(
                    partition, partition.compaction_epoch, new, claim if chance.random() < 0.5 else None
                )
            owner.update(dict.fromkeys(range(*span), f"s{step}"))
        assert violations(partition) == []
        held = {offset: one.object_id for one in partition.extents for offset in range(*one.span)}
        live = range(partition.start_offset, partition.next_offset)
        assert {offset: held[offset] for offset in live} == {offset: owner[offset] for offset in live}


def counting(name: str) -> Any:
    def compare(self: int, other: int) -> bool:
        Counted.comparisons += 1
        return bool(getattr(int, name)(self, other))

    return compare


class Counted(int):
    """An offset that counts how often it is compared."""

    comparisons = 0
    __lt__, __le__, __gt__, __ge__ = counting("__lt__"), counting("__le__"), counting("__gt__"), counting("__ge__")
    __eq__, __ne__ = counting("__eq__"), counting("__ne__")
    __hash__ = int.__hash__


def comparisons(extents: int) -> int:
    """Of a commit that marks every other extent, claims as many ranges clean and removes as many ranges of tombstones."""
    edges = [Counted(10 * number) for number in range(extents + 1)]
    spans = [Span(start, end) for start, end in itertools.pairwise(edges)]
    every_other = tuple(spans[::2])
    whole = Span(edges[0], edges[-1])
    partition = appended(EMPTY, 0, [replace(extent(*span), span=span) for span in spans])
    tracking = Claim(processed=whole, cleaned=every_other, tombstones=every_other)
    partition = replaced(partition, 0, [], tracking)
    marked = [replace(one, dead=1, records=9, dead_object="d") for one in partition.extents[::2]]
    removing = Claim(processed=whole, cleaned=every_other, tombstones_removed=every_other[::2])
    Counted.comparisons = 0
    after = replaced(partition, 1, marked, removing)
    assert (len(after.extents), len(after.tombstones), violations(after)) == (extents, extents // 4, [])
    return Counted.comparisons


def test_a_commit_costs_as_much_for_each_extent_however_many_there_are() -> None:
    """Sorting grows with a logarithm: of twice as many, more than twice, and far from four times."""
    few, many = comparisons(400), comparisons(1600)
    assert few > 400
    assert many < 4 * 1.5 * few


@pytest.mark.parametrize("seed", range(50))
def test_spans_that_touch_are_found(seed: int) -> None:
    chance = random.Random(seed)
    spans = normal(Span(a, a + chance.randint(1, 6)) for a in (chance.randint(0, 60) for _ in range(6)))
    start = chance.randint(0, 60)
    wanted = Span(start, start + chance.randint(1, 20))
    assert touching(spans, wanted) == tuple(span for span in spans if overlap([span], [wanted]))


def test_tombstones_below_a_start_that_moved_are_removed_already() -> None:
    first = replaced(log(0, 10, 20), 0, [], clean(0, 20, tombstones=(Span(0, 20),)), now_ms=5)
    moved = started_at(first, 12)
    done = replaced(moved, 1, [], Claim(processed=Span(0, 20), cleaned=(), tombstones_removed=(Span(0, 20),)))
    assert (done.tombstones, violations(done)) == ((), [])


@pytest.mark.parametrize(
    ("hold", "below", "removed", "refused"),
    [
        (LowestHold("r", 9), 10, (), True),
        (LowestHold("r", 10), 10, (), False),
        (LowestHold("r", 9), 0, (Span(0, 10),), True),
        (LowestHold("r", 10), 0, (Span(0, 10),), False),
        (LowestHold("r", 0), 0, (), False),
        (None, 20, (Span(0, 20),), False),
    ],
)
def test_what_a_reader_holds_is_removed_by_no_commit(
    hold: LowestHold | None, below: int, removed: tuple[Span, ...], refused: bool
) -> None:
    """Whether the commit claims it (the last part of a job) or not."""
    partition = replaced(log(0, 10, 20), 0, [], clean(0, 20, tombstones=(Span(0, 20),)), now_ms=5)
    claim = Claim(processed=Span(0, 20), cleaned=(), tombstones_removed=removed) if removed else None
    new = [extent(0, 10, "new")]
    if refused:
        with pytest.raises(CommitRefused, match=r"r holds tombstones from offset 9 on"):
            replaced(partition, 1, new, claim, tombstones_below=below, hold=hold)
    else:
        assert replaced(partition, 1, new, claim, tombstones_below=below, hold=hold).compaction_epoch == 2


@pytest.mark.parametrize("seed", range(50))
def test_sets_of_spans_are_sets_of_offsets(seed: int) -> None:
    chance = random.Random(seed)

    def some() -> list[Span]:
        return [Span(a, a + chance.randint(1, 8)) for a in (chance.randint(0, 40) for _ in range(chance.randint(0, 5)))]

    def offsets(found: object) -> set[int]:
        return {offset for span in found for offset in range(*span)}  # type: ignore[attr-defined]

    ours, theirs = some(), some()
    assert offsets(normal(ours)) == offsets(ours)
    assert offsets(without(ours, theirs)) == offsets(ours) - offsets(theirs)
    assert offsets(overlap(ours, theirs)) == offsets(ours) & offsets(theirs)
    for a, b in zip(normal(ours), normal(ours)[1:], strict=False):
        assert a.end < b.start
    wanted = Span(5, 12)
    assert covers(ours, wanted) == (set(range(*wanted)) <= offsets(ours))
