"""`headstone guard check`: settings that widen the danger, each with the figure, the reason and the fix.

The rules are in `guard/checks.py`. Exit codes: 1 with findings, 0 clean.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from headstone.cli.connections import kafka_connection
from headstone.cli.guard_watch import clock_ms
from headstone.cli.output import BAD, GOOD, HEADING, Output
from headstone.cli.parsing import DONE, FINDINGS, UNFINISHED
from headstone.log.shown import visible

if TYPE_CHECKING:
    from headstone.cluster.admin import Admin
    from headstone.guard.checks import ClusterFacts, Finding
    from headstone.guard.journal import Journal

TOOLS = ".sh --bootstrap-server"
"""In every fix that is a command."""


def check(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.cluster.admin import Admin
    from headstone.guard.check_facts import gather
    from headstone.guard.checks import check as judge

    with ExitStack() as stack:
        admin = stack.enter_context(Admin(kafka_connection(arguments)))
        journal = _journal(arguments, admin, stack)
        facts, problems = gather(
            admin, arguments.topic, outage_max_ms=arguments.outage_max, journal=journal, clock_ms=clock_ms
        )  # fmt: skip
    findings = judge(facts)
    output.answer(lambda: _document(facts, findings, problems), _lines(facts, findings, problems, output))
    if problems and not facts.topics:
        return UNFINISHED
    return FINDINGS if findings else DONE


def _journal(arguments: argparse.Namespace, admin: Admin, stack: ExitStack) -> Journal | None:
    """None is made where there is none: nothing was learnt yet."""
    from headstone.guard.journal import Journal, usual_journal

    cluster_id = admin.describe([]).cluster_id
    path = arguments.journal or usual_journal(cluster_id, os.environ)
    if arguments.journal is None and not path.exists():
        return None
    return stack.enter_context(Journal.open(path, cluster_id=cluster_id if path.exists() else None))


def _document(facts: ClusterFacts, findings: Sequence[Finding], problems: Sequence[str]) -> dict[str, object]:
    return {
        "topics": len(facts.topics), "outage_max_ms": facts.outage_max_ms,
        "findings": [
            {
                "name": finding.name, "severity": str(finding.severity), "topics": list(finding.topics),
                "broker": finding.broker, "default": finding.default, "figure": finding.figure, "why": finding.why,
                "fix": finding.fix,
            }
            for finding in findings
        ],
        "problems": list(problems),
    }  # fmt: skip


def _lines(facts: ClusterFacts, findings: Sequence[Finding], problems: Sequence[str], output: Output) -> Iterator[str]:
    from headstone.audit.kafka_tools import config_remarks

    for finding in findings:
        yield f"{output.painted(str(finding.severity), BAD)} {output.painted(finding.name, HEADING)}: {finding.where}"
        yield f"  {visible(finding.figure)}"
        yield f"  why: {finding.why}"
        yield f"  fix: {finding.fix}"
    if any(TOOLS in finding.fix for finding in findings):
        yield from config_remarks(facts.bootstrap)
    yield from (f"not asked: {visible(problem)}" for problem in problems)
    if facts.outage_max_ms is None:
        yield "no outage is known: --outage-max names the longest that you plan for, such as 36h"
    topics = f"{len(facts.topics)} compacted topic{'' if len(facts.topics) == 1 else 's'}"
    yield output.painted(
        f"{topics}: {len(findings) or 'no'} finding{'' if len(findings) == 1 else 's'}", BAD if findings else GOOD
    )
