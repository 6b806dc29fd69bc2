"""Ports of this machine for servers that stop and start again: no other process gets them meanwhile.

They lie below the range from which systems assign free ports, and are claimed by locking one byte of a shared file each, for as
long as this process lives. Otherwise a broker that was away could come back beside a broker of another run that had got its
port, and clients of both clusters would ask the wrong one.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path
from typing import IO

from headstone.errors import Unfinished

HOST = "127.0.0.1"
PORTS = range(12_000, 32_000)
_claimed: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Claimed by this process, and nothing listens there."""
    order = random.SystemRandom().sample(PORTS, len(PORTS))
    ports: list[int] = []
    for port in order:
        if len(ports) == count:
            break
        if port not in _claimed and _claim(port) and _is_free(port):
            ports.append(port)
    if len(ports) < count:
        raise Unfinished(f"{HOST}: no {count} free ports between {PORTS.start} and {PORTS.stop}")
    return ports


def _claim(port: int) -> bool:
    _claimed.add(port)
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


@cache
def _claims() -> IO[bytes]:
    """Never closed: closing any handle on the file would drop all locks of the process."""
    path = Path(tempfile.gettempdir()) / f"headstone-ports-{os.getuid()}"
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
