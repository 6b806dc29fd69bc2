"""A proxy in front of an S3 server that does to requests what networks and object stores do, as the test decides.

For each request a function of the test decides what happens to it: `SeededFaults` by a seed, or a function of its own.
Everything else passes unchanged: signatures cover the host that the client named, so the server accepts them. Counts requests
and bytes.
"""

from __future__ import annotations

import http.client
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from headstone.brokers.ports import HOST

PIECE_BYTES = 1 << 16
UPSTREAM_SECONDS_MAX = 120
HOLD_SECONDS_MAX = 300
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "expect", "proxy-connection"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`number` counts from 0; `path` is as on the wire, with its query."""

    number: int
    method: str
    path: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Returns an error instead of the answer; the server never sees the request."""

    status: int
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """Closes the connection after this share of the answer's body. With 0 there is no answer, although the request was carried
    out."""

    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Carries out the request, and answers later."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Carries out the request once this is set; other requests pass meanwhile."""

    until: threading.Event


Fault = Refuse | CutOff | Delay | Hold
Decide = Callable[[Request], Fault | None]

SLOW_DOWN = Refuse(status=503, code="SlowDown")
EXPIRED_TOKEN = Refuse(status=403, code="ExpiredToken")
ANSWER_LOST = CutOff(share=0)


@dataclass(slots=True)
class Counts:
    requests: dict[str, int] = field(default_factory=dict)
    """By method."""
    faults: dict[str, int] = field(default_factory=dict)
    """By kind."""
    bytes_up: int = 0
    bytes_down: int = 0


class SeededFaults:
    """Random shares of all requests; the same seed and order of requests give the same faults.

    Only the answers to reads are cut off: other answers come in one piece or not at all."""

    def __init__(self, seed: int, *, slow_down: float = 0.0, cut_off: float = 0.0, lost: float = 0.0, delay: float = 0.0,
                 delay_seconds: float = 0.05) -> None:  # fmt: skip
        self._chance = random.Random(seed)
        self._shares = (slow_down, cut_off, lost, delay)
        self._delay_seconds = delay_seconds

    def __call__(self, request: Request) -> Fault | None:
        kinds = (SLOW_DOWN, CutOff(share=self._chance.random()), ANSWER_LOST, Delay(seconds=self._delay_seconds), None)
        rest = 1 - sum(self._shares)
        fault = self._chance.choices(kinds, weights=(*self._shares, rest))[0]
        return None if isinstance(fault, CutOff) and fault != ANSWER_LOST and request.method != "GET" else fault


class ExpiredFor:
    """Refuses this many requests first: a credential that has expired, until it is renewed."""

    def __init__(self, requests: int) -> None:
        self._requests = requests

    def __call__(self, request: Request) -> Fault | None:
        return EXPIRED_TOKEN if request.number < self._requests else None


class FaultyS3:
    """`settings` lead to the proxy; `decide` may be replaced while it runs."""

    def __init__(self, settings: Mapping[str, str], decide: Decide) -> None:
        self.upstream = urlsplit(settings["endpoint"]).netloc
        self.decide = decide
        self.counts = Counts()
        self._lock = threading.Lock()
        self._number = 0
        self._server = _Server((HOST, 0), _Handler)
        self._server.proxy = self
        self.settings = {**settings, "endpoint": f"http://{HOST}:{self._server.server_address[1]}"}

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fault_of(self, method: str, path: str, size: int) -> Fault | None:
        """One request after the other, so that the test's function need not be thread-safe."""
        with self._lock:
            request = Request(number=self._number, method=method, path=path, size=size)
            self._number += 1
            self.counts.requests[method] = self.counts.requests.get(method, 0) + 1
            self.counts.bytes_up += size
            fault = self.decide(request)
            if fault is not None:
                kind = fault.code if isinstance(fault, Refuse) else type(fault).__name__
                self.counts.faults[kind] = self.counts.faults.get(kind, 0) + 1
            return fault

    def sent(self, size: int) -> None:
        with self._lock:
            self.counts.bytes_down += size


@contextmanager
def faulty_s3(settings: Mapping[str, str], decide: Decide = lambda request: None) -> Iterator[FaultyS3]:
    """Runs in front of the server with these settings."""
    proxy = FaultyS3(settings, decide)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    proxy: FaultyS3

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is normal here: this proxy causes it."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.proxy.fault_of(self.command, self.path, len(body))
        if isinstance(fault, Refuse):
            self._refuse(fault)
            return
        if isinstance(fault, Hold):
            fault.until.wait(HOLD_SECONDS_MAX)
        upstream = http.client.HTTPConnection(self.server.proxy.upstream, timeout=UPSTREAM_SECONDS_MAX)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP_BY_HOP:
                    upstream.putheader(name, value)
            upstream.endheaders(body or None)
            self._pass_on(upstream.getresponse(), fault)
        finally:
            upstream.close()

    def _pass_on(self, answer: http.client.HTTPResponse, fault: Fault | None) -> None:
        if isinstance(fault, Delay):
            threading.Event().wait(fault.seconds)
        if fault == ANSWER_LOST:
            self.close_connection = True
            return
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        if self.command != "HEAD" and answer.length is None:  # it came in chunks: this answer ends with the connection
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self._copy(answer, fault)

    def _copy(self, answer: http.client.HTTPResponse, fault: Fault | None) -> None:
        left = int((answer.length or 0) * fault.share) if isinstance(fault, CutOff) else None
        while (piece := answer.read(PIECE_BYTES if left is None else min(PIECE_BYTES, left))) != b"":
            self.wfile.write(piece)
            self.server.proxy.sent(len(piece))
            left = left if left is None else left - len(piece)
        if left is not None:
            self.close_connection = True

    def _refuse(self, fault: Refuse) -> None:
        text = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>{fault.code}</Message></Error>".encode()
        self.send_response_only(fault.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _forward
