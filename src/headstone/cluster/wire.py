"""A small client of Kafka's own protocol, for the one thing that other clients do not do: read a replica from that replica.

Metadata, ListOffsets and Fetch of fixed old versions that every broker since 2.3 speaks, DescribeProducers, TLS, and SASL PLAIN
and SCRAM. One connection per broker, one request at a time; reads only. Settings by librdkafka's names.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple

from headstone.audit.views import ProducerSaid
from headstone.errors import Unfinished, UsageError

FETCH, LIST_OFFSETS, METADATA, SASL_HANDSHAKE, SASL_AUTHENTICATE, DESCRIBE_PRODUCERS = 1, 2, 3, 17, 36, 61
VERSIONS = {
    FETCH: 11, LIST_OFFSETS: 5, METADATA: 5, SASL_HANDSHAKE: 1, SASL_AUTHENTICATE: 0, DESCRIBE_PRODUCERS: 0
}  # fmt: skip
"""The last before tagged fields; Fetch 11 is the first that a follower answers from its own log."""
TAGGED = (DESCRIBE_PRODUCERS,)
"""These have tagged fields in all versions, and compact arrays and strings. Brokers since 2.8 know it."""
NO_TAGS = b"\0"
CLIENT_ID = "headstone-audit"
SECONDS_MAX = 30.0
WAIT_MS = 500
CORRELATION_BYTES, ANSWER_BYTES_MAX = 4, 256 << 20
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
EARLIEST = -2
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
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
        self._at = 0

    def take(self, layout: str) -> tuple[int, ...]:
        found = struct.unpack_from(">" + layout, self._data, self._at)
        self._at += struct.calcsize(">" + layout)
        return found

    def one(self, layout: str) -> int:
        return self.take(layout)[0]

    def text(self) -> str | None:
        size = self.one("h")
        return None if size < 0 else self._bytes(size).decode()

    def blob(self) -> bytes:
        size = self.one("i")
        return b"" if size < 0 else self._bytes(size)

    def _bytes(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def array(self) -> range:
        return range(max(self.one("i"), 0))

    def unsigned(self) -> int:
        found = shift = 0
        while True:
            byte = self.one("B")
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
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


class Connection:
    """To one broker. A context manager."""

    def __init__(self, host: str, port: int, settings: Mapping[str, str]) -> None:
        self.where = f"{host}:{port}"
        protocol = settings.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in PROTOCOLS:
            raise UsageError(f"security.protocol {protocol}: known are {', '.join(PROTOCOLS)}")
        self._correlation = 0
        try:
            self._socket = socket.create_connection((host, port), timeout=SECONDS_MAX)
            if protocol.endswith("SSL"):
                self._socket = _tls(settings).wrap_socket(self._socket, server_hostname=host)
        except (OSError, ssl.SSLError) as error:
            raise Unfinished(f"broker {self.where} can't be reached: {error}") from error
        if protocol.startswith("SASL"):
            self._authenticate(settings)

    def __enter__(self) -> Connection:
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
        found: dict[str, dict[int, PartitionMetadata]] = {}
        for _ in answer.array():
            error, name, _internal = answer.one("h"), answer.text() or "", answer.one("b")
            found[name] = {}
            for _ in answer.array():
                code, number, leader = answer.take("hii")
                replicas, isr, offline = (tuple(answer.one("i") for _ in answer.array()) for _ in range(3))
                del offline
                found[name][number] = PartitionMetadata(error or code, leader, replicas, isr)
            if error:
                found[name] = {-1: PartitionMetadata(error, -1, (), ())}
        return ClusterMetadata(nodes=nodes, topics=found)

    def earliest(self, topic: str, partition: int) -> int:
        """Where the log begins; only its leader tells."""
        body = struct.pack(">ibi", -1, 0, 1) + _text(topic) + struct.pack(">iiiq", 1, partition, -1, EARLIEST)
        answer = self._ask(LIST_OFFSETS, body)
        answer.take("ii")
        answer.text()
        answer.array()
        _, error, _, offset, _ = answer.take("ihqqi")
        if error:
            raise Unfinished(f"broker {self.where}: {error_name(error)}")
        return offset

    def fetch(self, topic: str, partition: int, offset: int, *, bytes_max: int, isolation: int) -> Fetched:
        """From this broker's own replica, leader or not."""
        body = struct.pack(">iiiibii", -1, WAIT_MS, 1, bytes_max, isolation, 0, -1)
        body += struct.pack(">i", 1) + _text(topic) + struct.pack(">iiiqqi", 1, partition, -1, offset, -1, bytes_max)
        answer = self._ask(FETCH, body + struct.pack(">i", 0) + _text(""))
        _, error, _ = answer.take("ihi")
        if error:
            raise Unfinished(f"broker {self.where}: {error_name(error)}")
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

    def producers(self, topic: str, partition: int) -> tuple[ProducerSaid, ...]:
        """Of this broker's own replica, leader or not."""
        body = b"\2" + _compact(topic) + b"\2" + struct.pack(">i", partition) + NO_TAGS + NO_TAGS
        answer = self._ask(DESCRIBE_PRODUCERS, body)
        answer.one("i")
        answer.compact_array()
        answer.compact_text()
        answer.compact_array()
        _, error = answer.take("ih")
        text = answer.compact_text()
        if error:
            raise Unfinished(f"broker {self.where}: {text or error_name(error)}")
        found = []
        for _ in answer.compact_array():
            producer_id, epoch, _, _, _, start = answer.take("qiiqiq")
            answer.tags()
            found.append(
                ProducerSaid(producer_id=producer_id, epoch=epoch, transaction_start=start if start >= 0 else None)
            )
        return tuple(found)

    def _ask(self, key: int, body: bytes) -> _Reader:
        self._correlation += 1
        header = struct.pack(">hhi", key, VERSIONS[key], self._correlation) + _text(CLIENT_ID)
        if key in TAGGED:
            header += NO_TAGS
        try:
            self._socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
            size = struct.unpack(">i", self._receive(4))[0]
            if not CORRELATION_BYTES <= size <= ANSWER_BYTES_MAX:
                raise ConnectionError(
                    f"an answer of {size} bytes: is this a listener of Kafka's, with this security.protocol?"
                )
            answer = _Reader(self._receive(size))
        except OSError as error:
            raise Unfinished(f"broker {self.where} does not answer: {error}") from error
        if answer.one("i") != self._correlation:
            raise Unfinished(f"broker {self.where} answered another question")
        if key in TAGGED:
            answer.tags()
        return answer

    def _receive(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            got = self._socket.recv(min(size - len(parts), 1 << 20))
            if not got:
                raise ConnectionError("it closed the connection")
            parts += got
        return bytes(parts)

    def _authenticate(self, settings: Mapping[str, str]) -> None:
        mechanism = settings.get("sasl.mechanism") or settings.get("sasl.mechanisms") or "PLAIN"
        user, password = settings.get("sasl.username"), settings.get("sasl.password")
        if user is None or password is None or mechanism not in ("PLAIN", *DIGESTS):
            raise UsageError(f"SASL {mechanism}: known are PLAIN and SCRAM, with sasl.username and sasl.password")
        answer = self._ask(SASL_HANDSHAKE, _text(mechanism))
        if answer.one("h"):
            raise Unfinished(f"broker {self.where} does not offer SASL {mechanism}")
        if mechanism == "PLAIN":
            self._say(b"\0" + user.encode() + b"\0" + password.encode())
        else:
            self._scram(DIGESTS[mechanism], user, password)

    def _say(self, message: bytes) -> bytes:
        answer = self._ask(SASL_AUTHENTICATE, struct.pack(">i", len(message)) + message)
        error, text = answer.one("h"), answer.text()
        if error:
            raise Unfinished(f"broker {self.where} refused the login: {text or error_name(error)}")
        return answer.blob()

    def _scram(self, digest: str, user: str, password: str) -> None:
        name = user.replace("=", "=3D").replace(",", "=2C")
        nonce = secrets.token_hex(16)
        first = f"n={name},r={nonce}"
        server = self._say(f"n,,{first}".encode()).decode()
        fields = dict(field.split("=", 1) for field in server.split(","))
        if not fields["r"].startswith(nonce):
            raise Unfinished(f"broker {self.where}: SCRAM nonce is not ours")
        salted = hashlib.pbkdf2_hmac(digest, password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
        final = f"c=biws,r={fields['r']}"
        message = f"{first},{server},{final}".encode()
        key = hmac.digest(salted, b"Client Key", digest)
        signature = hmac.digest(hashlib.new(digest, key).digest(), message, digest)
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
        verified = self._say(f"{final},p={proof}".encode()).decode()
        expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), message, digest)
        if verified != f"v={base64.b64encode(expected).decode()}":
            raise Unfinished(f"broker {self.where} could not prove that it knows the password")


def _tls(settings: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.get("ssl.ca.location"))
    if settings.get("ssl.endpoint.identification.algorithm", "https") in ("none", ""):
        context.check_hostname = False
    if "ssl.certificate.location" in settings:
        context.load_cert_chain(
            settings["ssl.certificate.location"], settings.get("ssl.key.location"), settings.get("ssl.key.password")
        )
    return context
