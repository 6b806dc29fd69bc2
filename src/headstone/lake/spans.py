"""Half-open ranges of offsets, and sets of them: what is cleaned, what still holds tombstones.

Pure arithmetic. A set is kept as its shortest description: sorted, disjoint, no two that touch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

SPREAD_MAX = (1 << 31) - 1
"""How far apart the offsets of an extent may be: those of a segment are 32 bits above its base."""


class Span(NamedTuple):
    """[start, end); never empty."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


Spans = tuple[Span, ...]


def normal(spans: Iterable[Span]) -> Spans:
    """The shortest description of all that any of them covers."""
    merged: list[Span] = []
    for span in sorted(span for span in spans if span.start < span.end):
        if merged and span.start <= merged[-1].end:
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return tuple(merged)


def without(spans: Iterable[Span], holes: Iterable[Span]) -> Spans:
    """What `spans` cover and `holes` do not."""
    left = list(normal(spans))
    for hole in normal(holes):
        pieces = ((Span(s.start, min(s.end, hole.start)), Span(max(s.start, hole.end), s.end)) for s in left)
        left = [piece for pair in pieces for piece in pair if piece.start < piece.end]
    return normal(left)


def overlap(ours: Iterable[Span], theirs: Iterable[Span]) -> Spans:
    """What both cover."""
    mine = normal(ours)
    return without(mine, without(mine, theirs))


def covers(spans: Iterable[Span], wanted: Span) -> bool:
    return any(span.start <= wanted.start and wanted.end <= span.end for span in normal(spans))
