"""The guard's state in Prometheus' text format, and the small server for it.

`prometheus.py` formats a sample. Knows no cluster and no journal.
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
from headstone.guard.monitoring.status import GuardStatus
from headstone.guard.prometheus import metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Since the process started."""

    looks: int
    calls_failed: int
    applies: bool
    leads: bool


def metrics_text(status: GuardStatus, counters: Counters) -> str:
    return "".join(f"{line}\n" for line in _lines(status, counters))


def _lines(status: GuardStatus, counters: Counters) -> Iterator[str]:
    yield from metric("leads", "gauge", "1 if this guard leads, 0 if it stands by", [({}, counters.leads)])
    yield from metric("applies", "gauge", "1 if this guard runs with --apply, 0 in a dry run", [({}, counters.applies)])
    yield from metric("looks_total", "counter", "Looks at the cluster", [({}, counters.looks)])
    yield from metric(
        "calls_failed_total", "counter", "Failed requests to brokers, reads and changes", [({}, counters.calls_failed)]
    )
    if status.looked_ms is not None:
        age = (status.now_ms - status.looked_ms) / 1000
        yield from metric("last_look_age_seconds", "gauge", "Age of the newest look at the cluster", [({}, age)])
    partitions = [(topic, partition) for topic in status.topics for partition in topic.partitions]
    yield from metric("partition_state", "gauge", "1 for the partition's current state", [
        ({"topic": topic.topic, "partition": partition.partition, "state": partition.state}, 1)
        for topic, partition in partitions
    ])  # fmt: skip
    yield from metric("countdown_seconds", "gauge", "Time until the first unsafe removal, held or not; negative: it has "
                                                    "passed", [
        ({"topic": topic.topic, "partition": partition.partition}, partition.countdown_ms / 1000)
        for topic, partition in partitions
        if partition.countdown_ms is not None and partition.unsafe_ms != NEVER_MS
    ])  # fmt: skip
    held = [(topic.topic, topic.held) for topic in status.topics if topic.held is not None]
    yield from metric("held_seconds", "gauge", "How long the topic has been held", [
        ({"topic": topic}, (status.now_ms - hold.since_ms) / 1000) for topic, hold in held
    ])  # fmt: skip
    yield from metric("hold_in_effect", "gauge", "1 if every live broker has confirmed the hold", [
        ({"topic": topic}, hold.confirmed_ms is not None) for topic, hold in held
    ])  # fmt: skip
    yield from metric("held_back_bytes", "gauge", "Growth of the topic's replicas since it was held", [
        ({"topic": topic}, hold.bytes_held_back) for topic, hold in held if hold.bytes_held_back is not None
    ])  # fmt: skip
    yield from metric("waiting_for_readmission", "gauge", "1 for each replica that must not lead", [
        ({"topic": topic.topic, "partition": waiting.partition, "broker": waiting.broker}, 1)
        for topic in status.topics
        for waiting in topic.waiting
    ])  # fmt: skip
    yield from metric("alarm", "gauge", "1 for each active alarm; docs/guard.md says what to do", [
        ({
            "kind": alarm.kind, "topic": alarm.topic, "partition": "" if alarm.partition is None else alarm.partition,
            "broker": "" if alarm.broker is None else alarm.broker,
        }, 1)
        for alarm in status.alarms
    ])  # fmt: skip


class _MetricsServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, place: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        super().__init__(place, handler)


class MetricsServer:
    """Serves what `text` returns, on its own thread; a context manager."""

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
                """Does not log scrapes."""

        try:
            self._server = _MetricsServer((host, port), Handler)
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
