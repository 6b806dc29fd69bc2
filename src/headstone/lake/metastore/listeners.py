"""Callbacks after commits that changed what the lake consists of, in the order of registration.

The commit is done by then, whatever a listener does. If one fails, its caller, who committed, gets the error, and the listeners
after it are not called: what the journal refuses must not be told to others. They are called after the next commit, as after a
kill in between. So a listener looks up what it has not seen yet, and passes over errors that will be gone by then.
"""

from __future__ import annotations

from collections.abc import Callable

Listener = Callable[[], None]


class Listeners:
    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def add(self, listener: Listener) -> None:
        """It is called after all existing ones."""
        self._listeners = (*self._listeners, listener)

    def tell(self) -> None:
        for listener in self._listeners:
            listener()
