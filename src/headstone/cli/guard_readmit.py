"""`headstone guard readmit`: replicas that may be wrong are read, and those that are copy afresh. Plans, acts with --apply.

What is decided and done is in `guard/`. Exit codes: 0 every replica is right; 1 one needs readmission (dry run), or is not
readmitted yet.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from headstone.cli.connections import kafka_connection
from headstone.cli.guard_watch import journal_of
from headstone.cli.output import BAD, GOOD, HEADING, Output
from headstone.cli.parsing import DONE, FINDINGS
from headstone.log.scratch import scratch_directory
from headstone.log.shown import visible

if TYPE_CHECKING:
    from headstone.guard.readmission import Readmitted
    from headstone.guard.readmission_plan import ReadmissionPlan


def readmit(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.cluster.admin import Admin
    from headstone.guard.readmission import Means
    from headstone.guard.readmission import readmit as carry_out
    from headstone.guard.readmission_plan import Limits, Wanted, plan

    connection = kafka_connection(arguments)
    wanted = Wanted(topics=tuple(arguments.topic), partition=arguments.partition, broker=arguments.broker)
    limits = Limits(
        partitions_at_once=arguments.partitions_at_once, copy_bytes_per_second=arguments.throttle,
        read_bytes_per_second=arguments.bytes_per_second,
    )  # fmt: skip
    with ExitStack() as stack:
        admin = stack.enter_context(Admin(connection))
        journal = stack.enter_context(journal_of(arguments, admin))
        work = stack.enter_context(scratch_directory("readmit"))
        plans = plan(admin, connection, journal, wanted, work=work, limits=limits, tell=output.tell)
        if not arguments.apply:
            output.answer(
                lambda: {"applied": False, "replicas": [_planned(each) for each in plans]}, plan_lines(plans, output)
            )
            return FINDINGS if any(each.needed for each in plans) else DONE
        means = Means(
            admin=admin, connection=connection, journal=journal, work=work, limits=limits, tell=output.tell
        )  # fmt: skip
        ended = carry_out(means, plans)
    output.answer(lambda: {"applied": True, "replicas": [_done(each) for each in ended]}, done_lines(ended, output))
    return DONE if all(_is_well(each) for each in ended) else FINDINGS


def _is_well(done: Readmitted) -> bool:
    from headstone.guard.readmission import Ended

    return done.ended in (Ended.RIGHT, Ended.READMITTED)


def _planned(planned: ReadmissionPlan) -> dict[str, object]:
    readmission = planned.readmission
    return {
        "topic": readmission.topic, "partition": readmission.partition, "broker": readmission.broker,
        "verdict": str(planned.judged.verdict), "why": planned.judged.why, "needed": planned.needed, "away": planned.away,
        "resumed": planned.resumed, "replicas": list(readmission.order), "refusals": list(planned.refusals),
        "steps": list(planned.steps), "commands": list(planned.commands),
        "stray_folder": planned.stray if readmission.was_away else None,
    }  # fmt: skip


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


def _done(done: Readmitted) -> dict[str, object]:
    return {
        "topic": done.partition.topic, "partition": done.partition.number, "broker": done.broker,
        "ended": done.ended.name.lower(), "why": done.why, "stray_folder": done.stray,
    }  # fmt: skip


def done_lines(ended: Sequence[Readmitted], output: Output) -> Iterator[str]:
    if not ended:
        yield "no replica needs readmission"
    for done in ended:
        colour = GOOD if _is_well(done) else BAD
        text = f"{visible(str(done.partition))} on broker {done.broker}: {output.painted(str(done.ended), colour)}"
        yield text + (f": {visible(done.why)}" if done.why else "")
        if done.stray is not None:
            yield f"  {done.remark}"
