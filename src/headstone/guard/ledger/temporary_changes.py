"""The ledger of temporary settings: a readmission's hold and throttle, and the cluster default that holds all topics. Restored
exactly as found.

The old value is in the journal before the change, so that the next run restores it if this one is killed. A value that somebody
else has set meanwhile stays. Which settings, and when, is decided elsewhere; the journal's `changes` tell what became of each
change.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace

from headstone.cluster.admin import Admin
from headstone.coordination.guard_values import DEFAULT_HOLD, HOLD, Configs
from headstone.coordination.hold_states import STANDING, state_of
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Change
from headstone.guard.ledger.overrides import CLUSTER_DEFAULT, Resource, Void, change, never, own_values
from headstone.guard.ledger.topic_identity import still_there
from headstone.log.topic_partition import TopicPartition
from headstone.units import size

THROTTLED, RATE = "follower.replication.throttled.replicas", "follower.replication.throttled.rate"
"""THROTTLED is a topic's setting, RATE that of the copying broker. Only the copying broker is throttled, so leaders serve all
others unthrottled."""
EVERYBODY = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporaryChange:
    """Of a topic, of one broker, or (neither) of the cluster's default. `old`: the overrides before; None if there was none.
    `number` identifies the change in the journal once it is there."""

    topic: str | None = None
    broker: int | None = None
    old: Configs
    new: Configs
    topic_id: str | None = None
    reason: str = ""
    began_ms: int = 0
    number: int = 0

    @property
    def resource(self) -> Resource:
        return Resource(topic=self.topic, broker=self.broker)


def temporary_changes(journal: Journal) -> list[TemporaryChange]:
    """Those of readmissions, oldest first."""
    return [kept for kept in _open_changes(journal) if kept.resource != CLUSTER_DEFAULT]


def default_before(journal: Journal) -> Configs | None:
    """What to restore in the cluster's default once no topic is held by it; None if none is."""
    return next((kept.old for kept in _open_changes(journal) if kept.resource == CLUSTER_DEFAULT), None)


def note_default_before(journal: Journal, previous: Configs, *, reason: str, now_ms: int) -> None:
    """Call before the default is changed. Only the values found the first time are kept and restored."""
    if default_before(journal) is None:
        keep_change(journal, TemporaryChange(old=previous, new=DEFAULT_HOLD, reason=reason, began_ms=now_ms))


def forget_default_before(journal: Journal) -> None:
    with journal.transaction() as connection:
        connection.execute("DELETE FROM temporary_changes WHERE topic IS NULL AND broker IS NULL")


def _open_changes(journal: Journal) -> list[TemporaryChange]:
    rows = journal.rows(
        "SELECT number, setting, old, new, topic, topic_id, broker, reason, began_ms FROM temporary_changes "
        "ORDER BY number, rowid"
    )
    changes: dict[int, TemporaryChange] = {}
    for number, setting, old, new, topic, topic_id, broker, reason, began_ms in rows:
        kept = changes.get(int(str(number))) or TemporaryChange(
            number=int(str(number)), topic=_text(topic), topic_id=_text(topic_id),
            broker=None if broker is None else int(str(broker)), old=(), new=(), reason=str(reason),
            began_ms=int(str(began_ms)),
        )  # fmt: skip
        changes[kept.number] = replace(
            kept, old=(*kept.old, (str(setting), _text(old))), new=(*kept.new, (str(setting), _text(new)))
        )
    return list(changes.values())


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def keep_change(journal: Journal, temporary: TemporaryChange) -> None:
    """Call before the change is made: it is on disk when this returns."""
    with journal.transaction() as connection:
        (number,) = connection.execute("SELECT coalesce(max(number), 0) + 1 FROM temporary_changes").fetchone()
        _insert(connection, replace(temporary, number=number))


def _insert(connection: sqlite3.Connection, kept: TemporaryChange) -> None:
    old = dict(kept.old)
    connection.executemany(
        "INSERT INTO temporary_changes (number, setting, old, new, topic, topic_id, broker, reason, began_ms) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                kept.number,
                name,
                old.get(name),
                value,
                kept.topic,
                kept.topic_id,
                kept.broker,
                kept.reason,
                kept.began_ms,
            )
            for name, value in kept.new
        ],
    )


def hold_for_a_while(admin: Admin, journal: Journal, topic: str, *, reason: str, evidence: str, now_ms: int) -> None:
    previous = own_values(admin, Resource(topic=topic), [name for name, _ in HOLD])
    temporary = TemporaryChange(topic=topic, old=previous, new=HOLD)
    _change_for_now(admin, journal, temporary, reason=reason, evidence=evidence, now_ms=now_ms)


def throttle_copy(
    admin: Admin, journal: Journal, partition: TopicPartition, broker: int, *, bytes_per_second: int, evidence: str,
    now_ms: int,
) -> None:  # fmt: skip
    """Leaves an existing throttle as it is."""
    reason = f"broker {broker} re-replicates {partition}, at {size(bytes_per_second)} a second"
    ((_, rate),) = own_values(admin, Resource(broker=broker), [RATE])
    if rate is None:
        temporary = TemporaryChange(broker=broker, old=((RATE, None),), new=((RATE, str(bytes_per_second)),))
        _change_for_now(admin, journal, temporary, reason=reason, evidence=evidence, now_ms=now_ms)
    ((_, listed),) = own_values(admin, Resource(topic=partition.topic), [THROTTLED])
    wanted = with_replica(listed, partition.number, broker)
    if wanted != listed:
        temporary = TemporaryChange(topic=partition.topic, old=((THROTTLED, listed),), new=((THROTTLED, wanted),))
        _change_for_now(admin, journal, temporary, reason=reason, evidence=evidence, now_ms=now_ms)


def is_throttled(admin: Admin, partition: TopicPartition, broker: int) -> bool:
    ((_, rate),) = own_values(admin, Resource(broker=broker), [RATE])
    ((_, listed),) = own_values(admin, Resource(topic=partition.topic), [THROTTLED])
    return rate is not None and listed == with_replica(listed, partition.number, broker)


def with_replica(listed: str | None, partition: int, broker: int) -> str:
    """Adds one replica to Kafka's list of throttled replicas, such as 0:1,0:2; * means all replicas."""
    members = [member for member in (listed or "").split(",") if member]
    wanted = f"{partition}:{broker}"
    if EVERYBODY in members or wanted in members:
        return listed or ""
    return ",".join([*members, wanted])


def _change_for_now(
    admin: Admin, journal: Journal, temporary: TemporaryChange, *, reason: str, evidence: str, now_ms: int
) -> None:
    """If a setting is changed several times, its first old value is restored."""
    if temporary.topic is not None:
        temporary = replace(temporary, topic_id=admin.describe([temporary.topic]).topic_ids.get(temporary.topic))
    same = next(
        (
            kept
            for kept in temporary_changes(journal)
            if kept.resource == temporary.resource
            and kept.topic_id == temporary.topic_id
            and _names(kept) == _names(temporary)
        ),
        None,
    )
    if same is None:
        keep_change(journal, replace(temporary, reason=reason, began_ms=now_ms))
    else:
        with journal.transaction() as connection:
            connection.executemany(
                "UPDATE temporary_changes SET new = ? WHERE number = ? AND setting = ?",
                [(value, same.number, name) for name, value in temporary.new],
            )
    _changed(admin, journal, temporary, temporary.old, temporary.new, reason, evidence, now_ms, never)


def _names(temporary: TemporaryChange) -> list[str]:
    return [name for name, _ in temporary.new]


def put_back(
    admin: Admin, journal: Journal, temporary: TemporaryChange, *, evidence: str, now_ms: int, void: Void
) -> list[str]:
    """Restores the old values, except where somebody else has changed them; returns those in words. `evidence`: who does it, or
    on whose request. Raises TooLate if `void()` is true just before the change is sent: the guard may rely on the hold by then.
    """
    if is_gone(admin, temporary):
        forget_change(journal, temporary)
        return [f"{temporary.resource} was deleted meanwhile: there is nothing to put back"]
    present, previous = dict(own_values(admin, temporary.resource, _names(temporary))), dict(temporary.old)
    own = [(name, value) for name, value in temporary.new if present[name] == value and previous.get(name) != value]
    changed_since = [name for name, value in temporary.new if present[name] not in (value, previous.get(name))]
    if own:
        restore = tuple((name, previous.get(name)) for name, _ in own)
        reason = "the readmission is over: as it was found"
        _changed(admin, journal, temporary, tuple(own), restore, reason, evidence, now_ms, void)
    forget_change(journal, temporary)
    return [
        f"{temporary.resource}: {name} was changed by somebody else meanwhile and stays {present[name]}"
        for name in changed_since
    ]


def values_before(journal: Journal, resource: Resource, present: Configs, *, topic_id: str | None = None) -> Configs:
    """What these settings go back to: the old value where the guard's own still stands; a value set by somebody else stays."""
    before = dict(present)
    for temporary in temporary_changes(journal):
        if temporary.resource == resource and temporary.topic_id in (None, topic_id):
            new, old = dict(temporary.new), dict(temporary.old)
            before |= {name: old.get(name) for name, value in present if name in new and new[name] == value}
    return tuple(before.items())


def is_counted_on(journal: Journal, temporary: TemporaryChange) -> bool:
    """True if the guard found this hold and relies on it. If it were restored, the guard would take that for a person's
    decision and hold no more."""
    if temporary.topic is None or temporary.new != HOLD:
        return False
    return state_of(journal.memory(temporary.topic)) in STANDING


def is_gone(admin: Admin, temporary: TemporaryChange) -> bool:
    """True if its topic was deleted, also if a new one has the same name."""
    return temporary.topic is not None and not still_there(
        admin.describe([temporary.topic]), temporary.topic, temporary.topic_id
    )


def forget_change(journal: Journal, temporary: TemporaryChange) -> None:
    """Drops the change from the journal without restoring anything. One that is not as `temporary` says any more stays: it was
    changed again, or another one has its number, and its old value must not be lost."""
    if temporary not in _open_changes(journal):
        return
    with journal.transaction() as connection:
        connection.execute("DELETE FROM temporary_changes WHERE number = ?", (temporary.number,))


def _changed(
    admin: Admin, journal: Journal, temporary: TemporaryChange, old: Configs, new: Configs, reason: str,
    evidence: str, now_ms: int, void: Void,
) -> None:  # fmt: skip
    entry = Change(
        resource=str(temporary.resource),
        topic=temporary.topic,
        old=old,
        new=new,
        reason=reason,
        evidence=evidence,
        began_ms=now_ms,
    )
    change(admin, journal, temporary.resource, entry, void=void)
