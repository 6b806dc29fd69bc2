"""Names of the journal's objects in the store: entries, bases and their parts, and the ends, which name the newest entry.

Judges by the name alone: other files may lie beside these, and some may have such a name without being the lake's. Their
content is `journal`'s.
"""

from __future__ import annotations

import re

FOLDER = "journal"
BASES = "journal-base"
BASE_PARTS = "journal-base-parts"
"""A base is the list of its parts, which are all written before it."""
ENDS = "journal-end"
"""Tells the newest number, so that the loss of the last entry is noticed."""
OWN_NAME = re.compile(rf"(?:{FOLDER}|{BASES}|{ENDS})/[0-9]{{20}}|{BASE_PARTS}/[0-9]{{20}}-[0-9a-f]{{8}}/[0-9]{{8}}")
"""Exactly as written: other files may lie there too, and a date is not the number of an entry."""


def object_of(number: int) -> str:
    return f"{FOLDER}/{number:020d}"


def base_of(number: int) -> str:
    return f"{BASES}/{number:020d}"


def numbered(path: str) -> int:
    """The number in the name of an entry, a base or an end."""
    return int(path.rpartition("/")[2])


def end_of(number: int) -> str:
    return f"{ENDS}/{number:020d}"


def is_journal_path(path: str) -> bool:
    """By its name alone."""
    return OWN_NAME.fullmatch(path) is not None
