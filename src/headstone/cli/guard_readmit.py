"""`headstone guard readmit`: reads replicas that may be wrong and re-replicates those that are. Plans; acts with --apply.

`guard/` decides and acts. Exit codes: 0 every replica is right; 1 one needs readmission (dry run), or is not readmitted yet.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headstone.cli.connections import kafka_connection
from headstone.cli.output import BAD, GOOD, HEADING, Output
from headstone.cli.parsing import DONE, FINDINGS
from headstone.log.shown import visible

if TYPE_CHECKING:
    from headstone.guard.readmission.driver import Readmitted
    from headstone.guard.readmission.plan import ReadmissionPlan


def readmit(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.guard.by_hand import readmit_replicas
    from headstone.guard.readmission.plan import CopyLimits, Wanted

    done = readmit_replicas(
        kafka_connection(arguments),
        Wanted(topics=tuple(arguments.topic), partition=arguments.partition, broker=arguments.broker),
        CopyLimits(
            partitions_at_once=arguments.partitions_at_once, copy_bytes_per_second=arguments.throttle,
            read_bytes_per_second=arguments.bytes_per_second,
        ),
        journal=arguments.journal, applies=arguments.apply, tell=output.tell,
    )  # fmt: skip
    lines = plan_lines(done.plans, output) if done.ended is None else done_lines(done.ended, output)
    output.answer(lambda: done.document, lines)
    return DONE if done.all_well else FINDINGS


def plan_lines(plans: Sequence[ReadmissionPlan], output: Output) -> Iterator[str]:
    if not plans:
        yield "no replica needs readmission"
        return
    for planned in plans:
        readmission = planned.readmission
        name = f"{visible(str(readmission.topic_partition))} on broker {readmission.broker}"
        verdict = output.painted(str(planned.judged.verdict), BAD if planned.needed else GOOD)
        yield f"{output.painted(name, HEADING)}: {verdict}" + (
            f": {visible(planned.judged.why)}" if planned.judged.why else ""
        )
        yield from (f"  refused: {visible(reason)}" for reason in planned.refusals)
        yield from (f"  {number}. {step}" for number, step in enumerate(planned.steps, start=1))
        if planned.commands:
            yield "  the same with Kafka's own tools, one after the other; # says what to wait for:"
            yield from (f"    {command}" for command in planned.commands)
    if any(planned.needed and not planned.refusals for planned in plans):
        yield "nothing was changed; --apply does it"


def done_lines(ended: Sequence[Readmitted], output: Output) -> Iterator[str]:
    if not ended:
        yield "no replica needs readmission"
    for done in ended:
        colour = GOOD if done.is_well else BAD
        text = f"{visible(str(done.partition))} on broker {done.broker}: {output.painted(str(done.ended), colour)}"
        yield text + (f": {visible(done.why)}" if done.why else "")
        if done.stray is not None:
            yield f"  {done.remark}"
