"""Servers with the S3 API on a free port of loopback, written by others: moto from a wheel, versitygw built by Go.

A server's process ends with the block, or with this process. versitygw is built once, into the cache that Kafka's jars are in.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from headstone.brokers.ports import HOST, free_ports
from headstone.brokers.processes import wait_until
from testbed.maven import cache_folder

BUCKET = "lake"
START_SECONDS_MAX = 60
VERSITYGW = ("github.com/versity/versitygw/cmd/versitygw", "v1.8.0")
BUILD_SECONDS_MAX = 1800
USER, SECRET, REGION = "testing", "testing-secret", "us-east-1"


class S3Unavailable(Exception):
    """Why there is no such server here, and what would provide it."""


@contextmanager
def s3() -> Iterator[Mapping[str, str]]:
    """Settings for a store on moto's server; the bucket `lake` exists."""
    (port,) = free_ports(1)
    with _server([sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)], port) as settings:
        yield settings


@contextmanager
def versitygw(directory: Path) -> Iterator[Mapping[str, str]]:
    """Like `s3`, on versitygw, which keeps objects as files of this directory, and their metadata beside them."""
    objects, sidecar = directory / "objects", directory / "known"
    for folder in (objects, sidecar):
        folder.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    command = [str(versitygw_program()), "--port", f"{HOST}:{port}", "--access", USER, "--secret", SECRET]
    with _server([*command, "--region", REGION, "posix", "--sidecar", str(sidecar), str(objects)], port) as settings:
        yield settings


def versitygw_program() -> Path:
    module, version = VERSITYGW
    root = cache_folder() / f"versitygw-{version}"
    root.parent.mkdir(parents=True, exist_ok=True)
    with open(root.with_name(f"{root.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # takes minutes of every core: a second run waits for the first
        if not root.exists():
            _build(f"{module}@{version}", root)
    return root / "versitygw"


def _build(module: str, root: Path) -> None:
    """Into a folder beside the final one, renamed when complete: a run that is killed does no harm."""
    go = shutil.which("go")
    if go is None:
        raise S3Unavailable(f"{module} is built with Go, and there is no go on PATH: install golang")
    work = Path(tempfile.mkdtemp(prefix=f"{root.name}-", dir=root.parent))
    try:
        done = subprocess.run(
            [go, "install", module], capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False,
            env={**os.environ, "GOBIN": str(work), "GOFLAGS": "-mod=mod"},
        )  # fmt: skip
        if done.returncode != 0:
            raise S3Unavailable(f"Go could not build {module}:\n{done.stderr[-1500:]}")
        work.rename(root)
    except subprocess.TimeoutExpired as error:
        raise S3Unavailable(f"Go did not build {module} in {BUILD_SECONDS_MAX} s") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _server(command: Sequence[str], port: int) -> Iterator[Mapping[str, str]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _answers(port), f"{command[0]} answers on {port}", seconds_max=START_SECONDS_MAX)
        _make_bucket(port)
        yield {
            "endpoint": f"http://{HOST}:{port}", "region": REGION, "access_key_id": USER, "secret_access_key": SECRET,
            "virtual_hosted_style_request": "false",
        }  # fmt: skip
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
        "s3", endpoint_url=f"http://{HOST}:{port}", region_name=REGION, aws_access_key_id=USER,
        aws_secret_access_key=SECRET,
    )  # fmt: skip
    client.create_bucket(Bucket=BUCKET)
