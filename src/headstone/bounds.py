"""What callers may pass: numbers within bounds, values of the right kind, and sequences where several are expected.

Stated once for the options of the command line and the settings of the library. Does not know what the numbers are for; Kafka's
topic settings have theirs in `retention/settings.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

from headstone.errors import UsageError
from headstone.units import DAY_MS, MOMENT_MS_MAX

INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
"""Kafka's and Java's."""


Kinds = type | tuple[type, ...]
KIND_NAMES: dict[type, str] = {str: "a string", Path: "a path", Mapping: "a mapping"}


class Bounds(NamedTuple):
    """For a whole number, both ends included."""

    low: int
    high: int

    def expect(self, name: str, value: object) -> None:
        """NumPy's numbers count too, as they come from a data frame."""
        number = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None
        if number is None or not self.low <= number <= self.high:
            kind = "a whole number, " if number is None else ""
            limits = f"{self.low} or more" if self.high == LONG_MAX else f"{self.low} to {self.high}"
            raise UsageError(f"{name} {value!r}: expected {kind}{limits}")


class ShareBounds(NamedTuple):
    """For any number, both ends included."""

    low: float = 0.0
    high: float = 1.0

    def expect(self, name: str, value: object) -> None:
        fits = not isinstance(value, bool) and isinstance(value, Real) and self.low <= float(value) <= self.high
        if not fits:  # neither is nan
            raise UsageError(f"{name} {value!r}: expected a number from {self.low:g} to {self.high:g}")


OFFSET = Bounds(0, LONG_MAX)
COUNT = Bounds(1, LONG_MAX)
PARTITION_NUMBER = Bounds(0, INT_MAX)
PARTITION_COUNT = Bounds(1, 100_000)
REPLICATION_FACTOR = Bounds(1, 32767)
MOMENT_MS = Bounds(0, MOMENT_MS_MAX)
DURATION_MS = Bounds(0, LONG_MAX)
"""The largest means for ever."""
INTERVAL_MS = Bounds(1, 365 * DAY_MS)
DEADLINE_MS = Bounds(0, MOMENT_MS_MAX)
SHARE = ShareBounds()
TASK_MEMORY_BYTES = Bounds(1, 1 << 44)


def expect_all(settings: Any, bounds: Mapping[str, Bounds | ShareBounds]) -> None:
    """Checks fields of a dataclass, by their names. None is allowed if it is the default."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name in bounds and not (value is None and field.default is None):
            bounds[field.name].expect(field.name, value)


def several(name: str, given: object, kind: Kinds = str) -> None:
    """A single text in place of several would be taken as its letters, and the error would name the first of them."""
    if isinstance(given, str | bytes):
        raise UsageError(f"{name}: expected several, such as ({given!r},), found the string {given!r}")
    if not isinstance(given, Collection):
        raise UsageError(f"{name}: expected several, found {given!r}")
    for each in given:
        of_kind(name, each, kind)


def by_name(name: str, given: object, kind: Kinds = str) -> None:
    """A mapping from names; its values may be secrets, and are not shown."""
    if not isinstance(given, Mapping):
        raise UsageError(f"{name}: expected a mapping, such as a dict, found {_kind_name(type(given))}")
    for key, value in given.items():
        of_kind(f"a name in {name}", key, str)
        if not isinstance(value, kind):
            raise UsageError(f"{name}, {key}: expected {_expected(kind)}, found {_kind_name(type(value))}")


def of_kind(name: str, given: object, kind: Kinds) -> None:
    if not isinstance(given, kind):
        raise UsageError(f"{name} {given!r}: expected {_expected(kind)}, found {_kind_name(type(given))}")


def _expected(kind: Kinds) -> str:
    return " or ".join(map(_kind_name, kind if isinstance(kind, tuple) else (kind,)))


def _kind_name(kind: type) -> str:
    return KIND_NAMES.get(kind, kind.__name__)
