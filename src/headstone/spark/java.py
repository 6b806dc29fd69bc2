"""The Java that local Spark runs on: found, checked, and its archive of parsed classes.

Owns where the archive is cached and when it may be trusted. Knows nothing about sessions or jobs.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headstone.errors import UsageError

MAJOR_MIN = 17
ADVICE = (
    "install Java 17 or newer (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17), or set JAVA_HOME to one"
)
ASK_SECONDS_MAX = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    path: Path
    version: str
    """With its build if the runtime reports it, such as 17.0.15+6-Debian-1deb12u1."""

    @property
    def major(self) -> int:
        """17 of "17.0.15", and 8 of "1.8.0_402", as versions were written before 9."""
        numbers = re.findall(r"\d+", self.version)
        return int(numbers[1] if numbers[0] == "1" and len(numbers) > 1 else numbers[0])


def require_java() -> Java:
    """The Java that Spark's own scripts would run, or a UsageError that says what to install."""
    path = _executable()
    java = Java(path=path, version=_released_version(path) or _asked_version(path))
    if java.major < MAJOR_MIN:
        raise UsageError(f"{java.path} is Java {java.version}, and Spark needs {MAJOR_MIN}: {ADVICE}")
    return java


def _executable() -> Path:
    home = os.environ.get("JAVA_HOME")
    if home:
        path = Path(home) / "bin" / "java"
        if not path.is_file():
            raise UsageError(f"JAVA_HOME is {home}, which has no bin/java: {ADVICE}")
        return path
    java = shutil.which("java")
    if java is None:
        raise UsageError(f"Spark needs Java, and there is none on PATH: {ADVICE}")
    return Path(java)


def _released_version(path: Path) -> str | None:
    """From the file that JDKs keep beside bin/: asking a JVM would cost a tenth of a second at every start."""
    try:
        text = (path.resolve().parent.parent / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    versions = dict(re.findall(r'^(JAVA_VERSION|JAVA_RUNTIME_VERSION)="?(\d[^"\n]*)', text, re.MULTILINE))
    return versions.get("JAVA_RUNTIME_VERSION") or versions.get("JAVA_VERSION")


def _asked_version(path: Path) -> str:
    try:
        answer = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=ASK_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{path} does not run ({error}): {ADVICE}") from error
    match = re.search(r'version "(\d[^"]*)"', answer.stderr)
    if answer.returncode != 0 or match is None:
        # macOS has a /usr/bin/java that only says that there is no Java.
        raise UsageError(f"{path} -version answered {answer.stderr.strip()!r}: {ADVICE}")
    return match[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassArchive:
    """Spark's classes as one JVM left them (JEP 350), for the next JVM to map instead of parsing.

    The JVM itself refuses an archive of other jars or another build, so a wrong one costs time, never a result.
    """

    path: Path
    draft: Path
    """Where this process's JVM writes; only a whole draft takes the name that others read."""

    def options(self, *, make: bool) -> list[str]:
        if self.path.is_file():
            return [f"-XX:SharedArchiveFile={self.path}"]
        return [f"-XX:ArchiveClassesAtExit={self.draft}"] if make and self._writable() else []

    def publish(self, *, whole: bool) -> None:
        """After the JVM has ended; `whole` is whether it ended by itself."""
        try:
            if whole and self.draft.is_file():
                os.replace(self.draft, self.path)
            else:
                self.draft.unlink(missing_ok=True)
        except OSError:
            return

    def _writable(self) -> bool:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return False
        return os.access(self.path.parent, os.W_OK)


def class_archive(java: Java, jars: Path, options: Sequence[str]) -> ClassArchive | None:
    """For this Java, these jars and these JVM options; None if there is no place to keep one."""
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        stats = [(entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in os.scandir(jars)]
    except (OSError, RuntimeError):
        return None
    key = repr((str(java.path.resolve()), java.version, str(jars), sorted(stats), list(options)))
    name = f"spark-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    folder = home / "headstone"
    if not home.is_absolute() or re.search(r"[\s'\"\\]", str(folder)):
        # Spark splits JVM options at spaces and quotes.
        return None
    return ClassArchive(path=folder / f"{name}.jsa", draft=folder / f"{name}.{os.getpid()}.draft")
