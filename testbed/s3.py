"""A server with the S3 API, from a wheel, on a free port of loopback.

Its process ends with the block, or with us.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from headstone.brokers.processes import HOST, free_ports, wait_until

BUCKET = "lake"
START_SECONDS_MAX = 60


@contextmanager
def s3() -> Iterator[Mapping[str, str]]:
    """Settings for a store on this server; the bucket `lake` is there."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _answers(port), "the S3 server answers", seconds_max=START_SECONDS_MAX)
        settings = {
            "endpoint": f"http://{HOST}:{port}", "region": "us-east-1", "access_key_id": "testing",
            "secret_access_key": "testing", "virtual_hosted_style_request": "false",
        }  # fmt: skip
        _make_bucket(port)
        yield settings
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def _make_bucket(port: int) -> None:
    import boto3

    client = boto3.client(
        "s3", endpoint_url=f"http://{HOST}:{port}", region_name="us-east-1", aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )  # fmt: skip
    client.create_bucket(Bucket=BUCKET)
