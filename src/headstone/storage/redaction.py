"""What may be shown of URLs and errors: never a password.

The only place that decides this. It knows the shapes of secrets, and the secrets read in this process, not what they open.
"""

from __future__ import annotations

import re

_USER_INFO = re.compile(r"(^|://)([^:/?#\s]*):(?!//)(\S*)@")
_SECRET = re.compile(r"((?:password|passwd|secret|token|key)[^=&\s]*=)[^&\s]+", re.IGNORECASE)

HIDDEN = "***"
SHORT = 4
"""Shorter ones occur in ordinary words."""
_secrets: set[str] = set()


def hide(secret: str) -> str:
    """This process no longer shows it from now on; returns it."""
    if len(secret) >= SHORT:
        _secrets.add(secret)
    return secret


def password_of(url: str) -> str | None:
    """From USER:PASSWORD@ in a URL."""
    match = _USER_INFO.search(url)
    return None if match is None else match.group(3) or None


def without_secrets(text: str) -> str:
    """For texts by others, such as a traceback."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _USER_INFO.sub(r"\1\2:***@", text)


def address(url: str) -> str:
    """A URL as it may be shown: without its secrets, whether it can be parsed or not."""
    return _SECRET.sub(r"\1***", _USER_INFO.sub(r"\1\2:***@", url))


def first_line(error: BaseException | None) -> str:
    """What went wrong, without advice and backtraces."""
    lines = str(error).strip().splitlines()
    return address(lines[0]) if lines else type(error).__name__
