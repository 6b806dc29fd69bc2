"""What a verb says and where: its answer on stdout, as text or as one JSON document; everything else on stderr.

Owns --output, --quiet, colours, and what happens when whoever reads stdout goes away. Knows no verb.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

GOOD, BAD, HEADING = "32", "31", "1"
"""Colours, by what they say."""


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
        """One of them, whole; called once. What is not asked for is not made."""
        self.lines([json.dumps(document(), indent=2)] if self.as_json else lines)

    def lines(self, lines: Iterable[str]) -> int:
        """How many were written. A reader who has seen enough ends it, and that is no error."""
        count = 0
        for line in lines:
            if not _write(line + "\n"):
                return count
            count += 1
        flush()
        return count

    def say(self, text: str) -> None:
        """A part of the answer that is told while it is made; with JSON, progress."""
        if self.as_json:
            self.tell(text)
        elif _write(text + "\n"):
            flush()

    def tell(self, text: str) -> None:
        """Progress and remarks, which nobody needs who asked for quiet."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self.coloured else text


def takes_colours(environment: Mapping[str, str]) -> bool:
    """A terminal whose user has not asked for none: https://no-color.org."""
    return sys.stdout.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def _write(text: str) -> bool:
    """Whether there is still somebody who reads."""
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
    """What is left in buffers must not fail again when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
