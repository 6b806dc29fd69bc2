"""The status of a cluster's guard: from the journal and a look made now, or from the journal alone.

Reads only, remembers nothing and changes nothing, so it may run beside a guard.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

from headstone.cluster.admin import Admin
from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import HOLD, Allowed, Memory, State, Status
from headstone.coordination.guarding import decide
from headstone.coordination.hold_states import ENDED, state_of
from headstone.errors import Unfinished
from headstone.guard.acting.changes import grown_bytes, topic_bytes
from headstone.guard.ledger.encoding import value_of
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.lock import somebody_runs
from headstone.guard.ledger.memory import released_by_person, with_readings
from headstone.guard.ledger.readmissions import open_readmissions
from headstone.guard.ledger.topic_identity import is_another
from headstone.guard.looks.look import Look, look
from headstone.guard.loop.rounds import MARGINS, Round
from headstone.guard.monitoring.log_lines import not_looked
from headstone.guard.monitoring.status import GuardStatus, Known, Waiting, guard_status
from headstone.guard.readmission.candidates import Replica, found_wrong


def margins_of(journal: Journal) -> Margins:
    text = journal.fact(MARGINS)
    return Margins() if text is None else value_of(Margins, json.loads(text))


def reasons_of(journal: Journal) -> dict[str, str]:
    """Why each topic is held: the reason of the newest change that held it."""
    return {
        change.topic: change.reason for change in journal.changes() if change.topic is not None and change.new == HOLD
    }


def by_hand(journal: Journal) -> dict[str, tuple[Waiting, ...]]:
    """By topic: replicas whose readmission was begun with `guard readmit` and is not finished."""
    waiting: dict[str, tuple[Waiting, ...]] = {}
    for readmission in open_readmissions(journal):
        expelled_ms = readmission.began_ms if readmission.expelled else None
        replica = Waiting(
            partition=readmission.partition, broker=readmission.broker, since_ms=readmission.began_ms,
            expelled_ms=expelled_ms,
        )  # fmt: skip
        waiting[readmission.topic] = (*waiting.get(readmission.topic, ()), replica)
    return waiting


def wrong_by_topic(journal: Journal, memories: Mapping[str, Memory]) -> dict[str, frozenset[Replica]]:
    """By topic; only topics that have such replicas."""
    wrong = {topic: found_wrong(journal, topic, memory) for topic, memory in memories.items() if memory.away}
    return {topic: replicas for topic, replicas in wrong.items() if replicas}


def held_topics(journal: Journal) -> list[str]:
    """According to the journal, whichever guard wrote it."""
    return [topic for topic, kept in journal.topics().items() if state_of(kept.memory) not in ENDED]


def round_status(result: Round, journal: Journal, *, now_ms: int, poll_ms: int) -> GuardStatus:
    """The status of a running guard, as of its newest round."""
    knowledge = Known(
        cluster_id=result.cluster_id, memories=result.memories, statuses=result.statuses, looked_ms=result.looked_ms,
        lease=result.lease, alarms=result.alarms, problems=result.problems, held_bytes=result.held_bytes,
        reasons=reasons_of(journal), by_hand=by_hand(journal), wrong=wrong_by_topic(journal, result.memories),
        runs=somebody_runs(journal.path),
    )  # fmt: skip
    return guard_status(knowledge, now_ms=now_ms, poll_ms=poll_ms, fresh=True)


def last_status(result: Round, journal: Journal, *, now_ms: int, poll_ms: int) -> GuardStatus:
    """The status of a guard that ends. If it stood by: what the leading guard has written into the journal."""
    if result.leads:
        return round_status(result, journal, now_ms=now_ms, poll_ms=poll_ms)
    return journal_status(journal, now_ms=now_ms, why=not_looked(result, held_topics(journal)))


def journal_status(journal: Journal, *, now_ms: int, why: str) -> GuardStatus:
    """What the journal knows, and how old that is."""
    topics = journal.topics()
    memories = {topic: kept.memory for topic, kept in topics.items()}
    knowledge = Known(
        cluster_id=journal.cluster_id, memories=memories,
        statuses={topic: kept.statuses for topic, kept in topics.items()},
        looked_ms=max((*(kept.looked_ms for kept in topics.values()), journal.looked_ms() or 0), default=None) or None,
        lease=journal.lease(),
        alarms=journal.alarms(), problems=(why,), reasons=reasons_of(journal),
        by_hand=by_hand(journal), wrong=wrong_by_topic(journal, memories), runs=somebody_runs(journal.path),
    )  # fmt: skip
    return guard_status(knowledge, now_ms=now_ms, poll_ms=margins_of(journal).poll_ms, fresh=False)


def ask_status(
    journal: Journal, admin: Admin, clock: Callable[[], int], *, look_at: Callable[[], Look] | None = None
) -> GuardStatus:
    """The status as the guard would decide now, without acting. Looks at every topic, unless `look_at` is given."""
    try:
        seen = look(admin, None, clock) if look_at is None else look_at()
    except Unfinished as error:
        return journal_status(journal, now_ms=clock(), why=str(error))
    margins, released, now_ms = margins_of(journal), journal.released(), clock()
    kept = journal.topics()
    memories: dict[str, Memory] = {topic: knowledge.memory for topic, knowledge in kept.items()}
    # A partition that this look does not show is not thereby fine.
    statuses: dict[str, tuple[Status, ...]] = {
        topic: tuple(replace(status, state=State.UNKNOWN) for status in knowledge.statuses)
        for topic, knowledge in kept.items()
    }
    for topic in seen.topics:
        memory = released_by_person(journal.memory(topic.topic), released.get(topic.topic))
        read = with_readings(topic, journal.readings(topic.topic), now_ms)
        if is_another(memory, topic):
            memory, read = Memory(), topic
        decision = decide(memory, read, now_ms, margins, Allowed())
        memories[topic.topic], statuses[topic.topic] = memory, decision.statuses
    sizes = {topic: size for topic, size in journal.sizes().items() if topic in memories}
    total = topic_bytes(admin, sorted(sizes), seen.brokers) if sizes else {}
    knowledge = Known(
        cluster_id=journal.cluster_id, memories=memories, statuses=statuses, looked_ms=seen.asked_ms, lease=journal.lease(),
        alarms=journal.alarms(), problems=seen.problems, reasons=reasons_of(journal),
        held_bytes=grown_bytes(sizes, total), remembered=frozenset(kept),
        by_hand=by_hand(journal), wrong=wrong_by_topic(journal, memories), runs=somebody_runs(journal.path),
    )  # fmt: skip
    return guard_status(knowledge, now_ms=now_ms, poll_ms=margins.poll_ms, fresh=True)
