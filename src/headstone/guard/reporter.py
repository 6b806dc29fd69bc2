"""Reports the rounds of a running guard: line by line with the time, as metrics, and as its last answer.

Owns the order of printing and recording. `monitoring/log_lines.py` has the words; the loop decides when a round is made.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from headstone.errors import Unfinished
from headstone.guard.agents.listener import Agents
from headstone.guard.answers import Answer, last_answer
from headstone.guard.ledger.journal import Journal
from headstone.guard.looks.look_age import clock_ms
from headstone.guard.loop.rounds import Round
from headstone.guard.loop.watcher import Watcher
from headstone.guard.monitoring.current_status import held_topics, round_status
from headstone.guard.monitoring.grouping import Steps
from headstone.guard.monitoring.log_lines import in_short, news, not_looked
from headstone.guard.monitoring.metrics import Counters, metrics_text
from headstone.units import moment


class Messages(Protocol):
    """Where a guard prints its words."""

    def say(self, text: str) -> None:
        """Prints a part of the requested result while it is produced."""

    def tell(self, text: str) -> None:
        """Prints a remark."""

    def warn(self, text: str, /) -> None: ...


def say_event(messages: Messages, line: str) -> None:
    """With the time: a log of a night is read by time."""
    messages.say(f"{moment(clock_ms())} {line}")


class Rounds:
    """The newest round, and what was printed of it."""

    def __init__(self, watcher: Watcher, journal: Journal, agents: Agents, messages: Messages) -> None:
        self.watcher = watcher
        self.journal = journal
        self.newest: Round | None = None
        self._agents = agents
        self._messages = messages
        self._steps = Steps()
        self._poll_ms = watcher.settings.margins.poll_ms

    def tell(self, result: Round) -> None:
        before, shown = self._steps.shown(result)
        for line in news(before, shown, applies=self.watcher.settings.applies, poll_ms=self._poll_ms):
            say_event(self._messages, line)
        self.newest = result
        if result.leads and result.whole and not result.unwritten:
            # Only `guard status` needs these notes; if the journal cannot be written, the next round says so.
            with suppress(Unfinished):
                self._agents.note(self.journal)

    def once(self) -> None:
        """Makes one round and prints its summary."""
        newest = self.watcher.round()
        self.tell(newest)
        if newest.lost is None:
            say_event(
                self._messages, in_short(newest) if newest.leads else not_looked(newest, held_topics(self.journal))
            )

    def metrics(self) -> str:
        """Of the newest round. May be called at any time; does not read all memories from the journal for a guard that stands
        by."""
        newest = self.newest
        if newest is None:
            return ""
        status = round_status(newest, self.journal, now_ms=clock_ms(), poll_ms=self._poll_ms)
        counters = Counters(
            looks=self.watcher.looks, calls_failed=self.watcher.calls_failed, applies=self.watcher.settings.applies,
            leads=newest.leads,
        )  # fmt: skip
        return metrics_text(status, counters) + self._agents.metrics()

    def last_answer(self) -> Answer | None:
        """Called when the guard ends. None if there was no round."""
        if self.newest is None:
            return None
        return last_answer(self.newest, self.journal, self._agents, now_ms=clock_ms(), poll_ms=self._poll_ms)
