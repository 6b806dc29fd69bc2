"""Finds out what an address really speaks after a connection there failed: TLS, plain Kafka, or neither.

Two short questions on connections of their own; sends nothing secret. Only for better error messages: None if there is no
answer within a second.
"""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import closing

from headstone.cluster.connection import Host

PLAIN, TLS = "plain", "tls"
PROBE_SECONDS = 1.0
API_VERSIONS = 18
CORRELATION = 0x68656164
_RECORD_TYPES = (0x15, 0x16)
"""TLS record types: an alert, a part of a handshake."""


def spoken(host: Host) -> str | None:
    try:
        return TLS if _speaks_tls(host) else PLAIN if _speaks_plain(host) else None
    except (OSError, UnicodeError):
        return None


def looks_like_tls(data: bytes) -> bool:
    """How an answer begins: a record type, then major version 3."""
    return len(data) > 1 and data[0] in _RECORD_TYPES and data[1] == 3


def _speaks_tls(host: Host) -> bool:
    """Any TLS server: does not check the certificate, and says nothing after the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = socket.create_connection(host, timeout=PROBE_SECONDS)
    with closing(connection):
        try:
            context.wrap_socket(connection, server_hostname=host.name).close()
        except OSError as error:
            # It demands a certificate, or another version: an alert is TLS too.
            return "ALERT" in (getattr(error, "reason", None) or "")
        return True


def _speaks_plain(host: Host) -> bool:
    """ApiVersions is answered before any login."""
    request = struct.pack(">hhih", API_VERSIONS, 0, CORRELATION, -1)
    with socket.create_connection(host, timeout=PROBE_SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.makefile("rb").read(8)
    return len(answer) == 8 and struct.unpack(">i", answer[4:])[0] == CORRELATION
