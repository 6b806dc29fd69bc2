"""Every number on the command line has a range, and a refusal that tells it."""

from __future__ import annotations

import argparse
import ast
import errno
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headstone.cli import options
from headstone.cli.main import main
from headstone.cli.options import Share, Whole
from headstone.log.reading import ChunkReader
from headstone.storage.error_texts import error_text
from headstone.storage.ranges import open_ranges
from tests.cli.parsers import OPTIONS
from tests.cli.scenes import write_log

NOBODY = 65534


NUMBERS = [(prog, action) for prog, action in OPTIONS if isinstance(action.type, Whole | Share)]


def test_no_option_takes_a_number_without_a_range() -> None:
    naked = [(prog, action.dest) for prog, action in OPTIONS if action.type in (int, float)]
    numeric = [
        (prog, action.dest)
        for prog, action in OPTIONS
        if isinstance(action.default, int | float)
        and not isinstance(action.default, bool)
        and not isinstance(action.type, Whole | Share)
    ]
    assert (naked, numeric) == ([], [])
    assert len(NUMBERS) > 40


def test_no_default_is_a_number_of_the_parser() -> None:
    """It stands where the thing lives, and is read from there: neither the option nor its help says it again."""
    said = [
        f"{path.name}:{node.lineno}"
        for path in sorted(Path(options.__file__).parent.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.keyword) and node.arg == "default" and is_number(node.value))
        or (isinstance(node, ast.Constant) and re.search(r"\(default -?\d", str(node.value)))
    ]
    assert said == []


def is_number(node: ast.expr) -> bool:
    """Also one that is reckoned from numbers only."""
    kinds = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    numbers = [type(leaf.value) for leaf in ast.walk(node) if isinstance(leaf, ast.Constant)]
    return all(isinstance(leaf, kinds) for leaf in ast.walk(node)) and set(numbers) <= {int, float}


@pytest.mark.parametrize(("prog", "action"), NUMBERS, ids=lambda value: getattr(value, "dest", None))
def test_the_default_is_in_the_range_and_both_ends_are(prog: str, action: argparse.Action) -> None:
    kind = action.type
    assert isinstance(kind, Whole | Share)
    # Suppressed: the one in front of the action's name counts, which is among these too.
    assert action.default in (None, argparse.SUPPRESS) or kind.low <= action.default <= kind.high
    assert [kind(str(kind.low)), kind(str(kind.high))] == [kind.low, kind.high]


def test_what_the_system_refuses_names_the_file_and_what_to_do() -> None:
    denied = PermissionError(errno.EACCES, "Permission denied", "/data/orders-0/0.log")
    assert error_text(denied) == (
        "/data/orders-0/0.log: permission denied; run as the user that it belongs to (on a broker's machine, the broker's)"
    )
    assert error_text(OSError(errno.ENOSPC, "No space left")) == "the disk is full; make room and run again"
    assert error_text(OSError(errno.ELOOP, "Too many links", "/x")) == "/x: Too many links"
    assert error_text(TimeoutError()) == "TimeoutError"


def test_a_disk_that_cannot_read_names_the_file() -> None:
    with open_ranges("/proc/self/mem") as broken, pytest.raises(OSError, match="/proc/self/mem") as raised:
        ChunkReader().read(broken, 0, 61, batches=1, previous=-1, with_crc=True)
    assert error_text(raised.value).startswith("/proc/self/mem: the disk cannot read or write it")


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may read everything: as nobody then."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("verb", [["inspect", "{log}"], ["compact", "{log}", "--dry-run"]])
def test_a_segment_that_may_not_be_read_ends_in_one_line(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory() as place:  # pytest's own is closed to others
        os.chmod(place, 0o755)
        write_log(Path(place) / "logs", "N[a] N[a] | N[b]")
        segment = Path(place) / "logs" / "orders-0" / ("0" * 20 + ".log")
        words = [word.format(log=f"{place}/logs") for word in verb]
        assert main(words) == 0  # and nobody need not be allowed to read the sources
        capsys.readouterr()
        segment.chmod(0)
        with unprivileged():
            code = main(words)
    said = [line for line in capsys.readouterr().err.splitlines() if "no watermarks" not in line]
    assert (code, len(said)) == (3, 1)
    assert f"{segment}: permission denied; run as the user that it belongs to" in said[0]
