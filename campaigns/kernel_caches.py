"""Finds compiled kernels that a change of one source file makes stale, and sets them aside while the file is changed.

Numba compares a cached kernel with the file that defines it, not with the files whose kernels and constants were compiled into
it: a caller of a mutant would continue with the right code. Knows the names of Numba's cache files, not their contents.
"""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def importers(root: Path, file: str) -> list[str]:
    """`file` and every file below `src` that imports it, directly or not; paths from `root`."""
    modules = {_module(path.relative_to(root / "src")): path for path in sorted((root / "src").rglob("*.py"))}
    imports = {path: {modules[name] for name in _imported(path) if name in modules} for path in modules.values()}
    reached = {root / file}
    while more := {path for path, names in imports.items() if path not in reached and names & reached}:
        reached |= more
    return sorted(path.relative_to(root).as_posix() for path in reached)


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@contextmanager
def set_aside(cache: Path, files: list[str], aside: Path) -> Iterator[None]:
    """Kernels of `files` are compiled anew inside the block; what was compiled there is deleted after it."""
    for entry in _entries(cache, files):
        target = aside / entry.relative_to(cache)
        target.parent.mkdir(parents=True, exist_ok=True)
        entry.rename(target)
    try:
        yield
    finally:
        for entry in _entries(cache, files):
            entry.unlink()
        for entry in [path for path in aside.rglob("*") if path.is_file()]:
            entry.rename(cache / entry.relative_to(aside))
        shutil.rmtree(aside, ignore_errors=True)


def _entries(cache: Path, files: list[str]) -> list[Path]:
    """Cached kernels of `src/x/y.py` are `x_<digest of the folder>/y.<function>-<line>.<...>`."""
    paths = [Path(file) for file in files]
    return [entry for path in paths for entry in cache.glob(f"{path.parent.name}_*/{path.stem}.*")]
