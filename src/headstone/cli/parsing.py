"""How the command line is parsed and explained: help with every default, examples, exit codes; errors of two lines.

The frame that verbs fill in; knows none of them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from headstone.cli.output import flush

WIDTH_MAX = 110

DONE, FINDINGS, USAGE, UNFINISHED = 0, 1, 2, 3
EXIT_CODES = {
    DONE: "done, and nothing is wrong",
    USAGE: "wrong usage, or input that cannot be read whole; nothing was changed",
    UNFINISHED: "could not finish",
}
"""What they mean unless a verb says it more exactly."""


class Formatter(argparse.HelpFormatter):
    """Adds the default to the help of whatever takes a value and does not tell it; keeps the lines of an epilog."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=min(WIDTH_MAX, shutil.get_terminal_size().columns - 2))

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help
        tells = text is None or "default" in text or action.default in (None, argparse.SUPPRESS, [])
        return text if tells or action.nargs == 0 or not action.option_strings else f"{text} (default %(default)s)"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """Its errors are two lines: the usage of a verb with thirty options hides what was wrong."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, "allow_abbrev": False, **settings})

    def format_help(self) -> str:
        """With a usage of one line: what the options are is told below it."""
        positionals = [action for action in self._actions if not action.option_strings]
        words = [f"{action.metavar}{'...' if action.nargs in ('+', '*') else ''}" for action in positionals]
        self.usage = " ".join(["%(prog)s", "[options]", *words])
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message.removeprefix('argument ')}\n{what_to_do(self.prog)}\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        flush()  # of the help, which a pager may have left
        if message:
            sys.stderr.write(message)
        sys.exit(status)


def what_to_do(prog: str) -> str:
    return f"`{prog} --help` lists what it takes, with examples"


def explain(parser: argparse.ArgumentParser, examples: Sequence[str], exit_codes: Mapping[int, str]) -> None:
    """The end of a verb's help."""
    meanings = {**EXIT_CODES, **exit_codes}
    lines = ["examples:", *(f"  {example}" for example in examples), "", "exit codes:"]
    parser.epilog = "\n".join([*lines, *(f"  {code}  {meanings[code]}" for code in sorted(meanings))])


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--output", choices=("text", "json"), default="text", help="what goes to stdout")
    group.add_argument(
        "--quiet", action="store_true", help="no progress and no remarks on stderr; errors and warnings stay"
    )
    group.add_argument(
        "--config", metavar="FILE",
        help="defaults, clusters and stores (default: $XDG_CONFIG_HOME/headstone/config.toml, if it is there)",
    )  # fmt: skip
