"""`headstone simulate`: seeded random clusters with faults, checked at every turn.

Parses, calls the campaign, renders what it found with the command that replays it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from typing import TYPE_CHECKING

from headstone.cli.engines import cores
from headstone.cli.options import process_count, replica_count, seed_count, seed_number, step_count
from headstone.cli.output import BAD, GOOD, Output
from headstone.cli.parsing import DONE, FINDINGS
from headstone.errors import UsageError
from headstone.retention.policy import COORDINATED, RULES

if TYPE_CHECKING:
    from headstone.sim.campaign import Settings, Tally, Violation

SHOWN_MAX = 5
TOLD_EVERY_S = 5.0
EXAMPLES = (
    "headstone simulate --seeds 10000",
    "headstone simulate --rules kafka --seeds 100",
    "headstone simulate --mutant list",
)
EXIT_CODES = {DONE: "nothing was found", FINDINGS: "something was, and the command that replays it is told"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=seed_count, default=1000, metavar="N", help="how many clusters")
    parser.add_argument(
        "--seed", type=seed_number, metavar="N", help="the first of them (default 0; with --fresh a random one)"
    )
    parser.add_argument("--fresh", action="store_true", help="begin at a random seed, which is printed")
    parser.add_argument("--steps", type=step_count, default=200, metavar="N", help="steps each")
    parser.add_argument("--replicas", type=replica_count, metavar="N", help="1 to 9 (default: each seed draws its own)")
    parser.add_argument(
        "--rules", choices=RULES, default=COORDINATED, help="by which brokers remove tombstones and markers"
    )
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
    from headstone.sim.mutants import MUTANTS

    if arguments.mutant == "list":
        mutants = {mutant.name: mutant.about for mutant in MUTANTS.values()}
        output.answer(lambda: {"mutants": mutants}, (f"{name:26} {about}" for name, about in mutants.items()))
        return DONE
    if arguments.mutant is not None and arguments.mutant not in MUTANTS:
        raise UsageError(f"unknown mutant {arguments.mutant!r}; `headstone simulate --mutant list` lists them")
    if arguments.mutant is not None and arguments.rules != COORDINATED:
        raise UsageError("a mutant is one of the coordinated rules; leave --rules out")
    first = arguments.seed or 0
    if arguments.fresh and arguments.seed is None:
        first = random.SystemRandom().randrange(10**9, 2 * 10**9)
    settings = Settings(
        rules=arguments.rules, steps=arguments.steps, replicas=arguments.replicas, mutant=arguments.mutant
    )
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
    parts.append(f"--rules {settings.rules}" if settings.mutant is None else f"--mutant {settings.mutant}")
    if settings.replicas is not None:
        parts.append(f"--replicas {settings.replicas}")
    return " ".join(parts)


def as_json(
    tally: Tally, settings: Settings, first: int, seconds: float, short: tuple[int, list[str], object] | None
) -> dict[str, object]:
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
    }


def as_text(
    tally: Tally, settings: Settings, first: int, seconds: float, short: tuple[int, list[str], object] | None,
    output: Output,
) -> list[str]:  # fmt: skip
    what = f"mutant {settings.mutant}" if settings.mutant else f"{settings.rules} rules"
    count = output.painted(f"{len(tally.violations):,} violations", BAD if tally.violations else GOOD)
    lines = [
        f"{tally.seeds:,} seeds from {first}, {tally.steps:,} steps, {what}: {count} "
        f"({seconds:.0f} s, {tally.seeds / seconds:.0f} seeds/s)",
        f"checks made: {tally.checks:,}",
        "faults injected: " + ", ".join(f"{name} {count:,}" for name, count in tally.faults.most_common()),
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
