"""How the command line is parsed and explained: help with every default, examples, exit codes; errors of two lines.

The frame that verbs fill in; knows no verb.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from headstone import errors
from headstone.cli.options import Duration, Moment
from headstone.cli.output import flush
from headstone.spelling import instead, likely
from headstone.units import DURATION_FORM, MOMENT_FORM, brief_duration, moment

WIDTH_MAX = 110

DONE, FINDINGS, USAGE, UNFINISHED = errors.DONE, errors.FINDINGS, errors.USAGE, errors.UNFINISHED
EXIT_CODES = {
    DONE: "done, and nothing is wrong",
    USAGE: "wrong usage, or unreadable input; nothing was changed",
    UNFINISHED: "could not finish",
}
"""Their meaning, unless a verb is more specific."""


class Formatter(argparse.HelpFormatter):
    """Adds the default to the help of options that take a value and do not show it; keeps the lines of an epilog."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=min(WIDTH_MAX, shutil.get_terminal_size().columns - 2))

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help
        tells = text is None or "default" in text or action.default in (None, argparse.SUPPRESS, [])
        if tells or action.nargs == 0 or not action.option_strings:
            return text
        return f"{text} (default {shown_default(action)})"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def shown_default(action: argparse.Action) -> str:
    """As the option takes it, and as argparse takes help: with `%` doubled."""
    text = str(action.default)
    if isinstance(action.default, int) and isinstance(action.type, Duration | Moment):
        text = (brief_duration if isinstance(action.type, Duration) else moment)(action.default)
    return text.replace("%", "%%")


class Parser(argparse.ArgumentParser):
    """Its errors have two lines: the usage of a verb with thirty options would hide what was wrong."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, "allow_abbrev": False, **settings})
        self._words: list[str] = []

    def format_help(self) -> str:
        """With a usage of one line: the options are explained below it."""
        positionals = [action for action in self._actions if not action.option_strings]
        words = [f"{action.metavar}{'...' if action.nargs in ('+', '*') else ''}" for action in positionals]
        self.usage = " ".join(["%(prog)s", "[options]", *words])
        return super().format_help() + "".join(self._forms())

    def _forms(self) -> Iterator[str]:
        """What a value that many options take looks like, explained once."""
        kinds = {type(action.type) for action in self._actions if action.help != argparse.SUPPRESS}
        if Duration in kinds:
            yield f"\na DURATION is {DURATION_FORM}\n"
        if Moment in kinds:
            yield f"\na TIME is {MOMENT_FORM}\n"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Remembers the innermost parser: an unknown option is reported as its own."""
        self._refuse_without_verb(args or ())
        self._words = list(args or ())
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown and not hasattr(parsed, "innermost"):
            parsed.innermost = self
        return parsed, unknown

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = self.parse_known_args(args, namespace)
        innermost = vars(parsed).pop("innermost", self)
        for word in unknown:
            hint = innermost.option_meant(word) if word.startswith("-") else "; no further arguments are expected"
            innermost.error(f"{word!r} is not recognized{hint}")
        return parsed

    def _refuse_without_verb(self, words: Sequence[str]) -> None:
        """If options stand where a verb belongs: names the wrong one, or lists the verbs."""
        verbs = next((action for action in self._actions if isinstance(action.choices, dict) and action.required), None)
        if verbs is None or not all(word.startswith("-") for word in words):
            return
        for word in words:
            if word.partition("=")[0] not in self._option_string_actions:
                self.error(f"{word!r} is not recognized{self.option_meant(word)}")
        if not words:
            self.error(f"name one {verbs.metavar}{instead('', map(str, verbs.choices or ()))}")

    def option_meant(self, word: str) -> str:
        options = [option.removeprefix("--") for option in self._option_string_actions if option.startswith("--")]
        option = likely(word.partition("=")[0].lstrip("-"), options)
        return "" if option is None else f"; did you mean --{option}?"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if not action.option_strings:
            self._refuse_option_before(value)
        raise argparse.ArgumentError(action, f"unknown {value!r}{instead(str(value), map(str, action.choices))}")

    def _refuse_option_before(self, value: str) -> None:
        """A word that is not a verb may be the value of an unknown option."""
        for word in self._words[: self._words.index(value)] if value in self._words else ():
            if word.startswith("--") and word.partition("=")[0] not in self._option_string_actions:
                self.error(f"{word!r} is not recognized{self.option_meant(word)}")

    def error(self, message: str) -> NoReturn:
        wrong = message.removeprefix("argument ")
        wrong = re.sub(r"^\[([A-Z]+)\]:", r"\1:", wrong)  # a word that may be left out
        self.exit(USAGE, f"{self.prog}: {wrong}\n{what_to_do(self.prog)}\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        flush()  # flush the help, which a pager may have left
        if message:
            sys.stderr.write(message)
        sys.exit(status)


def what_to_do(prog: str) -> str:
    return f"see `{prog} --help` for options and examples"


def sentence(about: str) -> str:
    """The verb's line in the list of verbs, used as the description in its own help."""
    return f"{about[0].upper()}{about[1:]}" + ("" if about.endswith("?") else ".")


def explain(parser: argparse.ArgumentParser, examples: Sequence[str], exit_codes: Mapping[int, str]) -> None:
    """The end of a verb's help."""
    meanings = {**EXIT_CODES, **exit_codes}
    lines = ["examples:", *(f"  {example}" for example in examples), "", "exit codes:"]
    parser.epilog = "\n".join([*lines, *(f"  {code}  {meanings[code]}" for code in sorted(meanings))])


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--output", choices=("text", "json"), default="text", help="format of the result on stdout")
    group.add_argument(
        "--quiet", action="store_true", help="print only errors and warnings on stderr, no progress and no remarks"
    )
    group.add_argument(
        "--config", metavar="FILE",
        help="defaults, clusters and stores (default: $XDG_CONFIG_HOME/headstone/config.toml, if it exists)",
    )  # fmt: skip
