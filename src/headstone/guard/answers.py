"""How the guard stands, for whoever asks: its status and what agents have told, as one document.

The same of a guard that ends, and of the cluster and the journal when nobody watches. Reads; the guard that leads is asked
about records through the journal, and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headstone.agent.messages import Question
from headstone.cluster.admin import Admin
from headstone.cluster.connection import Connection
from headstone.errors import Unfinished
from headstone.guard.agents.listener import Agents, agents_word
from headstone.guard.agents.summary import AgentsTold, agents_document
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_places import open_known, open_without_cluster
from headstone.guard.looks.look_age import clock_ms
from headstone.guard.loop.rounds import Round
from headstone.guard.monitoring.current_status import ask_status, journal_status, last_status
from headstone.guard.monitoring.status import GuardStatus, status_document


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: GuardStatus
    agents: AgentsTold | None
    """None: the guard that leads listens to no agents."""

    @property
    def document(self) -> dict[str, object]:
        agents = None if self.agents is None else agents_document(self.agents)
        return {**status_document(self.status), "agents": agents}


def last_answer(result: Round, journal: Journal, agents: Agents, *, now_ms: int, poll_ms: int) -> Answer:
    """Of a guard that ends, by its newest round."""
    status = last_status(result, journal, now_ms=now_ms, poll_ms=poll_ms)
    return Answer(status=status, agents=agents.told(journal, leads=result.leads))


def ask(connection: Connection, journal: Path | None, records: Sequence[Question] = ()) -> Answer:
    """From the journal and a look just now; without the cluster, from the journal alone."""
    with Admin(connection) as admin:
        try:
            cluster_id = admin.describe([]).cluster_id
        except Unfinished as error:
            with open_without_cluster(journal, error) as opened:
                status = journal_status(opened, now_ms=clock_ms(), why=str(error))
                return Answer(status=status, agents=agents_word(opened, records))
        with open_known(cluster_id, journal) as opened:
            status = ask_status(opened, admin, clock_ms)
            return Answer(status=status, agents=agents_word(opened, records))
