"""A cluster in memory that answers what the guard asks of Admin and of a look; time is a number that tests move.

Configs reach a broker when it is not `deaf`; calls fail while `refuses` says why. The broker that describes hears of a
reassignment a moment later: of the same millisecond it shows the replicas of before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headstone.cluster.admin import Check
from headstone.cluster.questions import ConfigValue, Reassignment, ReplicaOnDisk, Source
from headstone.cluster.wire import ClusterState, Node, PartitionState
from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import DEFAULT_HOLD, HOLD, PartitionSeen, ReplicaSeen, TopicSeen
from headstone.errors import Unfinished
from headstone.guard.looks.look import Look
from headstone.log.topic_partition import TopicPartition

CLUSTER_ID = "twin-cluster"
START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
MARGINS = Margins()


@dataclass
class Topic:
    replicas: tuple[int, ...] = (1, 2, 3)
    isr: tuple[int, ...] = (1, 2, 3)
    policy: str = "compact"
    retention_ms: int = DAY_MS
    overrides: dict[str, str] = field(default_factory=dict)
    topic_id: str | None = "first"
    before: tuple[int, tuple[int, ...]] | None = None
    """When it was last reassigned, and from which replicas."""


class ClusterTwin:
    def __init__(self, **topics: Topic) -> None:
        self.now_ms = START_MS
        self.topics = topics or {"orders": Topic()}
        self.alive = {1, 2, 3}
        self.deaf: set[int] = set()
        self.hidden: set[str] = set()
        """Topics that this user may not describe: a look at all does not show them, and one at them names what is missing."""
        self.refuses: str | None = None
        self.fails: dict[str, BaseException] = {}
        """By call: `reassign`, `reassignments`, `broker N` when its configs are asked for, `alter` before, `altered` behind a
        change."""
        self.failed: list[str] = []
        self.lost: str | None = None
        self.default: dict[str, str] = {}
        self.broker_own: dict[int, dict[str, str]] = {1: {}, 2: {}, 3: {}}
        self.size = 1_000
        self.changes: list[tuple[str, dict[str, str | None]]] = []
        self.elected: list[TopicPartition] = []
        self.old_copies: set[int] = set()
        """Brokers that have not deleted what they are not assigned any more."""
        self.reassigned: list[tuple[TopicPartition, tuple[int, ...]]] = []
        self.moving: dict[TopicPartition, Reassignment] = {}

    def clock(self) -> int:
        return self.now_ms

    def stop(self, broker: int) -> None:
        self.alive.discard(broker)
        for topic in self.topics.values():
            topic.isr = tuple(number for number in topic.isr if number != broker)

    def start(self, broker: int) -> None:
        self.alive.add(broker)
        for topic in self.topics.values():
            topic.isr = tuple(sorted({*topic.isr, broker} & set(topic.replicas)))

    def answer(self, call: str) -> None:
        if call in self.fails:
            self.failed.append(call)
            raise self.fails[call]

    def look(self, topics: Sequence[str] | None) -> Look:
        if self.lost is not None:
            raise Unfinished(self.lost)
        compacted = [name for name, topic in self.topics.items() if topic.policy == "compact"]
        wanted = [name for name in compacted if name not in self.hidden] if topics is None else topics
        shown = [name for name in wanted if name in self.topics and name not in self.hidden]
        return Look(
            cluster_id=CLUSTER_ID, asked_ms=self.now_ms, brokers=tuple(sorted(self.alive)),
            topics=tuple(self._seen(name, self.topics[name]) for name in shown),
            problems=tuple(f"topic {name}: this user lacks DESCRIBE" for name in wanted if name in self.hidden),
        )  # fmt: skip

    def _seen(self, name: str, topic: Topic) -> TopicSeen:
        replicas = tuple(
            ReplicaSeen(broker=number, log_end=100 if number in self.alive else None) for number in topic.replicas
        )
        partition = PartitionSeen(partition=0, leader=topic.isr[0], replicas=replicas, isr=topic.isr, committed_end=100)
        return TopicSeen(
            topic=name, asked_ms=self.now_ms, compacted=topic.policy == "compact", delete_retention_ms=topic.retention_ms,
            overrides=tuple((config, topic.overrides.get(config)) for config, _ in HOLD), partitions=(partition,),
            alive=tuple(sorted(self.alive)),
            default_overrides=tuple((config, self.default.get(config)) for config, _ in DEFAULT_HOLD),
            topic_id=topic.topic_id,
        )  # fmt: skip

    def describe(self, topics: Sequence[str] | None = None) -> ClusterState:
        if self.lost is not None:
            raise Unfinished(self.lost)
        nothing = {-1: PartitionState(3, None, -1, (), (), ())}
        described = {
            name: {0: self._described(self.topics[name])} if name in self.topics else nothing
            for name in (self.topics if topics is None else topics)
        }
        brokers = {number: Node(number, "localhost", 9000 + number) for number in sorted(self.alive)}
        topic_ids = {
            name: topic.topic_id for name, topic in self.topics.items() if topic.topic_id and name in described
        }
        return ClusterState(cluster_id=CLUSTER_ID, controller=1, brokers=brokers, topics=described, topic_ids=topic_ids)

    def _described(self, topic: Topic) -> PartitionState:
        moved_ms, before = topic.before or (None, ())
        replicas = before if moved_ms == self.now_ms else topic.replicas
        return PartitionState(0, topic.isr[0], 0, replicas, topic.isr, ())

    def topic_configs(
        self, topics: Sequence[str], *, broker: int | None = None, keys: Sequence[str] | None = None
    ) -> dict[str, dict[str, ConfigValue]]:
        if broker is not None and broker not in self.alive:
            raise Unfinished(f"broker {broker} is off")
        return {name: self._configs(self.topics[name], deaf=broker in self.deaf) for name in topics}

    def try_topic_configs(self, topics: Sequence[str], **how: object) -> dict[str, dict[str, ConfigValue]]:
        return self.topic_configs(topics, **how)  # type: ignore[arg-type]

    def _configs(self, topic: Topic, *, deaf: bool) -> dict[str, ConfigValue]:
        inherited = {
            "min.cleanable.dirty.ratio": self.default.get("log.cleaner.min.cleanable.ratio", "0.5"),
            "min.compaction.lag.ms": self.default.get("log.cleaner.min.compaction.lag.ms", "0"),
            "max.compaction.lag.ms": self.default.get("log.cleaner.max.compaction.lag.ms", str(2**63 - 1)),
            "cleanup.policy": topic.policy,
        }
        if deaf:
            return {
                name: ConfigValue(value=value, own=False, source=Source.DEFAULT) for name, value in inherited.items()
            }
        own = {name: ConfigValue(value=value, own=True, source=Source.TOPIC) for name, value in topic.overrides.items()}
        return {
            name: ConfigValue(value=value, own=False, source=Source.DEFAULT) for name, value in inherited.items()
        } | own

    def broker_configs(self, broker: int | None) -> dict[str, ConfigValue]:
        if broker is None:
            return {
                name: ConfigValue(value=value, own=True, source=Source.EVERY_BROKER)
                for name, value in self.default.items()
            }
        self.answer(f"broker {broker}")
        own = self.broker_own[broker]
        name = "log.cleaner.backoff.ms"
        value = own.get(name, "15000" if broker in self.deaf else self.default.get(name, "15000"))
        values = {**own, name: value}
        return {name: ConfigValue(value=value, own=name in own, source=Source.BROKER) for name, value in values.items()}

    def reached(self) -> None:
        """A connection for a change is open, which may have taken long."""

    def alter_topic(
        self, topic: str, changes: Mapping[str, str | None], *, check: Check = lambda: None, repeatable: bool = False
    ) -> None:  # fmt: skip
        self.reached()
        check()
        self._alter(f"topic {topic}", self.topics[topic].overrides, changes)

    def alter_broker_default(self, changes: Mapping[str, str | None], *, check: Check = lambda: None) -> None:
        self.reached()
        check()
        self._alter("default", self.default, changes)

    def alter_broker(self, broker: int, changes: Mapping[str, str | None], *, check: Check = lambda: None) -> None:
        self.reached()
        check()
        self._alter(f"broker {broker}", self.broker_own[broker], changes)

    def _alter(self, what: str, configs: dict[str, str], changes: Mapping[str, str | None]) -> None:
        self.answer("alter")
        if self.refuses is not None:
            raise Unfinished(self.refuses)
        assert "cleanup.policy" not in changes
        self.changes.append((what, dict(changes)))
        for name, value in changes.items():
            if value is None:
                configs.pop(name, None)
            else:
                configs[name] = value
        self.answer("altered")

    def log_dirs(self, broker: int) -> dict[TopicPartition, ReplicaOnDisk]:
        if broker not in self.alive:
            raise Unfinished(f"broker {broker} is off")
        copy = ReplicaOnDisk(log_dir="/data", size=self.size, lag=0, future=False)
        return {
            TopicPartition(name, 0): copy for name, topic in self.topics.items()
            if broker in topic.replicas or broker in self.old_copies
        }  # fmt: skip

    def reassignments(self) -> dict[TopicPartition, Reassignment]:
        self.answer("reassignments")
        return self.moving

    def elect_preferred(self, partitions: Sequence[TopicPartition], *, check: Check = lambda: None) -> None:
        self.reached()
        check()
        self.elected += partitions
        for partition in partitions:
            topic = self.topics[partition.topic]
            first = topic.replicas[0]
            topic.isr = (first, *(number for number in topic.isr if number != first))

    def reassign(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None], *, check: Check = lambda: None
    ) -> None:  # fmt: skip
        self.answer("reassign")
        self.reached()
        check()
        for partition, replicas in wanted.items():
            assert replicas is not None
            self.reassigned.append((partition, tuple(replicas)))
            topic = self.topics[partition.topic]
            topic.before = (self.now_ms, topic.replicas)
            topic.replicas = tuple(replicas)
            topic.isr = tuple(number for number in topic.isr if number in replicas)
