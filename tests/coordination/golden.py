"""Golden conversations: text files to be read as stories, played again and compared line by line.

A file has comments (`#`), commands at the left margin, and under each command, indented, what came of it. After a change,
`HEADSTONE_REWRITE=1 python -m pytest tests/coordination` writes the indented lines anew, and the diff is what to review.
Knows nothing of what the commands do.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

REWRITE = "HEADSTONE_REWRITE"
INDENT = "    "
World = TypeVar("World")


class BadConversation(ValueError):
    pass


def obey(world: World, commands: Mapping[str, Callable[[World, re.Match[str]], None]], line: str) -> None:
    for pattern, command in commands.items():
        said = re.fullmatch(pattern, line)
        if said is not None:
            command(world, said)
            return
    raise BadConversation(f"not a command: {line}")


def converse(text: str, answer: Callable[[str], list[str]]) -> str:
    """The text with everything below a command as it is today."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(INDENT):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [INDENT + told for told in answer(line)]
    return "".join(f"{line}\n" for line in lines)


def compare(path: Path, told: str) -> None:
    """The story as it goes today with the file; or the file is written anew."""
    written = path.read_text(encoding="utf-8")
    if os.environ.get(REWRITE) == "1":
        path.write_text(told, encoding="utf-8")
        return
    lines = difflib.unified_diff(written.splitlines(), told.splitlines(), "written", "told", lineterm="")
    assert told == written, "\n".join(["", *lines])
