"""A guard's agents: adds what they report to its looks, readings, journal and metrics. Without agents it adds nothing.

`server.py` receives reports, `truth.py` decides what they prove.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headstone.agent.authentication import Authentication
from headstone.agent.messages import Question
from headstone.cluster.connection import Host
from headstone.errors import UsageError
from headstone.guard.agents.exchange import LookAt, attended
from headstone.guard.agents.server import serve_reports
from headstone.guard.agents.summary import (
    FACT,
    AgentsTold,
    agents_metrics,
    agents_told,
    as_fact,
    ask_about,
    of_fact,
    questions_of,
)
from headstone.guard.agents.truth import AgentTruth
from headstone.guard.agents.verification import ByAgents
from headstone.guard.ledger.journal import Journal
from headstone.guard.verification.background import Read


@dataclass(frozen=True, slots=True)
class Agents:
    """`truth` is None if the guard listens to no agents."""

    truth: AgentTruth | None
    topics: tuple[str, ...] = ()

    def attended(self, look: LookAt) -> LookAt:
        return look if self.truth is None else attended(look, self.truth, self.topics)

    def reading(self, read: Read) -> Read:
        """Wraps `read`: agents verify a returned replica where they can; otherwise it is read over the wire."""
        return read if self.truth is None else ByAgents(read, self.truth)

    def note(self, journal: Journal) -> None:
        """Writes what agents told into the journal for `guard status`, which is another process. Only the leading guard does
        so, and only at looks at everything it watches."""
        if self.truth is not None:
            for question in questions_of(journal):
                self.truth.ask(question.partition, question.offset)
            journal.note_fact(FACT, as_fact(agents_told(self.truth)))
        elif journal.fact(FACT) is not None:
            journal.note_fact(FACT, None)

    def told(self, journal: Journal, *, leads: bool) -> AgentsTold | None:
        """What this guard's agents told if it leads; else what the leading guard has written into the journal."""
        if leads:
            return None if self.truth is None else agents_told(self.truth)
        return agents_word(journal, ())

    def metrics(self) -> str:
        return "" if self.truth is None else agents_metrics(agents_told(self.truth))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsRequest:
    """The address that agents report to, and how they authenticate."""

    address: Host
    authentication: Authentication


@contextmanager
def listening(request: AgentsRequest | None, topics: tuple[str, ...], tell: Callable[[str], None]) -> Iterator[Agents]:
    """Serves until the block ends. If `request` is None, the guard listens to no agents."""
    if request is None:
        yield Agents(None)
        return
    truth = AgentTruth()
    with serve_reports(request.address, request.authentication, truth) as address:
        tell(f"agents report to {'http' if request.authentication.tls is None else 'https'}://{address}")
        yield Agents(truth, topics)


def agents_word(journal: Journal, asked: Sequence[Question]) -> AgentsTold | None:
    """None if the leading guard listens to no agents. Answers about the `asked` records arrive later: call again."""
    text = journal.fact(FACT)
    if text is None:
        if asked:
            raise UsageError(
                "--record needs agents: start the guard with --agents and run headstone agent beside each broker"
            )
        return None
    for question in asked:
        ask_about(journal, question)
    return of_fact(text)
