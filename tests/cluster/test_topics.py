"""Whether every broker knows of a new topic: each is asked, since any may be asked next."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from socketserver import StreamRequestHandler, ThreadingTCPServer

from headstone.cluster.connection import Connection, wire_settings
from headstone.cluster.encoding import Writer
from headstone.cluster.topics import unaware_brokers

UNKNOWN_TOPIC, NO_LEADER = 3, -1


@contextmanager
def brokers(leaders: Mapping[int, int | None]) -> Iterator[Connection]:
    """Who leads `orders`, by each broker's own word; None: that one does not know the topic."""
    ports: dict[int, int] = {}
    with ExitStack() as stack:
        for number in leaders:
            server = stack.enter_context(ThreadingTCPServer(("127.0.0.1", 0), handler(number, leaders, ports)))
            ports[number] = server.server_address[1]
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
        yield Connection.parse(f"127.0.0.1:{ports[1]}", {})


def handler(number: int, leaders: Mapping[int, int | None], ports: Mapping[int, int]) -> type[StreamRequestHandler]:
    class Conversation(StreamRequestHandler):
        def handle(self) -> None:
            while prefix := self.rfile.read(4):
                (correlation,) = struct.unpack_from(">i", self.rfile.read(struct.unpack(">i", prefix)[0]), 4)
                answer = metadata(leaders[number], ports)
                self.wfile.write(struct.pack(">ii", len(answer) + 4, correlation) + answer)

    return Conversation


def metadata(leader: int | None, ports: Mapping[int, int]) -> bytes:
    answer = Writer().put("i", 0).array(len(ports))
    for broker, port in ports.items():
        answer.put("i", broker).text("127.0.0.1").put("i", port).text(None)
    answer.text("cluster").put("i", 1).array(1)
    answer.put("h", UNKNOWN_TOPIC if leader is None else 0).text("orders").put("b", 0).array(int(leader is not None))
    if leader is not None:
        answer.put("hiii", 0, 0, leader, 0).numbers([1, 2, 3]).numbers([1]).numbers([])
    return answer.data


def test_a_topic_is_known_when_each_broker_says_so_and_knows_its_leader() -> None:
    for leaders, unaware in (({1: 1, 2: 1, 3: 1}, []), ({1: 1, 2: None, 3: NO_LEADER}, [2, 3])):
        with brokers(leaders) as connection:
            assert unaware_brokers(connection, wire_settings(connection), "orders") == unaware
