"""Who hears of commits: after each one that changed what the lake is made of, everyone in the order of registration.

The commit is made by then, whatever a listener does. One that fails tells so to whoever committed, and those behind it do not
hear of this commit: what the journal refuses to know must not be told to anybody else. They hear of the next one, as after a
kill in between; so a listener looks up what it has not seen yet, and passes over errors that will be gone by then.
"""

from __future__ import annotations

from collections.abc import Callable

Listener = Callable[[], None]


class Listeners:
    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def add(self, listener: Listener) -> None:
        """It hears after all that are there."""
        self._listeners = (*self._listeners, listener)

    def tell(self) -> None:
        for listener in self._listeners:
            listener()
