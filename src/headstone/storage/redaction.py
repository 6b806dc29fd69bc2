"""What may be shown of URLs and errors: a password is never part of it.

The one place that decides so; it knows the shapes of secrets, not what they open.
"""

from __future__ import annotations

import re

_USER_INFO = re.compile(r"(^|://)([^:/?#\s]*):(?!//)\S*@")
_SECRET = re.compile(r"((?:password|passwd|secret|token|key)[^=&\s]*=)[^&\s]+", re.IGNORECASE)


def address(url: str) -> str:
    """A URL as it may be shown: without what is secret in it, whether it can be parsed or not."""
    return _SECRET.sub(r"\1***", _USER_INFO.sub(r"\1\2:***@", url))


def first_line(error: BaseException | None) -> str:
    """What went wrong, without advice and backtraces."""
    lines = str(error).strip().splitlines()
    return address(lines[0]) if lines else type(error).__name__
