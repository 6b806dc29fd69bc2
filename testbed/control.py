"""A cluster that keeps running, and the commands it takes: at its own prompt, or by `python -m testbed stop 2` elsewhere.

Nothing else ends when a broker ends, however it ends: it is named, and it can be started again.
"""

from __future__ import annotations

import hashlib
import os
import selectors
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from headstone.brokers.processes import Cluster
from headstone.errors import HeadstoneError, UsageError
from testbed.maven import cache_folder

HELP = "stop N, kill N (as kill -9), start N, start (all that do not run), status, quit"
LOOK_SECONDS = 0.5
ANSWER_SECONDS_MAX = 300.0
ASKED_SECONDS_MAX = 5.0
"""A client sends its command as soon as it has connected."""
DOWN = "quit"


def running_file() -> Path:
    """Names the directory of the cluster that was started last."""
    return cache_folder() / "running"


def socket_of(root: Path) -> Path:
    """Short, wherever the cluster's directory is: the system allows a hundred bytes."""
    name = hashlib.sha256(str(root).encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"headstone-testbed-{os.getuid()}-{name}"


def ask(line: str, directory: str | None) -> str:
    """Returns the running cluster's answer."""
    file = running_file()
    if directory is None and not file.exists():
        raise UsageError("no cluster runs: start one with `make kafka`, or `python -m testbed up`")
    root = Path(directory).absolute() if directory else Path(file.read_text())
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS_MAX)
        try:
            connection.connect(str(socket_of(root)))
        except OSError as error:
            raise UsageError(f"no cluster runs in {root}: start it with `python -m testbed up --dir {root}`") from error
        connection.sendall(f"{line}\n".encode())
        return connection.makefile().read()


class Kept:
    """One cluster until it is told to quit; a context manager that removes its socket."""

    def __init__(self, cluster: Cluster, root: Path, *, commands: TextIO, tell: Callable[[str], None]) -> None:
        self._cluster, self._commands, self._tell = cluster, commands, tell
        self._begun = ""
        self._path = socket_of(root)
        self._runs = dict.fromkeys(cluster.brokers, True)
        self._selector = selectors.SelectSelector()
        self._server = socket.socket(socket.AF_UNIX)
        self._path.unlink(missing_ok=True)
        self._server.bind(str(self._path))
        self._server.listen()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(commands, selectors.EVENT_READ)

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *error: object) -> None:
        self._selector.close()
        self._server.close()
        self._path.unlink(missing_ok=True)

    def stay(self) -> None:
        while True:
            for key, _ in self._selector.select(LOOK_SECONDS):
                going_on = self._asked() if key.fileobj is self._server else self._typed()
                if not going_on:
                    return
            self._note_ended()

    def _typed(self) -> bool:
        data = os.read(self._commands.fileno(), 1 << 12)
        if not data:
            # There is no prompt: it was started without a terminal.
            self._selector.unregister(self._commands)
            return True
        *lines, self._begun = (self._begun + data.decode(errors="replace")).split("\n")
        for line in filter(str.strip, lines):
            self._tell(self.obey(line))
        return DOWN not in map(str.strip, lines)

    def _asked(self) -> bool:
        connection, _ = self._server.accept()
        with connection:
            line = _line_from(connection)
            if line is None:
                return True
            answer = self.obey(line)
            self._tell(f"({line}) {answer}")
            with suppress(OSError):  # the client is gone; the command is carried out all the same
                connection.sendall(f"{answer}\n".encode())
        return line != DOWN

    def obey(self, line: str) -> str:
        verb, *rest = line.split() or [""]
        try:
            numbers = [self._number(word) for word in rest]
            match verb, numbers:
                case "stop", [number]:
                    return self._stop(number)
                case "kill", [number]:
                    return self._kill(number)
                case "start", [number]:
                    return self._start(number)
                case "start", []:
                    self._cluster.start()
                    self._runs = dict.fromkeys(self._runs, True)
                    return "all brokers run"
                case "status", []:
                    return self._status()
                case "bootstrap", []:
                    return self._cluster.bootstrap
                case "quit", []:
                    return "ends"
        except HeadstoneError as error:
            return f"not done: {error}"
        return f"not understood: {line.strip()}; {HELP}"

    def _number(self, word: str) -> int:
        if not word.isdigit() or int(word) not in self._cluster.brokers:
            raise UsageError(f"no broker {word}; there are {', '.join(map(str, self._cluster.brokers))}")
        return int(word)

    def _stop(self, number: int) -> str:
        if not self._cluster.brokers[number].running:
            return f"broker {number} does not run"
        self._runs[number] = False
        self._cluster.stop_broker(number)
        return f"broker {number} is stopped; `start {number}` starts it again"

    def _kill(self, number: int) -> str:
        self._runs[number] = False
        self._cluster.brokers[number].kill()
        return f"broker {number} is killed; `start {number}` starts it again"

    def _start(self, number: int) -> str:
        if self._cluster.brokers[number].running:
            return f"broker {number} runs already"
        self._cluster.start_broker(number)
        self._runs[number] = True
        return f"broker {number} runs, and the others know it"

    def _status(self) -> str:
        return "\n".join(
            f"broker {number}: 127.0.0.1:{self._cluster.ports[number]}, "
            + (f"process {broker.process_id}" if broker.running else "does not run")
            for number, broker in self._cluster.brokers.items()
        )

    def _note_ended(self) -> None:
        for number, broker in self._cluster.brokers.items():
            if self._runs[number] and not broker.running:
                self._runs[number] = False
                broker.kill()  # it is dead; this closes what was open for it
                self._tell(
                    f"broker {number} ended; the others run on. `start {number}` here, or `python -m testbed start {number}` "
                    f"in another terminal, starts it again; its log: {broker.output}"
                )


def _line_from(connection: socket.socket) -> str | None:
    """None if the client is gone, or sends nothing more."""
    connection.settimeout(ASKED_SECONDS_MAX)
    try:
        with connection.makefile("rb") as stream:
            line = stream.readline().decode(errors="replace")
    except OSError:
        return None
    return line.strip() if line.endswith("\n") else None


def keep(cluster: Cluster, root: Path) -> None:
    """Until Ctrl-C, SIGTERM or `quit`. A cluster without a majority cannot be stopped cleanly: it is killed."""
    try:
        with Kept(
            cluster, root, commands=sys.stdin, tell=lambda text: print(text, file=sys.stderr, flush=True)
        ) as kept:
            print(
                f"Ctrl-C ends all of it; brokers one by one, here or as `python -m testbed ...`: {HELP}",
                file=sys.stderr,
            )
            kept.stay()
    finally:
        alive = sum(broker.running for broker in cluster.brokers.values())
        (cluster.stop if 2 * alive > len(cluster.brokers) else cluster.kill)()
