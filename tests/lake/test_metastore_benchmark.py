"""The benchmark of the metastore fails where extents cost more than they may."""

from __future__ import annotations

import sys

import pytest

from benchmarks import metastore


def test_a_ratio_that_is_too_high_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two small lakes, of which the larger one may take no time at all."""
    words = ["--partitions", "200", "--extents", "2000", "4000", "--runs", "1", "--output", "json"]
    monkeypatch.setattr(sys, "argv", ["metastore", *words])
    monkeypatch.setattr(metastore, "RATIO_MAX", 0.0)
    assert metastore.main() == 1
    errors = capsys.readouterr().err
    for what in ("decision", "append", "commit", "status"):
        assert f"{what}: " in errors
    monkeypatch.undo()
    assert metastore.too_slow({"status": metastore.RATIO_MAX}) == []
    assert metastore.too_slow({"status": 1.6, "commit": 1.0}) == ["status: 1.60 times as long, over 1.5"]
