"""The same offset with another value on another replica is a difference, however small the difference is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headstone.audit.comparison import OTHER
from tests.audit.replicas import NAME, audited, findings
from tests.oracle.notation import History


def with_value(root: Path, value: bytes | None) -> Path:
    """A log directory of three records; the second has this value."""
    history = History()
    history.append("N[a] N[b] N[c] | N[z]")
    first, second, third = history.segments[0].batches
    changed = replace(second, records=(replace(second.records[0], value=value),), raw=None)
    history.segments[0] = replace(history.segments[0], batches=(first, changed, third))
    history.write_partition(root, NAME)
    return root


@pytest.mark.parametrize("other", [None, b"", b"w", b"vv"])
def test_another_value_is_found(other: bytes | None, tmp_path: Path) -> None:
    roots = [with_value(tmp_path / "1", b"v"), with_value(tmp_path / "2", other)]
    assert {(kind, key) for kind, _, key in findings(audited(roots))} == {(OTHER, b"b")}


def test_a_tombstone_is_not_an_empty_value(tmp_path: Path) -> None:
    roots = [with_value(tmp_path / "1", None), with_value(tmp_path / "2", b"")]
    assert {(kind, key) for kind, _, key in findings(audited(roots))} == {(OTHER, b"b")}
