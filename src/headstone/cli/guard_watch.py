"""`headstone guard`, `guard status` and `guard release`: from options to a request, and from values to text.

`guard/` decides, connects and acts. Exit codes: 1 if an alarm stands (`--once`, `status`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from headstone.api.stopping import soft_stop
from headstone.cli.connections import kafka_connection
from headstone.cli.guard import CLUSTER_DEFAULT, READMISSION
from headstone.cli.guard_agents import agents_request, questions, told_lines
from headstone.cli.output import BAD, GOOD, HEADING, Output
from headstone.cli.parsing import DONE, FINDINGS, UNFINISHED
from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import Allowed, State
from headstone.interruption import Interrupted
from headstone.log.shown import visible
from headstone.units import count, duration, moment

if TYPE_CHECKING:
    from headstone.guard.assembly import GuardRequest
    from headstone.guard.loop.rounds import GuardSettings, Round
    from headstone.guard.loop.watcher import Watcher
    from headstone.guard.monitoring.status import GuardStatus
    from headstone.guard.reporter import Rounds

STAYS = "what is held stays held, which is safe; `headstone guard status` shows it, `headstone guard release` undoes it"


def watch(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.guard.assembly import guarding

    with guarding(_request(arguments), output) as rounds:
        if arguments.once:
            rounds.once()
        else:
            how = "and acting" if arguments.apply else "only: a dry run, --apply acts"
            output.tell(f"watching {how}; journal {rounds.journal.path}")
            _run(rounds.watcher, rounds.tell)
        return _ended(arguments, rounds, output)


def _request(arguments: argparse.Namespace) -> GuardRequest:
    from headstone.guard.assembly import GuardRequest
    from headstone.guard.readmission.plan import CopyLimits

    return GuardRequest(
        connection=kafka_connection(arguments), settings=_settings(arguments), journal=arguments.journal,
        once=arguments.once, metrics=arguments.metrics, agents=agents_request(arguments),
        limits=CopyLimits(partitions_at_once=arguments.partitions_at_once, copy_bytes_per_second=arguments.throttle),
    )  # fmt: skip


def _settings(arguments: argparse.Namespace) -> GuardSettings:
    from headstone.guard.assembly import name_of_process
    from headstone.guard.loop.rounds import GuardSettings

    margins = Margins(
        metadata_age_ms=arguments.metadata_age_ms, skew_ms=arguments.clock_skew_ms, effect_ms=arguments.effect_ms,
        poll_ms=arguments.poll_ms, pass_start_ms=arguments.pass_start_ms, slack_share=arguments.slack_share,
        robot_ms=arguments.robot_ms,
    )  # fmt: skip
    allowed = Allowed(
        cluster_default=CLUSTER_DEFAULT in arguments.allow, readmission=READMISSION in arguments.allow
    )  # fmt: skip
    return GuardSettings(
        name=name_of_process(), margins=margins, allowed=allowed, topics=tuple(arguments.topic),
        applies=arguments.apply,
    )  # fmt: skip


def _run(watcher: Watcher, tell: Callable[[Round], None]) -> None:
    with suppress(Interrupted), soft_stop(None) as stop:  # drops a look in the middle
        watcher.run(stop, tell)


def _ended(arguments: argparse.Namespace, rounds: Rounds, output: Output) -> int:
    newest = rounds.newest
    answer = rounds.last_answer()
    held = [] if answer is None else [topic for topic in answer.status.topics if topic.held is not None]
    if answer is not None and held and not arguments.once:
        output.tell(f"{moment(answer.status.now_ms)} ending: {count(len(held), 'topic')} held: {STAYS}")
    if output.as_json and answer is not None:
        output.answer(lambda: answer.document, [])
    if newest is not None and arguments.once:
        if newest.lost is not None or (newest.problems and not newest.statuses):
            return UNFINISHED
        if newest.alarms:
            return FINDINGS
        return UNFINISHED if newest.unseen else DONE
    return DONE


def status(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.guard.answers import ask

    answer = ask(kafka_connection(arguments), arguments.journal, questions(arguments.record))
    lines = chain(status_lines(answer.status, output), told_lines(answer.agents, arguments.record))
    output.answer(lambda: answer.document, lines)
    return FINDINGS if answer.status.alarms else DONE


def status_lines(status: GuardStatus, output: Output) -> Iterator[str]:
    from headstone.guard.monitoring.grouping import alarms_together
    from headstone.guard.monitoring.log_lines import alarm_words, first_names, topic_lines

    if status.looked_ms is None:
        looked = "nobody has looked yet"
    elif status.fresh:
        looked = "looked just now"
    else:
        looked = f"by the journal of {moment(status.looked_ms)}, {duration(status.now_ms - status.looked_ms)} ago"
    yield output.painted(f"cluster {visible(status.cluster_id)}: {looked}", HEADING)
    leader = status.leader
    if leader is None and status.runs:
        since = "" if status.lease is None else f" since {moment(status.lease.until_ms)} at the latest"
        yield output.painted(
            f"a guard runs here, but has not written to its journal{since}: it cannot, or hangs. One that acts holds without "
            "it; its own output and metrics say more", BAD,
        )  # fmt: skip
    elif leader is None:
        yield output.painted("no guard is running", BAD)
    else:
        yield f"guard {visible(leader.holder)} {'acts' if leader.applies else 'watches only (dry run)'}"
    counts = ", ".join(f"{count} {state}" for state, count in sorted(status.states.items()))
    watched = sum(topic.watched for topic in status.topics)
    yield f"{watched} topic{'' if watched == 1 else 's'}; partitions: {counts or 'none'}"
    if status.countdown_ms is not None:
        left = status.countdown_ms
        text = f"first unsafe removal in {duration(left)}" if left > 0 else f"unsafe for {duration(-left)}"
        yield output.painted(text, BAD)
    for topic in status.topics:
        if topic.worrying or topic.held or topic.waiting:
            yield from topic_lines(topic, status.now_ms)
    if not_watched := status.not_watched:
        yield f"not watched by this guard, so unknown: {len(not_watched)} of the compacted topics: {first_names(not_watched)}"
    for problem in status.problems:
        yield f"not known: {visible(problem)}"
    for alarm, partitions in alarms_together(status.alarms):
        since = f" (for {duration(status.now_ms - alarm.first_ms)})" if alarm.first_ms else ""
        yield output.painted(f"ALARM {alarm_words(alarm, partitions=partitions)}{since}", BAD)
    if not status.alarms and not status.states.keys() - {State.FINE}:
        yield output.painted("nothing to do", GOOD)


def release(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.guard import by_hand

    done = by_hand.release(
        kafka_connection(arguments), arguments.topic, journal=arguments.journal, applies=arguments.apply
    )
    output.answer(
        lambda: done.document, by_hand.release_lines(done.undos, done.danger, done.address, applied=done.applied)
    )
    return UNFINISHED if any(undo.outcome not in (None, "done") for undo in done.undos) else DONE
