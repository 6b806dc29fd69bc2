"""`headstone guard check`: settings that make an outage more dangerous, each with the figure, the reason and the fix.

The rules are in `guard/check/rules.py`. Exit codes: 1 with findings, 0 clean.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headstone.cli.connections import kafka_connection
from headstone.cli.output import BAD, GOOD, HEADING, Output
from headstone.cli.parsing import DONE, FINDINGS, UNFINISHED
from headstone.log.shown import visible
from headstone.units import count

if TYPE_CHECKING:
    from headstone.guard.check.rules import CheckFinding, ClusterFacts

TOOLS = ".sh --bootstrap-server"
"""In every fix that is a command."""


def check(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.guard.by_hand import check_cluster

    checked = check_cluster(
        kafka_connection(arguments), arguments.topic, journal=arguments.journal, outage_max_ms=arguments.outage_max
    )
    lines = _lines(checked.facts, checked.findings, checked.problems, output)
    output.answer(lambda: checked.document, lines)
    if checked.problems and not checked.facts.topics:
        return UNFINISHED
    return FINDINGS if checked.findings else DONE


def _lines(
    facts: ClusterFacts, findings: Sequence[CheckFinding], problems: Sequence[str], output: Output
) -> Iterator[str]:
    from headstone.divergence.kafka_tools import config_remarks

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
    topics, findings_words = count(len(facts.topics), "compacted topic"), count(len(findings), "finding")
    yield output.painted(f"{topics}: {findings_words if findings else 'no findings'}", BAD if findings else GOOD)
