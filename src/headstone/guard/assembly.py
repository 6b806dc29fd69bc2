"""Assembles a guard from its cluster, journal, looks, readings, readmissions, agents and metrics, until the block ends.

Connects the parts, and refuses topics that need no guard. The caller reads options, handles signals and shows messages.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from headstone.cluster.admin import Admin
from headstone.cluster.connection import SECONDS_MAX, Connection
from headstone.cluster.questions import DESCRIBE_TOPIC
from headstone.cluster.refusals import DENIED, UNKNOWN_TOPIC, error_name
from headstone.coordination.guard_values import Verify
from headstone.errors import Unfinished, UsageError
from headstone.guard.agents.listener import AgentsRequest, listening
from headstone.guard.ledger.journal import Journal, remembers
from headstone.guard.ledger.journal_places import journal_place, open_journal
from headstone.guard.ledger.lock import present
from headstone.guard.looks.clock_skew import Clocks
from headstone.guard.looks.leader_reading import POLL_SHARE, LeaderReading
from headstone.guard.looks.look import look
from headstone.guard.looks.look_age import clock_ms
from headstone.guard.looks.missed import Missed
from headstone.guard.looks.topic_ages import Sightings
from headstone.guard.loop.rounds import GuardSettings
from headstone.guard.loop.watcher import Watcher
from headstone.guard.monitoring.metrics import MetricsServer
from headstone.guard.readmission.automatic import OwnReadmissions
from headstone.guard.readmission.driver import ReadmissionMeans
from headstone.guard.readmission.plan import CopyLimits
from headstone.guard.reporter import Messages, Rounds, say_event
from headstone.guard.verification.background import Readings
from headstone.guard.verification.verdicts import JudgedReplica, verify
from headstone.log.scratch import scratch_directory
from headstone.log.shown import visible
from headstone.retention.settings import CLEANUP_POLICY
from headstone.units import moment

SECONDS_MIN = 5.0
"""The shortest timeout of one question to a broker. Otherwise it is half of the poll interval, so that a silent broker does not
make the guard miss a look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRequest:
    """`once`: the guard ends after one look, so it reads replicas before that instead of in the background. None means: the
    cluster's usual journal; no metrics; no agents."""

    connection: Connection
    settings: GuardSettings
    limits: CopyLimits = field(default_factory=CopyLimits)
    journal: Path | None = None
    once: bool = False
    metrics: tuple[str, int] | None = None
    agents: AgentsRequest | None = None


def name_of_process() -> str:
    """Includes a random part, because containers share host names and process ids."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"


@contextmanager
def guarding(request: GuardRequest, messages: Messages) -> Iterator[Rounds]:
    settings, connection = request.settings, request.connection
    poll_s = settings.margins.poll_ms / 1000
    with ExitStack() as stack:
        admin = stack.enter_context(Admin(connection, seconds_max=min(SECONDS_MAX, max(poll_s / 2, SECONDS_MIN))))
        refuse_topics(admin, settings.topics, request.journal)
        journal = stack.enter_context(open_journal(admin, request.journal))
        stack.enter_context(present(journal.path))
        agents = stack.enter_context(listening(request.agents, settings.topics, messages.tell))
        readings = readmissions = None
        if settings.applies:
            work = stack.enter_context(scratch_directory("guard"))

            def read(wanted: Verify) -> Mapping[int, JudgedReplica]:
                return verify(connection, wanted.topic, wanted.partition, wanted.broker, work=work)

            readings = Readings(agents.reading(read), journal, clock=clock_ms, beside=not request.once)
            stack.callback(readings.end)
            readmissions = OwnReadmissions(
                ReadmissionMeans(
                    admin=admin, connection=connection, journal=journal, work=work, limits=request.limits,
                    tell=partial(say_event, messages),
                )
            )  # fmt: skip
        missed, clocks, sightings = Missed(), Clocks(poll_ms=settings.margins.poll_ms), Sightings()
        leaders = LeaderReading(missed, seconds_max=POLL_SHARE * poll_s)
        watcher = Watcher(
            settings, admin=admin, journal=journal, clock=clock_ms, readings=readings,
            readmissions=readmissions, missed=missed,
            look=agents.attended(
                lambda topics: look(admin, topics, clock_ms, leaders=leaders, clocks=clocks, sightings=sightings)
            ),
        )  # fmt: skip
        stack.callback(_stand_down, journal, settings.name)
        rounds = Rounds(watcher, journal, agents, messages)
        if request.metrics is not None:
            server = stack.enter_context(MetricsServer(*request.metrics, rounds.metrics))
            messages.tell(f"metrics: http://{server.address}/metrics")
        for topic in left_held(journal, settings.topics):
            messages.warn(
                f"{moment(clock_ms())} {visible(topic)} is held by an earlier run but not watched now: add it with --topic, or "
                "release it"
            )
        yield rounds


def _stand_down(journal: Journal, name: str) -> None:
    """If the journal cannot be written, that was reported already, and the lease expires by itself."""
    with suppress(Unfinished):
        journal.stand_down(name)


def left_held(journal: Journal, watched: Sequence[str]) -> list[str]:
    """Topics that an earlier run holds and this one does not watch."""
    unwatched = [topic for topic in journal.names() if watched and topic not in watched]
    return [topic for topic in unwatched if journal.memory(topic).hold is not None]


def refuse_topics(admin: Admin, topics: Sequence[str], journal: Path | None) -> None:
    """Raises UsageError for a topic that does not exist, or that is not compacted and not in the journal. One in the journal is
    accepted: a purge switches compaction off for a while."""
    if not topics:
        return
    described = admin.describe(list(topics)).topics
    for topic in topics:
        errors = [state.error for state in described.get(topic, {}).values() if state.error and not state.replicas]
        if errors or topic not in described:
            error = errors[0] if errors else UNKNOWN_TOPIC
            why = {UNKNOWN_TOPIC: ": there is no such topic"} | dict.fromkeys(
                DENIED, f"; this user lacks {DESCRIBE_TOPIC}"
            )
            raise UsageError(f"--topic {visible(topic)}: {error_name(error)}{why.get(error, '')}")
    for topic, configs in admin.topic_configs(list(topics)).items():
        policy = configs[CLEANUP_POLICY].value or "" if CLEANUP_POLICY in configs else ""
        if "compact" not in policy.split(",") and not remembers(*journal_place(admin, journal), topic):
            raise UsageError(
                f"--topic {visible(topic)}: not compacted (cleanup.policy {visible(policy)}): there is nothing to guard"
            )
