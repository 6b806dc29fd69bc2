"""A small client of Kafka's own protocol, for the one thing that other clients do not do: read a replica from that replica.

Metadata, ListOffsets and Fetch of fixed old versions that every broker since 2.3 speaks, DescribeProducers, TLS, and SASL PLAIN
and SCRAM. One connection per broker, one request at a time; reads only. How to connect is `connection.py`'s.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import ssl
import struct
import time
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple

from headstone.audit.views import ProducerSaid
from headstone.cluster.connection import SECONDS_MAX, Connection, Host, Login, WireSettings
from headstone.cluster.listener import PLAIN, TLS, looks_like_tls, spoken
from headstone.errors import Unfinished
from headstone.log.topic_partition import TopicPartition

FETCH, LIST_OFFSETS, METADATA, SASL_HANDSHAKE, SASL_AUTHENTICATE, DESCRIBE_PRODUCERS = 1, 2, 3, 17, 36, 61
VERSIONS = {
    FETCH: 11, LIST_OFFSETS: 5, METADATA: 5, SASL_HANDSHAKE: 1, SASL_AUTHENTICATE: 0, DESCRIBE_PRODUCERS: 0
}  # fmt: skip
"""The last before tagged fields; Fetch 11 is the first that a follower answers from its own log."""
TAGGED = (DESCRIBE_PRODUCERS,)
"""These have tagged fields in all versions, and compact arrays and strings. Brokers since 2.8 know it."""
NO_TAGS = b"\0"
CLIENT_ID = "headstone-audit"
WAIT_MS = 500
CORRELATION_BYTES, ANSWER_BYTES_MAX = 4, 256 << 20
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
EARLIEST = -2
DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
UNSUPPORTED_MECHANISM, NO_LOGIN_ASKED = 33, 34
ERRORS = {
    1: "OFFSET_OUT_OF_RANGE", 3: "UNKNOWN_TOPIC_OR_PARTITION", 5: "LEADER_NOT_AVAILABLE", 6: "NOT_LEADER_OR_FOLLOWER",
    9: "REPLICA_NOT_AVAILABLE", 29: "TOPIC_AUTHORIZATION_FAILED", 56: "KAFKA_STORAGE_ERROR", 58: "SASL_AUTHENTICATION_FAILED",
    78: "OFFSET_NOT_AVAILABLE",
}  # fmt: skip


class Node(NamedTuple):
    number: int
    host: str
    port: int


class PartitionMetadata(NamedTuple):
    error: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    nodes: dict[int, Node]
    topics: dict[str, dict[int, PartitionMetadata]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """One answer of one replica, by its own word."""

    error: int
    high_watermark: int
    last_stable_offset: int
    log_start: int
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset)."""
    records: bytes


def error_name(code: int) -> str:
    return ERRORS.get(code, f"error {code}")


class _Reader:
    """Walks through an answer."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(">" + layout, self._data, self._position)
        self._position += struct.calcsize(">" + layout)
        return values

    def one(self, layout: str) -> int:
        return self.take(layout)[0]

    def text(self) -> str | None:
        size = self.one("h")
        return None if size < 0 else self._bytes(size).decode()

    def blob(self) -> bytes:
        size = self.one("i")
        return b"" if size < 0 else self._bytes(size)

    def _bytes(self, size: int) -> bytes:
        self._position += size
        return self._data[self._position - size : self._position]

    def array(self) -> range:
        return range(max(self.one("i"), 0))

    def unsigned(self) -> int:
        number = shift = 0
        while True:
            byte = self.one("B")
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def compact_array(self) -> range:
        return range(max(self.unsigned() - 1, 0))

    def compact_text(self) -> str | None:
        size = self.unsigned() - 1
        return None if size < 0 else self._bytes(size).decode()

    def tags(self) -> None:
        """Nothing that is known here."""
        for _ in range(self.unsigned()):
            self.unsigned()
            self._bytes(self.unsigned())


def _text(value: str | None) -> bytes:
    return struct.pack(">h", -1) if value is None else struct.pack(">h", len(value.encode())) + value.encode()


def _compact(value: str) -> bytes:
    """Of fewer than 127 bytes, or of as many as two bytes can count."""
    size = len(value.encode()) + 1
    return (bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])) + value.encode()


class BrokerConnection:
    """To one broker. A context manager. `seconds_max` is for all of the opening together, and then for each answer."""

    def __init__(self, host: Host, settings: WireSettings, *, seconds_max: float = SECONDS_MAX) -> None:
        self.host = host
        self._settings = settings
        self._seconds_max = seconds_max
        self._deadline: float | None = time.monotonic() + seconds_max
        self._correlation = 0
        self._lost: str | None = None
        try:
            self._socket = self._connected()
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
            raise Unfinished(f"broker {host} can't be reached: {self._why(error)}") from error
        with ExitStack() as undo:
            undo.callback(self.close)
            self._open()
            undo.pop_all()
        self._deadline = None

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
                raise Unfinished(f"broker {self.host} can't be reached: {why}") from error
        if self._settings.login is not None:
            self._authenticate(self._settings.login)

    def _left(self) -> float:
        if self._deadline is None:
            return self._seconds_max
        return max(self._deadline - time.monotonic(), 0.001)

    def _why(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError):
            return f"it said nothing for {round(self._seconds_max, 1):g} s"
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

    def metadata(self, topics: list[str] | None) -> ClusterMetadata:
        """None: every topic that may be described."""
        named = struct.pack(">i", -1 if topics is None else len(topics)) + b"".join(map(_text, topics or ()))
        answer = self._ask(METADATA, named + b"\0")  # and do not create them
        answer.one("i")
        nodes = {}
        for _ in answer.array():
            number, host, port = answer.one("i"), answer.text(), answer.one("i")
            answer.text()
            nodes[number] = Node(number, host or "", port)
        answer.text()
        answer.one("i")
        described: dict[str, dict[int, PartitionMetadata]] = {}
        for _ in answer.array():
            error, name, _internal = answer.one("h"), answer.text() or "", answer.one("b")
            described[name] = {}
            for _ in answer.array():
                code, number, leader = answer.take("hii")
                replicas, isr, offline = (tuple(answer.one("i") for _ in answer.array()) for _ in range(3))
                del offline
                described[name][number] = PartitionMetadata(error or code, leader, replicas, isr)
            if error:
                described[name] = {-1: PartitionMetadata(error, -1, (), ())}
        return ClusterMetadata(nodes=nodes, topics=described)

    def earliest(self, partition: TopicPartition) -> int:
        """Where the log begins; only its leader tells."""
        body = struct.pack(">ibi", -1, 0, 1) + _text(partition.topic)
        body += struct.pack(">iiiq", 1, partition.number, -1, EARLIEST)
        answer = self._ask(LIST_OFFSETS, body)
        answer.take("ii")
        answer.text()
        answer.array()
        _, error, _, offset, _ = answer.take("ihqqi")
        if error:
            raise Unfinished(f"broker {self.host}: {error_name(error)}")
        return offset

    def fetch(self, partition: TopicPartition, offset: int, *, bytes_max: int, isolation: int) -> Fetched:
        """From this broker's own replica, leader or not."""
        body = struct.pack(">iiiibii", -1, WAIT_MS, 1, bytes_max, isolation, 0, -1)
        body += struct.pack(">i", 1) + _text(partition.topic)
        body += struct.pack(">iiiqqi", 1, partition.number, -1, offset, -1, bytes_max)
        answer = self._ask(FETCH, body + struct.pack(">i", 0) + _text(""))
        _, error, _ = answer.take("ihi")
        if error:
            raise Unfinished(f"broker {self.host}: {error_name(error)}")
        answer.array()
        answer.text()
        answer.array()
        _, code, high, stable, start = answer.take("ihqqq")
        aborted = tuple((answer.one("q"), answer.one("q")) for _ in answer.array())
        answer.one("i")
        return Fetched(
            error=code,
            high_watermark=high,
            last_stable_offset=stable,
            log_start=start,
            aborted=aborted,
            records=answer.blob(),
        )

    def producers(self, partition: TopicPartition) -> tuple[ProducerSaid, ...]:
        """Of this broker's own replica, leader or not."""
        body = b"\2" + _compact(partition.topic) + b"\2" + struct.pack(">i", partition.number) + NO_TAGS + NO_TAGS
        answer = self._ask(DESCRIBE_PRODUCERS, body)
        answer.one("i")
        answer.compact_array()
        answer.compact_text()
        answer.compact_array()
        _, error = answer.take("ih")
        text = answer.compact_text()
        if error:
            raise Unfinished(f"broker {self.host}: {text or error_name(error)}")
        producers = []
        for _ in answer.compact_array():
            producer_id, epoch, _, _, _, start = answer.take("qiiqiq")
            answer.tags()
            producers.append(
                ProducerSaid(producer_id=producer_id, epoch=epoch, transaction_start=start if start >= 0 else None)
            )
        return tuple(producers)

    def _ask(self, key: int, body: bytes) -> _Reader:
        """After a question without its answer none is asked any more: a late answer would be taken for another's."""
        if self._lost is not None:
            raise Unfinished(self._lost)
        self._correlation += 1
        client = _text(self._settings.client_id or CLIENT_ID)
        header = struct.pack(">hhi", key, VERSIONS[key], self._correlation) + client
        if key in TAGGED:
            header += NO_TAGS
        try:
            self._socket.settimeout(self._left())
            self._socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
            prefix = self._receive(4)
            size = struct.unpack(">i", prefix)[0]
            if not CORRELATION_BYTES <= size <= ANSWER_BYTES_MAX:
                raise ConnectionError(_no_answer(prefix))
            answer = _Reader(self._receive(size))
        except OSError as error:
            why = self._why(error)
            if isinstance(error, ConnectionError) and self._correlation == 1:
                why += self._advice()
            self._lost = f"broker {self.host} does not answer: {why}"
            raise Unfinished(self._lost) from error
        if answer.one("i") != self._correlation:
            self._lost = f"broker {self.host} answered another question"
            raise Unfinished(self._lost)
        if key in TAGGED:
            answer.tags()
        return answer

    def _advice(self) -> str:
        """On a first question that got no answer."""
        if self._settings.context is None and spoken(self.host) == TLS:
            return "; plain Kafka was spoken, it speaks TLS: security.protocol is SSL or SASL_SSL"
        if self._settings.login is None:
            return "; if it asks for a login, security.protocol is SASL_SSL or SASL_PLAINTEXT"
        return ""

    def _receive(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            self._socket.settimeout(self._left())
            got = self._socket.recv(min(size - len(parts), 1 << 20))
            if not got:
                raise ConnectionError("it closed the connection")
            parts += got
        return bytes(parts)

    def _authenticate(self, login: Login) -> None:
        answer = self._ask(SASL_HANDSHAKE, _text(login.mechanism))
        error = answer.one("h")
        if error == NO_LOGIN_ASKED:
            raise Unfinished(f"broker {self.host} asks for no login: security.protocol is PLAINTEXT or SSL")
        if error == UNSUPPORTED_MECHANISM:
            offered = ", ".join(sorted(answer.text() or "" for _ in answer.array()))
            raise Unfinished(f"broker {self.host} does not offer SASL {login.mechanism}; it offers {offered or 'none'}")
        if error:
            raise Unfinished(f"broker {self.host}: SASL {login.mechanism}: {error_name(error)}")
        if login.mechanism in DIGESTS:
            self._scram(DIGESTS[login.mechanism], login.user, login.password)
        else:
            self._say(b"\0" + login.user.encode() + b"\0" + login.password.encode())

    def _say(self, message: bytes) -> bytes:
        answer = self._ask(SASL_AUTHENTICATE, struct.pack(">i", len(message)) + message)
        error, text = answer.one("h"), answer.text()
        if error:
            raise Unfinished(f"broker {self.host} refused the login: {text or error_name(error)}")
        return answer.blob()

    def _scram(self, digest: str, user: str, password: str) -> None:
        name = user.replace("=", "=3D").replace(",", "=2C")
        nonce = secrets.token_hex(16)
        first = f"n={name},r={nonce}"
        server = self._say(f"n,,{first}".encode()).decode()
        fields = dict(field.split("=", 1) for field in server.split(","))
        if not fields["r"].startswith(nonce):
            raise Unfinished(f"broker {self.host}: SCRAM nonce is not ours")
        salted = hashlib.pbkdf2_hmac(digest, password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
        final = f"c=biws,r={fields['r']}"
        message = f"{first},{server},{final}".encode()
        key = hmac.digest(salted, b"Client Key", digest)
        signature = hmac.digest(hashlib.new(digest, key).digest(), message, digest)
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
        verified = self._say(f"{final},p={proof}".encode()).decode()
        expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), message, digest)
        if verified != f"v={base64.b64encode(expected).decode()}":
            raise Unfinished(f"broker {self.host} could not prove that it knows the password")


def _no_answer(prefix: bytes) -> str:
    if looks_like_tls(prefix):
        return "TLS came back"
    size = struct.unpack(">i", prefix)[0]
    return f"an answer of {size} bytes: is this a listener of Kafka's, with this security.protocol?"


def ask_cluster(
    connection: Connection, settings: WireSettings, topics: list[str] | None, *, seconds_max: float = SECONDS_MAX
) -> ClusterMetadata:
    """By the first of the hosts that answers: one after the other, all of them within `seconds_max`."""
    deadline = time.monotonic() + seconds_max
    failed: list[str] = []
    for number, host in enumerate(connection.hosts):
        share = (deadline - time.monotonic()) / (len(connection.hosts) - number)
        try:
            with BrokerConnection(host, settings, seconds_max=max(share, 0.001)) as broker:
                return broker.metadata(topics)
        except Unfinished as error:
            failed.append(str(error))
    raise Unfinished("; ".join(failed))
