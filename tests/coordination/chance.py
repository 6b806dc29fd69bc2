"""Strategies that go far enough: Hypothesis takes alternatives as equally likely, and lists as about five long."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st


def weighted(*choices: tuple[int, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    table = [strategy for times, strategy in choices for _ in range(times)]
    return st.sampled_from(range(len(table))).flatmap(table.__getitem__)


def runs(strategy: st.SearchStrategy[Any], length_max: int) -> st.SearchStrategy[list[Any]]:
    """Lists of every length alike."""
    return st.integers(0, length_max).flatmap(lambda n: st.lists(strategy, min_size=n, max_size=n))
