"""Checks that a named cluster answers before Spark is asked: Spark itself waits for a minute, or for ever.

Owns the forms of master and remote URLs. Starts nothing. Messages never show a URL's parameters, which may be tokens.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable

from headstone.errors import Unfinished, UsageError, not_installed

ANSWER_SECONDS_MAX = 10.0
PORT_MAX = 65535
STANDALONE = "spark://"
MASTER = re.compile(r"local|local\[(\*|\d+)(,\d+)?\]|local-cluster\[\d+,\d+,\d+\]|yarn|spark://.+|k8s://.+")
PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""If one of them is set, gRPC does not connect to the host itself."""


def require_master(master: str) -> None:
    """For a standalone cluster one master is enough: they stand in for each other."""
    if not MASTER.fullmatch(master):
        raise UsageError(f"master {master}: expected local[N], local[*], spark://HOST:PORT, yarn or k8s://URL")
    if not master.startswith(STANDALONE):
        return
    refusals = []
    for text in master.removeprefix(STANDALONE).split(","):
        host, port = _address(text, master)
        reason = _refusal(host, port)
        if reason is None:
            return
        refusals.append(f"{text}: {reason}")
    raise Unfinished(f"no Spark master answers at {master} ({'; '.join(refusals)}); start it, or correct the address")


def require_connect(remote: str) -> None:
    """A Spark Connect server: it must accept the connection and speak gRPC."""
    endpoint, ready = _connect_channel(remote)
    advice = "start it, or correct the address"
    if not any(os.environ.get(name) or os.environ.get(name.upper()) for name in PROXIES):
        host, port = _address(endpoint, remote)
        reason = _refusal(host, port)
        if reason is not None:
            raise Unfinished(f"no Spark Connect server answers at sc://{endpoint} ({reason}); {advice}")
    if not ready(ANSWER_SECONDS_MAX):
        raise Unfinished(
            f"what listens at sc://{endpoint} does not answer as a Spark Connect server (waited {ANSWER_SECONDS_MAX:.0f} s; "
            f"does it need use_ssl=true?); {advice}"
        )


def _connect_channel(remote: str) -> tuple[str, Callable[[float], bool]]:
    """HOST:PORT, and whether a gRPC channel to it is ready within seconds."""
    try:
        import grpc
        from pyspark.sql.connect.client import DefaultChannelBuilder
    except ImportError as error:
        raise not_installed(f"what Spark Connect needs ({error}) is", "connect") from error
    try:
        builder = DefaultChannelBuilder(remote)
    except ValueError as error:
        raise UsageError(
            "Spark Connect: expected sc://HOST:PORT, with parameters as /;token=...;use_ssl=true"
        ) from error

    def ready(seconds: float) -> bool:
        channel = builder.toChannel()
        try:
            grpc.channel_ready_future(channel).result(timeout=seconds)
        except grpc.FutureTimeoutError:
            return False
        finally:
            channel.close()
        return True

    return builder.endpoint, ready


def _address(text: str, url: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise UsageError(f"{url}: {text} is not HOST:PORT with a port from 1 to {PORT_MAX}")
    return host.strip("[]"), int(port)


def _refusal(host: str, port: int) -> str | None:
    """Why no connection can be made; None if it is accepted."""
    try:
        socket.create_connection((host, port), timeout=ANSWER_SECONDS_MAX).close()
    except TimeoutError:
        return f"no answer within {ANSWER_SECONDS_MAX:.0f} s"
    except OSError as error:
        return error.strerror or str(error)
    return None
