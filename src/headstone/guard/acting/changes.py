"""Carries out single decisions through the Admin API: holds, releases, restarts of cleaner threads. Decides nothing.

Every change is in the journal before it is made (old, new, reason, evidence, time) and again when its outcome is known. A
change that is refused or not answered becomes an outcome with its reason; the next look shows whether it was applied. Never
touches cleanup.policy, and never overwrites a value that somebody else has set meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from headstone.cluster.admin import Admin, MayHaveArrived
from headstone.cluster.refusals import NoAnswer
from headstone.coordination.guard_values import (
    DEFAULT_HOLD,
    HOLD,
    Action,
    AddAgain,
    Alarm,
    AskBrokers,
    Configs,
    EndPasses,
    Expel,
    HoldByDefault,
    Memory,
    Release,
    ReleaseDefault,
    SetHold,
    Verify,
)
from headstone.coordination.hold_states import ENDED, state_of
from headstone.errors import Unfinished
from headstone.guard.acting.outcomes import ActionOutcome
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Change
from headstone.guard.ledger.memory import Recollection
from headstone.guard.ledger.overrides import (
    CLUSTER_DEFAULT,
    DONE,
    Resource,
    TooLate,
    Void,
    alter,
    broker_or_default,
    change,
    never,
    own_values,
    refuse_late,
)
from headstone.guard.ledger.temporary_changes import (
    default_before,
    forget_default_before,
    note_default_before,
    temporary_changes,
)
from headstone.guard.ledger.topic_identity import refuse_another
from headstone.interruption import sleep

BACKOFF = "log.cleaner.backoff.ms"
ENDING = "cleaner threads restart: "
"""Prefix of the reason of a change that is put back at once. One without an outcome was interrupted."""
CHANGES_KEPT_MS = 90 * 86_400_000
SEEN_SECONDS_MAX = 10.0
SEEN_EVERY_SECONDS = 0.2


def carry_out(
    action: Action, admin: Admin, journal: Journal, *, now_ms: int, topic: str = "", evidence: str = "",
    other_topics: Collection[str] | None = None, void: Void = never, recollection: Recollection | None = None,
) -> ActionOutcome:  # fmt: skip
    """Carries out one action. `topic`: the topic that needs the hold by the cluster default. `other_topics`: the others that
    need it, required for ReleaseDefault. `void` applies to releases. A refusal is an outcome, not an exception. An action that
    comes too late counts as not needed, because the next look decides again."""
    try:
        memories = recollection or Recollection(journal)
        return _carry_out(action, admin, journal, memories, now_ms, topic, evidence, other_topics, void)
    except TooLate:
        return ActionOutcome(needed=False)
    except (NoAnswer, MayHaveArrived) as error:
        return ActionOutcome(why=str(error), unanswered=True)
    except Unfinished as error:
        return ActionOutcome(why=str(error))


def _carry_out(
    action: Action, admin: Admin, journal: Journal, memories: Recollection, now_ms: int, topic: str, evidence: str,
    other_topics: Collection[str] | None, void: Void,
) -> ActionOutcome:  # fmt: skip
    match action:
        case SetHold():
            return _set_hold(action, admin, journal, memories, now_ms, evidence)
        case EndPasses():
            return _end_passes(action, admin, journal, now_ms, evidence)
        case Release():
            return _release(action, admin, journal, now_ms, evidence, void)
        case HoldByDefault():
            return _hold_by_default(action, admin, journal, now_ms, topic, evidence)
        case ReleaseDefault():
            assert other_topics is not None, "who else is held by the default"
            return _release_default(action, admin, journal, now_ms, topic, evidence, other_topics, void)
        case AskBrokers() | Expel() | AddAgain() | Verify() | Alarm():
            raise AssertionError("questions, readmissions, readings and alarms are whose loop it is")
    assert_never(action)


def _set_hold(
    action: SetHold, admin: Admin, journal: Journal, memories: Recollection, now_ms: int, evidence: str
) -> ActionOutcome:
    resource = Resource(topic=action.topic)
    refuse_another(admin, action.topic, memories.memory(action.topic).topic_id)
    old = own_values(admin, resource, [name for name, _ in HOLD])
    previous = memories.note_found(action.topic, old)
    entry = Change(
        resource=str(resource), topic=action.topic, old=old, new=action.configs, reason=action.reason, evidence=evidence,
        began_ms=now_ms,
    )  # fmt: skip
    change(admin, journal, resource, entry)
    return ActionOutcome(found=previous)


def topic_bytes(admin: Admin, topics: Sequence[str], brokers: Sequence[int]) -> dict[str, dict[int, int]]:
    """By topic and broker; leaves out brokers that do not answer."""
    sizes: dict[str, dict[int, int]] = {topic: {} for topic in topics}
    for broker in brokers:
        try:
            replicas = admin.log_dirs(broker)
        except Unfinished:
            continue
        for partition, replica in replicas.items():
            if partition.topic in sizes:
                sizes[partition.topic][broker] = sizes[partition.topic].get(broker, 0) + replica.size
    return sizes


def grown_bytes(before: Mapping[str, Mapping[int, int]], now: Mapping[str, Mapping[int, int]]) -> dict[str, int]:
    """By topic, over the brokers that answered both times."""
    return {
        topic: max(0, sum(size - sizes[broker] for broker, size in now.get(topic, {}).items() if broker in sizes))
        for topic, sizes in before.items()
    }


def _release(
    action: Release, admin: Admin, journal: Journal, now_ms: int, evidence: str, void: Void
) -> ActionOutcome:  # fmt: skip
    reason = "everybody is back: as it was found"
    return restore_topic(
        admin, journal, action.topic, action.restore, reason=reason, evidence=evidence, now_ms=now_ms, void=void
    )  # fmt: skip


def restore_topic(
    admin: Admin, journal: Journal, topic: str, restore: Configs, *, reason: str, evidence: str, now_ms: int,
    void: Void,
) -> ActionOutcome:  # fmt: skip
    """Raises TooLate if `void()` is true just before the change is sent."""
    entry = Change(
        resource=str(Resource(topic=topic)), topic=topic, old=HOLD, new=restore, reason=reason, evidence=evidence,
        began_ms=now_ms,
    )  # fmt: skip
    refuse_another(admin, topic, journal.memory(topic).topic_id)
    return ActionOutcome(needed=_restored(admin, journal, Resource(topic=topic), entry, void))


def _restored(admin: Admin, journal: Journal, resource: Resource, entry: Change, void: Void) -> bool:
    """Restores only values that are still the hold's own (`entry.old`): Kafka has no compare-and-set for configs, so they are
    read just before. False if there was none to restore."""
    held, present = dict(entry.old), dict(own_values(admin, resource, [name for name, _ in entry.new]))
    own = tuple(
        (name, value) for name, value in entry.new if present[name] == held.get(name) and value != present[name]
    )
    refuse_late(void)  # too late: nothing to write down
    if own:
        old = tuple((name, held[name]) for name, _ in own)
        change(admin, journal, resource, replace(entry, old=old, new=own), void=void)
    return bool(own)


def _hold_by_default(
    action: HoldByDefault, admin: Admin, journal: Journal, now_ms: int, topic: str, evidence: str
) -> ActionOutcome:
    old = own_values(admin, CLUSTER_DEFAULT, [name for name, _ in DEFAULT_HOLD])
    if dict(old) == dict(DEFAULT_HOLD):
        return ActionOutcome(
            needed=False
        )  # already held for another topic; the values found then are the ones to restore
    reason = f"automation reverts the hold of topic {topic}"
    note_default_before(journal, old, reason=reason, now_ms=now_ms)
    entry = Change(
        resource=str(CLUSTER_DEFAULT), topic=topic or None, old=old, new=action.configs, reason=reason, evidence=evidence,
        began_ms=now_ms,
    )  # fmt: skip
    change(admin, journal, CLUSTER_DEFAULT, entry)
    return ActionOutcome(found=default_restored(journal, old))


def _release_default(
    action: ReleaseDefault, admin: Admin, journal: Journal, now_ms: int, topic: str, evidence: str,
    other_topics: Collection[str], void: Void,
) -> ActionOutcome:  # fmt: skip
    """The default is held once for all topics that need it, and restored when the last one no longer does."""
    if other_topics:
        return ActionOutcome(needed=False)
    reason = "the hold by the cluster default is no longer needed: original settings restored"
    return restore_default(
        admin, journal, default_restored(journal, action.restore), topic=topic, reason=reason, evidence=evidence,
        now_ms=now_ms, void=void,
    )  # fmt: skip


def restore_default(
    admin: Admin, journal: Journal, restore: Configs, *, topic: str, reason: str, evidence: str, now_ms: int,
    void: Void,
) -> ActionOutcome:  # fmt: skip
    """Raises TooLate like `restore_topic`."""
    entry = Change(
        resource=str(CLUSTER_DEFAULT), topic=topic or None, old=DEFAULT_HOLD, new=restore, reason=reason, evidence=evidence,
        began_ms=now_ms,
    )  # fmt: skip
    _restored(admin, journal, CLUSTER_DEFAULT, entry, void)
    forget_default_before(journal)
    return ActionOutcome()


def holds_by_default(memory: Memory) -> bool:
    return memory.default_hold is not None and state_of(memory) not in ENDED


def default_restored(journal: Journal, restore: Configs) -> Configs:
    """A topic may remember the guard's own hold, set for another topic, as the old value. The journal has the true one."""
    first = default_before(journal)
    return restore if first is None else tuple((name, dict(first).get(name)) for name, _ in restore)


def _end_passes(action: EndPasses, admin: Admin, journal: Journal, now_ms: int, evidence: str) -> ActionOutcome:
    """Restarts the cleaner threads of every broker: changes log.cleaner.backoff.ms by one millisecond, and back.

    A broker with an override of its own does not see the default, so its override is changed. The change is put back only after
    every broker has seen it: otherwise the two changes could arrive as none.
    """
    reached = {
        broker: admin.broker_configs(broker).get(BACKOFF) for broker in sorted(admin.describe([action.topic]).brokers)
    }
    values = {broker: config for broker, config in reached.items() if config is not None and config.value is not None}
    new = str(max((int(config.value or 0) for config in values.values()), default=15_000) + 1)
    ((_, default),) = own_values(admin, CLUSTER_DEFAULT, [BACKOFF])
    targets = [(CLUSTER_DEFAULT, default)]
    targets += [(Resource(broker=broker), config.value) for broker, config in values.items() if config.own]
    reason = f"{ENDING}the hold of topic {action.topic}, or of more, came close to the moment of danger"
    numbers = []
    for resource, old in targets:
        entry = Change(
            resource=str(resource), topic=action.topic, old=((BACKOFF, old),), new=((BACKOFF, new),), reason=reason,
            evidence=evidence, began_ms=now_ms,
        )  # fmt: skip
        numbers.append(journal.begin(entry))
        alter(admin, resource, {BACKOFF: new})
    late = _wait_seen(admin, sorted(reached), new)
    for number, (resource, old) in zip(numbers, targets, strict=True):
        alter(admin, resource, {BACKOFF: old})
        journal.end(number, f"not seen by brokers {late}; put back" if late else f"{DONE}, and put back")
    return ActionOutcome(
        why=f"brokers {late} did not take the change of {BACKOFF}: passes may go on there" if late else None
    )


def _wait_seen(admin: Admin, brokers: Sequence[int], value: str) -> list[int]:
    """Brokers that do not show the value in time."""
    deadline = time.monotonic() + SEEN_SECONDS_MAX
    waiting = list(brokers)
    while waiting and time.monotonic() < deadline:
        waiting = [broker for broker in waiting if not _has(admin, broker, value)]
        if waiting:
            sleep(SEEN_EVERY_SECONDS)
    return waiting


def _has(admin: Admin, broker: int, value: str) -> bool:
    try:
        config = admin.broker_configs(broker).get(BACKOFF)
    except Unfinished:
        return False
    return config is not None and config.value == value


def put_back(admin: Admin, journal: Journal) -> list[str]:
    """Closes what an interrupted guard left open, and puts back its momentary changes. Returns remarks for a person.

    Newest first, because a change made on top of another one found that one's value. If a broker does not answer, its changes
    are tried again at the next look; the others do not wait for it."""
    lines, waiting = [], set()
    for entry in reversed(journal.unfinished()):
        if entry.reason.startswith(ENDING):
            if entry.resource in waiting:
                continue
            try:
                lines += _backoff_put_back(admin, entry)
            except Unfinished as error:
                lines.append(
                    f"{entry.resource}: {BACKOFF}, changed by an interrupted guard, is not put back yet: {error}"
                )
                waiting.add(entry.resource)
                continue
        journal.end(entry.number, "interrupted: the next look says what became of it")
    return lines


def _backoff_put_back(admin: Admin, entry: Change) -> list[str]:
    resource, old = broker_or_default(entry.resource), dict(entry.old)[BACKOFF]
    ((_, present),) = own_values(admin, resource, [BACKOFF])
    if present != dict(entry.new)[BACKOFF]:
        return []
    alter(admin, resource, {BACKOFF: old})
    return [f"{resource}: {BACKOFF} put back to {old or 'no override'}"]


def forget_old_changes(journal: Journal, *, now_ms: int) -> None:
    """Keeps changes that are still in force: those of held topics, and those that a readmission or the cluster default must
    restore."""
    held = {topic for topic, kept in journal.topics().items() if kept.memory.hold is not None}
    in_use = {str(temporary.resource) for temporary in temporary_changes(journal)}
    by_default = {str(CLUSTER_DEFAULT)} if default_before(journal) is not None else set()
    journal.forget_changes(before_ms=now_ms - CHANGES_KEPT_MS, topics=held, resources=in_use | by_default)
