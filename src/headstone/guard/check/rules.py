"""Finds settings that make an outage more dangerous: cluster facts in; findings with reason, figure and fix out. Pure.

Each rule is one function. A value that many topics inherit from a default is one finding. `facts.py` gathers the facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import HOLD, LAG_MAX, LAG_MIN, LONG_MAX, RATIO
from headstone.divergence.kafka_tools import BOOTSTRAP, Bootstrap, alter_broker, alter_topic, quoted, reached
from headstone.log.shown import visible
from headstone.units import DAY_MS, duration

RETENTION, SEGMENT_MS = "delete.retention.ms", "segment.ms"
IN_SYNC_MIN, UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"
TIERED, TIERED_METADATA = "remote.storage.enable", "__remote_log_metadata"
TRANSACTIONS = "__transaction_state"
COORDINATED = {
    "__consumer_offsets": "; its readers are group coordinators: one that leads with a deletion missed answers with the "
    "offsets of a group that is gone",
    TRANSACTIONS: "; its readers are transaction coordinators: one that leads with a deletion missed knows a transactional id "
    "again that had expired, with its old epoch",
}
"""Kafka's own compacted topics: no consumer would notice an error, and nothing ever writes their keys again."""
PRODUCER_EXPIRY, TRANSACTION_MAX = "producer.id.expiration.ms", "transaction.max.timeout.ms"
BROKER_NUMBERS = (PRODUCER_EXPIRY, TRANSACTION_MAX)
BROKER_NAMES = {
    RETENTION: "log.cleaner.delete.retention.ms", IN_SYNC_MIN: IN_SYNC_MIN, UNCLEAN: UNCLEAN, SEGMENT_MS: "log.roll.ms",
    RATIO: "log.cleaner.min.cleanable.ratio", LAG_MAX: "log.cleaner.max.compaction.lag.ms",
}  # fmt: skip
"""What the brokers' default of a topic's setting is called."""
TRANSACTION_VERSION, EPOCHS_TELL = "transaction.version", 2
OLD_CLIENTS = (
    f"; {TRANSACTION_VERSION} {EPOCHS_TELL} does not end that: clients that do not end transactions by EndTxn version 5, as "
    "librdkafka 2.16, still get markers with the epoch of their data"
)
HOUR_MS, MINUTE_MS = 3_600_000, 60_000
ROLL_MS_MIN, RATIO_MIN, LAG_MS_MIN = 10 * MINUTE_MS, 0.05, HOUR_MS
"""Below these, a recipe hurries compaction."""
USUAL = {SEGMENT_MS: 7 * DAY_MS, RATIO: 0.5, LAG_MAX: int(LONG_MAX)}
"""Kafka's own defaults for them."""
SKEW_MS_MAX = Margins().skew_ms
COPIES_WANTED = 3
NAMES_MAX = 3


class Severity(StrEnum):
    DANGER = "danger"
    """Replicas can diverge, or be lost, in an outage of the planned length."""
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTopic:
    """A compacted topic. `values` are all settings in force, `own` the names of those that are its own overrides."""

    topic: str
    copies: int
    """Replicas of the partition that has the fewest."""
    values: Mapping[str, str]
    own: frozenset[str] = frozenset()
    held_by_guard: bool = False

    def number(self, name: str, default: float) -> float:
        text = self.values.get(name)
        return default if text is None else float(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """`outage_max_ms`: the longest outage that is planned for, or was seen; None if unknown. `skew_ms`: None if not
    measured."""

    topics: tuple[CheckedTopic, ...]
    brokers: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    outage_max_ms: int | None = None
    skew_ms: int | None = None
    transactions: bool = False
    """True if the internal topic of transactions exists."""
    tiered_metadata_policy: str = ""
    """cleanup.policy of the tiered storage's metadata topic; empty if there is none."""
    bootstrap: Bootstrap = BOOTSTRAP

    @property
    def outage_ms(self) -> int:
        """At least the time that the guard itself needs to see an outage and to hold."""
        return max(self.outage_max_ms or 0, Margins().retention_ms_min)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFinding:
    """Concerns `topics` or `broker`; if neither, the cluster. `fix` is a command, or a sentence where no command helps."""

    name: str
    severity: Severity
    figure: str
    why: str
    fix: str
    topics: tuple[str, ...] = ()
    broker: int | None = None
    default: bool = False
    """True if the topics inherit the value: the fix changes the brokers' default."""

    @property
    def where(self) -> str:
        if self.broker is not None:
            return f"broker {self.broker}"
        if not self.topics:
            return "cluster"
        shown = ", ".join(visible(topic) for topic in self.topics[:NAMES_MAX])
        more = f" and {len(self.topics) - NAMES_MAX} more" if len(self.topics) > NAMES_MAX else ""
        inherited = " (by the brokers' default)" if self.default else ""
        return f"{'topic' if len(self.topics) == 1 else 'topics'} {shown}{more}{inherited}"


def finding_document(finding: CheckFinding) -> dict[str, object]:
    return {
        "name": finding.name, "severity": str(finding.severity), "topics": list(finding.topics),
        "broker": finding.broker, "default": finding.default, "figure": finding.figure, "why": finding.why,
        "fix": finding.fix,
    }  # fmt: skip


TopicRule = Callable[[CheckedTopic, ClusterFacts], Iterator[CheckFinding]]


def check(facts: ClusterFacts) -> tuple[CheckFinding, ...]:
    """Dangers first."""
    findings = [*_of_cluster(facts)]
    for rule in TOPIC_RULES:
        findings += _together([finding for topic in facts.topics for finding in rule(topic, facts)])
    return tuple(sorted(findings, key=lambda one: (list(Severity).index(one.severity), one.name, one.topics)))


def _together(findings: list[CheckFinding]) -> list[CheckFinding]:
    """Merges what topics inherit into one finding, and findings that many topics share if no command of a topic fixes them."""
    merged: dict[tuple[object, ...], CheckFinding] = {}
    for finding in findings:
        alone = finding.fix.startswith("kafka-configs.sh") and not finding.default
        key = (finding.name, finding.figure, finding.why, finding.fix, finding.topics if alone else None)
        finding_before = merged.get(key)
        topics = (*finding_before.topics, *finding.topics) if finding_before else finding.topics
        merged[key] = CheckFinding(
            name=finding.name, severity=finding.severity, figure=finding.figure, why=finding.why, fix=finding.fix,
            topics=topics, broker=finding.broker, default=finding.default,
        )  # fmt: skip
    return list(merged.values())


def _setting(topic: CheckedTopic, facts: ClusterFacts, name: str, value: str) -> tuple[str, bool]:
    """The command that changes the setting where it comes from, and whether that is the default of all brokers."""
    if name in topic.own:
        return alter_topic(topic.topic, {name: value}, bootstrap=facts.bootstrap), False
    return alter_broker(None, {BROKER_NAMES[name]: value}, bootstrap=facts.bootstrap), True


def short_retention(topic: CheckedTopic, facts: ClusterFacts) -> Iterator[CheckFinding]:
    retention_ms = topic.number(RETENTION, DAY_MS)
    if retention_ms >= facts.outage_ms or topic.copies < 2:
        return
    planned = (
        f"outages of {duration(facts.outage_max_ms)} are planned for or have occurred"
        if facts.outage_max_ms == facts.outage_ms
        else f"the guard alone needs {duration(facts.outage_ms)} to notice an outage and hold the topic"
    )
    fix, default = _setting(topic, facts, RETENTION, str(max(DAY_MS, 2 * facts.outage_ms)))
    yield CheckFinding(
        name="short-retention", severity=Severity.DANGER, topics=(topic.topic,), default=default, fix=fix,
        figure=f"{RETENTION} is {retention_ms:.0f} ({duration(int(retention_ms))}); {planned}",
        why="a tombstone or marker may be removed this long after it was first cleaned: a replica that is away for longer "
            "never sees it and brings deleted data back. Raising it helps from the next cleaning on: what is cleaned already "
            "keeps its deadline"
        + COORDINATED.get(topic.topic, ""),
    )  # fmt: skip


def hurried_compaction(topic: CheckedTopic, facts: ClusterFacts) -> Iterator[CheckFinding]:
    limits = {SEGMENT_MS: ROLL_MS_MIN, RATIO: RATIO_MIN, LAG_MAX: LAG_MS_MIN}
    hurried = [name for name in limits if topic.number(name, USUAL[name]) < limits[name]]
    # Only if deletions are removed soon, too: a small ratio alone costs I/O and does no harm.
    retention_ms = topic.number(RETENTION, DAY_MS)
    first_ms = topic.number(SEGMENT_MS, USUAL[SEGMENT_MS]) + topic.number(LAG_MIN, 0) + retention_ms
    if first_ms >= max(facts.outage_ms, HOUR_MS):
        return
    own, inherited = ([name for name in hurried if (name in topic.own) is is_own] for is_own in (True, False))
    usual = {BROKER_NAMES[name]: f"{USUAL[name]}" for name in inherited}
    fixes = {
        False: alter_topic(topic.topic, dict.fromkeys(own), bootstrap=facts.bootstrap),
        # Set, not deleted: behind a deleted override, the value in a broker's file stays in force.
        True: alter_broker(None, usual, bootstrap=facts.bootstrap),
    }
    for names, default in ((own, False), (inherited, True)):
        if names:
            yield CheckFinding(
                name="hurried-compaction", severity=Severity.WARNING, topics=(topic.topic,), default=default,
                figure=", ".join(_told(name, topic.values[name]) for name in names)
                + f": a delete may be gone {duration(int(first_ms))} after it was written",
                why="settings that make compaction run at once also make it forget at once: segments roll and cleaner passes "
                    f"run so often that only {RETENTION} protects a delete during an outage",
                fix=fixes[default],
            )  # fmt: skip


def _told(name: str, value: str) -> str:
    return (
        f"{name} {value} ({duration(int(value))})" if name.endswith(".ms") and value.isdecimal() else f"{name} {value}"
    )


def few_copies(topic: CheckedTopic, facts: ClusterFacts) -> Iterator[CheckFinding]:
    if topic.copies >= COPIES_WANTED:
        return
    why = (
        "there is no other copy: nothing to compare it with, and nothing to re-replicate it from"
        if topic.copies == 1
        else "while one is away or re-replicating, only one copy is left, and if they differ nothing shows which one is right"
    )
    made = "; the brokers' setting counts only when it is made" if topic.topic in COORDINATED else ""
    yield CheckFinding(
        name="few-copies", severity=Severity.WARNING, topics=(topic.topic,),
        figure=f"replication factor {topic.copies}", why=why + COORDINATED.get(topic.topic, ""),
        fix=f"give it {COPIES_WANTED} replicas with kafka-reassign-partitions.sh{made}",
    )  # fmt: skip


def in_sync_min(topic: CheckedTopic, facts: ClusterFacts) -> Iterator[CheckFinding]:
    least = int(topic.number(IN_SYNC_MIN, 1))
    if topic.copies < 2:
        return
    if least >= topic.copies:
        # On this topic, even if it inherits the value: lowering the default would let other topics' records be acknowledged by
        # fewer replicas.
        fix = alter_topic(topic.topic, {IN_SYNC_MIN: str(topic.copies - 1)}, bootstrap=facts.bootstrap)
        yield CheckFinding(
            name="min-insync-too-high", severity=Severity.WARNING, topics=(topic.topic,), fix=fix,
            figure=f"{IN_SYNC_MIN} {least}, replication factor {topic.copies}",
            why="the first outage stops producers, and no replica can be removed to be re-replicated",
        )  # fmt: skip
    elif least == 1 and topic.copies >= COPIES_WANTED:
        fix, default = _setting(topic, facts, IN_SYNC_MIN, "2")
        if default and any(other.copies < COPIES_WANTED for other in facts.topics):
            # Raising the default could make a topic with fewer replicas unwritable, always or during an outage.
            fix, default = alter_topic(topic.topic, {IN_SYNC_MIN: "2"}, bootstrap=facts.bootstrap), False
        yield CheckFinding(
            name="min-insync-too-low", severity=Severity.WARNING, topics=(topic.topic,), default=default, fix=fix,
            figure=f"{IN_SYNC_MIN} {least}, replication factor {topic.copies}",
            why="a record or delete may be acknowledged when only one replica has it; if that replica is lost, so is the "
                "acknowledged record",
        )  # fmt: skip


def unclean_election(topic: CheckedTopic, facts: ClusterFacts) -> Iterator[CheckFinding]:
    if topic.values.get(UNCLEAN, "false") != "true" or topic.copies < 2:
        return
    fix, default = _setting(topic, facts, UNCLEAN, "false")
    yield CheckFinding(
        name="unclean-election", severity=Severity.DANGER, topics=(topic.topic,), default=default, fix=fix,
        figure=f"{UNCLEAN} is true",
        why="a replica that is behind may become leader, and all others truncate their "
            "logs to its: neither a hold nor a readmission helps against that" + COORDINATED.get(topic.topic, ""),
    )  # fmt: skip


def held_by_somebody(topic: CheckedTopic, facts: ClusterFacts) -> Iterator[CheckFinding]:
    held = all(name in topic.own and topic.values.get(name) == value for name, value in HOLD)
    if not held or topic.held_by_guard:
        return
    yield CheckFinding(
        name="held-by-somebody", severity=Severity.WARNING, topics=(topic.topic,),
        figure=", ".join(f"{name} {value}" for name, value in HOLD),
        why="it is held, and no journal that was read shows by whom: the topic is not compacted and grows. If no replica is "
            "away, undo it",
        fix=alter_topic(topic.topic, dict.fromkeys(name for name, _ in HOLD), bootstrap=facts.bootstrap),
    )  # fmt: skip


def tiered(topic: CheckedTopic, facts: ClusterFacts) -> Iterator[CheckFinding]:
    if topic.values.get(TIERED) == "true":
        yield CheckFinding(
            name="tiered-and-compacted", severity=Severity.WARNING, topics=(topic.topic,),
            figure=f"{TIERED} is true, compacted",
            why="data in the remote tier is not cleaned, and an audit does not compare it",
            fix="keep compacted topics out of tiered storage",
        )  # fmt: skip


TOPIC_RULES: tuple[TopicRule, ...] = (
    short_retention, hurried_compaction, few_copies, in_sync_min, unclean_election, held_by_somebody, tiered,
)  # fmt: skip


def _of_cluster(facts: ClusterFacts) -> Iterator[CheckFinding]:
    yield from _clocks(facts)
    yield from _transactions(facts)
    if "compact" in facts.tiered_metadata_policy:
        yield CheckFinding(
            name="tiered-metadata", severity=Severity.WARNING, topics=(TIERED_METADATA,),
            figure=f"cleanup.policy of {TIERED_METADATA} is {facts.tiered_metadata_policy}",
            why="this topic records where segments are and which were deleted: a replica that misses a delete there refers to "
                "objects that are gone",
            fix=f"guard it like any other topic: headstone guard --topic {quoted(TIERED_METADATA)}",
        )  # fmt: skip


def _clocks(facts: ClusterFacts) -> Iterator[CheckFinding]:
    if facts.skew_ms is not None and facts.skew_ms > SKEW_MS_MAX:
        yield CheckFinding(
            name="clocks-differ", severity=Severity.DANGER,
            figure=f"two brokers' clocks may differ by {duration(facts.skew_ms)}; the limit is {duration(SKEW_MS_MAX)}",
            why="one broker stamps when a delete may be removed and another one removes it: clock skew shortens the time that "
                "is left in an outage",
            fix="synchronize all brokers with one time source (chrony, ntpd)",
        )  # fmt: skip


def _transactions(facts: ClusterFacts) -> Iterator[CheckFinding]:
    if not facts.transactions:
        return
    version = facts.features.get(TRANSACTION_VERSION, 0)
    if version < EPOCHS_TELL:
        yield CheckFinding(
            name="transactions-v1", severity=Severity.WARNING, figure=f"{TRANSACTION_VERSION} {version}",
            why="a marker has the same epoch as its data: a replica that misses one mistakes the next transaction's marker "
                "for it, and its log does not show that",
            fix=f"kafka-features.sh {reached(facts.bootstrap)} upgrade --feature {TRANSACTION_VERSION}=2 "
            "(brokers and clients of 4.0 or later)",
        )  # fmt: skip
    yield from _forgotten_producers(facts, OLD_CLIENTS if version >= EPOCHS_TELL else "")


def _forgotten_producers(facts: ClusterFacts, still: str) -> Iterator[CheckFinding]:
    """`still`: why it matters with the transaction version in use."""
    for broker, values in sorted(facts.brokers.items()):
        expiry_ms = int(values.get(PRODUCER_EXPIRY, DAY_MS))
        least_ms = max(facts.outage_ms, int(values.get(TRANSACTION_MAX, 15 * MINUTE_MS)))
        if expiry_ms < least_ms:
            yield CheckFinding(
                name="producers-forgotten", severity=Severity.DANGER, broker=broker,
                figure=f"{PRODUCER_EXPIRY} is {expiry_ms} ({duration(expiry_ms)}); {duration(least_ms)} are needed",
                why="markers are kept as long as the producer state, and then for delete.retention.ms: with less, a "
                    "replica that is away serves aborted data as committed, or hides committed data" + still,
                fix=alter_broker(None, {PRODUCER_EXPIRY: str(max(DAY_MS, least_ms))}, bootstrap=facts.bootstrap),
            )  # fmt: skip
