"""Suggestions for an unknown name: what an error says about similar existing names, so that a typo is seen at once.

Knows words only; the caller looks up which names exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

NAMES_SHOWN_MAX = 12
SIMILARITY_MIN = 0.65
"""Below it a guess is another word: *partitions* for *retention*."""
WHOLE_LENGTH_MIN = 4
"""A word that is a part of one name, as *retention* of *delete-retention-ms*, means it."""


def likely(name: str, names: Iterable[str]) -> str | None:
    """The intended name, if there is a very similar one."""
    by_small = {candidate.lower(): candidate for candidate in sorted(names, reverse=True)}
    close = get_close_matches(name.lower(), by_small, 1, SIMILARITY_MIN)
    around = [small for small in by_small if name.lower() in small and len(name) >= WHOLE_LENGTH_MIN]
    return next((by_small[small] for small in close or (around if len(around) == 1 else [])), None)


def meant(name: str, names: Iterable[str]) -> str:
    """For the end of a clause: which one was meant, or nothing."""
    candidate = likely(name, names)
    return "" if candidate is None else f"; did you mean {candidate}?"


def instead(
    name: str, names: Iterable[str], *, what: str = "there are", shown_max: int = NAMES_SHOWN_MAX
) -> str:  # fmt: skip
    """For the end of a clause: which one was meant, and which exist, or that there are none."""
    there = sorted(set(names))
    more = f" and {len(there) - shown_max} more" if len(there) > shown_max else ""
    listed = ", ".join(there[:shown_max]) or "none"
    return f"{meant(name, there)}{'' if meant(name, there) else ';'} {what} {listed}{more}"
