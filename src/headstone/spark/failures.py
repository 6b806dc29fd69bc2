"""What went wrong in Spark, in one line: of the JVM's stack traces only the sentence that says why.

Errors of our own tasks do not come this way: they travel as values (`stages`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from py4j.protocol import Py4JError

LOGGED = re.compile(r"^\d\d/\d\d/\d\d \d\d:\d\d:\d\d [A-Z]+ \w+: ")
REASON = re.compile(r"(?:^|\s)(?:[\w$]+\.)+[\w$]*(?:Exception|Error)(?:: |\s|$)(.*)")
SAID_MAX = 500


def reason_in(lines: Iterable[str]) -> str:
    """The innermost cause that a stack trace names; without one, all that was said but for its frames."""
    texts = [line.strip() for line in lines if line.strip() and not re.match(r"\s*(at |\.\.\. \d+ more)", line)]
    named = [line for line in texts if REASON.search(line)]
    if not named:
        return "; ".join(dict.fromkeys(LOGGED.sub("", line) for line in texts))[:SAID_MAX] or "it did not say why"
    caused = [line for line in named if line.startswith("Caused by: ")] or named[:1]
    match = REASON.search(caused[-1])
    return ((match[1] if match else "") or caused[-1])[:SAID_MAX]


def reason_of(error: Exception) -> str:
    """py4j's errors ask the JVM for their text, which may have gone."""
    try:
        text = str(error)
    except (Py4JError, OSError):
        text = "its JVM has gone"
    return reason_in(text.splitlines())
