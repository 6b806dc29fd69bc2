"""`headstone reproduce`: the four corruptions, step by step, first by Kafka's rule and then coordinated.

Exit 0 if each shows by Kafka's rule and none by the coordinated one; 1 if not; 2 for an unknown variant.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from dataclasses import asdict

from headstone.errors import UsageError
from headstone.sim.broker import KAFKA, RULES
from headstone.sim.stories import (
    RULE_NAMES,
    STORIES,
    VARIANTS,
    ReplicaView,
    Scene,
    Telling,
    show_table,
    tell_story,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "variants", nargs="*", metavar="VARIANT", help=f"which ones (default all): {', '.join(VARIANTS)}"
    )
    parser.add_argument("--rules", choices=(*RULES, "both"), default="both", help="which rule set (default both)")


def run(arguments: argparse.Namespace) -> int:
    unknown = [name for name in arguments.variants if name not in VARIANTS]
    if unknown:
        raise UsageError(f"unknown variant {unknown[0]!r}; there are {', '.join(VARIANTS)}")
    chosen = [story for story in STORIES if not arguments.variants or story.variant in arguments.variants]
    rules = RULES if arguments.rules == "both" else (arguments.rules,)
    tellings = [tell_story(story, rule) for story in chosen for rule in rules]
    if arguments.output == "json":
        print(json.dumps({"runs": [as_json(telling) for telling in tellings]}, indent=2))
    else:
        print("\n\n".join(as_text(telling) for telling in tellings))
        print("\n" + summary(tellings))
    return 0 if all(telling.corrupt == (telling.rules == KAFKA) for telling in tellings) else 1


def as_json(telling: Telling) -> dict[str, object]:
    return {
        "variant": telling.variant,
        "about": telling.about,
        "rules": telling.rules,
        "corrupt": telling.corrupt,
        "findings": [asdict(finding) for finding in telling.findings],
        "expected": telling.expected,
        "replicas": [asdict(replica) for replica in telling.scenes[-1].replicas],
        "scenes": [asdict(scene) for scene in telling.scenes],
    }


def as_text(telling: Telling) -> str:
    heading = f"{telling.variant}: {telling.about}"
    lines = [heading, "=" * len(heading), RULE_NAMES[telling.rules], ""]
    for number, scene in enumerate(telling.scenes, start=1):
        lines += [*_scene_lines(number, scene), ""]
    lines.append(f"A read_committed consumer should get {show_table(telling.expected)}, from every replica.")
    lines += [f"CORRUPT: {finding.where} {finding.text}." for finding in telling.findings]
    if not telling.corrupt:
        lines.append("Correct on every replica.")
    return "\n".join(lines)


def _scene_lines(number: int, scene: Scene) -> list[str]:
    lines = [f"{number}. after {scene.hours} h: {scene.title}"]
    lines += textwrap.wrap(scene.lesson, 110, initial_indent="   ", subsequent_indent="   ")
    return lines + [_replica_line(replica) for replica in scene.replicas]


def _replica_line(replica: ReplicaView) -> str:
    log = "  ".join(replica.log) or "(nothing but other keys)"
    if not replica.alive:
        return f"     broker {replica.broker} (off)  {log}"
    marks = f"LSO {replica.lso}, MTRO {replica.mtro}, MXRO {replica.mxro}"
    return f"     broker {replica.broker}        {log:44}  reads {show_table(replica.table)}    [{marks}]"


def summary(tellings: list[Telling]) -> str:
    lines = []
    for telling in tellings:
        verdict = "corrupt" if telling.corrupt else "correct"
        lines.append(f"{telling.variant:22} {telling.rules:12} {verdict}")
    return "\n".join(lines)
