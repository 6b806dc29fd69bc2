"""The guard's state as Prometheus' text format, and the small server that hands it out.

Written by hand: a few gauges need no client library. Labels hold names of topics, which are not trusted, so they are escaped.
Knows no cluster and no journal.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from headstone.coordination.danger import NEVER_MS
from headstone.errors import UsageError
from headstone.guard.status import GuardStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "headstone_guard_"
REQUEST_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Since the process began."""

    looks: int
    calls_failed: int
    applies: bool
    leads: bool


Sample = tuple[dict[str, object], float]


def metrics_text(status: GuardStatus, counters: Counters) -> str:
    return "".join(f"{line}\n" for line in _lines(status, counters))


def _lines(status: GuardStatus, counters: Counters) -> Iterator[str]:
    yield from metric("leads", "gauge", "1 if this guard leads, 0 if it stands by", [({}, counters.leads)])
    yield from metric("applies", "gauge", "1 if this guard acts, 0 in a dry run", [({}, counters.applies)])
    yield from metric("looks_total", "counter", "Looks at the cluster", [({}, counters.looks)])
    yield from metric(
        "calls_failed_total", "counter", "Questions and changes that failed", [({}, counters.calls_failed)]
    )
    if status.looked_ms is not None:
        age = (status.now_ms - status.looked_ms) / 1000
        yield from metric("last_look_age_seconds", "gauge", "Since the newest look", [({}, age)])
    partitions = [(topic, partition) for topic in status.topics for partition in topic.partitions]
    yield from metric("partition_state", "gauge", "1 for the state that a partition is in", [
        ({"topic": topic.topic, "partition": partition.partition, "state": partition.state}, 1)
        for topic, partition in partitions
    ])  # fmt: skip
    yield from metric("countdown_seconds", "gauge", "Until the first unsafe removal, held or not; negative: over", [
        ({"topic": topic.topic, "partition": partition.partition}, partition.countdown_ms / 1000)
        for topic, partition in partitions
        if partition.countdown_ms is not None and partition.unsafe_ms != NEVER_MS
    ])  # fmt: skip
    held = [(topic.topic, topic.held) for topic in status.topics if topic.held is not None]
    yield from metric("held_seconds", "gauge", "How long the topic has been held", [
        ({"topic": topic}, (status.now_ms - hold.since_ms) / 1000) for topic, hold in held
    ])  # fmt: skip
    yield from metric("hold_in_effect", "gauge", "1 if every live broker has said that it has the hold", [
        ({"topic": topic}, hold.confirmed_ms is not None) for topic, hold in held
    ])  # fmt: skip
    yield from metric("held_back_bytes", "gauge", "What the topic's replicas have grown by since it was held", [
        ({"topic": topic}, hold.bytes_held_back) for topic, hold in held if hold.bytes_held_back is not None
    ])  # fmt: skip
    yield from metric("waiting_for_readmission", "gauge", "1 for a replica that must not lead", [
        ({"topic": topic.topic, "partition": waiting.partition, "broker": waiting.broker}, 1)
        for topic in status.topics
        for waiting in topic.waiting
    ])  # fmt: skip
    yield from metric("alarm", "gauge", "1 for what a person must know; docs/guard.md has what to do", [
        ({
            "kind": alarm.kind, "topic": alarm.topic, "partition": "" if alarm.partition is None else alarm.partition,
            "broker": "" if alarm.broker is None else alarm.broker,
        }, 1)
        for alarm in status.alarms
    ])  # fmt: skip


def metric(name: str, kind: str, about: str, samples: list[Sample]) -> Iterator[str]:
    yield f"# HELP {PREFIX}{name} {about}"
    yield f"# TYPE {PREFIX}{name} {kind}"
    for labels, value in samples:
        inside = ",".join(f'{label}="{escaped(str(content))}"' for label, content in labels.items())
        yield f"{PREFIX}{name}{{{inside}}} {_number(value)}" if inside else f"{PREFIX}{name} {_number(value)}"


def _number(value: float) -> str:
    """Offsets and bytes to the last digit: rounded to six of them, an offset that moves would seem to stand still."""
    return str(int(value)) if isinstance(value, int) or value.is_integer() else repr(value)


def escaped(text: str) -> str:
    """A label's value: backslash, quote and newline, as the format asks; and what else is not printable, as seen."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return "".join(letter if letter.isprintable() else f"\\\\x{ord(letter):02x}" for letter in plain)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, place: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        super().__init__(place, handler)


class MetricsServer:
    """Hands out what `text` says, on a thread of its own; a context manager."""

    def __init__(self, host: str, port: int, text: Callable[[], str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_SECONDS_MAX

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(HTTPStatus.NOT_FOUND, "only /metrics is here")
                    return
                body = text().encode()
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                """Scrapes are not news."""

        try:
            self._server = _Server((host, port), Handler)
        except OSError as error:
            raise UsageError(f"--metrics {host}:{port}: {error.strerror or error}") from error
        self.address = f"{f'[{host}]' if ':' in host else host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    def __enter__(self) -> MetricsServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
