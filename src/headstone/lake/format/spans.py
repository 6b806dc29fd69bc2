"""Half-open ranges of offsets, and sets of them: what is cleaned, what still holds tombstones.

Pure arithmetic. A set is kept in its shortest form: sorted, disjoint, no two spans that touch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

SPREAD_MAX = (1 << 31) - 1
"""How far apart the offsets of an extent may be: in a segment they are 32 bits above its base."""


class Span(NamedTuple):
    """[start, end); never empty."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


Spans = tuple[Span, ...]


def normal(spans: Iterable[Span]) -> Spans:
    """The shortest form of the union of `spans`."""
    merged: list[Span] = []
    for span in sorted(span for span in spans if span.start < span.end):
        if merged and span.start <= merged[-1].end:
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return tuple(merged)


def without(spans: Iterable[Span], holes: Iterable[Span]) -> Spans:
    """What `spans` cover and `holes` do not. Linear in both."""
    left: list[Span] = []
    cuts, first = normal(holes), 0
    for span in normal(spans):
        start = span.start
        while first < len(cuts) and cuts[first].end <= start:
            first += 1
        i = first
        while i < len(cuts) and cuts[i].start < span.end:
            if start < cuts[i].start:
                left.append(Span(start, cuts[i].start))
            start = max(start, cuts[i].end)
            i += 1
        if start < span.end:
            left.append(Span(start, span.end))
    return tuple(left)


def overlap(first: Iterable[Span], second: Iterable[Span]) -> Spans:
    """What both cover."""
    ordered = normal(first)
    return without(ordered, without(ordered, second))


def touching(spans: Spans, wanted: Span) -> Spans:
    """The spans of a set that share an offset with `wanted`; a binary search."""
    first = bisect_right(spans, wanted.start, key=lambda span: span.end)
    last = bisect_left(spans, wanted.end, lo=first, key=lambda span: span.start)
    return spans[first:last]


def covers(spans: Iterable[Span], wanted: Span) -> bool:
    return any(span.start <= wanted.start and wanted.end <= span.end for span in normal(spans))
