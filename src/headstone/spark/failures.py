"""What went wrong in Spark, in one line: from a JVM's or Python's stack traces only the sentence that says why; and what to do.

Errors of our own tasks do not come this way: they travel as values (`stages`). If the same command would fail the same way
again, the advice is not to repeat it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from py4j.protocol import Py4JError
from pyspark.errors import PythonException

from headstone.errors import Unfinished
from headstone.spark.jvm_output import LOGGED

REASON = re.compile(r"(?:^|\s)(?:[\w$]+\.)+[\w$]*(?:Exception|Error)(?:: |\s|$)(.*)")
SAID_MAX = 500
AGAIN = "run the same command again"
NO_WORKER = re.compile(r"Error from python worker:\s*\n(.*?)\n\s*(?:PYTHONPATH was:|org\.apache\.|at )", re.DOTALL)
"""The executor's Python has ended before it could work."""
RAISED = re.compile(r"(?:\w+\.)*(\w*(?:Error|Exception)\b.*)")
"""The last line of a Python stack trace, without the packages of its error."""
NO_PYTHON = re.compile(r'Cannot run program "[^"]*".*')
WRONG_PYTHON = re.compile(
    r"ModuleNotFoundError|ImportError|PYTHON_VERSION_MISMATCH|No module named|Can't get attribute|unsupported pickle protocol|"
    r"Cannot run program"
)
PYTHON_ADVICE = (
    "executors need the driver's version of Python, with headstone installed: name it by the variable PYSPARK_PYTHON, or by "
    "the Spark setting spark.pyspark.python, before the session starts (docs/compact.md)"
)
LASTING = (
    (r"OutOfMemoryError|Java heap space", "give the driver more memory: --spark-conf spark.driver.memory=4g"),
    (r"spark\.driver\.maxResultSize", "raise it: --spark-conf spark.driver.maxResultSize=4g"),
    (
        r"ClassNotFoundException|NoClassDefFoundError|NoSuchMethodError|InvalidClassException",
        "driver and executors need the same version of Spark, and its jars",
    ),
    (r"No space left on device", "make room on the machine that says so (spark.local.dir), and run again"),
    (
        r"SaslAuthenticationException|AuthorizationException|SslAuthenticationException",
        "the cluster refuses it: mend the login or its ACLs",
    ),
    (r"AccessControlException|Permission denied", "let the user that Spark runs as do that"),
)
"""Errors that the same command would meet again, and what helps."""


def reason_in(lines: Iterable[str]) -> str:
    """The innermost cause that a stack trace names; without one, the whole text except its frames."""
    texts = [line.strip() for line in lines if line.strip() and not re.match(r"\s*(at |\.\.\. \d+ more)", line)]
    named = [line for line in texts if REASON.search(line)]
    if not named:
        return "; ".join(dict.fromkeys(LOGGED.sub("", line) for line in texts))[:SAID_MAX] or "it did not say why"
    caused = [line for line in named if line.startswith("Caused by: ")] or named[:1]
    match = REASON.search(caused[-1])
    return ((match[1] if match else "") or caused[-1])[:SAID_MAX]


def reason_of(error: Exception) -> str:
    return reason_in(text_of(error).splitlines())


def failure(error: Exception) -> Unfinished | None:
    """What to raise; None for an error in our own code, where the developer needs the full trace."""
    text = text_of(error)
    python = _python_reason(text)
    if python is not None and WRONG_PYTHON.search(python):
        return Unfinished(f"Spark's executors cannot run headstone: {python}; {PYTHON_ADVICE}")
    if isinstance(error, PythonException):
        return None
    return Unfinished(f"Spark did not finish, {_advice(text)}: {python or reason_in(text.splitlines())}")


def _python_reason(text: str) -> str | None:
    """The last message of the executor's Python; None if that is not what failed."""
    ended, missing = NO_WORKER.search(text), NO_PYTHON.search(text)
    if ended is not None:
        return " ".join(ended[1].strip().splitlines()[-1].split())[:SAID_MAX]
    if missing is not None:
        return missing[0].strip()[:SAID_MAX]
    _, trace, rest = text.partition("Traceback (most recent call last):")
    raised = [match[1] for line in rest.splitlines() if trace and (match := RAISED.match(line))]
    return raised[-1].strip()[:SAID_MAX] if raised else None


def _advice(text: str) -> str:
    return next((advice for pattern, advice in LASTING if re.search(pattern, text)), AGAIN)


def text_of(error: Exception) -> str:
    """py4j's errors ask the JVM for their text, but it may have gone."""
    try:
        return str(error)
    except (Py4JError, OSError):
        return "its JVM has gone"
