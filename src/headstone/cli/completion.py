"""`headstone completion SHELL`: a script that lets the shell complete verbs, options and their choices.

Made from the parser itself, by shtab, so that it never knows another command line than the one that is installed.
"""

from __future__ import annotations

import argparse

import shtab

from headstone.cli.output import Output
from headstone.cli.parsing import DONE

SHELLS = ("bash", "zsh", "fish")
EXAMPLES = (
    "headstone completion bash > ~/.local/share/bash-completion/completions/headstone",
    "headstone completion zsh > ~/.zfunc/_headstone",
    "headstone completion fish > ~/.config/fish/completions/headstone.fish",
)
EXIT_CODES = {DONE: "written to stdout"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.cli.main import parser

    script = shtab.complete(parser(), shell=arguments.shell)
    output.answer(lambda: {"shell": arguments.shell, "script": script}, [script])
    return DONE
