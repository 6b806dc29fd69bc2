"""What the pages promise of themselves: README is one screen a reader can act on, and every link leads somewhere."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from headstone.retention.settings import BY_NAME

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINES_MAX = 150
LINK = re.compile(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)")


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    links = [((page.parent / path) if path else page, anchor) for path, anchor in LINK.findall(page.read_text())]
    broken = [(target, anchor) for target, anchor in links if not target.exists()]
    broken += [
        (target, anchor) for target, anchor in links if anchor and target.exists() and anchor not in anchors(target)
    ]
    assert broken == []


def test_the_readme_fits_its_length() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= LINES_MAX


def test_the_map_names_every_page() -> None:
    linked = {path for path, _ in LINK.findall((ROOT / "docs" / "README.md").read_text())}
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages - linked == {"README.md"}


ARCHITECTURE = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
PACKAGE = ROOT / "src" / "headstone"
FILES = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}
ROOMS = "|".join(sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()))
STEP = re.compile(rf"`((?:{ROOMS})/[\w/]+\.py)`")
NAMED_FILE = re.compile(r"[\w/]+\.py\b")


def test_the_list_of_rooms_has_each_once() -> None:
    (rooms,) = re.findall(r"^    src/headstone/\n((?:      .*\n)+)", ARCHITECTURE, re.MULTILINE)
    listed = re.findall(r"^ {6}(\w+/|\w+\.py) ", rooms, re.MULTILINE)
    there = [f"{room}/" for room in ROOMS.split("|")] + [path for path in FILES if "/" not in path]
    assert sorted(listed) == sorted(there)


def test_every_file_that_the_architecture_names_is_there() -> None:
    named = set(STEP.findall(ARCHITECTURE))
    assert len(named) > 50
    assert sorted(named - FILES) == []
    beside = {path.name for folder in ("testbed", "tests") for path in (ROOT / folder).rglob("*.py")}
    bare = {name for name in NAMED_FILE.findall(ARCHITECTURE) if "/" not in name}
    assert sorted(bare - {Path(path).name for path in FILES} - beside) == []


MAPS = {
    "sim": "## The simulated cluster\n", "cluster": "## A running cluster\n", "guard": "\n**The guard** ",
    "agent": "\n**Agents** ", "lake": "## The lake\n",
}  # fmt: skip
WHOLE_MAPS = ("guard", "lake", "agent", "cluster")


def on_the_map(room: str) -> set[str]:
    """Files that the room's map names. A row that begins with a folder is about its files, and so are those below it that begin
    further right; a file with a path is told from the top."""
    section = ARCHITECTURE[ARCHITECTURE.index(MAPS[room]) :]
    block = re.findall(r"^\n((?: {4}.*\n)+)", section, re.MULTILINE)[0]
    named, folder = set(), room
    for row in block.splitlines():
        if not row.startswith(" " * 5):
            first = row.split()[0]
            folder = f"{room}/{first.strip('/').removeprefix(f'{room}/')}" if first.endswith("/") else room
        named |= {name if "/" in name else f"{folder}/{name}" for name in NAMED_FILE.findall(row)}
    return named


@pytest.mark.parametrize("room", MAPS)
def test_what_a_map_names_lies_where_it_says(room: str) -> None:
    assert sorted(on_the_map(room) - FILES) == []


@pytest.mark.parametrize("room", WHOLE_MAPS)
def test_a_map_has_every_file_of_its_room(room: str) -> None:
    there = {path for path in FILES if path.startswith(f"{room}/") and not path.endswith("__init__.py")}
    assert sorted(there - on_the_map(room)) == []


@pytest.mark.parametrize("room", ["pipeline", "coordination"])
def test_a_room_without_a_map_has_every_file_told(room: str) -> None:
    named = {Path(name).name for name in NAMED_FILE.findall(ARCHITECTURE)}
    there = {path.name for path in (PACKAGE / room).glob("*.py")} - {"__init__.py"}
    assert sorted(there - named) == []


REFERENCE = re.compile(r"`([a-z_]+)\.([a-zA-Z_]+)`")
SUFFIXES = ("py", "case")


def test_every_name_of_a_module_that_the_architecture_tells_is_there() -> None:
    references = {
        (module, name)
        for module, name in REFERENCE.findall(ARCHITECTURE)
        if name not in SUFFIXES and f"{module}.{name}" not in BY_NAME
    }
    assert len(references) > 10
    assert sorted(f"{module}.{name}" for module, name in references if name not in names_in(module)) == []


def names_in(module: str) -> set[str]:
    """What modules of this name define at their top; of a package, its modules."""
    names = {path.stem for path in (ROOT / module).glob("*.py")}
    for path in (path for path in FILES if Path(path).stem == module):
        for node in ast.parse((PACKAGE / path).read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
    return names


WALK = re.compile(r"^## Walk \w+: `([^`]*)`\n(.*?)(?=^## )", re.MULTILINE | re.DOTALL)
CHAIN = re.compile(rf"{STEP.pattern}(?:\s*→\s*{STEP.pattern})+")


def test_every_arrow_of_a_walk_is_an_import() -> None:
    walks = dict(WALK.findall(ARCHITECTURE))
    assert list(walks) == ["compact", "inspect", "audit --bootstrap", "lake compact", "guard"]
    for heading, walk in walks.items():
        chains = [STEP.findall(chain[0]) for chain in CHAIN.finditer(walk)]
        arrows = [arrow for chain in chains for arrow in pairwise(chain)]
        assert len(arrows) == walk.count("→") > 2, f"{heading}: an arrow has no file before or behind it"
        assert [f"{a} → {b}" for a, b in arrows if b not in imported_by(a)] == [], heading


def imported_by(path: str) -> set[str]:
    """Files of the package that it imports when it runs, at its top or when they are used."""
    pending: list[ast.AST] = [ast.parse((PACKAGE / path).read_text())]
    names: set[str] = set()
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        pending += ast.iter_child_nodes(node)
    return {f"{name.removeprefix('headstone.').replace('.', '/')}.py" for name in names if "headstone." in name}
