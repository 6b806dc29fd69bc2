"""How foreign content is shown: keys, values and headers as text where they are text; names without control codes.

The one place that decides this, for documents, lines and pages.
"""

from __future__ import annotations


def shown_bytes(content: bytes | None) -> str | dict[str, str] | None:
    """As text if it is UTF-8, else as {"hex": ...}."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"hex": content.hex()}


def visible(text: str) -> str:
    """One line that moves no cursor, rings no bell and changes no direction: unprintable characters become escapes."""
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
