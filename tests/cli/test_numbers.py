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
from headstone.cli.main import main, parser
from headstone.cli.options import Share, Whole
from headstone.log.reading import ChunkReader
from headstone.storage.error_texts import error_text
from headstone.storage.ranges import open_ranges
from tests.oracle.notation import History

NOBODY = 65534


def parsers(
    of: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.Action]]:
    """(the words in front, the option) of every verb and action."""
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from parsers(below, (*words, name))
        else:
            yield words, action


OPTIONS = list(parsers(parser()))
NUMBERS = [(words, action) for words, action in OPTIONS if isinstance(action.type, Whole | Share)]


def test_no_option_takes_a_number_without_a_range() -> None:
    naked = [(words, action.dest) for words, action in OPTIONS if action.type in (int, float)]
    numeric = [
        (words, action.dest)
        for words, action in OPTIONS
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


@pytest.mark.parametrize(("words", "action"), NUMBERS, ids=lambda value: getattr(value, "dest", None))
def test_the_default_is_in_the_range_and_both_ends_are(words: tuple[str, ...], action: argparse.Action) -> None:
    kind = action.type
    assert isinstance(kind, Whole | Share)
    # Suppressed: the one in front of the action's name counts, which is among these too.
    assert action.default in (None, argparse.SUPPRESS) or kind.low <= action.default <= kind.high
    assert [kind(str(kind.low)), kind(str(kind.high))] == [kind.low, kind.high]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["compact", "x", "--segment-bytes", "13"], "--segment-bytes: 13 is not between 14 and 2147483647"),
        (["compact", "x", "--segment-bytes", "2147483648"], "2147483648 is not between 14 and 2147483647"),
        (["compact", "x", "--segment-index-bytes", "3"], "3 is not between 4 and 2147483647"),
        (["compact", "x", "--index-interval-bytes", "2147483648"], "is not between 0 and 2147483647"),
        (["compact", "x", "--now-ms", "253402300800000"], "is not between 0 and 253402300799999"),
        (["compact", "x", "--min-cleanable-dirty-ratio", "nan"], "nan is not between 0 and 1"),
        (["compact", "x", "--min-cleanable-dirty-ratio", "half"], "'half' is not a number from 0 to 1"),
        (["compact", "x", "--task-memory-mb", "0"], "0 is not between 1 and 16777216"),
        (["compact", "x", "--dirty-from", "1.5"], "'1.5' is not a whole number from 0 to 9223372036854775807"),
        (["compact", "x", "--producer-id-expiration-ms", "2147483648"], "is not between 1 and 2147483647"),
        (["synth", "x", "--replicas", "101"], "101 is not between 1 and 100"),
        (["synth", "x", "--value-bytes-max", "1000001"], "1000001 is not between 0 and 1000000"),
        (["simulate", "--replicas", "10"], "10 is not between 1 and 9"),
        (["simulate", "--seed=-1"], "-1 is not between 0 and 9223372036854775807"),
        (["lake", "request", "x", "--topic", "t", "--partition", "2147483648"], "is not between 0 and 2147483647"),
    ],
)
def test_a_number_out_of_its_range_is_told_with_the_range_and_where_to_read_more(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    wrong, advice = said.splitlines()
    assert says in wrong
    verb = " ".join(arguments[: 2 if arguments[0] == "lake" else 1])
    assert advice == f"see `headstone {verb} --help` for options and examples"


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
        history = History()
        history.append("N[a] N[a] | N[b]")
        history.write_partition(Path(place) / "logs", "orders-0")
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
