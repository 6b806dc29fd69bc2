"""Runs the commands of a page as a newcomer who pastes them, and compares what they print with what the page shows.

Pages name servers that nobody has: `ADDRESSES` are replaced by those of the tests, and buckets of the same name are there.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

from headstone.brokers.processes import wait_until
from headstone.cli.main import main
from tests.docs.blocks import Block, Command, commands, differs

ROOT = Path(__file__).resolve().parent.parent.parent
BROKERS, POSTGRESQL = "kafka-1:9092", "postgresql://lake@db/lake"
ADDRESSES = (BROKERS, POSTGRESQL)
"""As pages name them: docs/README.md tells readers to put their own in their place."""
SECONDS_MAX = 600
INTERRUPTED = re.compile(r"# .*until .*Ctrl-C")
IN_PROCESS = '[defaults]\nengine = "process"\n'
"""What Spark does is what this process does (tests/spark/test_compaction.py), and takes ten seconds less to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """In an empty directory, with the addresses of real servers and what reaches them in the environment."""

    directory: Path
    addresses: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def paste(self, block: Block, *, in_process: bool) -> list[str]:
        """What is not as the page says, each with its place."""
        wrong = []
        for command in commands(block):
            text = self._with_addresses(command.text)
            code, printed = self._in_process(text) if in_process else self._in_shell(text)
            wrong += [
                f"{block.page}:{block.line}: $ {text}\n{why}" for why in _wrong(command, code, self._as_shown(printed))
            ]
        return wrong

    def run_program(self, program: str, interpreter: str = sys.executable) -> tuple[int, str]:
        """Python, by the interpreter that has headstone, in a shell that does not know it."""
        return self._ended([interpreter, "-"], self._with_addresses(program))

    def _with_addresses(self, text: str) -> str:
        for shown, real in self.addresses.items():
            text = text.replace(shown, real)
        return text

    def _as_shown(self, printed: str) -> str:
        for shown, real in self.addresses.items():
            printed = printed.replace(real, shown)
        return printed.replace(str(self.directory), "").replace(str(ROOT), "")

    def _in_process(self, text: str) -> tuple[int, str]:
        """headstone itself without a new process; whatever else is in the block by the shell."""
        words = shlex.split(text.replace("\\\n", " "), comments=True)
        if words[0] != "headstone" or {"|", ">", "&&"} & set(words):
            return self._in_shell(text)
        printed = io.StringIO()
        with redirect_stdout(printed), redirect_stderr(printed):
            try:
                code = main(words[1:])
            except SystemExit as ended:
                code = int(ended.code or 0)
        return code, printed.getvalue()

    def _until_interrupted(self, text: str) -> tuple[int, str]:
        """Ctrl-C comes when it has said something."""
        said = self.directory.parent / "said.txt"
        with said.open("w") as file:
            process = subprocess.Popen(
                shlex.split(text, comments=True), cwd=self.directory, env=dict(self.environment), stdout=file, stderr=file
            )  # fmt: skip
            try:
                wait_until(
                    lambda: bool(said.read_text().strip()) or process.poll() is not None, f"{text} says something",
                    seconds_max=SECONDS_MAX,
                )  # fmt: skip
                process.send_signal(signal.SIGINT)
                return process.wait(SECONDS_MAX), said.read_text()
            finally:
                process.kill()

    def _in_shell(self, text: str) -> tuple[int, str]:
        if INTERRUPTED.search(text):
            return self._until_interrupted(text)
        return self._ended(["bash", "-c", text], "")

    def _ended(self, command: list[str], given: str) -> tuple[int, str]:
        done = subprocess.run(
            command, cwd=self.directory, env=dict(self.environment), input=given, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout


def _wrong(command: Command, code: int, printed: str) -> list[str]:
    if code != command.exit_code:
        return [f"exit code {code}, not {command.exit_code}:\n{printed}"]
    difference = differs(command.shown, printed) if command.shown else None
    return [] if difference is None else [difference]


def fresh_environment(home: Path) -> dict[str, str]:
    """Of a shell that knows `headstone` and Java, and nothing of a virtual environment or of Spark."""
    commands_dir = home / "bin"
    commands_dir.mkdir(parents=True)
    (commands_dir / "headstone").symlink_to(Path(sys.executable).parent / "headstone")
    virtual = {str(Path(sys.executable).parent), os.environ.get("VIRTUAL_ENV", "-") + "/bin"}
    usual = [folder for folder in os.environ["PATH"].split(os.pathsep) if folder not in virtual]
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "TMPDIR", "NUMBA_CACHE_DIR") if name in os.environ}
    return {"HOME": str(home), "PATH": os.pathsep.join([str(commands_dir), *usual]), "LANG": "C.UTF-8", **kept}
