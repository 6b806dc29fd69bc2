"""Reports over real HTTP and TLS on loopback, and everybody who should not be able to report: refused, cut off, or harmless."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headstone.agent.authentication import Authentication, Refusal, TlsFiles, signature
from headstone.agent.client import GuardAddress, GuardClient
from headstone.agent.messages import (
    BODY_BYTES_MAX,
    HELLO,
    REPORT,
    SIGNED,
    VERSION,
    BrokerReport,
    Hello,
    Receipt,
    UnreadableReport,
    decode_report,
    document,
    encode_hello,
    encode_report,
)
from headstone.brokers.processes import wait_until
from headstone.cluster.connection import Host
from headstone.errors import Unfinished, UsageError
from headstone.guard.agents.server import CONNECTIONS_MAX, serve_reports
from headstone.guard.agents.truth import AgentTruth
from headstone.log.topic_partition import TOPIC_NAME, TopicPartition
from tests.agent.broker_directory import CLUSTER
from tests.cluster.certificates import Certificate, self_signed
from tests.guard.reporting import Beside, looked, replica_report

Certificates = dict[str, Certificate]
TOKEN, WRONG = "a token of the guard's", "a token of a stranger's"
ANYWHERE = Host("127.0.0.1", 0)
DELETIONS = {"count": 1, "emptied": 0, "digest": "0" * 64}
SPAN = {"topic": "orders", "partition": 0, "start": 0, "end": 9, "read_to": 9, "deletions": DELETIONS}
HOSTILE = (
    "..",
    "$(reboot)",
    "`id`",
    "a;b",
    "../../etc",
    "\x1b[2Jorders",
    "orders\n",
    "ord ers",
    "",
    "x" * 250,
    "ördérs",
    "a\u202eb",
)


@pytest.fixture
def truth() -> AgentTruth:
    truth = AgentTruth()
    looked(truth)
    return truth


def listening(truth: AgentTruth, *, seconds_max: float = 60, **authentication: Any) -> AbstractContextManager[Host]:
    return serve_reports(ANYWHERE, Authentication(**{"token": TOKEN, **authentication}), truth, seconds_max=seconds_max)


@pytest.fixture
def where(truth: AgentTruth) -> Iterator[Host]:
    with listening(truth) as host:
        yield host


def client(host: Host, token: str | None = TOKEN, *, scheme: str = "http", tls: TlsFiles | None = None) -> GuardClient:
    return GuardClient(GuardAddress(url=f"{scheme}://{host}", token=token, tls=tls or TlsFiles()), seconds_max=60)


def hello(broker: int = 1) -> Hello:
    return Hello(cluster_id=CLUSTER, broker=broker, session_ms=1)


def posted(host: Host, place: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    """headers: who signs it with the guard's token needs no others."""
    connection = http.client.HTTPConnection(host.name, host.port, timeout=60)
    connection.request("POST", place, body, signed(place, body) if headers is None else headers)
    response = connection.getresponse()
    status, answer = response.status, json.loads(response.read())
    connection.close()
    return status, answer


def signed(place: str, body: bytes, token: str = TOKEN) -> dict[str, str]:
    return {SIGNED: signature(token, place.encode(), body)}


def test_a_report_arrives_whole(truth: AgentTruth, where: Host) -> None:
    agent = Beside(truth, 1)
    guard = client(where)
    assert guard.hello(hello()).topics == ("orders",)
    assert guard.report(agent.made(replica_report(50, 60))) == Receipt(taken=1)
    [orders] = truth.partitions()
    assert (orders.members[0].mcco, orders.members[0].mxfo) == (50, 60)


def test_what_is_sent_is_what_is_read(truth: AgentTruth) -> None:
    report = Beside(truth, 1).made(
        replica_report(50, 60), replica_report(partition=TopicPartition("ghost", 7), topic_id=None)
    )
    report = decode_report(encode_report(report))
    assert decode_report(encode_report(report)) == report
    assert document(report)["replicas"][0]["mcco"] == 50  # type: ignore[index]


def test_a_wrong_token_is_refused_on_both_sides(truth: AgentTruth, where: Host) -> None:
    with pytest.raises(Unfinished, match="refused the token"):
        client(where, WRONG).hello(hello())
    body = encode_hello(hello())
    for headers in ({}, {SIGNED: ""}, {SIGNED: "0" * 64}, signed(HELLO, body, WRONG), signed(REPORT, body)):
        status, answer = posted(where, HELLO, body, headers)
        assert (status, answer) == (401, {"refused": "the signature was not made with this guard's token"})
    assert truth.refusals() == {Refusal.WRONG_TOKEN: 6}
    assert truth.agents() == ()


def test_an_answer_that_is_not_the_guards_is_none(truth: AgentTruth) -> None:
    """Whoever sits between them could tell the agent of another guard's epoch and questions."""
    with (
        listening(truth, token=WRONG) as impostor,
        pytest.raises(Unfinished, match="check that --token matches the guard's --agents-token"),
    ):
        client(impostor).hello(hello())


def test_a_report_counts_once_and_as_it_was_signed(truth: AgentTruth, where: Host) -> None:
    body = encode_report(Beside(truth, 1).made(replica_report(50, 50)))
    changed = body.replace(b'"mcco":50', b'"mcco":99')
    assert changed != body
    assert posted(where, REPORT, changed, signed(REPORT, body))[0] == 401
    assert posted(where, REPORT, body)[0] == 200
    again = {"refused": "this report, or a newer one from this broker, was accepted already"}
    assert posted(where, REPORT, body) == (409, again)
    assert truth.refusals() == {Refusal.WRONG_TOKEN: 1, Refusal.REPLAYED: 1}


@pytest.mark.parametrize("topic", HOSTILE)
def test_a_hostile_topic_name_is_refused_and_not_repeated(truth: AgentTruth, where: Host, topic: str) -> None:
    body = encode_report(Beside(truth, 1).made(replica_report(partition=TopicPartition(topic, 0))))
    status, answer = posted(where, REPORT, body)
    assert status == 400
    assert answer == {"refused": f"topic: not a string of the form {TOPIC_NAME.pattern}"}


def hostile_bodies(report: BrokerReport) -> Iterator[bytes]:
    told: dict[str, Any] = document(report)
    yield b"\xff\xfe"
    yield b"[" * 100_000
    yield b"[]"
    yield b"{}"
    for name, values in {
        "version": (VERSION - 1, str(VERSION), None), "broker": (-1, 2**31, True, "1", 1.5), "cluster": ("a\nb", 7, "x" * 129),
        "session_ms": (2**63, float("nan")), "challenge": ("x", "1.0", "9" * 20 + "." + "0" * 64), "epoch": (None, -1),
        "interval_ms": (3_600_001,), "replicas": (None, {}, [7], [{}], [told["replicas"][0]] * 2, [{}] * 20_001),
        "answers": ([{"topic": "orders", "partition": 0, "offset": 1, "holds": 1}],),
        "spans": (
            None, [{}] * 5, [{**SPAN, "end": -1}], [{**SPAN, "deletions": 7}],
            *([{**SPAN, "deletions": {**DELETIONS, "digest": digest}}] for digest in ("0" * 63, "$(id)")),
        ),
    }.items():  # fmt: skip
        for value in values:
            yield json.dumps({**told, name: value}).encode()
    for name in ("mcco", "mxfo", "log_end", "incarnation", "partition", "topic"):
        yield json.dumps({**told, "replicas": [{**told["replicas"][0], name: None}]}).encode()


def test_what_is_no_report_is_refused_whole(truth: AgentTruth) -> None:
    for body in hostile_bodies(Beside(truth, 1).made(replica_report(50, 50))):
        with pytest.raises(UnreadableReport) as refused:
            decode_report(body)
        assert str(refused.value).isprintable()


def test_oversized_and_shapeless_requests_are_refused(truth: AgentTruth, where: Host) -> None:
    assert posted(where, REPORT, b"", {"Content-Length": str(BODY_BYTES_MAX + 1)})[0] == 413
    assert posted(where, REPORT, b"", {"Content-Length": "-1"})[0] == 400
    assert posted(where, "/elsewhere", b"{}")[0] == 404
    assert posted(where, HELLO, b"{}")[0] == 400
    assert truth.refusals() == {Refusal.TOO_LARGE: 1, Refusal.UNREADABLE: 2, Refusal.NO_SUCH_PLACE: 1}


DAWDLE_SECONDS = 5
"""As long as each of these tests waits in vain."""


def test_who_dawdles_is_cut_off_and_keeps_nobody_waiting(truth: AgentTruth) -> None:
    """All places taken by connections that send nothing more: within their time they are closed, and there is room again."""
    with listening(truth, seconds_max=DAWDLE_SECONDS) as host:
        dawdlers = [socket.create_connection(host, timeout=60) for _ in range(CONNECTIONS_MAX)]
        for number, dawdler in enumerate(dawdlers):
            dawdler.sendall(b"POST /v1/report HTTP/1.1\r\nContent-Length: 100\r\n" + b"\r\nx" * (number % 2))
        for dawdler in dawdlers:
            while dawdler.recv(4096):
                pass
            dawdler.close()
        # A place is free a moment after whoever had it sees the end.
        wait_until(partial(is_answered, host), "a place", seconds_max=60)


def is_answered(host: Host) -> bool:
    try:
        return client(host).hello(hello()).topics == ("orders",)
    except Unfinished:
        return False


def test_who_sends_byte_after_byte_is_cut_off_too(truth: AgentTruth) -> None:
    with (
        listening(truth, seconds_max=DAWDLE_SECONDS) as host,
        socket.create_connection(host, timeout=60) as slow,
    ):
        slow.settimeout(0.1)
        slow.sendall(b"POST /v1/report HTTP/1.1\r\nContent-Length: 100000\r\n\r\n")
        sent = 0
        while sent < 600:
            try:
                assert slow.recv(1) in (b"", b"H")
                break
            except TimeoutError:
                slow.sendall(b"x")
                sent += 1
            except OSError:
                break
        assert 0 < sent < 600


def test_one_connection_too_many_is_turned_away(truth: AgentTruth) -> None:
    with listening(truth) as host:
        taken = [socket.create_connection(host, timeout=60) for _ in range(CONNECTIONS_MAX)]
        with pytest.raises(Unfinished, match="the guard at"):
            client(host).hello(hello())
        for connection in taken:
            connection.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    root = tmp_path_factory.mktemp("certificates")
    return {name: self_signed(root, name) for name in ("guard", "broker-1", "agents", "stranger")}


@pytest.fixture
def secured(certificates: Certificates, truth: AgentTruth, tmp_path: Path) -> Iterator[Host]:
    """Trusts the certificate of broker 1 and one that names no broker."""
    trusted = tmp_path / "trusted.pem"
    trusted.write_text("".join(Path(certificates[name].certificate).read_text() for name in ("broker-1", "agents")))
    guard = certificates["guard"]
    tls = TlsFiles(certificate=guard.certificate, key=guard.key, authority=str(trusted))
    with listening(truth, token=None, tls=tls) as host:
        yield host


def with_certificate(host: Host, certificates: Certificates, name: str) -> GuardClient:
    shown, authority = certificates[name], certificates["guard"].certificate
    tls = TlsFiles(certificate=shown.certificate, key=shown.key, authority=authority)
    return client(host, None, scheme="https", tls=tls)


def test_a_trusted_certificate_reports(truth: AgentTruth, secured: Host, certificates: Certificates) -> None:
    for name, broker in (("broker-1", 1), ("agents", 2)):
        guard = with_certificate(secured, certificates, name)
        assert guard.report(Beside(truth, broker).made(replica_report(5, 5))).taken == 1
    assert [agent.broker for agent in truth.agents()] == [1, 2]


def test_a_certificate_of_one_broker_does_not_speak_for_another(
    truth: AgentTruth, secured: Host, certificates: Certificates
) -> None:
    guard = with_certificate(secured, certificates, "broker-1")
    for say in (lambda: guard.hello(hello(2)), lambda: guard.report(Beside(truth, 2).made(replica_report()))):
        with pytest.raises(Unfinished, match="the certificate is for broker 1, the report is from broker 2"):
            say()


def test_a_stranger_and_one_without_certificate_get_no_answer(
    truth: AgentTruth, secured: Host, certificates: Certificates
) -> None:
    with pytest.raises(Unfinished):
        with_certificate(secured, certificates, "stranger").hello(hello())
    context = ssl.create_default_context(cafile=certificates["guard"].certificate)
    bare = http.client.HTTPSConnection(secured.name, secured.port, timeout=60, context=context)
    with closing(bare), pytest.raises((OSError, http.client.HTTPException)):
        answer_to_hello(bare)
    with pytest.raises(Unfinished):
        client(secured).hello(hello())
    assert truth.agents() == ()


def answer_to_hello(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
    connection.request("POST", HELLO, encode_hello(hello()))
    return connection.getresponse()


def test_an_agent_tells_its_certificate_to_no_guard_that_it_does_not_trust(
    secured: Host, certificates: Certificates
) -> None:
    shown = certificates["broker-1"]
    tls = TlsFiles(certificate=shown.certificate, key=shown.key, authority=certificates["stranger"].certificate)
    with pytest.raises(Unfinished, match="not trusted"):
        client(secured, None, scheme="https", tls=tls).hello(hello())


def test_who_never_finishes_the_handshake_is_cut_off(truth: AgentTruth, certificates: Certificates) -> None:
    guard = certificates["guard"]
    tls = TlsFiles(certificate=guard.certificate, key=guard.key)
    with (
        listening(truth, seconds_max=DAWDLE_SECONDS, tls=tls) as host,
        socket.create_connection(host, timeout=60) as silent,
    ):
        silent.sendall(b"\x16\x03\x01")
        assert silent.recv(1) == b""


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"token": None}, "needs a token, or TLS"),
        ({"token": "short"}, "fewer than 16 characters"),
        ({"token": None, "tls": TlsFiles(certificate="guard.pem")}, "needs a token, or TLS"),
    ],
)
def test_a_guard_that_would_take_anybodys_report_does_not_start(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Authentication(**settings)


@pytest.mark.parametrize("url", ["guard:9464", "ftp://guard", "http://", "http://guard/x", "http://guard?token=1"])
def test_a_guard_without_an_address_is_told(url: str) -> None:
    with pytest.raises(UsageError, match="expected http://HOST:PORT"):
        GuardAddress(url=url, token=TOKEN)


def test_two_guards_on_one_port_are_told(truth: AgentTruth, where: Host) -> None:
    with (
        pytest.raises(UsageError, match="cannot listen"),
        serve_reports(where, Authentication(token=TOKEN), truth),
    ):
        pass


def test_an_agent_that_speaks_tls_to_a_guard_that_does_not_is_told_what_to_write(where: Host) -> None:
    with pytest.raises(Unfinished, match="does not speak TLS as this agent does: http:// if it speaks none"):
        client(where, scheme="https").hello(hello())
