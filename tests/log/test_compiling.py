"""Whether kernels are being compiled, here or by a worker that keeps them in the same folder."""

from __future__ import annotations

from pathlib import Path

from numba import njit
from numba.extending import overload

from headstone.log.compiling import Compiling


def test_what_this_process_compiles_is_known_while_it_does(tmp_path: Path) -> None:
    (tmp_path / "earlier.nbi").touch()
    compiling = Compiling(tmp_path)
    seen: list[tuple[bool, bool]] = []

    def probe() -> int:
        raise NotImplementedError

    @overload(probe)
    def _probe() -> object:
        seen.append((compiling.here, compiling()))
        return lambda: 1

    before = (compiling.here, compiling())

    def calling() -> int:
        return probe()

    assert njit(calling)() == 1
    assert (before, set(seen), (compiling.here, compiling())) == ((False, False), {(True, True)}, (False, False))


def test_kernels_that_appear_were_compiled_by_somebody(tmp_path: Path) -> None:
    assert Compiling(tmp_path)(), "nothing is there yet"
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "one.nbi").touch()
    compiling = Compiling(tmp_path)
    assert not compiling()
    (tmp_path / "log" / "two.nbi").touch()
    assert compiling()
    assert not compiling.here
