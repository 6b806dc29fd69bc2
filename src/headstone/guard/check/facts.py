"""Gathers from a cluster, and from the guard's journal if there is one, the facts that `rules.py` judges.

Also reports what this user was not permitted to ask. Judges nothing and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headstone.cluster.admin import Admin
from headstone.cluster.questions import Configs
from headstone.cluster.refusals import NotPermitted
from headstone.cluster.wire import ClusterState
from headstone.coordination.guard_values import HOLD
from headstone.errors import Unfinished, UsageError
from headstone.guard.check.rules import (
    BROKER_NUMBERS,
    SEGMENT_MS,
    TIERED_METADATA,
    TRANSACTIONS,
    CheckedTopic,
    ClusterFacts,
)
from headstone.guard.ledger.commands import address_of
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.outages import longest_known
from headstone.guard.ledger.temporary_changes import temporary_changes
from headstone.guard.looks.look import NUMBERS, believed, is_number, look
from headstone.log.shown import visible
from headstone.retention.settings import CLEANUP_POLICY, policies_of

TOPICS_AT_ONCE = 200


def gather(
    admin: Admin,
    topics: Sequence[str],
    *,
    outage_max_ms: int | None,
    journal: Journal | None,
    clock_ms: Callable[[], int],
) -> tuple[ClusterFacts, tuple[str, ...]]:
    """For these topics, or for every compacted one. Also returns what could not be asked, in words."""
    state = admin.describe(None)
    for topic in topics:
        if topic not in state.topics:
            raise UsageError(f"topic {visible(topic)}: no such topic, or this user may not describe it")
    problems: list[str] = []
    if not state.topics:
        problems.append(f"{admin.connection.address} shows no topic: there is none, or this user may describe none")
    seen = [topic for topic in topics or state.topics if all(number >= 0 for number in state.topics[topic])]
    configs = _topic_configs(admin, sorted(seen), problems)
    compacted = {topic: found for topic, found in configs.items() if _is_compacted(found)}
    for topic in topics:
        if topic in configs and topic not in compacted:
            raise UsageError(f"topic {visible(topic)} is not compacted: there is nothing to check")
    remembered = {} if journal is None else journal.topics()
    temporary = [] if journal is None else [each.topic for each in temporary_changes(journal) if each.new == HOLD]
    held = {*temporary, *(topic for topic, kept in remembered.items() if kept.memory.hold is not None)}
    facts = ClusterFacts(
        topics=tuple(_facts(topic, found, state, held=topic in held) for topic, found in compacted.items()),
        brokers=_brokers(admin, sorted(state.brokers), problems),
        features=_features(admin, problems),
        outage_max_ms=outage_max_ms if outage_max_ms is not None else learnt_outage_ms(journal, now_ms=clock_ms()),
        skew_ms=max(
            [*(kept.memory.skew_ms for kept in remembered.values()), *_skews_ms(admin, topics, clock_ms)], default=None
        ),
        transactions=TRANSACTIONS in state.topics,
        tiered_metadata_policy=_value(configs.get(TIERED_METADATA), CLEANUP_POLICY),
        bootstrap=address_of(admin.connection),
    )
    return facts, tuple(problems)


def learnt_outage_ms(journal: Journal | None, *, now_ms: int) -> int | None:
    """The longest time that a replica was away while a guard watched, or is away now; None if there was none."""
    longest = None if journal is None else longest_known(journal, now_ms=now_ms)
    return None if longest is None else longest.span_ms


def _topic_configs(admin: Admin, topics: Sequence[str], problems: list[str]) -> dict[str, Configs]:
    configs_by_topic: dict[str, Configs] = {}
    for first in range(0, len(topics), TOPICS_AT_ONCE):
        answers = admin.try_topic_configs(topics[first : first + TOPICS_AT_ONCE])
        problems += [str(answer) for answer in answers.values() if isinstance(answer, Unfinished)]
        configs_by_topic |= believed(answers, problems, (*NUMBERS, SEGMENT_MS))
    return configs_by_topic


def _value(configs: Configs | None, name: str) -> str:
    config = configs.get(name) if configs is not None else None
    return config.value or "" if config is not None else ""


def _is_compacted(configs: Configs) -> bool:
    return "compact" in policies_of(_value(configs, CLEANUP_POLICY))


def _facts(topic: str, configs: Configs, state: ClusterState, *, held: bool) -> CheckedTopic:
    return CheckedTopic(
        topic=topic, copies=min(len(described.replicas) for described in state.topics[topic].values()),
        values={name: config.value for name, config in configs.items() if config.value is not None},
        own=frozenset(name for name, config in configs.items() if config.own), held_by_guard=held,
    )  # fmt: skip


def _brokers(admin: Admin, brokers: Sequence[int], problems: list[str]) -> dict[int, dict[str, str]]:
    values_by_broker: dict[int, dict[str, str]] = {}
    for broker in brokers:
        try:
            configs = admin.broker_configs(broker)
        except Unfinished as error:
            problems.append(str(error))
            continue
        values = {name: config.value for name, config in configs.items() if config.value is not None}
        strange = [name for name in BROKER_NUMBERS if name in values and not is_number(name, values[name])]
        problems += [f"broker {broker}: {name} is {values[name]!r}, not a number" for name in strange]
        if not strange:
            values_by_broker[broker] = values
    return values_by_broker


def _skews_ms(admin: Admin, topics: Sequence[str], clock_ms: Callable[[], int]) -> list[int]:
    """As far as one look at the topics shows it."""
    return [seen.skew_ms for seen in look(admin, topics or None, clock_ms).topics]


def _features(admin: Admin, problems: list[str]) -> dict[str, int]:
    try:
        return admin.features()
    except NotPermitted as error:
        problems.append(str(error))
        return {}
