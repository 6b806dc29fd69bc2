"""Keys as people give them: as hexadecimal bytes, or a file with one per line; the reverse of `shown.py`.

An error names the option and the line of what is not a key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from headstone.errors import UsageError


def keys_in(option: str, path: Path) -> Iterator[bytes]:
    """One per line, as text or, where other verbs show bytes that are not text, as {"hex": "..."}."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option} {path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        where = f"{option} {path}, line {number}:"
        if line.startswith('{"hex"'):
            yield key_of_hex(where, str(_hex_in(where, line)))
        elif line:
            yield line.encode()


def _hex_in(where: str, line: str) -> object:
    try:
        return json.loads(line)["hex"]
    except (ValueError, KeyError) as error:
        raise UsageError(f'{where} expected {{"hex": "..."}}') from error


def key_of_hex(where: str, text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise UsageError(f"{where} {text}: not hexadecimal") from error
