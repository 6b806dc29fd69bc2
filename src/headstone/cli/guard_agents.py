"""The agents' part of `headstone guard` and `guard status`: where they report, who may report, and their reports as text.

Does nothing without `--agents`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headstone.cli.options import RecordName
from headstone.errors import UsageError
from headstone.storage.secrets import resolved

if TYPE_CHECKING:
    from headstone.agent.messages import Question
    from headstone.guard.agents.listener import AgentsRequest
    from headstone.guard.agents.summary import AgentsTold


def agents_request(arguments: argparse.Namespace) -> AgentsRequest | None:
    given = [
        name for name in ("agents_token", "agents_tls_cert", "agents_tls_ca") if getattr(arguments, name) is not None
    ]
    if arguments.agents is None:
        if given:
            raise UsageError(f"--{given[0].replace('_', '-')} needs --agents HOST:PORT")
        return None
    from headstone.agent.authentication import Authentication, TlsFiles
    from headstone.cluster.connection import Host
    from headstone.guard.agents.listener import AgentsRequest

    tls = None
    if arguments.agents_tls_cert is not None:
        tls = TlsFiles(
            certificate=arguments.agents_tls_cert, key=arguments.agents_tls_key, authority=arguments.agents_tls_ca
        )
    elif arguments.agents_tls_ca is not None:
        raise UsageError("--agents-tls-ca needs --agents-tls-cert, the guard's own certificate")
    token = None if arguments.agents_token is None else resolved(arguments.agents_token)
    return AgentsRequest(address=Host(*arguments.agents), authentication=Authentication(token=token, tls=tls))


def questions(asked: Sequence[RecordName]) -> list[Question]:
    from headstone.agent.messages import Question
    from headstone.log.topic_partition import TopicPartition

    return [Question(partition=TopicPartition(name.topic, name.partition), offset=name.offset) for name in asked]


def told_lines(summary: AgentsTold | None, asked: Sequence[RecordName]) -> Iterator[str]:
    from headstone.guard.agents.summary import agents_lines

    if summary is None:
        return
    yield from agents_lines(summary)
    answered = {(*record.partition, record.offset) for record in summary.records}
    for name in asked:
        if name not in answered:
            yield f"  {name}: agents are asked; say the same again after the guard's next two looks"
