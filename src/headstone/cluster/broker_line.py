"""The way to one broker: a connection that is kept, and reopened when it is lost. A silent broker is not asked for a while.

Owns when a question is asked once more. `admin.py` chooses brokers and makes changes, which are never repeated here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from headstone.cluster.connection import Host, WireSettings
from headstone.cluster.refusals import NoAnswer
from headstone.cluster.wire import BrokerConnection

SILENT_SECONDS, SILENT_SHARE = 30.0, 0.8
"""A broker that lets this share of its time pass without an answer is not asked for this long, or until `ask_again`."""
Answer = TypeVar("Answer")
Ask = Callable[[BrokerConnection], Answer]


class BrokerLine:
    """The way to one broker: a connection that is opened when it is needed, and reopened when it is lost.

    `proved` is shared by all lines: the settings have worked."""

    def __init__(self, host: Host, settings: WireSettings, proved: threading.Event) -> None:
        self._host = host
        self._settings = settings
        self._proved = proved
        self._lock = threading.Lock()
        self._connection: BrokerConnection | None = None
        self._silent: tuple[float, str] | None = None
        """Until when it is not asked, and the error from when it did not answer."""

    @property
    def is_silent(self) -> bool:
        silent = self._silent
        return silent is not None and time.monotonic() < silent[0]

    def ask_again(self) -> None:
        self._silent = None

    def read(self, ask: Ask[Answer], seconds_max: float) -> Answer:
        """Asks once more only if the connection is an old one: brokers close idle ones, or were restarted. A broker that used
        up its time without an answer is not asked for a while, so that of many questions only the first waits for it."""
        with self._lock:
            if self._silent is not None and self.is_silent:
                raise NoAnswer(self._silent[1])
            self._silent = None
            started = time.monotonic()
            try:
                return self._read(ask, seconds_max)
            except NoAnswer as error:
                if time.monotonic() - started >= SILENT_SHARE * seconds_max:
                    self._silent = (time.monotonic() + SILENT_SECONDS, str(error))
                raise

    def _read(self, ask: Ask[Answer], seconds_max: float) -> Answer:
        old = self._connection is not None
        started = time.monotonic()
        try:
            return self._ask(ask, seconds_max)
        except NoAnswer:
            left = seconds_max - (time.monotonic() - started)
            if not old or left <= 0:
                raise
            return self._ask(ask, left)

    def _ask(self, ask: Ask[Answer], seconds_max: float) -> Answer:
        if self._connection is None:
            self._connection = BrokerConnection(
                self._host, self._settings, seconds_max=seconds_max, proved=self._proved.is_set()
            )
        self._connection.seconds_max = seconds_max
        try:
            answer = ask(self._connection)
        except NoAnswer:
            self._close()
            raise
        self._proved.set()
        return answer

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
