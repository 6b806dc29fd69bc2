"""Compiled kernels of one state of the sources are never used with another."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from numba import config

from headstone.log import kernel_cache, kernels
from headstone.log.kernel_cache import DECORATED, PACKAGE, ROOMS, digest
from headstone.pipeline import buckets


def test_kernels_are_kept_by_their_sources_and_nobody_elses_are() -> None:
    before = config.CACHE_DIR
    expected = before or str(PACKAGE / "__pycache__" / f"kernels-{digest(PACKAGE)}")
    for kernel in (kernels.walk, buckets.race):
        assert Path(kernel._cache.cache_path).parent == Path(expected)
    assert before == config.CACHE_DIR


def test_every_kernel_is_in_a_room_that_counts() -> None:
    files = [file for file in PACKAGE.rglob("*.py") if DECORATED in file.read_bytes()]
    assert {file.parent.relative_to(PACKAGE).as_posix() for file in files} == set(ROOMS)


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("log/layout.py", True), ("retention/policy.py", True), ("pipeline/buckets.py", True), ("divergence/views.py", True),
        ("pipeline/report.py", False), ("lake/metastore/commits.py", False),
    ],
)  # fmt: skip
def test_a_change_of_what_kernels_are_made_of_is_another_folder(tmp_path: Path, file: str, counts: bool) -> None:
    copy = shutil.copytree(PACKAGE, tmp_path / "headstone", ignore=shutil.ignore_patterns("__pycache__"))
    assert digest(copy) == digest(PACKAGE)
    (copy / file).write_text((copy / file).read_text() + "\n")
    assert (digest(copy) != digest(PACKAGE)) == counts


def test_kernels_of_older_sources_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, older, other = (tmp_path / name for name in ("kernels-new", "kernels-old", "log.cpython"))
    for place in (here, older, other):
        place.mkdir()
    monkeypatch.setattr(kernel_cache, "folder", lambda: here)
    kernel_cache.forget_others()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernels-new", "log.cpython"]
