"""Every verb and flag is explained: what it does, its default, examples, exit codes; a mistake is told in two lines."""

from __future__ import annotations

import argparse
import re
import shlex

import pytest

from headstone.cli.main import main, parser
from tests.cli.parsers import EVERY, VERBS


def shown(action: argparse.Action, verb: argparse.ArgumentParser) -> str:
    """Its help as a user reads it."""
    formatter = verb._get_formatter()
    return formatter._expand_help(action) if action.help else ""


@pytest.mark.parametrize("prog", VERBS)
def test_every_flag_has_help_with_its_default(prog: str) -> None:
    verb = VERBS[prog]
    chosen_from = [
        action for group in verb._mutually_exclusive_groups if group.required for action in group._group_actions
    ]
    untold = []
    for action in verb._actions:
        if action.help == argparse.SUPPRESS:
            continue
        text = shown(action, verb)
        takes_value = bool(action.option_strings) and action.nargs != 0 and not action.required
        tells = "default" in text or "may be repeated" in text or action in chosen_from
        if not text or (takes_value and not tells):
            untold.append(action.option_strings or action.dest)
    assert untold == []


@pytest.mark.parametrize("verb", EVERY, ids=lambda verb: verb.prog)
def test_every_verb_ends_with_examples_that_parse_and_its_exit_codes(verb: argparse.ArgumentParser) -> None:
    assert verb.epilog is not None
    examples, codes = verb.epilog.split("\n\nexit codes:\n")
    lines = examples.splitlines()
    assert lines[0] == "examples:"
    for line in lines[1:]:
        words = shlex.split(line.partition(" > ")[0])
        assert " ".join(words).startswith(verb.prog)
        parser().parse_args(words[1:])
    assert [int(line.split()[0]) for line in codes.splitlines()] in ([0, 2, 3], [0, 1, 2, 3])


@pytest.mark.parametrize("prog", VERBS)
def test_a_description_is_one_sentence(prog: str) -> None:
    assert re.fullmatch(r".*[^.?][.?]", VERBS[prog].description or "", re.DOTALL)


def test_who_does_what_is_right_before_it_ends_with_2_says_so() -> None:
    (said,) = [line for line in (VERBS["headstone lake ingest"].epilog or "").splitlines() if line.startswith("  2  ")]
    assert "others were ingested" in said
    assert "nothing was changed" not in said


@pytest.mark.parametrize(
    ("text", "moment_ms"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20.123", 1_700_000_000_123),
        ("2023-11-15T00:13:20+02:00", 1_700_000_000_000),
        ("1970-01-01", 0),
    ],
)
@pytest.mark.parametrize(
    ("words", "option", "dest"),
    [
        (["compact", "logs"], "--now-ms", "now_ms"),
        (["inspect", "logs"], "--now-ms", "now_ms"),
        (["audit", "a", "b"], "--now-ms", "now_ms"),
        (["synth", "logs"], "--start-ms", "start_ms"),
        (["lake", "read", "lake", "orders"], "--as-of", "as_of_ms"),
        (["lake", "status", "lake"], "--now-ms", "now_ms"),
    ],
)
def test_a_moment_is_milliseconds_or_a_time(
    words: list[str], option: str, dest: str, text: str, moment_ms: int
) -> None:
    assert getattr(parser().parse_args([*words, option, text]), dest) == moment_ms


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_verbs_actions_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("compact", "prove-erased", "tombstones-below", "coordinated"):
        assert word in script
    assert "--split" not in script, "hidden from the help, too"
