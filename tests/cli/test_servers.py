"""A server that is not there, or that accepts and says nothing, is given up in seconds, with its address and the reason."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

SECONDS_MAX = 240
"""Ten are what is promised; a loaded machine gets a good deal more."""

WAITING = {
    "audit of a cluster": "audit --bootstrap {address} --engine process",
    "audit of backups": "audit s3://backups/1 s3://backups/2 --store-conf endpoint=http://{address}",
    "inspect of backups": "inspect s3://backups/1 --store-conf endpoint=http://{address}",
    "lake on PostgreSQL": "lake status postgresql://lake@{address}/lake",
    "lake in S3": "lake init {tmp}/{kind} --objects s3://b/l --store-conf endpoint=http://{address}",
}
RUN = """
import sys, time
import headstone.cluster.replicas, headstone.lake.lake, headstone.pipeline.inspection, headstone.pipeline.auditing, psycopg
from headstone.cli.main import main
started = time.monotonic()
code = main(sys.argv[1:])
print(time.monotonic() - started)
sys.exit(code)
"""
"""The clock begins when everything is loaded."""
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_REGION": "us-east-1"}


@dataclass(frozen=True, kw_only=True)
class Ended:
    code: int
    said: str
    address: str
    seconds: float


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    """Nobody listens on the one; the other accepts connections, in the kernel's queue, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        absent = f"127.0.0.1:{gone.getsockname()[1]}"
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        yield {"absent": absent, "silent": f"127.0.0.1:{silent.getsockname()[1]}"}


@pytest.fixture(scope="module")
def ended(addresses: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Ended]:
    """All at once: each only waits."""
    tmp = tmp_path_factory.mktemp("servers")
    running = {}
    for what, words in WAITING.items():
        for kind, address in addresses.items():
            command = words.format(address=address, tmp=tmp, kind=kind).split()
            running[what, kind] = address, subprocess.Popen(
                [sys.executable, "-c", RUN, *command], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env={**os.environ, **CREDENTIALS},
            )  # fmt: skip
    ends = {}
    for key, (address, process) in running.items():
        seconds, said = process.communicate()
        ends[key] = Ended(code=process.returncode, said=said, address=address, seconds=float(seconds))
    return ends


@pytest.mark.parametrize("kind", ["absent", "silent"])
@pytest.mark.parametrize("what", WAITING)
def test_a_server_that_does_not_answer_is_given_up_soon_with_its_address(
    what: str, kind: str, ended: dict[tuple[str, str], Ended]
) -> None:
    end = ended[what, kind]
    assert end.code == 3, end.said
    assert end.address in end.said
    assert "Traceback" not in end.said
    assert "hush" not in end.said
    assert end.seconds < SECONDS_MAX
