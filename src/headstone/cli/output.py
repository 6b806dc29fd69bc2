"""What a verb prints and where: its answer on stdout, as text or as one JSON document; everything else on stderr.

Owns --output, --quiet, colours, and what happens when the reader of stdout goes away. Knows no verb.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headstone.errors import Unfinished, UsageError
from headstone.interruption import Interrupted, check, droppable

GOOD, BAD, HEADING = "32", "31", "1"
"""Colours by meaning."""
LOOK_S = 0.1
"""How soon an interruption is noticed while a question waits for its answer."""


class NotConfirmed(Unfinished):
    """The user was asked, before anything was changed, and did not say yes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    as_json: bool = False
    quiet: bool = False
    coloured: bool = False

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Output:
        as_json = arguments.output == "json"
        return cls(as_json=as_json, quiet=arguments.quiet, coloured=not as_json and takes_colours(os.environ))

    def answer(self, document: Callable[[], Mapping[str, object]], lines: Iterable[str]) -> None:
        """Prints the document or the lines, in full; called once. The other one is not made."""
        self.lines([json.dumps(document(), indent=2)] if self.as_json else lines)

    def lines(self, lines: Iterable[str]) -> int:
        """Returns how many were written. A reader that closes stdout early ends it, which is no error."""
        count = 0
        for line in lines:
            if not _write(line + "\n"):
                return count
            count += 1
        flush()
        return count

    def say(self, text: str) -> None:
        """Prints a part of the answer while it is made; with JSON it counts as progress."""
        if self.as_json:
            self.tell(text)
        elif _write(text + "\n"):
            flush()

    def tell(self, text: str) -> None:
        """Prints progress and remarks, unless --quiet."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def warn(self, *texts: str) -> None:
        """Printed with JSON too, so that a person at the terminal sees why the exit code is not 0."""
        for text in texts:
            print(text, file=sys.stderr, flush=True)

    def painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self.coloured else text


def refuse_unwritable(path: Path | None) -> None:
    """Call before reading anything, which may take hours."""
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{path} is a directory; name the file to write")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: cannot be written: {path.parent} is not a directory")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{path}: cannot be written: permission denied")


def is_somebody_there() -> bool:
    """Whether a person is there to be asked, and to answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(what: str, *, hint: str = "") -> None:
    """Asks; any answer but yes ends the verb, and so does Ctrl-C."""
    print(f"{what}. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        answer = _typed_line()
    except Interrupted:
        print(file=sys.stderr, flush=True)
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise NotConfirmed(f"not confirmed: nothing was changed{hint}")


def _typed_line() -> str:
    """A terminal that is readable has a whole line, or has ended."""
    with droppable():
        while not select.select([sys.stdin], [], [], LOOK_S)[0]:
            check()
        check()
    return sys.stdin.readline()


def takes_colours(environment: Mapping[str, str]) -> bool:
    """True for a terminal whose user has not switched colours off: https://no-color.org."""
    return sys.stdout.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def _write(text: str) -> bool:
    """False if nobody reads stdout any more."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        _discard()
        return False
    return True


def flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard()


def _discard() -> None:
    """Discards what is left in buffers, so that it does not fail again when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
