"""Secrets by reference: `env:NAME` and `file:PATH` stand for the content there. The only place that reads a secret.

A file that everybody may read is not secret, and is refused. What was read once is never shown (`redaction`).
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from headstone.errors import UsageError
from headstone.storage.redaction import hide

NAMES = re.compile(r"password|passwd|secret|token(?!\.endpoint\.url$)|jaas|\.pem$|account_key|sas_key", re.IGNORECASE)
"""Settings with secret values: of librdkafka, of Java's clients and of object stores."""


def is_reference(text: str) -> bool:
    kind, colon, where = text.partition(":")
    return bool(colon) and kind in ("env", "file") and not where.startswith("//")


def resolved(text: str) -> str:
    """The content of a reference; any other text is returned as it is."""
    if not is_reference(text):
        return text
    kind, _, where = text.partition(":")
    if kind == "file":
        return hide(_content(where))
    if where not in os.environ:
        raise UsageError(f"the environment has no {where}")
    return hide(os.environ[where])


def resolved_setting(name: str, text: str) -> str:
    """As `resolved`, for a setting. Its name shows whether it is a secret, however it was given."""
    value = resolved(text)
    return hide(value) if NAMES.search(name) else value


def _content(where: str) -> str:
    path = Path(where).expanduser()
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        content = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror or error}") from error
    if mode & stat.S_IROTH:
        raise UsageError(f"{where} can be read by everybody (mode {mode:o}): let only its owner read it, chmod 600")
    return content
