"""Kafka's Admin API over our own wire client: each request goes to exactly the broker that is meant, with its own timeout.

Owns which broker to ask, kept connections, and what a lost one means: a question is asked once more on a new connection; a
change is never repeated, because it may have arrived. Errors are Unfinished with the broker's address; `NotPermitted` names the
missing permission. Threads may share it: each broker answers one request at a time. Decides nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from headstone.cluster import questions
from headstone.cluster.broker_line import SILENT_SECONDS, SILENT_SHARE, Answer, Ask, BrokerLine
from headstone.cluster.connection import SECONDS_MAX, Connection, Host, wire_settings
from headstone.cluster.questions import BROKER, DEBUGGER, EVERY_BROKER, TOPIC, Configs, Reassignment, ReplicaOnDisk
from headstone.cluster.refusals import DENIED, NoAnswer, TimedOut, refusal
from headstone.cluster.wire import NOBODY, BrokerConnection, ClusterState, Node
from headstone.divergence.views import ProducerSaid
from headstone.errors import Unfinished
from headstone.log.topic_partition import TopicPartition

CONTROLLERS_SHARE = 0.7
"""Share of its time that a broker may wait for the controllers."""
Check = Callable[[], None]
"""Called once a broker is reached, just before a change is sent to it; if it raises, the change is not sent."""


def _nothing() -> None:
    pass


class MayHaveArrived(Unfinished):
    """A change whose answer was lost. Look at the cluster before repeating it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """The log end of one replica, from its own broker. The watermarks are None if this user may not read the topic."""

    log_end: int
    high_watermark: int | None = None
    last_stable: int | None = None


class Admin:
    """A context manager. `seconds_max` applies to each request, whichever broker is asked."""

    def __init__(self, connection: Connection, *, seconds_max: float = SECONDS_MAX) -> None:
        self.connection = connection
        self.seconds_max = seconds_max
        self._settings = wire_settings(connection)
        self._lock = threading.Lock()
        self._lines: dict[Host, BrokerLine] = {}
        self._proved = threading.Event()
        self._brokers: dict[int, Node] = {}
        self._controller: int | None = None
        self._answered: Host | None = None
        self._doubted: list[Host] = []
        self._let_pass: dict[Host, float] = {}
        """By broker that used up a change's whole time: until when it is the last to be sent changes. It may still answer
        questions."""

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            line.close()

    def describe(self, topics: Sequence[str] | None = None) -> ClusterState:
        """If `topics` is None: every topic that this user may describe. Never creates topics."""
        state = self._ask_any(lambda broker: broker.metadata(topics, with_ids=True))
        self._brokers, self._controller = state.brokers, state.controller
        return state

    def ask_silent_again(self) -> None:
        """Call at the start of a look: brokers that were silent at the previous one are asked again, which costs one timeout at
        most."""
        with self._lock:
            lines = list(self._lines.values())
        for line in lines:
            line.ask_again()

    def doubt(self) -> None:
        """From now on, where any broker will do, the one that answered last is asked last."""
        if self._answered is not None:
            self._doubted = [*(host for host in self._doubted if host != self._answered), self._answered]
            self._answered = None

    def topic_configs(
        self, topics: Sequence[str], *, broker: int | None = None, keys: Sequence[str] | None = None
    ) -> dict[str, Configs]:
        """As the given broker knows them; None: any broker. Raises the first refusal."""
        answers = self.try_topic_configs(topics, broker=broker, keys=keys)
        for answer in answers.values():
            if isinstance(answer, Unfinished):
                raise answer
        return {topic: answer for topic, answer in answers.items() if not isinstance(answer, Unfinished)}

    def try_topic_configs(
        self, topics: Sequence[str], *, broker: int | None = None, keys: Sequence[str] | None = None
    ) -> dict[str, Configs | Unfinished]:
        """Like `topic_configs`, with refusals as values."""
        return self._configs(TOPIC, topics, broker, keys)

    def broker_configs(self, broker: int | None) -> Configs:
        """As that broker has them. None: only the overrides of the cluster's default."""
        name = EVERY_BROKER if broker is None else str(broker)
        answer = self._configs(BROKER, [name], broker, None)[name]
        if isinstance(answer, Unfinished):
            raise answer
        return answer

    def _configs(
        self, kind: int, names: Sequence[str], broker: int | None, keys: Sequence[str] | None
    ) -> dict[str, Configs | Unfinished]:
        def ask(reached: BrokerConnection) -> dict[str, Configs | Unfinished]:
            permission = questions.DESCRIBE_CONFIGS_OF[kind]
            answers = questions.describe_configs(reached, kind, names, keys)
            return {
                name: refusal(
                    reached.host, f"configs of {name or 'all brokers'}", answer.error, permission=permission,
                    text=answer.text,
                ) if answer.error else answer.configs
                for name, answer in answers.items()
            }  # fmt: skip

        return self._ask_broker(broker, ask) if broker is not None else self._ask_any(ask)

    def alter_topic(
        self, topic: str, changes: Mapping[str, str | None], *, validate_only: bool = False, check: Check = _nothing,
        repeatable: bool = False,
    ) -> None:  # fmt: skip
        """All or nothing; None deletes the override. `repeatable`: doing it twice is harmless, so another broker is tried if
        one does not answer."""
        self._alter(TOPIC, topic, changes, None, validate_only, check, repeatable=repeatable)

    def alter_broker_default(
        self, changes: Mapping[str, str | None], *, validate_only: bool = False, check: Check = _nothing
    ) -> None:
        """Changes the dynamic default of all brokers."""
        self._alter(BROKER, EVERY_BROKER, changes, None, validate_only, check)

    def alter_broker(
        self, broker: int, changes: Mapping[str, str | None], *, validate_only: bool = False, check: Check = _nothing
    ) -> None:
        """Changes that broker's own config; only that broker accepts it."""
        self._alter(BROKER, str(broker), changes, broker, validate_only, check)

    def _alter(
        self, kind: int, name: str, changes: Mapping[str, str | None], broker: int | None, validate_only: bool,
        check: Check, *, repeatable: bool = False,
    ) -> None:  # fmt: skip
        self._change(
            lambda reached: questions.alter_configs(reached, kind, name, changes, validate_only=validate_only), broker,
            check=check, repeatable=repeatable,
        )  # fmt: skip

    def reassignments(self, *, seconds_max: float | None = None) -> dict[TopicPartition, Reassignment]:
        """Running reassignments of all topics. A broker that does not reach the controllers says so before its time is over,
        and does not count as silent."""
        seconds = self.seconds_max if seconds_max is None else seconds_max
        timeout_ms = int(CONTROLLERS_SHARE * seconds * 1000)
        return self._ask_controllers(
            lambda broker: questions.list_reassignments(broker, timeout_ms=timeout_ms), seconds
        )  # fmt: skip

    def reassign(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None], *, check: Check = _nothing
    ) -> None:  # fmt: skip
        """None cancels the running reassignment."""
        self._change(
            lambda broker: questions.alter_reassignments(broker, wanted, timeout_ms=self._timeout_ms), check=check
        )

    def elect_preferred(self, partitions: Sequence[TopicPartition], *, check: Check = _nothing) -> None:
        self._change(
            lambda broker: questions.elect_leaders(broker, partitions, timeout_ms=self._timeout_ms), check=check
        )

    def log_ends(self, broker: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        """For that broker's own replicas, leaders or not. Leaves out those that it does not have or cannot report now."""
        ends = self.replica_ends(broker, partitions)
        watermarks = self._ask_broker(
            broker, lambda reached: questions.fetch_many(reached, ends, bytes_max=1, partition_bytes_max=1)
        )
        answered = {partition: fetched for partition, fetched in watermarks.items() if not fetched.error}
        return {
            partition: LogEnd(
                log_end=end, high_watermark=answered[partition].high_watermark if partition in answered else None,
                last_stable=answered[partition].last_stable_offset if partition in answered else None,
            )
            for partition, end in ends.items()
        }  # fmt: skip

    def replica_ends(self, broker: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Log ends only: one request, for which DESCRIBE is enough."""
        return self._offsets(broker, partitions, replica=DEBUGGER)

    def committed_ends(self, broker: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """High watermarks of the partitions that it leads; leaves out the others. DESCRIBE is enough."""
        return self._offsets(broker, partitions)

    def newest_ms(self, broker: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The largest timestamp of the partitions that it leads; leaves out empty ones."""
        offsets = self._listed(broker, partitions, timestamp=questions.MAX_TIMESTAMP)
        return {partition: offset.timestamp_ms for partition, offset in offsets.items() if offset.timestamp_ms >= 0}

    def first_ms(self, broker: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The timestamp of the record at offset 0, for partitions that it leads and that still have one. DESCRIBE is enough."""
        offsets = self._listed(broker, partitions, timestamp=questions.ANY_TIMESTAMP)
        return {partition: first.timestamp_ms for partition, first in offsets.items() if first.offset == 0}

    def _offsets(
        self, broker: int, partitions: Sequence[TopicPartition], *, replica: int = NOBODY
    ) -> dict[TopicPartition, int]:
        offsets = self._listed(broker, partitions, replica=replica)
        return {partition: offset.offset for partition, offset in offsets.items()}

    def _listed(
        self, broker: int, partitions: Sequence[TopicPartition], *, replica: int = NOBODY,
        timestamp: int = questions.LATEST,
    ) -> dict[TopicPartition, questions.Offset]:  # fmt: skip
        def ask(reached: BrokerConnection) -> dict[TopicPartition, questions.Offset]:
            offsets = questions.list_offsets(reached, partitions, replica=replica, timestamp=timestamp)
            for partition, offset in offsets.items():
                if offset.error in DENIED:
                    what = f"end of {partition}"
                    raise refusal(reached.host, what, offset.error, permission=questions.DESCRIBE_TOPIC)
            return {partition: offset for partition, offset in offsets.items() if not offset.error}

        return self._ask_broker(broker, ask) if partitions else {}

    def log_dirs(self, broker: int) -> dict[TopicPartition, ReplicaOnDisk]:
        return self._ask_broker(broker, questions.describe_log_dirs)

    def producers(
        self, broker: int, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[ProducerSaid, ...]]:
        """For that broker's own replicas, leaders or not."""
        return self._ask_broker(broker, lambda reached: questions.describe_producers(reached, partitions))

    def records(
        self, broker: int, offsets: Mapping[TopicPartition, int], *, bytes_max: int, partition_bytes_max: int
    ) -> dict[TopicPartition, bytes | Unfinished]:
        """Batches of that broker's own replicas from these offsets on, as stored, in the order in which they are asked for. The
        last batch of each may be cut off. Refusals are values.

        Leaves out replicas that it does not have or cannot read now.
        """

        def ask(reached: BrokerConnection) -> dict[TopicPartition, bytes | Unfinished]:
            fetched = questions.fetch_many(
                reached, offsets, bytes_max=bytes_max, partition_bytes_max=partition_bytes_max
            )  # fmt: skip
            return {
                partition: refusal(
                    reached.host, f"records of {partition}", answer.error, permission=questions.READ_TOPIC
                ) if answer.error else answer.records
                for partition, answer in fetched.items()
                if not answer.error or answer.error in DENIED
            }  # fmt: skip

        return self._ask_broker(broker, ask)

    def controller_clock_ms(self) -> tuple[int, int]:
        """The active controller's node id, and its clock in milliseconds."""
        return self._ask_controllers(questions.controller_clock_ms)

    def features(self) -> dict[str, int]:
        """Finalized levels by name, such as transaction.version; one that is missing is at level 0."""
        return self._ask_any(questions.finalized_features)

    @property
    def _timeout_ms(self) -> int:
        return int(self.seconds_max * 1000)

    def _line(self, host: Host) -> BrokerLine:
        with self._lock:
            return self._lines.setdefault(host, BrokerLine(host, self._settings, self._proved))

    def _host_of(self, broker: int) -> Host:
        if broker not in self._brokers:
            self.describe([])
        node = self._brokers.get(broker)
        if node is None:
            raise Unfinished(f"broker {broker}: its address is unknown to the cluster: it is down")
        return Host(node.host, node.port)

    def _ask_broker(self, broker: int, ask: Ask[Answer]) -> Answer:
        return self._line(self._host_of(broker)).read(ask, self.seconds_max)

    def _ask_controllers(self, ask: Ask[Answer], seconds_max: float | None = None) -> Answer:
        """Through one broker that answers: all others would forward the question to the same controller."""
        if self._answered is None:
            self.describe([])
        assert self._answered is not None
        return self._line(self._answered).read(ask, self.seconds_max if seconds_max is None else seconds_max)

    def _ask_any(self, ask: Ask[Answer]) -> Answer:
        """The broker that answered last gets the whole time. If it fails, all others together get as much again."""
        failed: list[str] = []
        first = self._answered
        if first is not None:
            try:
                return self._line(first).read(ask, self.seconds_max)
            except NoAnswer as error:
                failed.append(str(error))
        deadline = time.monotonic() + self.seconds_max
        hosts = [host for host in self._hosts() if host != first]
        for number, host in enumerate(hosts):
            share = (deadline - time.monotonic()) / (len(hosts) - number)
            try:
                answer = self._line(host).read(ask, max(share, 0.001))
            except NoAnswer as error:
                failed.append(str(error))
                continue
            self._answered = host
            return answer
        raise NoAnswer("; ".join(failed))

    def _hosts(self) -> list[Host]:
        """The named hosts, then those that the cluster reported; doubted ones last, the latest of them at the very end."""
        brokers = [Host(node.host, node.port) for node in self._brokers.values()]
        hosts = dict.fromkeys([*self.connection.hosts, *brokers])
        self._doubted = [host for host in self._doubted if host in hosts]
        return [*(host for host in hosts if host not in self._doubted), *self._doubted]

    def _change(
        self, ask: Ask[None], broker: int | None = None, *, check: Check, repeatable: bool = False
    ) -> None:  # fmt: skip
        """Uses a new connection: on an old one it would be unknown whether the change was lost with it. Opening one may take
        long, also because earlier hosts did not answer; `check` comes after that.

        Without a broker, the change goes to the one that counts as controller, or to any that can be reached: they forward it.
        One that used up its whole time is the last to be sent the next changes.
        """
        if broker is None and not self._brokers:
            self.describe([])
        failed: list[Unfinished] = []
        for host in [self._host_of(broker)] if broker is not None else self._changers():
            if self._passes(host) and any(isinstance(error, MayHaveArrived) for error in failed):
                break
            started = time.monotonic()
            try:
                reached = BrokerConnection(
                    host, self._settings, seconds_max=self.seconds_max, proved=self._proved.is_set()
                )
            except Unfinished as error:
                self._note_time(host, started)
                failed.append(error)
                continue
            with reached:
                check()
                try:
                    ask(reached)
                except (NoAnswer, TimedOut) as error:
                    self._note_time(host, started)
                    lost = MayHaveArrived(f"{error}; the change may have been applied or not")
                    if not repeatable or isinstance(error, TimedOut):
                        raise lost from error
                    failed.append(lost)
                    continue
            return
        raise _failure(failed)

    def _note_time(self, host: Host, started: float) -> None:
        now = time.monotonic()
        if now - started >= SILENT_SHARE * self.seconds_max:
            self._let_pass[host] = now + SILENT_SECONDS

    def _passes(self, host: Host) -> bool:
        return self._line(host).is_silent or time.monotonic() < self._let_pass.get(host, 0.0)

    def _changers(self) -> Iterable[Host]:
        controller = None if self._controller is None else self._brokers.get(self._controller)
        first = [] if controller is None else [Host(controller.host, controller.port)]
        hosts = dict.fromkeys([*first, *self._hosts()])
        return sorted(hosts, key=self._passes)


def _failure(failed: Sequence[Unfinished]) -> Unfinished:
    """The error of a change that no broker accepted, from what happened at each."""
    if any(isinstance(error, MayHaveArrived) for error in failed):
        kind: type[Unfinished] = MayHaveArrived
    else:
        kind = NoAnswer if all(isinstance(error, NoAnswer) for error in failed) else Unfinished
    return kind("; ".join(map(str, failed)))
