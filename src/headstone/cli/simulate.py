"""`headstone simulate`: seeded random clusters with faults, checked along the way.

Parses, calls the campaign (`sim/campaign_run.py`), renders what it found with the command that replays it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from headstone import units
from headstone.cli.options import process_count, replica_count, seed_count, seed_number, step_count
from headstone.cli.output import BAD, GOOD, Output
from headstone.cli.parsing import DONE, FINDINGS
from headstone.pipeline.machine import cores
from headstone.retention.policy import COORDINATED, RULES
from headstone.sim.tallies import FIRST_SEED, GUARDED, GUARDED_STEPS, SEEDS, STEPS

if TYPE_CHECKING:
    from headstone.sim.campaign_run import CampaignRun
    from headstone.sim.tallies import Tally, Violation

SHOWN_MAX = 5
TOLD_EVERY_S = 5.0
EXAMPLES = (
    "headstone simulate --seeds 10000",
    "headstone simulate --rules kafka --seeds 100",
    "headstone simulate --rules guarded --seeds 1000",
    "headstone simulate --mutant list",
)
EXIT_CODES = {DONE: "no violation was found", FINDINGS: "a violation was found; the command that replays it is printed"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=seed_count, default=SEEDS, metavar="N", help="number of clusters")
    parser.add_argument(
        "--seed",
        type=seed_number,
        metavar="N",
        help=f"first seed (default {FIRST_SEED}; with --fresh a random one)",
    )
    parser.add_argument("--fresh", action="store_true", help="start at a random seed, which is printed")
    parser.add_argument(
        "--steps",
        type=step_count,
        metavar="N",
        help=f"steps per cluster (default {STEPS}; guarded {GUARDED_STEPS}, some of them long outages)",
    )
    parser.add_argument(
        "--replicas", type=replica_count, metavar="N", help="brokers, 1 to 9 (default: each seed draws its own)"
    )
    parser.add_argument(
        "--rules", choices=(*RULES, GUARDED), default=COORDINATED,
        help="rules by which brokers remove tombstones and markers; guarded: Kafka's rules under the guard, then without it",
    )  # fmt: skip
    parser.add_argument(
        "--mutant",
        metavar="NAME",
        help="break one thing on purpose and stop when it is found; `list` shows the mutants (default: none)",
    )
    parser.add_argument(
        "--jobs", type=process_count, default=cores(), metavar="N", help="number of processes (default: one per core)"
    )
    parser.add_argument("--shrink", action="store_true", help="shrink the first violation to a shorter history")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.sim.campaign_run import first_seed, known_mutants, run_campaign, settings_of

    if arguments.mutant == "list":
        mutants = known_mutants()
        lines = (f"{name:26} {about}" for kind in mutants.values() for name, about in kind.items())
        output.answer(lambda: mutants, lines)
        return DONE
    settings = settings_of(
        rules=arguments.rules, steps=arguments.steps, replicas=arguments.replicas, mutant=arguments.mutant
    )
    ran = run_campaign(
        settings, first=first_seed(arguments.seed, fresh=arguments.fresh), seeds=arguments.seeds, jobs=arguments.jobs,
        shrink=arguments.shrink, tell=_SeedsLine(arguments.seeds, output),
    )  # fmt: skip
    output.answer(ran.as_json, as_text(ran, output))
    return FINDINGS if ran.tally.violations else DONE


class _SeedsLine:
    """A line that is rewritten on a terminal; elsewhere one line now and then."""

    def __init__(self, seeds: int, output: Output) -> None:
        self._seeds = seeds
        self._output = output
        self._started = self._told_s = time.monotonic()

    def __call__(self, tally: Tally) -> None:
        from headstone.sim.campaign_run import progress_line

        now = time.monotonic()
        line = progress_line(tally, self._seeds, now - self._started)
        if self._output.quiet:
            return
        if sys.stderr.isatty():
            print(f"\r{line}   ", end="\n" if tally.seeds >= self._seeds else "", file=sys.stderr, flush=True)
        elif now - self._told_s >= TOLD_EVERY_S:
            self._output.tell(line)
            self._told_s = now


def as_text(ran: CampaignRun, output: Output) -> list[str]:
    tally, settings = ran.tally, ran.settings
    what = f"{settings.rules} rules" if settings.mutant is None else f"mutant {settings.mutant}"
    count = output.painted(units.count(len(tally.violations), "violation"), BAD if tally.violations else GOOD)
    rate = units.count(round(tally.seeds / max(ran.seconds, 1e-9)), "seed")
    lines = [
        f"{units.count(tally.seeds, 'seed')} from {ran.first}, {units.count(tally.steps, 'step')}, {what}: {count} "
        f"({ran.seconds:.0f} s, {rate}/s)",
        f"checks made: {tally.checks:,}",
        f"faults injected: {_counts(tally.faults)}",
    ]
    if settings.rules == GUARDED:
        lines += [
            f"without the guard: {sum(tally.corrupt_without.values()):,} corrupt: {_counts(tally.corrupt_without)}",
            (
                f"with it {tally.prevented:,} of these are right; in {units.count(tally.foretold, 'seed')} it said that "
                "it came too late"
            ),
            f"what it did: {_counts(tally.actions)}",
        ]
    kinds: dict[str, list[Violation]] = {}
    for violation in tally.violations:
        kinds.setdefault(violation.finding.kind, []).append(violation)
    for kind, violations in sorted(kinds.items(), key=lambda pair: -len(pair[1])):
        lines.append(f"\n{kind}: {len(violations):,}")
        for violation in violations[:SHOWN_MAX]:
            lines.append(f"  {violation.finding.where} {violation.finding.text}")
            lines.append(f"    {ran.replay(violation.seed)}")
    if ran.short is not None:
        drawn, steps, finding = ran.short
        lines.append(
            f"\nshortest story found: {len(steps)} of {units.count(drawn, 'step')}: {', '.join(steps) or '(none)'}"
        )
        lines.append(f"  {finding.where} {finding.text}: {finding.kind}")
    return lines


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counter.most_common()) or "none"
