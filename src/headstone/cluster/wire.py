"""A small client of Kafka's own protocol, for what other clients do not do: ask one broker, and read a replica from it.

One connection per broker, one request at a time, each with a timeout. Owns the connection, the versions that are spoken (fixed:
where possible old ones, which every broker since 2.3 knows) and the requests that read a replica. `questions.py` has the other
requests, `connection.py` the settings, `login.py` the login, `encoding.py` the bytes.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple

from headstone.cluster.connection import SECONDS_MAX, Connection, Host, Login, WireSettings
from headstone.cluster.encoding import AnswerReader, Writer
from headstone.cluster.listener import PLAIN, TLS, looks_like_tls, spoken
from headstone.cluster.login import log_in
from headstone.cluster.oauth import BearerLogin
from headstone.cluster.refusals import NO_LOGIN_ASKED, UNSUPPORTED_MECHANISM, NoAnswer, error_name, unfinished
from headstone.divergence.views import ProducerSaid
from headstone.errors import Unfinished
from headstone.interruption import check
from headstone.log.topic_partition import TopicPartition


class Api(NamedTuple):
    """One Kafka request, in the only version that is spoken here."""

    key: int
    version: int
    flexible: bool = False
    """Uses compact sizes and tagged fields, in its header too."""
    tagged_answer: bool = True
    """The header of a flexible answer has tagged fields, except that of ApiVersions, because its receiver cannot know the
    version yet."""


FETCH = Api(1, 11)
"""The first version that a follower answers from its own log."""
LIST_OFFSETS = Api(2, 5)
METADATA = Api(3, 7)
"""With the cluster's id, leader epochs and offline replicas."""
METADATA_WITH_IDS = Api(3, 10, flexible=True)
"""With the topics' ids too. Brokers since 2.8 know it."""
SASL_HANDSHAKE, SASL_AUTHENTICATE = Api(17, 1), Api(36, 0)
DESCRIBE_PRODUCERS = Api(61, 0, flexible=True)
"""Brokers since 2.8 know it."""
CLIENT_ID = "headstone"
WAIT_MS = 500
LISTEN_SECONDS = 0.2
"""How often a wait for a broker checks whether it was given up."""
CORRELATION_BYTES, ANSWER_BYTES_MAX = 4, 256 << 20
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
EARLIEST = -2
NOBODY = -1


class Node(NamedTuple):
    number: int
    host: str
    port: int


class PartitionState(NamedTuple):
    """`offline` are replicas whose broker or disk is off."""

    error: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """According to one broker. A topic that cannot be described has the single partition -1, with the error."""

    cluster_id: str
    controller: int | None
    brokers: dict[int, Node]
    """Brokers that the cluster counts as alive."""
    topics: dict[str, dict[int, PartitionState]]
    topic_ids: dict[str, str] = field(default_factory=dict)
    """As Kafka writes them; empty if they were not asked for. A topic that is created again under its old name has another
    id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """One replica's answer to Fetch."""

    error: int
    high_watermark: int
    last_stable_offset: int
    log_start: int
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset)."""
    records: bytes


class BrokerConnection:
    """A connection to one broker; a context manager. `seconds_max` covers the whole of opening it, and then each answer.

    `proved`: the same settings have worked before, so a lost connection says nothing about them."""

    def __init__(
        self, host: Host, settings: WireSettings, *, seconds_max: float = SECONDS_MAX, proved: bool = False
    ) -> None:  # fmt: skip
        self.host = host
        self._settings = settings
        self._proved = proved
        self.seconds_max = seconds_max
        self._open_by: float | None = time.monotonic() + seconds_max
        self._answer_by: float | None = None
        self._correlation = 0
        self._lost: str | None = None
        try:
            self._socket = self._connected()
        except (OSError, UnicodeError) as error:  # UnicodeError: not a possible host name
            raise NoAnswer(f"broker {host} can't be reached: {self._why(error)}") from error
        with ExitStack() as undo:
            undo.callback(self.close)
            self._open()
            undo.pop_all()
        self._open_by = None

    def _connected(self) -> socket.socket:
        addresses = socket.getaddrinfo(self.host.name, self.host.port, type=socket.SOCK_STREAM)
        return socket.create_connection(self.host, timeout=self._left() / len(addresses))

    def _open(self) -> None:
        if self._settings.context is not None:
            self._socket.settimeout(self._left())
            try:
                self._socket = self._settings.context.wrap_socket(self._socket, server_hostname=self.host.name)
            except OSError as error:
                why = self._why(error)
                if not isinstance(error, TimeoutError | ssl.SSLCertVerificationError) and spoken(self.host) == PLAIN:
                    why = "TLS was spoken, it speaks plain Kafka: security.protocol is PLAINTEXT or SASL_PLAINTEXT"
                raise NoAnswer(f"broker {self.host} can't be reached: {why}") from error
        if self._settings.login is not None:
            self._authenticate(self._settings.login)

    def _left(self) -> float:
        deadline = self._answer_by if self._open_by is None else self._open_by
        return self.seconds_max if deadline is None else max(deadline - time.monotonic(), 0.001)

    def _why(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError):
            return f"it said nothing for {round(self.seconds_max, 1):g} s"
        if isinstance(error, ConnectionRefusedError):
            return "nothing listens there"
        return (error.strerror if isinstance(error, OSError) else None) or str(error)

    def __enter__(self) -> BrokerConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def metadata(self, topics: Sequence[str] | None, *, with_ids: bool = False) -> ClusterState:
        """If `topics` is None: every topic that may be described."""
        api = METADATA_WITH_IDS if with_ids else METADATA
        question = Writer(flexible=api.flexible).array(None if topics is None else len(topics))
        for topic in topics or ():
            if with_ids:
                question.put("qq", 0, 0)  # by name
            question.text(topic).tags()
        question.put("b", 0)  # and do not create them
        if with_ids:
            question.put("bb", 0, 0)  # without what this user may do
        answer = self.ask(api, question.tags())
        answer.one("i")
        brokers = {}
        for _ in answer.array():
            number, host, port = answer.one("i"), answer.name(), answer.one("i")
            answer.text()
            answer.tags()
            brokers[number] = Node(number, host, port)
        cluster_id, controller = answer.name(), answer.one("i")
        described: dict[str, dict[int, PartitionState]] = {}
        topic_ids: dict[str, str] = {}
        for _ in answer.array():
            error, name, topic_id, partitions = _topic_state(answer, with_ids=with_ids)
            described[name] = {-1: PartitionState(error, None, -1, (), (), ())} if error else partitions
            if topic_id is not None:
                topic_ids[name] = topic_id
        return ClusterState(
            cluster_id=cluster_id, controller=None if controller == NOBODY else controller, brokers=brokers,
            topics=described, topic_ids=topic_ids,
        )  # fmt: skip

    def earliest(self, partition: TopicPartition) -> int:
        """Where the log begins; only its leader knows."""
        question = Writer().put("ibi", NOBODY, READ_UNCOMMITTED, 1).text(partition.topic)
        answer = self.ask(LIST_OFFSETS, question.put("iiiq", 1, partition.number, -1, EARLIEST))
        answer.take("ii")
        answer.text()
        answer.array()
        _, error, _, offset, _ = answer.take("ihqqi")
        if error:
            raise unfinished(f"broker {self.host}: {error_name(error)}", error)
        return offset

    def fetch(self, partition: TopicPartition, offset: int, *, bytes_max: int, isolation: int) -> Fetched:
        """From this broker's own replica, leader or not."""
        question = Writer().put("iiiibii", NOBODY, WAIT_MS, 1, bytes_max, isolation, 0, -1)
        question.array(1).text(partition.topic).array(1)
        question.put("iiqqi", partition.number, -1, offset, -1, bytes_max)
        answer = self.ask(FETCH, question.array(0).text(""))
        _, error, _ = answer.take("ihi")
        if error:
            raise Unfinished(f"broker {self.host}: {error_name(error)}")
        answer.array()
        answer.text()
        answer.array()
        return read_fetched(answer)[1]

    def producers(self, partition: TopicPartition) -> tuple[ProducerSaid, ...]:
        """For this broker's own replica, leader or not."""
        question = Writer(flexible=True).array(1).text(partition.topic).numbers([partition.number]).tags().tags()
        answer = self.ask(DESCRIBE_PRODUCERS, question)
        answer.one("i")
        answer.array()
        answer.text()
        answer.array()
        _, error, text, producers = read_producers(answer)
        if error:
            raise Unfinished(f"broker {self.host}: {text or error_name(error)}")
        return producers

    def ask(self, api: Api, question: Writer) -> AnswerReader:
        """After a request without an answer the connection is not used any more: a late answer would be taken for that of
        another request."""
        if self._lost is not None:
            raise NoAnswer(self._lost)
        self._correlation += 1
        head = Writer().put("hhi", api.key, api.version, self._correlation).text(self._settings.client_id or CLIENT_ID)
        message = head.data + (b"\0" if api.flexible else b"") + question.data
        # Records may take as long as they keep coming.
        self._answer_by = None if api is FETCH else time.monotonic() + self.seconds_max
        try:
            self._socket.settimeout(self._left())
            self._socket.sendall(struct.pack(">i", len(message)) + message)
            prefix = self._receive(4)
            size = struct.unpack(">i", prefix)[0]
            if not CORRELATION_BYTES <= size <= ANSWER_BYTES_MAX:
                raise ConnectionError(_no_answer(prefix))
            answer = AnswerReader(self._receive(size), flexible=api.flexible)
        except OSError as error:
            why = self._why(error)
            if isinstance(error, ConnectionError) and self._correlation == 1 and not self._proved:
                why += self._advice()
            self._lost = f"broker {self.host} does not answer: {why}"
            raise NoAnswer(self._lost) from error
        if answer.one("i") != self._correlation:
            self._lost = f"broker {self.host} answered another question"
            raise NoAnswer(self._lost)
        if api.flexible and api.tagged_answer:
            answer.tags()
        return answer

    def _advice(self) -> str:
        """For a first request that got no answer."""
        if self._settings.context is None and spoken(self.host) == TLS:
            return "; plain Kafka was spoken, it speaks TLS: security.protocol is SSL or SASL_SSL"
        if self._settings.login is None:
            return "; if it asks for a login, security.protocol is SASL_SSL or SASL_PLAINTEXT"
        return ""

    def _receive(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            got = self._received(size - len(parts))
            if not got:
                raise ConnectionError("the broker closed the connection")
            parts += got
        return bytes(parts)

    def _received(self, size_max: int) -> bytes:
        """Some bytes of an answer. Stops waiting when the caller has given up."""
        while True:
            check()
            left = self._left()
            self._socket.settimeout(min(left, LISTEN_SECONDS))
            try:
                return self._socket.recv(min(size_max, 1 << 20))
            except TimeoutError:
                if left <= LISTEN_SECONDS:
                    raise

    def _authenticate(self, login: Login | BearerLogin) -> None:
        answer = self.ask(SASL_HANDSHAKE, Writer().text(login.mechanism))
        error = answer.one("h")
        if error == NO_LOGIN_ASKED:
            raise Unfinished(f"broker {self.host} does not require a login: set security.protocol to PLAINTEXT or SSL")
        if error == UNSUPPORTED_MECHANISM:
            offered = ", ".join(sorted(answer.name() for _ in answer.array()))
            raise Unfinished(f"broker {self.host} does not offer SASL {login.mechanism}; it offers {offered or 'none'}")
        if error:
            raise Unfinished(f"broker {self.host}: SASL {login.mechanism}: {error_name(error)}")
        log_in(self.host, login, self._say)

    def _say(self, message: bytes) -> bytes:
        answer = self.ask(SASL_AUTHENTICATE, Writer().blob(message))
        error, text = answer.one("h"), answer.text()
        if error:
            raise Unfinished(f"broker {self.host} refused the login: {text or error_name(error)}")
        return answer.blob()


def _topic_state(answer: AnswerReader, *, with_ids: bool) -> tuple[int, str, str | None, dict[int, PartitionState]]:
    """One topic in an answer to Metadata: the error, its name and id, its partitions."""
    error, name, topic_id = answer.one("h"), answer.name(), answer.uuid() if with_ids else None
    answer.one("b")  # internal
    partitions = dict(_partition_state(answer) for _ in answer.array())
    if with_ids:
        answer.one("i")  # operations, which were not asked for
    answer.tags()
    return error, name, topic_id, partitions


def _partition_state(answer: AnswerReader) -> tuple[int, PartitionState]:
    error, number, leader, epoch = answer.take("hiii")
    replicas, isr, offline = answer.numbers(), answer.numbers(), answer.numbers()
    answer.tags()
    return number, PartitionState(error, None if leader == NOBODY else leader, epoch, replicas, isr, offline)


def read_fetched(answer: AnswerReader) -> tuple[int, Fetched]:
    """One partition in an answer to Fetch, and its number."""
    number, error, high, stable, start = answer.take("ihqqq")
    aborted = tuple((answer.one("q"), answer.one("q")) for _ in answer.array())
    answer.one("i")
    return number, Fetched(
        error=error, high_watermark=high, last_stable_offset=stable, log_start=start, aborted=aborted,
        records=answer.blob(),
    )  # fmt: skip


def read_producers(answer: AnswerReader) -> tuple[int, int, str | None, tuple[ProducerSaid, ...]]:
    """One partition in an answer to DescribeProducers: its number, the error, the message, the producers."""
    number, error = answer.take("ih")
    text, producers = answer.text(), []
    for _ in answer.array():
        producer_id, epoch, _, _, _, start = answer.take("qiiqiq")
        answer.tags()
        producers.append(
            ProducerSaid(producer_id=producer_id, epoch=epoch, transaction_start=start if start >= 0 else None)
        )
    answer.tags()
    return number, error, text, tuple(producers)


def _no_answer(prefix: bytes) -> str:
    if looks_like_tls(prefix):
        return "TLS came back"
    size = struct.unpack(">i", prefix)[0]
    return f"an answer of {size} bytes: is this a listener of Kafka's, with this security.protocol?"


def ask_cluster(
    connection: Connection, settings: WireSettings, topics: Sequence[str] | None, *, seconds_max: float = SECONDS_MAX,
    proved: bool = False,
) -> ClusterState:  # fmt: skip
    """From the first host that answers: tried one after the other, all within `seconds_max`. `proved` as for a connection."""
    deadline = time.monotonic() + seconds_max
    failed: list[str] = []
    for number, host in enumerate(connection.hosts):
        share = (deadline - time.monotonic()) / (len(connection.hosts) - number)
        try:
            with BrokerConnection(host, settings, seconds_max=max(share, 0.001), proved=proved) as broker:
                return broker.metadata(topics)
        except Unfinished as error:
            failed.append(str(error))
    raise Unfinished("; ".join(failed))
