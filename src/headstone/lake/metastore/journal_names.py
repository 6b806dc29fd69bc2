"""Names of the journal's objects in the store: entries, bases and their parts, and what tells which entry is the newest.

By the name alone: other files may lie beside these, and one may have such a name and not be the lake's. What is in them is
`journal`'s.
"""

from __future__ import annotations

import re

FOLDER = "journal"
BASES = "journal-base"
BASE_PARTS = "journal-base-parts"
"""A base is the list of its parts, which are all there before it is."""
ENDS = "journal-end"
"""Which number is the newest, so that a last entry that is lost is missed."""
OWN_NAME = re.compile(rf"(?:{FOLDER}|{BASES}|{ENDS})/[0-9]{{20}}|{BASE_PARTS}/[0-9]{{20}}-[0-9a-f]{{8}}/[0-9]{{8}}")
"""Exactly as it is written: other files may lie there, too, and a date is no number of an entry."""


def object_of(number: int) -> str:
    return f"{FOLDER}/{number:020d}"


def base_of(number: int) -> str:
    return f"{BASES}/{number:020d}"


def numbered(path: str) -> int:
    """The number that an object of the journal, or a base, has by its name."""
    return int(path.rpartition("/")[2])


def end_of(number: int) -> str:
    return f"{ENDS}/{number:020d}"


def is_journal_path(path: str) -> bool:
    """By its name alone."""
    return OWN_NAME.fullmatch(path) is not None
