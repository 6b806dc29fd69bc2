"""`headstone guard`, `guard status` and `guard release`: opens the cluster and the journal, calls, renders.

What is decided and done is in `guard/`. Exit codes: 1 if an alarm stands (`--once`, `status`).
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from headstone.cli.connections import kafka_connection
from headstone.cli.guard import CLUSTER_DEFAULT, READMISSION
from headstone.cli.guard_agents import Agents, listening, told_document, told_in, told_lines
from headstone.cli.output import BAD, GOOD, HEADING, Output
from headstone.cli.parsing import DONE, FINDINGS, UNFINISHED
from headstone.cli.stopping import signals_heard
from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import Allowed, State, Verdict, Verify
from headstone.errors import Unfinished, UsageError
from headstone.log.scratch import scratch_directory
from headstone.log.shown import visible

if TYPE_CHECKING:
    from headstone.audit.kafka_tools import Bootstrap
    from headstone.cluster.admin import Admin
    from headstone.cluster.connection import Connection
    from headstone.guard.agents_told import AgentsTold
    from headstone.guard.journal import Journal
    from headstone.guard.metrics import MetricsServer
    from headstone.guard.readings import Read
    from headstone.guard.release import Undo
    from headstone.guard.status import GuardStatus, TopicStatus
    from headstone.guard.watching import Round, Settings, Watcher

STAYS = "what is held stays held, which is safe; `headstone guard status` shows it, `headstone guard release` undoes it"


class Interrupted(Exception):
    """A look was dropped in the middle: nothing was being changed."""


def clock_ms() -> int:
    return time.time_ns() // 1_000_000


def watch(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.cluster.admin import Admin
    from headstone.guard.clocks import Clocks
    from headstone.guard.leader_reading import POLL_SHARE, LeaderReading
    from headstone.guard.looks import look
    from headstone.guard.missed import Missed
    from headstone.guard.readings import Readings
    from headstone.guard.readmission import Means
    from headstone.guard.readmission_plan import Limits
    from headstone.guard.readmitting import OwnReadmissions
    from headstone.guard.sightings import Sightings
    from headstone.guard.watching import Watcher

    settings = _settings(arguments)
    connection = kafka_connection(arguments)
    with ExitStack() as stack:
        admin = stack.enter_context(Admin(connection))
        _refuse_topics(admin, settings.topics)
        journal = stack.enter_context(journal_of(arguments, admin))
        readings = readmissions = None
        agents = listening(arguments, stack, output)
        if settings.applies:
            work = stack.enter_context(scratch_directory("guard"))
            read = agents.reading(_reader(connection, work))
            readings = Readings(read, journal, clock=clock_ms, beside=not arguments.once)
            stack.callback(readings.end)
            limits = Limits(partitions_at_once=arguments.partitions_at_once, copy_bytes_per_second=arguments.throttle)
            readmissions = OwnReadmissions(
                Means(admin=admin, connection=connection, journal=journal, work=work, limits=limits, tell=output.say)
            )
        missed, clocks, sightings = Missed(), Clocks(poll_ms=settings.margins.poll_ms), Sightings()
        leaders = LeaderReading(missed, seconds_max=POLL_SHARE * settings.margins.poll_ms / 1000)
        watcher = Watcher(
            settings, admin=admin, journal=journal, clock=clock_ms, readings=readings,
            readmissions=readmissions, missed=missed,
            look=agents.attended(
                lambda topics: look(admin, topics, clock_ms, leaders=leaders, clocks=clocks, sightings=sightings)
            ),
        )  # fmt: skip
        stack.callback(journal.stand_down, settings.name)
        rounds = _Rounds(watcher, journal, output, note=lambda result: agents.note(journal, result))
        if arguments.metrics is not None:
            server = stack.enter_context(_metrics_server(arguments, watcher, rounds, agents))
            output.tell(f"metrics: http://{server.address}/metrics")
        for topic in _left_held(journal, settings.topics):
            output.warn(
                f"{visible(topic)} is held by an earlier run and is not watched now: name it with --topic, or release it"
            )
        if arguments.once:
            rounds.tell(watcher.round())
        else:
            how = "and acting" if settings.applies else "only: a dry run, --apply acts"
            output.tell(f"watching {how}; journal {journal.path}")
            _run(watcher, rounds.tell)
        return _ended(arguments, rounds, output)


def _settings(arguments: argparse.Namespace) -> Settings:
    from headstone.guard.watching import Settings

    margins = Margins(
        metadata_age_ms=arguments.metadata_age_ms, skew_ms=arguments.clock_skew_ms, effect_ms=arguments.effect_ms,
        poll_ms=arguments.poll_ms, pass_start_ms=arguments.pass_start_ms, slack_share=arguments.slack_share,
        robot_ms=arguments.robot_ms,
    )  # fmt: skip
    allowed = Allowed(
        cluster_default=CLUSTER_DEFAULT in arguments.allow, readmission=READMISSION in arguments.allow
    )  # fmt: skip
    # Containers share names and process ids.
    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
    return Settings(
        name=name, margins=margins, allowed=allowed, topics=tuple(arguments.topic),
        applies=arguments.apply,
    )  # fmt: skip


def _left_held(journal: Journal, watched: tuple[str, ...]) -> list[str]:
    others = [topic for topic in journal.names() if watched and topic not in watched]
    return [topic for topic in others if journal.memory(topic).hold is not None]


def _refuse_topics(admin: Admin, topics: tuple[str, ...]) -> None:
    """Whoever names a topic means one that is there and compacted."""
    from headstone.cluster.questions import DESCRIBE_TOPIC
    from headstone.cluster.refusals import DENIED, UNKNOWN_TOPIC, error_name

    if not topics:
        return
    known = admin.describe(list(topics)).topics
    for topic in topics:
        errors = [state.error for state in known.get(topic, {}).values() if state.error and not state.replicas]
        if errors or topic not in known:
            name = error_name(errors[0]) if errors else error_name(UNKNOWN_TOPIC)
            why = {UNKNOWN_TOPIC: ": there is no such topic"} | dict.fromkeys(
                DENIED, f"; this user lacks {DESCRIBE_TOPIC}"
            )
            raise UsageError(f"--topic {visible(topic)}: {name}{why.get(errors[0] if errors else UNKNOWN_TOPIC, '')}")
    for topic, configs in admin.topic_configs(list(topics)).items():
        policy = configs["cleanup.policy"].value or "" if "cleanup.policy" in configs else ""
        if "compact" not in policy.split(","):
            raise UsageError(
                f"--topic {visible(topic)}: not compacted (cleanup.policy {visible(policy)}): there is nothing to guard"
            )


def journal_of(arguments: argparse.Namespace, admin: Admin) -> Journal:
    from headstone.guard.journal import Journal, usual_journal

    cluster_id = admin.describe([]).cluster_id
    if not cluster_id:
        raise Unfinished("the cluster does not tell its id, so that no journal can be kept of it")
    return Journal.open(arguments.journal or usual_journal(cluster_id, os.environ), cluster_id=cluster_id)


def _reader(connection: Connection, work: Path) -> Read:
    from headstone.guard.verification import verify

    def read(wanted: Verify) -> Mapping[int, Verdict]:
        return verify(connection, wanted.topic, wanted.partition, wanted.broker, work=work)

    return read


class _Rounds:
    """The newest round, and what was told."""

    def __init__(
        self, watcher: Watcher, journal: Journal, output: Output, note: Callable[[Round], None]
    ) -> None:  # fmt: skip
        self.watcher = watcher
        self._journal = journal
        self._note = note
        self.newest: Round | None = None
        self._output = output

    def tell(self, result: Round) -> None:
        from headstone.guard.telling import news

        settings = self.watcher.settings
        for line in news(self.newest, result, applies=settings.applies, poll_ms=settings.margins.poll_ms):
            self._output.say(line)
        self.newest = result
        if not result.unwritten:
            # What it writes is for `guard status` only; if the journal cannot be written, the next round says so.
            with suppress(Unfinished):
                self._note(result)

    def status(self, now_ms: int) -> GuardStatus | None:
        from headstone.guard.asking import by_hand, reasons_of, wrong_by_topic
        from headstone.guard.status import Known, guard_status

        result = self.newest
        if result is None:
            return None
        known = Known(
            cluster_id=result.cluster_id, memories=result.memories, statuses=result.statuses, looked_ms=result.looked_ms,
            lease=result.lease, alarms=result.alarms, problems=result.problems, held_bytes=result.held_bytes,
            reasons=reasons_of(self._journal), by_hand=by_hand(self._journal),
            wrong=wrong_by_topic(self._journal, result.memories),
        )  # fmt: skip
        return guard_status(known, now_ms=now_ms, poll_ms=self.watcher.settings.margins.poll_ms, fresh=True)


def _metrics_server(arguments: argparse.Namespace, watcher: Watcher, rounds: _Rounds, agents: Agents) -> MetricsServer:
    from headstone.guard.metrics import Counters, MetricsServer, metrics_text

    def text() -> str:
        status = rounds.status(clock_ms())
        if status is None:
            return ""
        newest = rounds.newest
        counters = Counters(
            looks=watcher.looks, calls_failed=watcher.calls_failed, applies=watcher.settings.applies,
            leads=newest is not None and newest.leads,
        )  # fmt: skip
        return metrics_text(status, counters) + agents.metrics()

    host, port = arguments.metrics
    return MetricsServer(host, port, text)


def _run(watcher: Watcher, tell: Callable[[Round], None]) -> None:
    stop = threading.Event()

    def end(count: int) -> None:
        stop.set()
        if watcher.looking:
            raise Interrupted

    with suppress(Interrupted), signals_heard(end):
        watcher.run(stop, tell)


def _ended(arguments: argparse.Namespace, rounds: _Rounds, output: Output) -> int:
    from headstone.guard.status import status_document

    status = rounds.status(clock_ms())
    newest = rounds.newest
    held = [] if status is None else [topic.topic for topic in status.topics if topic.held is not None]
    if held and not arguments.once:
        output.tell(f"ending: {len(held)} topics are held: {STAYS}")
    if output.as_json and status is not None:
        output.answer(lambda: status_document(status), [])
    if newest is not None and arguments.once:
        if newest.lost is not None or (newest.problems and not newest.statuses):
            return UNFINISHED
        return FINDINGS if newest.alarms else DONE
    return DONE


def status(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.guard.status import status_document

    found, told = _status(arguments)
    lines = chain(status_lines(found, output), told_lines(told, arguments.record))
    output.answer(lambda: {**status_document(found), "agents": told_document(told)}, lines)
    return FINDINGS if found.alarms else DONE


def _status(arguments: argparse.Namespace) -> tuple[GuardStatus, AgentsTold | None]:
    """From the journal and a look just now; without the cluster, from the journal alone."""
    from headstone.cluster.admin import Admin
    from headstone.guard.asking import ask_status, journal_status

    connection = kafka_connection(arguments)
    with Admin(connection) as admin:
        try:
            cluster_id = admin.describe([]).cluster_id
        except Unfinished as error:
            with _journal_without_cluster(arguments, connection, error) as journal:
                return journal_status(journal, now_ms=clock_ms(), why=str(error)), told_in(journal, arguments.record)
        with _known_journal(arguments, cluster_id or "") as journal:
            return ask_status(journal, admin, clock_ms), told_in(journal, arguments.record)


def _known_journal(arguments: argparse.Namespace, cluster_id: str) -> Journal:
    """One that is there: to ask does not begin one."""
    from headstone.guard.journal import Journal, usual_journal

    path = arguments.journal or usual_journal(cluster_id, os.environ)
    if not path.exists():
        raise UsageError(
            f"{path}: no journal of cluster {cluster_id}: no guard has watched it from here; name another with --journal"
        )
    return Journal.open(path, cluster_id=cluster_id)


def _journal_without_cluster(arguments: argparse.Namespace, connection: Connection, why: Unfinished) -> Journal:
    from headstone.guard.journal import Journal

    if arguments.journal is None:
        raise Unfinished(
            f"{why}; the journal knows what is held as well: name it with --journal FILE (usually in "
            "~/.local/state/headstone/guard)"
        )
    return Journal.open(arguments.journal, cluster_id=None)


def status_lines(status: GuardStatus, output: Output) -> Iterator[str]:
    from headstone.guard.evidence import moment
    from headstone.guard.telling import alarm_words, duration

    if status.looked_ms is None:
        looked = "nobody has looked yet"
    elif status.fresh:
        looked = "looked just now"
    else:
        looked = f"by the journal of {moment(status.looked_ms)}, {duration(status.now_ms - status.looked_ms)} ago"
    yield output.painted(f"cluster {visible(status.cluster_id)}: {looked}", HEADING)
    leader = status.leader
    if leader is None:
        yield output.painted("no guard is running", BAD)
    else:
        yield f"guard {visible(leader.holder)} {'acts' if leader.applies else 'watches only (dry run)'}"
    counts = ", ".join(f"{count} {state}" for state, count in sorted(status.states.items()))
    yield f"{len(status.topics)} topic{'' if len(status.topics) == 1 else 's'}; partitions: {counts or 'none'}"
    if status.countdown_ms is not None:
        left = status.countdown_ms
        text = f"first unsafe removal in {duration(left)}" if left > 0 else f"unsafe for {duration(-left)}"
        yield output.painted(text, BAD)
    for topic in status.topics:
        if topic.worrying or topic.held or topic.waiting:
            yield from _topic_lines(topic, status.now_ms)
    for problem in status.problems:
        yield f"not known: {visible(problem)}"
    for alarm in status.alarms:
        since = f" (for {duration(status.now_ms - alarm.first_ms)})" if alarm.first_ms else ""
        yield output.painted(f"ALARM {alarm_words(alarm)}{since}", BAD)
    if not status.alarms and not status.states.keys() - {State.FINE}:
        yield output.painted("nothing to do", GOOD)


def _topic_lines(topic: TopicStatus, now_ms: int) -> Iterator[str]:
    from headstone.guard.evidence import moment
    from headstone.guard.telling import configs_words, duration, status_words

    name = visible(topic.topic)
    if topic.held is not None:
        held = topic.held
        effect = (
            f"in effect since {moment(held.confirmed_ms)}"
            if held.confirmed_ms is not None
            else "not in effect everywhere"
        )
        effect = f"undone at {moment(held.undone_ms)}" if held.undone_ms is not None and not held.by_default else effect
        brokers = ", ".join(map(str, held.confirmed)) or "none"
        how = "by the cluster default " if held.by_default else ""
        yield f"{name}: held {how}for {duration(now_ms - held.since_ms)}, {effect}; brokers that have it: {brokers}"
        if held.reason:
            yield f"  why: {visible(held.reason)}"
        if held.bytes_held_back is not None:
            yield f"  grown by {held.bytes_held_back:,} bytes since"
        yield f"  goes back to: {configs_words(held.found)}"
    for status in topic.worrying:
        yield f"  {name}-{status.partition}: {status_words(status)}"
    for waiting in topic.waiting:
        where = "out of the assignment" if waiting.expelled_ms is not None else "assigned, and must not lead"
        yield f"  {name}-{waiting.partition} on broker {waiting.broker} waits for readmission: {where}"


def release(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.cluster.admin import Admin
    from headstone.guard.asking import ask_status
    from headstone.guard.commands import address_of
    from headstone.guard.release import carry_out_release, plan_release

    connection = kafka_connection(arguments)
    with Admin(connection) as admin, _known_journal(arguments, admin.describe([]).cluster_id or "") as journal:
        plan = plan_release(admin, journal, arguments.topic)
        danger = ask_status(journal, admin, clock_ms)
        if arguments.apply:
            evidence = f"headstone guard release by user {os.getuid()} on {socket.gethostname()}"
            plan = carry_out_release(admin, journal, plan, now_ms=clock_ms(), evidence=evidence)
    address = address_of(connection)
    lines = list(release_lines(plan, danger, address, applied=arguments.apply))
    output.answer(lambda: {"applied": arguments.apply, "undo": [_undo_document(undo, address) for undo in plan]}, lines)
    return UNFINISHED if any(undo.outcome not in (None, "done") for undo in plan) else DONE


def undo_commands(undo: Undo, bootstrap: Bootstrap) -> list[str]:
    from headstone.guard import commands

    if not undo.restore:
        return []
    if undo.broker is not None:
        return [commands.release_broker(undo.broker, undo.restore, bootstrap=bootstrap)]
    if undo.topic is None:
        return [commands.release_default(undo.restore, bootstrap=bootstrap)]
    return [commands.release(undo.topic, undo.restore, bootstrap=bootstrap)]


def _undo_document(undo: Undo, bootstrap: Bootstrap) -> dict[str, object]:
    return {
        "topic": undo.topic, "broker": undo.broker, "restore": dict(undo.restore), "left": dict(undo.left),
        "gone": undo.gone, "outcome": undo.outcome, "commands": undo_commands(undo, bootstrap),
    }  # fmt: skip


def release_lines(plan: list[Undo], danger: GuardStatus, bootstrap: Bootstrap, *, applied: bool) -> Iterator[str]:
    from headstone.audit.kafka_tools import config_remarks
    from headstone.guard.telling import configs_words, status_words

    if not plan:
        yield "nothing is held"
        return
    behind = {topic.topic: topic.worrying for topic in danger.topics}
    for undo in plan:
        what = "cluster default" if undo.topic is None else f"topic {visible(undo.topic)}"
        what = what if undo.broker is None else f"broker {undo.broker}"
        nothing = "the topic was deleted, and its hold with it" if undo.gone else "nothing of the hold stands any more"
        words = configs_words(undo.restore) or nothing
        yield f"{what}: {words}" + (f": {visible(undo.outcome)}" if undo.outcome is not None else "")
        yield from (
            f"  {name} was changed to {visible(str(value))} by somebody else and stays" for name, value in undo.left
        )
        for status in behind.get(undo.topic or "", ()):
            yield f"  {visible(undo.topic or '')}-{status.partition} is {status_words(status)}"
        yield from (f"  {command}" for command in undo_commands(undo, bootstrap))
    if any(undo.restore for undo in plan):
        yield from config_remarks(bootstrap)
    if not applied:
        yield "this was a plan; --apply does it"
