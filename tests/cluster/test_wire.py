"""What is no broker, or another listener of one, is told with its address and the reason, in a bounded time."""

from __future__ import annotations

import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headstone.cli.main import main
from headstone.cluster.connection import SECONDS_MAX, Connection, Host, wire_settings
from headstone.cluster.wire import BrokerConnection, ask_cluster
from headstone.errors import Unfinished
from headstone.log.topic_partition import TopicPartition
from tests.cluster.certificates import Certificate, self_signed

Conversation = Callable[[socket.socket], None]


@contextmanager
def serving(conversation: Conversation) -> Iterator[Host]:
    """Every connection gets one such conversation; what goes wrong in it is the client's to tell."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    try:
                        conversation(connection)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Host(*server.getsockname())
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextmanager
def silent() -> Iterator[Host]:
    """The kernel accepts, and nobody says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Host(*server.getsockname())


def plain_kafka(connection: socket.socket) -> None:
    """As a broker: TLS is an impossible size, ApiVersions is answered, and without a login nothing else."""
    request = connection.recv(1 << 16)
    (key,) = struct.unpack_from(">h", request, 4)
    if len(request) == struct.unpack_from(">i", request)[0] + 4 and key == 18:
        connection.sendall(struct.pack(">i", 10) + request[8:12] + struct.pack(">hi", 0, 0))


def tls_kafka(certificate: Certificate) -> Conversation:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)

    def conversation(connection: socket.socket) -> None:
        """As a broker: what is no TLS is closed without a word."""
        if connection.recv(1, socket.MSG_PEEK) != b"\x16":
            connection.recv(1 << 16)
            return
        with context.wrap_socket(connection, server_side=True) as wrapped:
            wrapped.recv(1)

    return conversation


SILENCE_SECONDS = 4
"""As long as each test waits in vain, and what all else in it has on a busy machine."""


def told(host: Host, *, seconds_max: float = SECONDS_MAX, **settings: str) -> str:
    connection = Connection.parse(str(host), {name.replace("_", "."): value for name, value in settings.items()})
    with pytest.raises(Unfinished) as caught:
        ask_cluster(connection, wire_settings(connection), None, seconds_max=seconds_max)
    return str(caught.value)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is this a listener of Kafka's"),
        (b"\xff\xff\xff\xff", "is this a listener of Kafka's"),
        (b"\x00\x00\x00\x08\x00\x00\x00\x09abcd", "answered another question"),
    ],
)
def test_what_is_no_broker_is_told(answer: bytes, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    def conversation(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(answer)

    with serving(conversation) as host:
        assert main(["audit", "--bootstrap", str(host)]) == 3
    shown = capsys.readouterr().err
    assert (said in shown, str(host) in shown) == (True, True)


def test_where_nothing_listens() -> None:
    with silent() as host:
        pass
    assert told(host) == f"broker {host} can't be reached: nothing listens there"


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_who_accepts_and_says_nothing_is_given_up(protocol: str) -> None:
    with silent() as host:
        assert told(host, seconds_max=SILENCE_SECONDS, security_protocol=protocol).endswith(
            f": it said nothing for {SILENCE_SECONDS} s"
        )
    assert SECONDS_MAX == 10


def test_who_answers_a_byte_at_a_time_is_given_up_too() -> None:
    given_up = threading.Event()

    def conversation(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"\0\0\1\0\0\0\0\1")
        while not given_up.wait(0.05):
            connection.sendall(b"\0")

    with serving(conversation) as host:
        assert told(host, seconds_max=SILENCE_SECONDS).endswith(
            f"does not answer: it said nothing for {SILENCE_SECONDS} s"
        )
        given_up.set()


def test_all_hosts_together_have_the_time_of_one() -> None:
    """The last one still gets its share, and every one is named with its reason."""
    with silent() as first, silent() as second, serving(lambda connection: None) as third:
        connection = Connection.parse(f"{first},{second},{third}", {})
        with pytest.raises(Unfinished) as caught:
            ask_cluster(connection, wire_settings(connection), None, seconds_max=3 * SILENCE_SECONDS)
    messages = str(caught.value).split("; broker ")
    assert [str(host) in message for host, message in zip((first, second, third), messages, strict=True)] == [True] * 3
    shares = [re.search(r"it said nothing for ([\d.]+) s", message) for message in messages]
    assert [share is None for share in shares] == [False, False, True]
    # The second one's is half of what is left, which is less the longer this process was kept from running.
    assert [0 < float(share[1]) <= SILENCE_SECONDS for share in shares if share] == [True, True]


def test_plain_kafka_spoken_to_a_tls_listener_and_the_reverse(tmp_path: Path) -> None:
    with serving(tls_kafka(self_signed(tmp_path))) as host:
        assert told(host).endswith("plain Kafka was spoken, it speaks TLS: security.protocol is SSL or SASL_SSL")
        assert "certificate verify failed" in told(host, security_protocol="SSL")
    with serving(plain_kafka) as host:
        said = told(host, security_protocol="SSL")
        assert said.endswith("TLS was spoken, it speaks plain Kafka: security.protocol is PLAINTEXT or SASL_PLAINTEXT")
        assert told(host).endswith("if it asks for a login, security.protocol is SASL_SSL or SASL_PLAINTEXT")


def test_a_tls_alert_for_an_answer_is_told() -> None:
    def conversation(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"\x15\x03\x03\x00\x02\x02\x50")

    with serving(conversation) as host:
        assert "TLS came back" in told(host)


def test_a_broker_that_stopped_answering_is_asked_once() -> None:
    """An audit asks it for every partition: each would wait again, and a late answer would be another's."""
    asked = threading.Semaphore(0)

    def conversation(connection: socket.socket) -> None:
        while connection.recv(1 << 16):
            asked.release()

    with serving(conversation) as host:
        settings = wire_settings(Connection.parse(str(host), {}))
        with BrokerConnection(host, settings, seconds_max=SILENCE_SECONDS) as broker:
            for number in range(3):
                with pytest.raises(Unfinished, match=f"does not answer: it said nothing for {SILENCE_SECONDS} s"):
                    broker.earliest(TopicPartition("orders", number))
    assert [asked.acquire(timeout=0) for _ in range(2)] == [True, False]


def test_a_connection_that_is_not_opened_is_closed() -> None:
    ended = threading.Event()

    def conversation(connection: socket.socket) -> None:
        while connection.recv(1 << 16):
            connection.sendall(b"\x00\x00\x00\x06\x00\x00\x00\x01\x00\x22")
        ended.set()

    given = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "p",
    }
    with serving(conversation) as host:
        settings = wire_settings(Connection.parse(str(host), given))
        with pytest.raises(Unfinished, match=r"does not require a login: set security\.protocol to PLAINTEXT or SSL"):
            BrokerConnection(host, settings)
        assert ended.wait(60)
