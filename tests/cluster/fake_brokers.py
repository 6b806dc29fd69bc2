"""Brokers on sockets that answer as a test says: listening, framing, metadata, a batch. Knows nothing of what else is asked."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from socketserver import StreamRequestHandler, ThreadingTCPServer

from headstone.cluster.encoding import AnswerReader, Writer
from tests.oracle.batches import Batch, Record, encode

FETCH, LIST_OFFSETS, METADATA = 1, 2, 3
SAY_NOTHING = b""
Ports = Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one broker was asked."""

    broker: int
    key: int
    version: int
    data: bytes

    def fields(self, *, flexible: bool = False) -> AnswerReader:
        """Behind the header, which ends with the client's name, and with tags if it is flexible."""
        head = AnswerReader(self.data)
        head.take("hhi")
        client = head.text() or ""
        return AnswerReader(self.data[10 + len(client) + flexible :], flexible=flexible)


Answering = Callable[[Request], Writer | bytes | None]
"""The body of an answer; None: the connection is closed."""


@contextmanager
def listening(brokers: Iterable[int], answering: Answering) -> Iterator[dict[int, int]]:
    """The port of each."""
    ports: dict[int, int] = {}
    with ExitStack() as stack:
        for broker in brokers:
            server = stack.enter_context(ThreadingTCPServer(("127.0.0.1", 0), conversation(broker, answering)))
            ports[broker] = server.server_address[1]
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
        yield ports


def conversation(broker: int, answering: Answering) -> type[StreamRequestHandler]:
    class Conversation(StreamRequestHandler):
        def handle(self) -> None:
            while prefix := self.rfile.read(4):
                data = self.rfile.read(struct.unpack(">i", prefix)[0])
                key, version, correlation = struct.unpack_from(">hhi", data)
                answer = answering(Request(broker=broker, key=key, version=version, data=data))
                if answer is None:
                    return
                body = answer.data if isinstance(answer, Writer) else answer
                if body != SAY_NOTHING:
                    self.connection.sendall(struct.pack(">ii", len(body) + 4, correlation) + body)

    return Conversation


def metadata(ports: Ports, topics: Mapping[str, Sequence[tuple[int, int]] | int]) -> Writer:
    """By topic the leader and the leader epoch of each partition, or an error. Every broker has a replica in sync."""
    answer = Writer().put("i", 0).array(len(ports))
    for broker, port in ports.items():
        answer.put("i", broker).text("127.0.0.1").put("i", port).text(None)
    answer.text("cluster").put("i", min(ports)).array(len(topics))
    for name, led in topics.items():
        error, partitions = (led, ()) if isinstance(led, int) else (0, led)
        answer.put("h", error).text(name).put("b", 0).array(len(partitions))
        for number, (leader, epoch) in enumerate(partitions):
            answer.put("hiii", 0, number, leader, epoch).numbers(sorted(ports)).numbers(sorted(ports)).numbers([])
    return answer


def record(offset: int, key: bytes, value: bytes | None) -> bytes:
    """A batch of it alone."""
    one = Record(offset=offset, timestamp=1, key=key, value=value)
    return encode(
        Batch(base_offset=offset, last_offset_delta=0, records=(one,), count=1, base_timestamp=1, max_timestamp=1)
    )
