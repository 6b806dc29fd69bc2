"""What a person does beside a guard, or without one: `release`, `check` and `readmit`.

Each function opens the cluster and its journal, asks and acts, closes them, and returns a value with its document. Only plans,
unless told to apply. `acting/release.py`, `check/rules.py` and `readmission/driver.py` decide and act; this file also has the
words for a release.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from headstone.cluster.admin import Admin
from headstone.cluster.connection import Connection
from headstone.divergence.kafka_tools import Address, Bootstrap, config_remarks
from headstone.guard.acting.release import Undo, carry_out_release, plan_release, undo_commands, undo_document
from headstone.guard.check.facts import gather
from headstone.guard.check.rules import CheckFinding, ClusterFacts, check, finding_document
from headstone.guard.ledger.commands import address_of
from headstone.guard.ledger.journal_places import open_if_there, open_journal, open_known
from headstone.guard.looks.look_age import clock_ms
from headstone.guard.monitoring.current_status import ask_status
from headstone.guard.monitoring.log_lines import configs_words, status_words
from headstone.guard.monitoring.status import GuardStatus
from headstone.guard.readmission.driver import ReadmissionMeans, Readmitted, readmit
from headstone.guard.readmission.plan import CopyLimits, ReadmissionPlan, Tell, Wanted, plan
from headstone.log.scratch import scratch_directory
from headstone.log.shown import visible


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """`danger`: the state of the replicas of what is released."""

    undos: tuple[Undo, ...]
    applied: bool
    danger: GuardStatus
    address: Address

    @property
    def document(self) -> dict[str, object]:
        return {"applied": self.applied, "undo": [undo_document(undo, self.address) for undo in self.undos]}


def release(connection: Connection, topics: Sequence[str], *, journal: Path | None, applies: bool) -> Released:
    """If `topics` is empty: everything that is held."""
    with Admin(connection) as admin, open_known(admin.describe([]).cluster_id, journal) as opened:
        undos = plan_release(admin, opened, topics)
        danger = ask_status(opened, admin, clock_ms)
        if applies:
            evidence = f"headstone guard release by user {os.getuid()} on {socket.gethostname()}"
            undos = carry_out_release(admin, opened, undos, now_ms=clock_ms(), evidence=evidence)
    return Released(undos=tuple(undos), applied=applies, danger=danger, address=address_of(connection))


def release_lines(plan: Sequence[Undo], danger: GuardStatus, bootstrap: Bootstrap, *, applied: bool) -> Iterator[str]:
    if not plan:
        yield "nothing is held"
        return
    behind = {topic.topic: topic.worrying for topic in danger.topics}
    for undo in plan:
        what = "cluster default" if undo.topic is None else f"topic {visible(undo.topic)}"
        what = what if undo.broker is None else f"broker {undo.broker}"
        nothing = "the topic was deleted, and its hold with it" if undo.gone else "nothing of the hold stands any more"
        words = configs_words(undo.restore) or nothing
        yield f"{what}: {words}" + (f": {visible(undo.outcome)}" if undo.outcome is not None else "")
        yield from (
            f"  {name} was changed to {visible(str(value))} by somebody else and stays" for name, value in undo.left
        )
        for status in behind.get(undo.topic or "", ()):
            yield f"  {visible(undo.topic or '')}-{status.partition} is {status_words(status)}"
        yield from (f"  {command}" for command in undo_commands(undo, bootstrap))
    if any(undo.restore for undo in plan):
        yield from config_remarks(bootstrap)
    if not applied:
        yield "this was a plan; --apply does it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """`problems`: what could not be asked."""

    facts: ClusterFacts
    findings: tuple[CheckFinding, ...]
    problems: tuple[str, ...]

    @property
    def document(self) -> dict[str, object]:
        return {
            "topics": len(self.facts.topics), "outage_max_ms": self.facts.outage_max_ms,
            "findings": list(map(finding_document, self.findings)), "problems": list(self.problems),
        }  # fmt: skip


def check_cluster(
    connection: Connection, topics: Sequence[str], *, journal: Path | None, outage_max_ms: int | None
) -> Checked:
    """If `topics` is empty: every compacted one. If `outage_max_ms` is None: the longest outage that the journal knows."""
    with ExitStack() as stack:
        admin = stack.enter_context(Admin(connection))
        opened = open_if_there(admin, journal)
        if opened is not None:
            stack.enter_context(opened)
        facts, problems = gather(admin, topics, outage_max_ms=outage_max_ms, journal=opened, clock_ms=clock_ms)
    return Checked(facts=facts, findings=tuple(check(facts)), problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readmissions:
    """`ended` is None if the readmissions were only planned."""

    plans: tuple[ReadmissionPlan, ...]
    ended: tuple[Readmitted, ...] | None = None

    @property
    def document(self) -> dict[str, object]:
        replicas = self.plans if self.ended is None else self.ended
        return {"applied": self.ended is not None, "replicas": [replica.document for replica in replicas]}

    @property
    def all_well(self) -> bool:
        if self.ended is None:
            return not any(each.needed for each in self.plans)
        return all(each.is_well for each in self.ended)


def readmit_replicas(
    connection: Connection, wanted: Wanted, limits: CopyLimits, *, journal: Path | None, applies: bool, tell: Tell
) -> Readmissions:
    with ExitStack() as stack:
        admin = stack.enter_context(Admin(connection))
        opened = stack.enter_context(open_journal(admin, journal))
        work = stack.enter_context(scratch_directory("readmit"))
        plans = plan(admin, connection, opened, wanted, work=work, limits=limits, tell=tell)
        if not applies:
            return Readmissions(plans=tuple(plans))
        means = ReadmissionMeans(
            admin=admin, connection=connection, journal=opened, work=work, limits=limits, tell=tell
        )
        return Readmissions(plans=tuple(plans), ended=tuple(readmit(means, plans)))
