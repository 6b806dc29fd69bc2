"""Bytes of keys, values and headers as they are shown: as text where they are text.

The one place that decides so, for documents, lines and pages.
"""

from __future__ import annotations


def shown_bytes(content: bytes | None) -> str | dict[str, str] | None:
    """As text when it is UTF-8, else as {"hex": ...}."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"hex": content.hex()}
