"""The small HTTP server in the guard's process that agents report to, with or without TLS.

Limits what strangers can use: connections at a time, bytes of a message, seconds of a request. Looks into a message only after
authenticating its sender, and signs every answer to a holder of the token. `truth.py` interprets messages.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from headstone.agent.authentication import (
    Authentication,
    Refusal,
    Refused,
    broker_named,
    same,
    server_context,
    signature,
)
from headstone.agent.messages import (
    BODY_BYTES_MAX,
    HELLO,
    REPORT,
    SIGNED,
    UnreadableReport,
    decode_hello,
    decode_report,
    encode_receipt,
    encode_welcome,
)
from headstone.cluster.connection import Host
from headstone.errors import UsageError
from headstone.guard.agents.truth import AgentTruth

SECONDS_MAX = 20.0
"""For a whole request, however slowly its bytes arrive."""
POLL_SECONDS = 0.1
CONNECTIONS_MAX = 32
"""At a time. Further connections are closed, and those agents try again."""
STATUSES = {
    Refusal.WRONG_TOKEN: 401, Refusal.WRONG_CERTIFICATE: 403, Refusal.REPLAYED: 409, Refusal.OTHER_CLUSTER: 409,
    Refusal.UNKNOWN_BROKER: 409, Refusal.SECOND_AGENT: 409, Refusal.WRONG_CLOCK: 409, Refusal.UNREADABLE: 400,
    Refusal.TOO_LARGE: 413, Refusal.NO_SUCH_PLACE: 404, Refusal.NOT_READY: 503,
}  # fmt: skip


@contextmanager
def serve_reports(
    address: Host, auth: Authentication, truth: AgentTruth, *, seconds_max: float = SECONDS_MAX
) -> Iterator[Host]:
    """Serves until the block ends; yields the address that it listens on. Port 0 picks any free port."""
    try:
        server = _AgentServer(address, auth, truth, seconds_max)
    except OSError as error:
        raise UsageError(f"{address}: cannot listen: {error.strerror or error}") from error
    thread = threading.Thread(target=server.serve_forever, args=[POLL_SECONDS], name="agents", daemon=True)
    thread.start()
    try:
        yield Host(str(server.server_address[0]), int(server.server_address[1]))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _AgentServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = CONNECTIONS_MAX

    def __init__(self, address: Host, auth: Authentication, truth: AgentTruth, seconds_max: float) -> None:
        self.auth, self.truth, self.seconds_max = auth, truth, seconds_max
        self.context = None if auth.tls is None else server_context(auth.tls)
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self.address_family = socket.AF_INET6 if ":" in address.name else socket.AF_INET
        super().__init__((address.name, address.port), _Request)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Runs on the request's own thread, and so does the TLS handshake. The deadline covers all of it, so that sending a
        byte a second does not prolong it."""
        request.settimeout(self.seconds_max)
        connection = request
        if self.context is not None:
            connection = self.context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        deadline = threading.Timer(self.seconds_max, _cut, [connection])
        deadline.start()
        try:
            if isinstance(connection, ssl.SSLSocket):
                connection.do_handshake()
            super().finish_request(connection, client_address)
        finally:
            deadline.cancel()
            connection.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing: strangers that hang up, speak no TLS or show no certificate are normal."""


def _cut(connection: socket.socket) -> None:
    """Closes the socket below TLS, which another thread may be using at the moment."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Request(BaseHTTPRequestHandler):
    server: _AgentServer
    server_version = "headstone"
    sys_version = ""

    def do_POST(self) -> None:
        sent = self.headers.get(SIGNED, "")
        try:
            answer = self._answered(sent)
        except Refused as error:
            self.server.truth.refused(error.kind)
            self._send(STATUSES[error.kind], json.dumps({"refused": error.reason}).encode(), sent)
            return
        self._send(200, answer, sent)

    def _answered(self, sent: str) -> bytes:
        body = self._body()
        token = self.server.auth.token
        if token is not None and not same(sent, signature(token, self.path.encode(), body)):
            raise Refused(Refusal.WRONG_TOKEN, "the signature was not made with this guard's token")
        try:
            if self.path == HELLO:
                hello = decode_hello(body)
                self._check_certificate(hello.broker)
                return encode_welcome(self.server.truth.hello(hello))
            if self.path == REPORT:
                report = decode_report(body)
                self._check_certificate(report.broker)
                return encode_receipt(self.server.truth.report(report))
        except UnreadableReport as error:
            raise Refused(Refusal.UNREADABLE, str(error)) from error
        raise Refused(Refusal.NO_SUCH_PLACE, f"agents report to {REPORT}")

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 12:
            raise Refused(Refusal.UNREADABLE, "no Content-Length")
        if int(length) > BODY_BYTES_MAX:
            raise Refused(Refusal.TOO_LARGE, f"more than {BODY_BYTES_MAX} bytes")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise Refused(Refusal.UNREADABLE, "the body is shorter than its Content-Length")
        return body

    def _check_certificate(self, broker: int) -> None:
        """A certificate that names a broker is valid for that broker only; any other trusted certificate is valid for all."""
        if not isinstance(self.connection, ssl.SSLSocket):
            return
        named = broker_named(self.connection.getpeercert())
        if named is not None and named != broker:
            raise Refused(
                Refusal.WRONG_CERTIFICATE, f"the certificate is for broker {named}, the report is from broker {broker}"
            )

    def _send(self, status: int, body: bytes, sent: str) -> None:
        """Signs the answer together with the request's signature, so that it cannot be replayed for another request."""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        token = self.server.auth.token
        if token is not None:
            self.send_header(SIGNED, signature(token, sent.encode("latin-1", "replace"), str(status).encode(), body))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: what strangers send must not reach a terminal."""
