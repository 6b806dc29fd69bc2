"""The answer to `guard status`: the guard's status and what agents reported, as one document.

Also for a guard that ends, and from the cluster and the journal when no guard runs. Reads only, except that questions about
records go to the leading guard through the journal.
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
    """None if the leading guard listens to no agents."""

    @property
    def document(self) -> dict[str, object]:
        agents = None if self.agents is None else agents_document(self.agents)
        return {**status_document(self.status), "agents": agents}


def last_answer(result: Round, journal: Journal, agents: Agents, *, now_ms: int, poll_ms: int) -> Answer:
    """The last answer of a guard that ends, from its newest round."""
    status = last_status(result, journal, now_ms=now_ms, poll_ms=poll_ms)
    return Answer(status=status, agents=agents.told(journal, leads=result.leads))


def ask(connection: Connection, journal: Path | None, records: Sequence[Question] = ()) -> Answer:
    """From the journal and a look made now; if the cluster does not answer, from the journal alone."""
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
