"""Every parser of the command line, read as argparse keeps it: verbs by the words that call them, and all their options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from headstone.cli.main import parser


def parsers(of: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield of
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def has_actions(of: argparse.ArgumentParser) -> bool:
    return any(isinstance(action, argparse._SubParsersAction) for action in of._actions)


EVERY = list(parsers(parser()))
VERBS = {each.prog: each for each in EVERY if not has_actions(each)}
"""Those that run something: verbs, and the actions of those that have some."""
OPTIONS = [
    (each.prog, action)
    for each in EVERY
    for action in each._actions
    if not isinstance(action, argparse._SubParsersAction)
]
