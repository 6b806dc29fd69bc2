"""What the pages promise of themselves: README is one screen a reader can act on, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
