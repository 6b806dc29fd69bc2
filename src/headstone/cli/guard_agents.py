"""The agents' part of `headstone guard` and `guard status`: listening to them, and showing what they told.

Parses, opens, renders. Without `--agents` all of it is nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headstone.cli.options import RecordName
from headstone.cli.output import Output
from headstone.errors import UsageError
from headstone.storage.secrets import resolved

if TYPE_CHECKING:
    from headstone.guard.agents_told import AgentsTold
    from headstone.guard.attending import LookAt
    from headstone.guard.journal import Journal
    from headstone.guard.readings import Read
    from headstone.guard.truth import Truth
    from headstone.guard.watching import Round


@dataclass(frozen=True, slots=True)
class Agents:
    """`truth` is None if the guard listens to none."""

    truth: Truth | None
    topics: tuple[str, ...] = ()

    def attended(self, look: LookAt) -> LookAt:
        from headstone.guard.attending import attended

        return look if self.truth is None else attended(look, self.truth, self.topics)

    def reading(self, read: Read) -> Read:
        """How replicas that came back are read: by their agents where these can tell."""
        from headstone.guard.agent_readings import ByAgents

        return read if self.truth is None else ByAgents(read, self.truth)

    def note(self, journal: Journal, result: Round) -> None:
        """For `guard status`, which is another process. Only the guard that leads, and not at every hasty look."""
        from headstone.guard.agents_told import FACT, agents_told, as_fact, questions_of

        if not result.leads or not result.whole:
            return
        if self.truth is not None:
            for question in questions_of(journal):
                self.truth.ask(question.partition, question.offset)
            journal.note_fact(FACT, as_fact(agents_told(self.truth)))
        elif journal.fact(FACT) is not None:
            journal.note_fact(FACT, None)

    def metrics(self) -> str:
        from headstone.guard.agents_told import agents_metrics, agents_told

        return "" if self.truth is None else agents_metrics(agents_told(self.truth))


def listening(arguments: argparse.Namespace, stack: ExitStack, output: Output) -> Agents:
    """Until the stack ends."""
    given = [
        name for name in ("agents_token", "agents_tls_cert", "agents_tls_ca") if getattr(arguments, name) is not None
    ]
    if arguments.agents is None:
        if given:
            raise UsageError(f"--{given[0].replace('_', '-')} goes with --agents HOST:PORT")
        return Agents(None)
    from headstone.cluster.connection import Host
    from headstone.guard.authentication import Authentication, TlsFiles
    from headstone.guard.report_server import serve_reports
    from headstone.guard.truth import Truth

    tls = None
    if arguments.agents_tls_cert is not None:
        tls = TlsFiles(
            certificate=arguments.agents_tls_cert, key=arguments.agents_tls_key, authority=arguments.agents_tls_ca
        )  # fmt: skip
    elif arguments.agents_tls_ca is not None:
        raise UsageError("--agents-tls-ca goes with --agents-tls-cert, the guard's own certificate")
    token = None if arguments.agents_token is None else resolved(arguments.agents_token)
    truth = Truth()
    where = stack.enter_context(serve_reports(Host(*arguments.agents), Authentication(token=token, tls=tls), truth))
    output.tell(f"agents report to {'http' if tls is None else 'https'}://{where}")
    return Agents(truth, tuple(arguments.topic))


def told_in(journal: Journal, asked: Sequence[RecordName]) -> AgentsTold | None:
    """None: the guard that leads listens to no agents. Of the records that are asked about the next call knows more."""
    from headstone.guard.agents_told import FACT, ask_about, of_fact
    from headstone.guard.reports import Question
    from headstone.log.topic_partition import TopicPartition

    text = journal.fact(FACT)
    if text is None:
        if asked:
            raise UsageError(
                "--record needs agents: start the guard with --agents, and headstone agent beside each broker"
            )
        return None
    for name in asked:
        partition = TopicPartition(name.topic, name.partition)
        ask_about(journal, Question(partition=partition, offset=name.offset))
    return of_fact(text)


def told_document(told: AgentsTold | None) -> dict[str, object] | None:
    from headstone.guard.agents_told import agents_document

    return None if told is None else agents_document(told)


def told_lines(told: AgentsTold | None, asked: Sequence[RecordName]) -> Iterator[str]:
    from headstone.guard.agents_told import agents_lines

    if told is None:
        return
    yield from agents_lines(told)
    known = {(*record.partition, record.offset) for record in told.records}
    for name in asked:
        if name not in known:
            yield f"  {name}: agents are asked; say the same again after the guard's next two looks"
