"""What a page has to paste: its blocks of code, and in a block with prompts its commands, each with what the page shows.

A block is fenced, or indented by four spaces. A line that begins with `$ ` is a command, which a backslash carries on; what
follows is its output. In the output `...` stands for anything, seconds and rates for other ones, and lines may be wrapped.
`# exit code N` behind a command says how it ends, if not with 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

FENCE = re.compile(r"^```(\w*)$")
PROMPT, GAP = "$ ", "\0"
EXIT_CODE = re.compile(r"# .*exit code (\d+)")
PROGRESS = re.compile(r"^(starting; |compiling kernels |\s*\d+ %  ).*$", re.MULTILINE)
MEASURED = ((re.compile(r"\b[\d.,]+ s\b"), "N s"), (re.compile(r"\b[\d.,]+ (bytes|kB|MB|GB)/s"), "N MB/s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """`language` is that of the fence; empty for an indented block."""

    page: str
    line: int
    language: str
    text: str

    @property
    def first(self) -> str:
        """By which a table names it."""
        return self.text.splitlines()[0].strip()

    @property
    def has_prompts(self) -> bool:
        return any(line.startswith(PROMPT) for line in self.text.splitlines())


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    text: str
    shown: str
    exit_code: int


def blocks(path: Path, name: str) -> Iterator[Block]:
    lines = path.read_text().splitlines()
    number = 0
    while number < len(lines):
        fence = FENCE.match(lines[number])
        if fence is not None:
            end = lines.index("```", number + 1)
            yield Block(page=name, line=number + 2, language=fence[1], text="\n".join(lines[number + 1 : end]))
            number = end + 1
        elif lines[number].startswith("    "):
            end = _end_of_indented(lines, number)
            text = "\n".join(line[4:] for line in lines[number:end])
            yield Block(page=name, line=number + 1, language="", text=text)
            number = end
        else:
            number += 1


def _end_of_indented(lines: Sequence[str], start: int) -> int:
    """Blank lines belong to it where it goes on behind them."""
    end = start
    for number in range(start, len(lines)):
        if lines[number].startswith("    "):
            end = number + 1
        elif lines[number]:
            break
    return end


def commands(block: Block) -> list[Command]:
    lines = block.text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(PROMPT)]
    assert starts[:1] == [0], f"{block.page}:{block.line}: a block with prompts begins with one"
    found = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        last = next(number for number in range(start, end) if not lines[number].endswith("\\"))
        text = "\n".join([lines[start].removeprefix(PROMPT), *lines[start + 1 : last + 1]])
        code = EXIT_CODE.search(text)
        shown = "\n".join(lines[last + 1 : end]).strip()
        found.append(Command(text=text, shown=shown, exit_code=int(code[1]) if code else 0))
    return found


def differs(shown: str, printed: str) -> str | None:
    """None if the command printed what the page shows; else both, as they were compared."""
    wanted, printed = _comparable(shown.replace("...", GAP)), _comparable(PROGRESS.sub("", printed))
    pattern = ".*".join(re.escape(part.strip()) for part in wanted.split(GAP))
    if re.fullmatch(pattern, printed, re.DOTALL):
        return None
    same = sum(1 for _ in _common(wanted, printed))
    return f"the page shows\n  {shown}\nbut it printed\n  {printed}\n(the same up to: ...{wanted[max(0, same - 60) : same]})"


def _common(one: str, two: str) -> Iterator[str]:
    for equal, pairs in groupby(zip(one, two, strict=False), key=lambda pair: pair[0] == pair[1]):
        if not equal:
            return
        yield from (pair[0] for pair in pairs)


def _comparable(text: str) -> str:
    for measured, instead in MEASURED:
        text = measured.sub(instead, text)
    return " ".join(text.split())
