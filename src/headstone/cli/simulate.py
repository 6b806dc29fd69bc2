"""`headstone simulate`: seeded random clusters with faults, checked at every turn.

Parses, calls the campaign, renders what it found with the command that replays it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from headstone.cli.engines import cores
from headstone.cli.options import process_count, replica_count, seed_count, seed_number, step_count
from headstone.cli.output import BAD, GOOD, Output
from headstone.cli.parsing import DONE, FINDINGS
from headstone.errors import UsageError
from headstone.retention.policy import COORDINATED, RULES
from headstone.sim.tallies import GUARDED

if TYPE_CHECKING:
    from headstone.sim.campaign import Settings
    from headstone.sim.tallies import Tally, Violation

SHOWN_MAX = 5
TOLD_EVERY_S = 5.0
STEPS = 200
EXAMPLES = (
    "headstone simulate --seeds 10000",
    "headstone simulate --rules kafka --seeds 100",
    "headstone simulate --rules guarded --seeds 1000",
    "headstone simulate --mutant list",
)
EXIT_CODES = {DONE: "nothing was found", FINDINGS: "something was, and the command that replays it is told"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=seed_count, default=1000, metavar="N", help="how many clusters")
    parser.add_argument(
        "--seed", type=seed_number, metavar="N", help="the first of them (default 0; with --fresh a random one)"
    )
    parser.add_argument("--fresh", action="store_true", help="begin at a random seed, which is printed")
    parser.add_argument(
        "--steps",
        type=step_count,
        metavar="N",
        help=f"steps each (default {STEPS}; guarded 16, some of them long outages)",
    )
    parser.add_argument("--replicas", type=replica_count, metavar="N", help="1 to 9 (default: each seed draws its own)")
    parser.add_argument(
        "--rules", choices=(*RULES, GUARDED), default=COORDINATED,
        help="by which brokers remove tombstones and markers; guarded: by Kafka's, under the guard, and again without it",
    )  # fmt: skip
    parser.add_argument(
        "--mutant",
        metavar="NAME",
        help="one thing wrong on purpose; stops when it is found; `list` lists them (default: none)",
    )
    parser.add_argument(
        "--jobs", type=process_count, default=cores(), metavar="N", help="processes (default: one per core)"
    )
    parser.add_argument("--shrink", action="store_true", help="look for a shorter story of the first violation")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.sim.campaign import Settings, campaign, shortened
    from headstone.sim.guarded_runs import STEPS as GUARDED_STEPS

    if arguments.mutant == "list":
        _list_mutants(output)
        return DONE
    _check_usage(arguments)
    first = arguments.seed or 0
    if arguments.fresh and arguments.seed is None:
        first = random.SystemRandom().randrange(10**9, 2 * 10**9)
    steps = arguments.steps or (GUARDED_STEPS if arguments.rules == GUARDED else STEPS)
    settings = Settings(rules=arguments.rules, steps=steps, replicas=arguments.replicas, mutant=arguments.mutant)
    started = time.monotonic()
    tally = campaign(
        first, arguments.seeds, settings, jobs=arguments.jobs, stop_early=arguments.mutant is not None,
        tell=_Progress(arguments.seeds, output),
    )  # fmt: skip
    seconds = time.monotonic() - started
    short = shortened(tally.violations[0], settings) if arguments.shrink and tally.violations else None
    output.answer(
        lambda: as_json(tally, settings, first, seconds, short),
        as_text(tally, settings, first, seconds, short, output),
    )
    return 1 if tally.violations else 0


def _list_mutants(output: Output) -> None:
    from headstone.sim.guarded_runs import MUTANTS as MARGINS
    from headstone.sim.mutants import MUTANTS

    mutants = {mutant.name: mutant.about for mutant in MUTANTS.values()}
    margins = dict.fromkeys(MARGINS, f"with --rules {GUARDED}: a guard without this margin")
    output.answer(
        lambda: {"mutants": mutants, GUARDED: margins},
        (f"{name:26} {about}" for name, about in (*mutants.items(), *margins.items())),
    )


def _check_usage(arguments: argparse.Namespace) -> None:
    from headstone.sim.guarded_runs import MUTANTS as MARGINS
    from headstone.sim.mutants import MUTANTS

    guarded = arguments.rules == GUARDED
    if guarded and arguments.replicas is not None:
        raise UsageError("guarded seeds draw two or three replicas each; leave --replicas out")
    if arguments.mutant is None:
        return
    if arguments.mutant not in (MARGINS if guarded else MUTANTS):
        raise UsageError(
            f"unknown mutant {arguments.mutant!r} of the {arguments.rules} rules; "
            "`headstone simulate --mutant list` lists them"
        )
    if arguments.rules not in (COORDINATED, GUARDED):
        raise UsageError("a mutant is one of the coordinated rules or of the guard; leave --rules out")


class _Progress:
    """A line that is rewritten on a terminal, and one now and then elsewhere."""

    def __init__(self, seeds: int, output: Output) -> None:
        self._seeds = seeds
        self._output = output
        self._started = self._told_s = time.monotonic()

    def __call__(self, tally: Tally) -> None:
        now = time.monotonic()
        rate = tally.seeds / max(now - self._started, 1e-9)
        left = (self._seeds - tally.seeds) / max(rate, 1e-9)
        line = f"{tally.seeds}/{self._seeds} seeds, {rate:.0f}/s, {left:.0f} s left, {len(tally.violations)} violations"
        if self._output.quiet:
            return
        if sys.stderr.isatty():
            print(f"\r{line}   ", end="\n" if tally.seeds >= self._seeds else "", file=sys.stderr, flush=True)
        elif now - self._told_s >= TOLD_EVERY_S:
            self._output.tell(line)
            self._told_s = now


def replay(seed: int, settings: Settings) -> str:
    parts = ["headstone simulate", f"--seed {seed} --seeds 1", f"--steps {settings.steps}"]
    if settings.mutant is None or settings.rules == GUARDED:
        parts.append(f"--rules {settings.rules}")
    if settings.mutant is not None:
        parts.append(f"--mutant {settings.mutant}")
    if settings.replicas is not None:
        parts.append(f"--replicas {settings.replicas}")
    return " ".join(parts)


def as_json(
    tally: Tally, settings: Settings, first: int, seconds: float, short: tuple[int, list[str], object] | None
) -> dict[str, object]:
    guarded = {
        "corrupt_without_guard": dict(sorted(tally.corrupt_without.items())),
        "prevented": tally.prevented,
        "foretold": tally.foretold,
        "actions": dict(sorted(tally.actions.items())),
    }
    return {
        "seeds": tally.seeds,
        "first_seed": first,
        "rules": settings.rules,
        "mutant": settings.mutant,
        "steps": tally.steps,
        "violations": [
            {
                "seed": violation.seed,
                "kind": violation.finding.kind,
                "where": violation.finding.where,
                "text": violation.finding.text,
                "at_step": violation.at_step,
                "replay": replay(violation.seed, settings),
            }
            for violation in tally.violations
        ],
        "faults": dict(sorted(tally.faults.items())),
        "checks": tally.checks,
        "shrunk": None if short is None else {"drawn": short[0], "steps": short[1]},
        "seconds": round(seconds, 1),
    } | (guarded if settings.rules == GUARDED else {})


def as_text(
    tally: Tally, settings: Settings, first: int, seconds: float, short: tuple[int, list[str], object] | None,
    output: Output,
) -> list[str]:  # fmt: skip
    what = f"{settings.rules} rules" if settings.mutant is None else f"mutant {settings.mutant}"
    count = output.painted(f"{len(tally.violations):,} violations", BAD if tally.violations else GOOD)
    lines = [
        f"{tally.seeds:,} seeds from {first}, {tally.steps:,} steps, {what}: {count} "
        f"({seconds:.0f} s, {tally.seeds / seconds:.0f} seeds/s)",
        f"checks made: {tally.checks:,}",
        f"faults injected: {_counts(tally.faults)}",
    ]
    if settings.rules == GUARDED:
        lines += [
            f"without the guard: {sum(tally.corrupt_without.values()):,} corrupt: {_counts(tally.corrupt_without)}",
            f"with it {tally.prevented:,} of these are right; in {tally.foretold:,} seeds it said that it came too late",
            f"what it did: {_counts(tally.actions)}",
        ]
    kinds: dict[str, list[Violation]] = {}
    for violation in tally.violations:
        kinds.setdefault(violation.finding.kind, []).append(violation)
    for kind, violations in sorted(kinds.items(), key=lambda pair: -len(pair[1])):
        lines.append(f"\n{kind}: {len(violations):,}")
        for violation in violations[:SHOWN_MAX]:
            lines.append(f"  {violation.finding.where} {violation.finding.text}")
            lines.append(f"    {replay(violation.seed, settings)}")
    if short is not None:
        drawn, steps, finding = short
        lines.append(f"\nshortest story found: {len(steps)} of {drawn} steps: {', '.join(steps) or '(none)'}")
        lines.append(f"  {finding}")
    return lines


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counter.most_common()) or "none"
