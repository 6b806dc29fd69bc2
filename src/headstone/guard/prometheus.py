"""Prometheus' text format, written by hand: a few gauges need no client library.

Labels contain topic names, which are not trusted, so they are escaped. Knows nothing about what is measured.
"""

from __future__ import annotations

from collections.abc import Iterator

PREFIX = "headstone_guard_"
Sample = tuple[dict[str, object], float]


def metric(name: str, kind: str, about: str, samples: list[Sample]) -> Iterator[str]:
    yield f"# HELP {PREFIX}{name} {about}"
    yield f"# TYPE {PREFIX}{name} {kind}"
    for labels, value in samples:
        inside = ",".join(f'{label}="{escaped(str(content))}"' for label, content in labels.items())
        yield f"{PREFIX}{name}{{{inside}}} {_number(value)}" if inside else f"{PREFIX}{name} {_number(value)}"


def _number(value: float) -> str:
    """Offsets and bytes to the last digit: with six digits, an offset that moves would seem to stand still."""
    return str(int(value)) if isinstance(value, int) or value.is_integer() else repr(value)


def escaped(text: str) -> str:
    """A label's value: escapes backslash, quote and newline as the format requires, and shows other unprintable characters
    visibly."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return "".join(letter if letter.isprintable() else f"\\\\x{ord(letter):02x}" for letter in plain)
