"""What is compared: records that consumers get, and all of their content, however small the difference is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headstone.divergence.findings import OTHER
from headstone.divergence.views import ROW, visible
from headstone.retention.transactions import ABORTED, COMMITTED, DATA, OPEN
from tests.divergence.replicas import NAME, audited, findings
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


def test_consumers_get_what_is_committed_below_the_end() -> None:
    rows = np.zeros(6, dtype=ROW)
    rows["offset"] = [3, 4, 5, 6, 7, 8]
    rows["role"] = [DATA, ABORTED, OPEN, COMMITTED, COMMITTED, DATA]
    assert visible(rows, 7).tolist() == [True, False, False, True, False, False]
