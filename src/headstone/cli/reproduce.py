"""`headstone reproduce`: the four corruptions, step by step, first by Kafka's rule and then coordinated.

On a simulated cluster, or with --kafka-home on three real brokers, which know only Kafka's rule. Parses, plays the stories,
renders them.
"""

from __future__ import annotations

import argparse
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from headstone.cli.output import BAD, GOOD, HEADING, Output
from headstone.cli.parsing import DONE, FINDINGS, UNFINISHED
from headstone.errors import UsageError
from headstone.retention.policy import COORDINATED, KAFKA, RULES
from headstone.sim.variants import VARIANTS
from headstone.spelling import instead

if TYPE_CHECKING:
    from headstone.brokers.outages import Outage
    from headstone.sim.stories import ReplicaView, StoryScene, Telling

EXAMPLES = (
    "headstone reproduce",
    "headstone reproduce tombstone-divergence --rules kafka",
    "headstone reproduce --kafka-home /opt/kafka",
)
EXIT_CODES = {
    DONE: "every corruption shows under Kafka's rules and none under coordinated rules",
    FINDINGS: "a corruption did not show, or showed under coordinated rules",
    UNFINISHED: "the brokers did not reach the corruption in time",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "variants", nargs="*", metavar="VARIANT", help=f"corruptions to show (default all): {', '.join(VARIANTS)}"
    )
    parser.add_argument(
        "--rules", choices=(*RULES, "both"), default="both", help="rules that remove tombstones and markers"
    )
    parser.add_argument(
        "--kafka-home",
        metavar="DIR",
        help="run it on three real brokers of this Kafka release (DIR/libs has its jars; default: simulated brokers)",
    )
    parser.add_argument(
        "--keep",
        metavar="DIR",
        help="with --kafka-home: keep the brokers' directories here (default: they are removed)",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.sim.stories import STORIES, tell_story

    unknown = [name for name in arguments.variants if name not in VARIANTS]
    if unknown:
        raise UsageError(f"unknown variant {unknown[0]!r}{instead(unknown[0], VARIANTS)}")
    if arguments.kafka_home:
        return _on_real_brokers(arguments, output)
    chosen = [story for story in STORIES if not arguments.variants or story.variant in arguments.variants]
    rules = RULES if arguments.rules == "both" else (arguments.rules,)
    tellings = [tell_story(story, rule) for story in chosen for rule in rules]
    output.answer(
        lambda: {"runs": [telling.as_json() for telling in tellings]},
        [*(as_text(telling, output) + "\n" for telling in tellings), *summary(tellings, output)],
    )
    return 0 if all(telling.corrupt == (telling.rules == KAFKA) for telling in tellings) else 1


def _on_real_brokers(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.brokers.distribution import distribution_at
    from headstone.brokers.outages import play
    from headstone.log.directory import refuse_broker_directory

    if arguments.rules == COORDINATED:
        raise UsageError("--rules coordinated: unmodified brokers only have Kafka's rules; leave out --kafka-home")
    distribution = distribution_at(arguments.kafka_home)
    if arguments.keep and Path(arguments.keep).exists() and any(Path(arguments.keep).iterdir()):
        raise UsageError(f"--keep {arguments.keep}: not empty; name a new directory")
    if arguments.keep:
        refuse_broker_directory(Path(arguments.keep), instead="name a new directory elsewhere")
    with tempfile.TemporaryDirectory(prefix="headstone-") as temporary:
        root = Path(arguments.keep).absolute() if arguments.keep else Path(temporary)
        outages = play(distribution, root, arguments.variants or VARIANTS, tell=output.tell)
    output.answer(
        lambda: {"runs": [outage.as_json() for outage in outages]},
        [
            *(outage_as_text(outage, output) + "\n" for outage in outages),
            *(f"{outage.variant:22} Kafka {outage.kafka:8} {judged(outage.corrupt, output)}" for outage in outages),
        ],
    )
    return 0 if all(outage.corrupt for outage in outages) else 1


def outage_as_text(outage: Outage, output: Output) -> str:
    from headstone.sim.stories import show_table

    heading = f"{outage.variant}: {outage.about}"
    lines = [output.painted(heading, HEADING), "=" * len(heading), f"three real brokers, Kafka {outage.kafka}", ""]
    lines += [f"{number}. {step}" for number, step in enumerate(outage.steps, start=1)]
    lines += [
        "",
        f"A read_committed consumer should get {show_table(outage.expected)}. Each broker in turn leads and serves:",
    ]
    for served in outage.replicas:
        log = "  ".join(served.log) or "(nothing but other keys)"
        gets = f"reads {show_table(served.table)}"
        if served.stuck:
            gets = f"lets it wait at offset {served.lso} of {served.log_end} for ever"
        mark = "   WRONG" if served in outage.wrong else ""
        lines.append(f"     broker {served.broker}   {log:48} {gets}{mark}")
    verdict = output.painted("CORRUPT.", BAD) if outage.corrupt else output.painted("Correct on every broker.", GOOD)
    lines.append(verdict)
    return "\n".join(lines)


def as_text(telling: Telling, output: Output) -> str:
    from headstone.sim.stories import RULE_NAMES, show_table

    heading = f"{telling.variant}: {telling.about}"
    lines = [output.painted(heading, HEADING), "=" * len(heading), RULE_NAMES[telling.rules], ""]
    for number, scene in enumerate(telling.scenes, start=1):
        lines += [*_scene_lines(number, scene), ""]
    lines.append(f"A read_committed consumer should get {show_table(telling.expected)}, from every replica.")
    lines += [output.painted(f"CORRUPT: {finding.where} {finding.text}.", BAD) for finding in telling.findings]
    if not telling.corrupt:
        lines.append(output.painted("Correct on every replica.", GOOD))
    return "\n".join(lines)


def _scene_lines(number: int, scene: StoryScene) -> list[str]:
    lines = [f"{number}. after {scene.hours} h: {scene.title}"]
    lines += textwrap.wrap(scene.lesson, 110, initial_indent="   ", subsequent_indent="   ")
    return lines + [_replica_line(replica) for replica in scene.replicas]


def _replica_line(replica: ReplicaView) -> str:
    from headstone.sim.stories import show_table

    log = "  ".join(replica.log) or "(nothing but other keys)"
    if not replica.alive:
        return f"     broker {replica.broker} (off)  {log}"
    marks = f"LSO {replica.lso}, MTRO {replica.mtro}, MXRO {replica.mxro}"
    return f"     broker {replica.broker}        {log:44}  reads {show_table(replica.table)}    [{marks}]"


def summary(tellings: list[Telling], output: Output) -> list[str]:
    return [f"{telling.variant:22} {telling.rules:12} {judged(telling.corrupt, output)}" for telling in tellings]


def judged(corrupt: bool, output: Output) -> str:
    return output.painted("corrupt", BAD) if corrupt else output.painted("correct", GOOD)
