"""One look at a cluster: every compacted topic in the form that the guard's decision needs, at bounded cost.

A few requests to any broker and a few to each broker, for all topics at once; brokers are asked concurrently. A broker that
does not answer costs one timeout and becomes a problem of the look, but never ends it. Changes nothing, remembers nothing,
decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from headstone.cluster.admin import Admin
from headstone.cluster.questions import DESCRIBE_TOPIC, Configs, Reassignment
from headstone.cluster.refusals import NotPermitted, refusal
from headstone.cluster.wire import ClusterState, PartitionState
from headstone.coordination.guard_values import (
    DEFAULT_HOLD,
    HOLD,
    LAG_MAX,
    LAG_MIN,
    LONG_MAX,
    RATIO,
    PartitionSeen,
    ReplicaSeen,
    TopicSeen,
)
from headstone.coordination.guard_values import Configs as Overrides
from headstone.errors import Unfinished
from headstone.guard.looks.clock_skew import STAMPED_BY_BROKERS, ClockReading, Clocks, Stamps
from headstone.guard.looks.leader_reading import LeaderReading
from headstone.guard.looks.topic_ages import Sightings
from headstone.interruption import Threads
from headstone.log.topic_partition import TopicPartition

POLICY, RETENTION, IN_SYNC_MIN = "cleanup.policy", "delete.retention.ms", "min.insync.replicas"
KEYS = (POLICY, RETENTION, IN_SYNC_MIN, RATIO, LAG_MIN, LAG_MAX)
NUMBERS = (RETENTION, IN_SYNC_MIN, LAG_MIN, LAG_MAX, RATIO)
BROKERS_AT_ONCE = 32
DESCRIBERS_MAX = 3
"""Brokers tried at one look, all of them within the time of one question. The next look continues with the next broker."""

Clock = Callable[[], int]
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """`asked_ms`: when the first question was sent, by the guard's clock. `problems`: what could not be learnt. `unread`:
    topics that this user may not read, which is harmless: they are held earlier, because what absent replicas missed counts as
    deletions."""

    cluster_id: str
    asked_ms: int
    brokers: tuple[int, ...]
    topics: tuple[TopicSeen, ...]
    problems: tuple[str, ...]
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Questions:
    """Questions to one broker: all its replicas; `leading`: those that it leads; `new`: those of new topics among them;
    `stamping`: those in which its clock may show; `topics`: whose config it is asked for."""

    replicas: Sequence[TopicPartition]
    leading: Sequence[TopicPartition]
    new: Sequence[TopicPartition]
    stamping: Sequence[TopicPartition]
    topics: Sequence[str]


@dataclass(slots=True, kw_only=True)
class _Account:
    """What one broker said about its own replicas and about the topics it was asked for."""

    broker: int
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    first_ms: dict[TopicPartition, int] = field(default_factory=dict)
    configs: dict[str, Configs] = field(default_factory=dict)
    stamps: Stamps | None = None
    problems: list[str] = field(default_factory=list)


def look(
    admin: Admin, topics: Sequence[str] | None, clock: Clock, *, leaders: LeaderReading | None = None,
    clocks: Clocks | None = None, sightings: Sightings | None = None,
) -> Look:  # fmt: skip
    """If `topics` is None: every compacted topic that this user may describe, internal ones too. Raises Unfinished only if no
    broker answers whose metadata is known to be current.

    Keep `leaders`, `clocks` and `sightings` from look to look to learn more. Only reading from leaders needs READ.
    """
    admin.ask_silent_again()
    asked_ms, state, running = _described(admin, topics, clock)
    unseen = sightings.unseen_ms(admin, state, asked_ms) if sightings is not None and topics is None else {}
    reassignments = None if isinstance(running, NotPermitted) else running
    described = {name: states for name, states in sorted(state.topics.items()) if topics is None or name in topics}
    problems = _undescribed(admin, described, topics)
    partitions = {name: states for name, states in described.items() if -1 not in states}
    configs = _configs(admin, list(partitions), problems)
    if isinstance(running, NotPermitted):
        problems.append(f"{running}; without it a reassignment is not seen, only replicas that are not in sync")
    watched = [name for name in configs if topics is not None or _compacted(configs[name])]
    default_overrides = _default_overrides(admin, problems)
    accounts = _ask_brokers(admin, state, {name: partitions[name] for name in watched}, configs, unseen, clock)
    for account in accounts:
        problems += account.problems
    clocks = clocks if clocks is not None else Clocks()
    readings = [clocks.reading(account.stamps) for account in accounts if account.stamps is not None]
    if reassignments is not None:
        readings += _controller_clock(admin, state, clock)
    skew_ms = clocks.difference_ms(readings, asked_ms)
    retention_ms = _default_retention_ms(configs, accounts)
    seen = tuple(
        TopicSeen(
            topic=name, asked_ms=asked_ms, compacted=_compacted(configs[name]),
            delete_retention_ms=_retention_ms(configs[name], retention_ms), overrides=_overrides(configs[name]),
            partitions=tuple(
                _partition(TopicPartition(name, number), partition, accounts, reassignments or {})
                for number, partition in sorted(partitions[name].items())
            ),
            alive=tuple(sorted(state.brokers)), skew_ms=skew_ms,
            held_on=tuple(account.broker for account in accounts if name in account.configs and holds(account.configs[name])),
            in_sync_min=_number(configs[name], IN_SYNC_MIN, 1), default_overrides=default_overrides,
            topic_id=state.topic_ids.get(name), unseen_ms=unseen.get(name),
        )
        for name in watched
    )  # fmt: skip
    unread: list[str] = []
    if leaders is not None:
        seen = leaders.learn(admin, seen, problems, unread, whole=topics is None)
    return Look(
        cluster_id=state.cluster_id, asked_ms=asked_ms, brokers=tuple(sorted(state.brokers)), topics=seen,
        problems=tuple(problems), unread=tuple(sorted(unread)),
    )  # fmt: skip


def held_brokers(admin: Admin, topic: str, brokers: Sequence[int]) -> tuple[int, ...]:
    """Brokers that confirm the hold, by whichever config. Asks each broker."""
    return held_on(admin, {topic: brokers})[topic]


def held_on(admin: Admin, asked: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Like `held_brokers`, for many topics: one request to each broker, so that a silent one costs one timeout."""
    brokers = sorted({broker for some in asked.values() for broker in some})

    def ask(broker: int) -> frozenset[str]:
        topics = [topic for topic, some in asked.items() if broker in some]
        try:
            configs = believed(admin.try_topic_configs(topics, broker=broker, keys=KEYS), [])
        except Unfinished:
            return frozenset()
        return frozenset(topic for topic in topics if topic in configs and holds(configs[topic]))

    held = dict(zip(brokers, _at_once(ask, brokers), strict=True))
    return {topic: tuple(broker for broker in some if topic in held[broker]) for topic, some in asked.items()}


def holds(configs: Configs) -> bool:
    """Whether these effective values hold the topic, wherever they come from."""
    if any(configs[name].value is None for name, _ in HOLD if name in configs) or not _has(configs, HOLD):
        return False
    lags = (configs[LAG_MIN].value, configs[LAG_MAX].value)
    return float(configs[RATIO].value or 0) == 1.0 and lags == (LONG_MAX, LONG_MAX)


def _has(configs: Configs, names: Iterable[tuple[str, str | None]]) -> bool:
    return all(name in configs for name, _ in names)


def _undescribed(
    admin: Admin, described: Mapping[str, Mapping[int, PartitionState]], topics: Sequence[str] | None
) -> list[str]:
    problems = []
    for name, states in described.items():
        if -1 in states:
            where = admin.connection.address
            problems.append(str(refusal(where, f"topic {name}", states[-1].error, permission=DESCRIBE_TOPIC)))
    if topics is None and not described:
        problems.append(f"{admin.connection.address} shows no topic: there is none, or this user may describe none")
    return problems


def _configs(admin: Admin, topics: Sequence[str], problems: list[str]) -> dict[str, Configs]:
    """Topics whose configs are known; nothing can be said about the others."""
    try:
        answers = admin.try_topic_configs(topics, keys=KEYS) if topics else {}
    except Unfinished as error:
        problems.append(str(error))
        return {}
    problems += [str(answer) for answer in answers.values() if isinstance(answer, Unfinished)]
    return believed(answers, problems)


def believed(
    answers: Mapping[str, Configs | Unfinished], problems: list[str], numbers: Sequence[str] = NUMBERS
) -> dict[str, Configs]:
    """Without refusals, and without topics that have a value that is not a number, which Kafka never answers."""
    kept = {}
    for topic, answer in sorted(answers.items()):
        if isinstance(answer, Unfinished):
            continue
        strange = [name for name in numbers if name in answer and not is_number(name, answer[name].value)]
        if strange:
            problems.append(f"topic {topic}: {strange[0]} is {answer[strange[0]].value!r}, not a number")
        else:
            kept[topic] = answer
    return kept


def is_number(name: str, value: str | None) -> bool:
    try:
        (float if name == RATIO else int)(value or "0")
    except ValueError:
        return False
    return True


def _described(
    admin: Admin, topics: Sequence[str] | None, clock: Clock
) -> tuple[int, ClusterState, dict[TopicPartition, Reassignment] | NotPermitted]:
    """When it was asked; the metadata of a broker that reaches the controllers; and running reassignments, or the refusal to
    show them.

    A broker that is cut off from the controllers keeps answering from metadata of any age, in which a replica that has left
    would still be in sync. A refusal does come from the controllers."""
    failed: list[str] = []
    for _ in range(DESCRIBERS_MAX):
        asked_ms = clock()
        try:
            state = admin.describe(None if topics is None else list(dict.fromkeys([*topics, *STAMPED_BY_BROKERS])))
        except Unfinished as error:
            if not failed:
                raise
            failed.append(str(error))
            break
        try:
            return asked_ms, state, admin.reassignments(seconds_max=admin.seconds_max / DESCRIBERS_MAX)
        except NotPermitted as refused:
            return asked_ms, state, refused
        except Unfinished as error:
            failed.append(str(error))
            admin.doubt()
    raise Unfinished(f"{'; '.join(failed)}: no broker's answer is known to be up to date")


def _default_overrides(admin: Admin, problems: list[str]) -> Overrides | None:
    """None if no broker answered. A user who may not describe the default may not change it either, so then its values do not
    matter."""
    try:
        configs = admin.broker_configs(None)
    except NotPermitted:
        return ()
    except Unfinished as error:
        problems.append(str(error))
        return None
    return tuple((name, configs[name].value if name in configs else None) for name, _ in DEFAULT_HOLD)


def _controller_clock(admin: Admin, state: ClusterState, clock: Clock) -> list[ClockReading]:
    """Empty unless the active controller is also a broker: other controllers do not clean. Not every cluster and user can ask
    for it."""
    asked_ms = clock()
    try:
        controller, controller_ms = admin.controller_clock_ms()
    except Unfinished:
        return []
    if controller not in state.brokers or controller_ms < 0:
        return []
    return [ClockReading(earliest_ms=controller_ms - clock(), latest_ms=controller_ms - asked_ms)]


def _ask_brokers(
    admin: Admin, state: ClusterState, watched: Mapping[str, Mapping[int, PartitionState]],
    configs: Mapping[str, Configs], new: Collection[str], clock: Clock,
) -> list[_Account]:  # fmt: skip
    replicas: dict[int, list[TopicPartition]] = {broker: [] for broker in sorted(state.brokers)}
    for topic, partitions in watched.items():
        for number, partition in partitions.items():
            for broker in partition.replicas:
                if broker in replicas:
                    replicas[broker].append(TopicPartition(topic, number))
    leading = _leading(state, watched)
    stamping = _leading(state, {topic: state.topics.get(topic, {}) for topic in STAMPED_BY_BROKERS})
    held = [topic for topic in watched if holds(configs[topic])]
    # Each broker's own default shows in any one topic that has no override.
    topics = list(dict.fromkeys([*held, *_without_own_retention(configs)[:1]]))

    def ask(broker: int) -> _Account:
        questions = _Questions(
            replicas=replicas[broker], leading=leading[broker], stamping=stamping[broker], topics=topics,
            new=[partition for partition in leading[broker] if partition.topic in new],
        )  # fmt: skip
        return _ask_broker(admin, broker, questions, clock)

    return _at_once(ask, list(replicas))


def _leading(
    state: ClusterState, topics: Mapping[str, Mapping[int, PartitionState]]
) -> dict[int, list[TopicPartition]]:  # fmt: skip
    leading: dict[int, list[TopicPartition]] = {broker: [] for broker in state.brokers}
    for topic, partitions in topics.items():
        for number, partition in partitions.items():
            if partition.leader in leading:
                leading[partition.leader].append(TopicPartition(topic, number))
    return leading


def _ask_broker(admin: Admin, broker: int, questions: _Questions, clock: Clock) -> _Account:
    """One question after the other. When the time is over, the rest is not asked."""
    account = _Account(broker=broker)

    def ends() -> None:
        account.ends = admin.replica_ends(broker, questions.replicas)

    def committed() -> None:
        account.committed = admin.committed_ends(broker, questions.leading)

    def first() -> None:
        account.first_ms = admin.first_ms(broker, questions.new) if questions.new else {}

    def configs() -> None:
        answers = admin.try_topic_configs(questions.topics, broker=broker, keys=KEYS) if questions.topics else {}
        strange: list[str] = []
        account.configs = believed(answers, strange)
        account.problems += [f"broker {broker}: {problem}" for problem in strange]

    def stamps() -> None:
        asked_ms = clock()
        newest_ms = admin.newest_ms(broker, questions.stamping)
        account.stamps = Stamps(newest_ms=newest_ms, asked_ms=asked_ms, answered_ms=clock())

    deadline = time.monotonic() + admin.seconds_max
    for question in (ends, committed, first, configs, stamps):
        try:
            question()
        except Unfinished as error:
            account.problems.append(f"broker {broker}: {error}")
            if not isinstance(error, NotPermitted):
                break
        if time.monotonic() > deadline:
            account.problems.append(f"broker {broker} answers slowly: not all questions were asked")
            break
    return account


def _at_once(ask: Callable[[Asked], Answer], whom: Sequence[Asked]) -> list[Answer]:
    if not whom:
        return []
    with Threads(max_workers=min(len(whom), BROKERS_AT_ONCE)) as threads:
        return list(threads.map(ask, whom))


def _without_own_retention(configs: Mapping[str, Configs]) -> list[str]:
    return [topic for topic, values in configs.items() if RETENTION in values and not values[RETENTION].own]


def _default_retention_ms(configs: Mapping[str, Configs], accounts: Sequence[_Account]) -> int | None:
    """The smallest of all brokers, because each stamps with its own."""
    sample = _without_own_retention(configs)[:1]
    answers = [configs, *(account.configs for account in accounts)]
    values = [_number(answer[topic], RETENTION, 0) for topic in sample for answer in answers if topic in answer]
    return min(values, default=None)


def _retention_ms(configs: Configs, default_ms: int | None) -> int:
    own = RETENTION in configs and configs[RETENTION].own
    return default_ms if default_ms is not None and not own else _number(configs, RETENTION, 0)


def _compacted(configs: Configs) -> bool:
    value = configs[POLICY].value if POLICY in configs else None
    return "compact" in (value or "").split(",")


def _overrides(configs: Configs) -> Overrides:
    return tuple((name, configs[name].value if name in configs and configs[name].own else None) for name, _ in HOLD)


def _number(configs: Configs, name: str, missing: int) -> int:
    value = configs[name].value if name in configs else None
    return missing if value is None else int(value)


def _partition(
    partition: TopicPartition, state: PartitionState, accounts: Sequence[_Account],
    reassignments: Mapping[TopicPartition, Reassignment],
) -> PartitionSeen:  # fmt: skip
    ends = {account.broker: account.ends.get(partition) for account in accounts}
    committed = [account.committed[partition] for account in accounts if partition in account.committed]
    running = reassignments.get(partition)
    return PartitionSeen(
        partition=partition.number, leader=state.leader, isr=state.isr, leader_epoch=state.leader_epoch,
        replicas=tuple(ReplicaSeen(broker=broker, log_end=ends.get(broker)) for broker in state.replicas),
        moving=() if running is None else (*running.adding, *running.removing),
        committed_end=max(committed, default=None),
        first_ms=next((account.first_ms[partition] for account in accounts if partition in account.first_ms), None),
    )  # fmt: skip
