"""The lists of code mutants, `campaigns/mutants/<room>.toml`: reads them, and reports wrong entries.

An entry is wrong code that would lose, revive or misjudge data, and the tests that must notice. Applies and runs nothing.
"""

from __future__ import annotations

import ast
import functools
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

LISTS = Path("campaigns") / "mutants"
PACKAGE = "src/headstone"
FIELDS = {"name": str, "file": str, "old": str, "new": str, "tests": list}
"""Required in every entry; `lives` is optional."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """`old`, found exactly once in `file`, becomes `new`. `lives` is the reason why no test can notice."""

    room: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    lives: str | None = None

    def applied(self, text: str) -> str:
        return text.replace(self.old, self.new, 1)


def read_lists(root: Path) -> tuple[list[Mutant], list[str]]:
    """Every mutant below `root`, by room, and what is wrong with the lists: entries that lack a field are left out."""
    mutants, problems = [], []
    for path in sorted((root / LISTS).glob("*.toml")):
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        for entry in document.get("mutant", []):
            kinds = {**FIELDS, "lives": str}
            wrong = [name for name, kind in FIELDS.items() if not isinstance(entry.get(name), kind)]
            wrong += [name for name, value in entry.items() if not isinstance(value, kinds.get(name, ()))]
            if wrong:
                problems.append(f"{path.name}: {entry.get('name', '?')}: fields {', '.join(sorted(set(wrong)))}")
                continue
            mutants.append(Mutant(room=path.stem, **{**entry, "tests": tuple(entry["tests"])}))
    names = [mutant.name for mutant in mutants]
    problems += [f"{name}: two mutants of this name" for name in sorted({n for n in names if names.count(n) > 1})]
    return mutants, problems


def misfits(root: Path, mutants: Sequence[Mutant]) -> list[str]:
    """Mutants that do not fit the tree: the file, what they replace, or their tests."""
    return [
        f"{mutant.room}.toml: {mutant.name}: {problem}" for mutant in mutants for problem in _problems(root, mutant)
    ]


def _problems(root: Path, mutant: Mutant) -> Iterator[str]:
    yield from _problems_of_change(root, mutant)
    yield from _problems_of_tests(root, mutant)
    if mutant.lives is not None and not mutant.lives.strip():
        yield "lives without a reason"


def _problems_of_change(root: Path, mutant: Mutant) -> Iterator[str]:
    if not mutant.file.startswith(f"{PACKAGE}/{mutant.room}/"):
        yield f"{mutant.file} is not in the room {mutant.room}"
    path = root / mutant.file
    if not path.is_file():
        yield f"there is no {mutant.file}"
        return
    text = path.read_text(encoding="utf-8")
    count = text.count(mutant.old) if mutant.old else 0
    if count != 1:
        yield f"`old` occurs {count} times in {mutant.file}, not once"
        return
    try:
        changed = ast.parse(mutant.applied(text))
    except SyntaxError as error:
        yield f"`new` does not parse: {error.msg}, line {error.lineno} of {mutant.file}"
        return
    if ast.dump(changed) == _dumped(text):
        yield "`new` changes nothing"


def _problems_of_tests(root: Path, mutant: Mutant) -> Iterator[str]:
    nodes = node_ids(mutant.tests)
    if not nodes:
        yield "names no tests"
    for node in nodes:
        file, *names = node.split("::")
        path = root / file
        if not path.exists():
            yield f"there is no {file}"
        elif names and (name := names[-1].split("[", 1)[0]) not in _functions(path):
            yield f"there is no {name} in {file}"


def node_ids(tests: tuple[str, ...]) -> list[str]:
    """The arguments that are paths or tests, without `-k` and what follows it."""
    return [
        argument
        for before, argument in zip(("", *tests), tests, strict=False)
        if not argument.startswith("-") and before not in ("-k", "-m")
    ]


@functools.cache
def _dumped(text: str) -> str:
    return ast.dump(ast.parse(text))


@functools.cache
def _functions(path: Path) -> frozenset[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef))
