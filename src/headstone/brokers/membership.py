"""Which brokers a broker knows, according to itself: one Metadata request to its plain listener.

No client can show that: clients ask any broker, and take one that it does not know yet for one that is gone. Knows nothing of
clusters or topics.
"""

from __future__ import annotations

import socket
import struct

METADATA, VERSION, CORRELATION = 3, 1, 1
CLIENT = b"headstone"
NO_TOPICS = 0
ANSWER_SECONDS_MAX = 10.0


def known_brokers(host: str, port: int) -> set[int]:
    """Their numbers; empty if nobody answers."""
    header = struct.pack(">hhih", METADATA, VERSION, CORRELATION, len(CLIENT)) + CLIENT
    request = header + struct.pack(">i", NO_TOPICS)
    try:
        with socket.create_connection((host, port), timeout=ANSWER_SECONDS_MAX) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", _received(connection, 4))
            return _brokers(_received(connection, size))
    except OSError:
        return set()


def _received(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        piece = connection.recv(size - len(content))
        if not piece:
            raise ConnectionError("the answer ends early")
        content += piece
    return content


def _brokers(answer: bytes) -> set[int]:
    """Reads the correlation id, then a list of number, host, port, and rack, which may be null."""
    numbers = set()
    (count,) = struct.unpack_from(">i", answer, 4)
    position = 8
    for _ in range(count):
        number, host_size = struct.unpack_from(">ih", answer, position)
        position += 6 + host_size + 4
        (rack_size,) = struct.unpack_from(">h", answer, position)
        position += 2 + max(rack_size, 0)
        numbers.add(number)
    return numbers
