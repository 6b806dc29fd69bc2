"""The agent beside one broker: finds its replicas, keeps a `coordination` Replica for each, reports their claims to the guard.

Reads log directories, writes nothing. Each start of the agent is a new incarnation of all its replicas, so nothing must survive
it: claims from before no longer count. A partition that cannot be read now is left out of the report. If a report is lost, the
next one follows. `replica_files.py` reads files, `client.py` sends reports.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from headstone.agent.client import GuardClient
from headstone.agent.messages import (
    GUARD,
    PARTITIONS_MAX,
    Answered,
    BrokerReport,
    Hello,
    Question,
    Receipt,
    ReplicaReport,
    SpanAnswered,
    SpanQuestion,
    Welcome,
)
from headstone.agent.replica_deletions import DeletionsScan
from headstone.agent.replica_files import HEADERS_MAX, FileFacts, ReplicaReader
from headstone.coordination.messages import Poll, Report, Send
from headstone.coordination.replica import Replica, Started, Truncated
from headstone.errors import HeadstoneError, Unfinished, UsageError
from headstone.interruption import until_asked
from headstone.log import checkpoints
from headstone.log.cluster_metadata import meta_properties, node_id_of
from headstone.log.directory import METADATA_TOPIC, PartitionDir, as_partition
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Stop
from headstone.pipeline.selection import select
from headstone.storage.places import children
from headstone.units import brief_duration, count

SPAN_BYTES_MAX = 256 << 20
"""Read for each report: takes a few seconds of one core at most, and of the disk."""
NO_CHALLENGE = f"0.{'0' * 64}"
"""For a report that no guard asked for: it is shown to a person, and no guard would accept it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """From meta.properties. All log directories of a broker agree, except for their own ids."""

    cluster_id: str
    broker: int
    directory_ids: tuple[tuple[Path, str | None], ...]


def read_identity(log_dirs: Sequence[Path]) -> BrokerIdentity:
    """Raises UsageError if these are not the log directories of one broker."""
    owners, ids = set(), []
    for log_dir in log_dirs:
        properties = meta_properties(log_dir)
        cluster_id, broker = properties.get("cluster.id"), node_id_of(properties)
        if cluster_id is None or broker is None or not broker.isdecimal():
            advice = "--log-dirs takes log.dirs of a broker's configuration"
            raise UsageError(f"{log_dir / checkpoints.META_PROPERTIES}: missing, or without IDs; {advice}")
        owners.add((cluster_id, int(broker)))
        ids.append((log_dir, properties.get("directory.id")))
    if len(owners) != 1:
        raise UsageError(
            f"{', '.join(map(str, log_dirs))}: these log directories belong to different brokers; run one agent per broker"
        )
    [(cluster_id, number)] = owners
    return BrokerIdentity(cluster_id=cluster_id, broker=number, directory_ids=tuple(ids))


@dataclass(slots=True)
class _Watched:
    """One replica: its files, and its part of the protocol."""

    reader: ReplicaReader
    replica: Replica
    facts: FileFacts


class Agent:
    """One session beside one broker. `remark` gets lines for the log; each problem once while it lasts."""

    def __init__(
        self,
        log_dirs: Sequence[Path],
        *,
        clock: Callable[[], int],
        remark: Callable[[str], None],
        interval_ms: int,
        headers_max: int = HEADERS_MAX,
    ) -> None:
        self.log_dirs = tuple(path.resolve() for path in log_dirs)
        self.identity = read_identity(self.log_dirs)
        self.session_ms = clock()
        self._clock = clock
        self._remark = remark
        self._interval_ms = interval_ms
        self._headers_max = headers_max
        self._sequence = 0
        self._fresh = self.session_ms
        self._epoch = -1
        self._watched: dict[Path, _Watched] = {}
        self._problems: dict[str, str] = {}
        self._spans: dict[SpanQuestion, SpanAnswered] = {}
        self._scans: dict[SpanQuestion, DeletionsScan] = {}

    def tell(self, client: GuardClient) -> Receipt:
        """One round: hello, read, report. Raises Unfinished if the guard does not take the report."""
        clock_before_ms = self._clock()
        identity = self.identity
        hello = Hello(cluster_id=identity.cluster_id, broker=identity.broker, session_ms=self.session_ms)
        welcome = client.hello(hello)
        return client.report(self.report(welcome, clock_before_ms=clock_before_ms))

    def stay(self, client: GuardClient, stop: Stop, tell: Callable[[str], None]) -> None:
        """Repeats rounds until `stop`. A guard that does not answer is reported once, and again when it answers."""
        last_text: str | None = None
        while not stop():
            try:
                taken = self.tell(client).taken
                text = f"broker {self.identity.broker}: the guard takes the reports of {count(taken, 'replica')}"
            except Unfinished as error:
                text = f"{error}; tried again every {brief_duration(self._interval_ms)}"
            if text != last_text:
                tell(text)
                last_text = text
            until_asked(self._interval_ms / 1000)

    def report(self, welcome: Welcome, *, clock_before_ms: int) -> BrokerReport:
        """Reads what the guard wants to know, all of it after the welcome arrived: the welcome's challenge dates the report."""
        clock_after_ms = self._clock()
        if welcome.epoch != self._epoch:
            self._begin_anew(welcome.epoch)
        self._sequence += 1
        problems: dict[str, str] = {}
        replicas = self._replicas(frozenset(welcome.topics), problems)
        self._remark_new(problems)
        return BrokerReport(
            cluster_id=self.identity.cluster_id, broker=self.identity.broker, session_ms=self.session_ms,
            sequence=self._sequence, epoch=welcome.epoch, challenge=welcome.challenge,
            clock_before_ms=clock_before_ms, clock_after_ms=clock_after_ms, interval_ms=self._interval_ms,
            replicas=tuple(replicas), answers=self._answers(welcome.questions), spans=self._span_answers(welcome.spans),
        )  # fmt: skip

    def unasked(self) -> BrokerReport:
        """A report for a person to read, without a guard: of the topics that are compacted according to the files."""
        partitions_found = self._partitions({})
        names = [str(path) for path in self.log_dirs]
        try:
            topics = {
                d.topic for d in select(partitions_found, paths=names, topics=(), all_topics=False, tell=_unsaid).wanted
            }
        except UsageError:
            topics = set()
        welcome = Welcome(epoch=0, challenge=NO_CHALLENGE, topics=tuple(sorted(topics)))
        return self.report(welcome, clock_before_ms=self._clock())

    def _begin_anew(self, epoch: int) -> None:
        """For another guard, or a restarted one: claims made to the previous one do not count."""
        self._epoch = epoch
        for watched in self._watched.values():
            self._start(watched)

    def _start(self, watched: _Watched) -> None:
        watched.replica = Replica(self.identity.broker)
        watched.replica.step(Started(durable=None, local=watched.facts.watermarks, fresh=self._next_life()))

    def _partitions(self, problems: dict[str, str]) -> list[PartitionDir]:
        """Folders of partitions; leaves out those being moved between log directories, deleted or stray."""
        directories: dict[TopicPartition, list[PartitionDir]] = {}
        for log_dir in self.log_dirs:
            try:
                folders = children(log_dir)
            except OSError as error:
                problems[str(log_dir)] = f"{log_dir}: {error.strerror or error}"
                continue
            for folder in folders:
                try:
                    directory = as_partition(folder)
                except (OSError, HeadstoneError):
                    continue
                if directory is not None and directory.topic != METADATA_TOPIC:
                    directories.setdefault(directory.topic_partition, []).append(directory)
        twice = {partition: places for partition, places in directories.items() if len(places) > 1}
        for partition, places in twice.items():
            problems[str(partition)] = (
                f"{partition} is in {' and in '.join(str(place.log_dir) for place in places)}: left"
            )
        return [places[0] for partition, places in sorted(directories.items()) if partition not in twice]

    def _replicas(self, topics: Collection[str], problems: dict[str, str]) -> list[ReplicaReport]:
        wanted = [directory for directory in self._partitions(problems) if directory.topic in topics][:PARTITIONS_MAX]
        paths = {directory.path for directory in wanted}
        self._watched = {path: watched for path, watched in self._watched.items() if path in paths}
        replicas = []
        for directory in wanted:
            try:
                replicas.append(self._look(directory))
            except (OSError, HeadstoneError) as error:
                problems[str(directory.path)] = str(error)
        return replicas

    def _look(self, directory: PartitionDir) -> ReplicaReport:
        path = Path(str(directory.path))
        watched = self._watched.get(path)
        if watched is None:
            reader = ReplicaReader(directory, self._headers_max)
            watched = _Watched(reader, Replica(self.identity.broker), reader.look())
            self._start(watched)
            self._watched[path] = watched
        else:
            self._look_again(watched)
        return _told(
            directory, watched.facts, _claimed(watched.replica, self._epoch), dict(self.identity.directory_ids)
        )

    def _look_again(self, watched: _Watched) -> None:
        """Starts anew if another log is in the same place. If the log no longer supports its claims, it becomes a new
        incarnation."""
        before, watched.facts = watched.facts, watched.reader.look()
        if watched.facts.life != before.life:
            self._start(watched)
        else:
            watched.replica.step(Truncated(local=watched.facts.watermarks, fresh=self._next_life()))

    def _next_life(self) -> int:
        """Higher than every incarnation that any replica here ever had."""
        self._fresh = max(self._fresh + 1, self._clock())
        return self._fresh

    def _answers(self, questions: Sequence[Question]) -> tuple[Answered, ...]:
        readers = {watched.reader.directory.topic_partition: watched.reader for watched in self._watched.values()}
        asked = [question for question in questions if question.partition in readers]
        answers = [(question, readers[question.partition].holds(question.offset)) for question in asked]
        return tuple(Answered(question=question, holds=holds) for question, holds in answers if holds is not None)

    def _span_answers(self, questions: Sequence[SpanQuestion]) -> tuple[SpanAnswered, ...]:
        """Reads each span once, a part of it for each report. Forgets spans that are no longer asked about."""
        folders = {
            watched.reader.directory.topic_partition: watched.reader.directory for watched in self._watched.values()
        }
        spans_before, self._spans = self._spans, {}
        answers = []
        for question in questions:
            folder = folders.get(question.partition)
            if folder is None:
                continue
            answer = spans_before.get(question) or SpanAnswered(question=question, read_to=0)
            if answer.deletions is None:
                scan = self._scans.setdefault(question, DeletionsScan(folder, question.span))
                deletions = scan.go_on(SPAN_BYTES_MAX)
                answer = SpanAnswered(question=question, read_to=scan.read_to, deletions=deletions)
            self._spans[question] = answer
            answers.append(answer)
        self._scans = {question: scan for question, scan in self._scans.items() if question in questions}
        return tuple(answers)

    def _remark_new(self, problems: dict[str, str]) -> None:
        for where, problem in problems.items():
            if where not in self._problems:
                self._remark(f"left out of the report: {problem}")
        self._problems = problems


def _unsaid(text: str) -> None:
    """Not reported: which topics are left out, and why, matters only for compaction."""


def _claimed(replica: Replica, epoch: int) -> Report:
    """The protocol answers a poll with a report. The guard's polls carry no group watermarks, because its brokers would not
    keep to them: each replica claims only what its own log proves."""
    poll = Poll(leader=GUARD, leader_epoch=epoch, mtro=0, mxro=0)
    reports = [effect.message for effect in replica.step(poll) if isinstance(effect, Send)]
    [report] = [message for message in reports if isinstance(message, Report)]
    return report


def _told(
    directory: PartitionDir, facts: FileFacts, claim: Report, directory_ids: dict[Path, str | None]
) -> ReplicaReport:
    assert claim.mxfo is not None
    return ReplicaReport(
        partition=directory.topic_partition, topic_id=facts.topic_id,
        directory_id=directory_ids.get(Path(str(directory.log_dir))), log_start=facts.log_start, log_end=facts.log_end,
        high_watermark=facts.high_watermark, incarnation=claim.incarnation, mcco=claim.mcco, mxfo=claim.mxfo,
    )  # fmt: skip
