"""Ports belong to one process for as long as it lives, also while nobody listens there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headstone.brokers import ports
from headstone.errors import Unfinished

FEW = range(31_990, 31_996)
OTHER = f"""
from headstone.brokers import ports
ports.PORTS = range({FEW.start}, {FEW.stop})
print(*ports.free_ports(2))
"""


def test_no_other_process_gets_a_port_that_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "PORTS", FEW)
    ours = ports.free_ports(2)
    assert not set(ours) & set(ports.free_ports(1))
    for _ in range(5):  # each may take two of those three that are left; they are free again when it has ended
        done = subprocess.run([sys.executable, "-c", OTHER], capture_output=True, text=True, check=True)
        assert not {int(port) for port in done.stdout.split()} & set(ours)
    with pytest.raises(Unfinished, match="no 9 free ports"):
        ports.free_ports(9)
