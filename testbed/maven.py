"""Apache Kafka from Maven by coordinates, into a cache outside the repository; or from `KAFKA_HOME`.

Fetches each version once. The folder looks like an unpacked release as far as Headstone needs it: it has `libs`. A broker that
runs once leaves an archive of its classes beside them, so the hundreds of Java processes of the tests start in half the time.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from headstone.brokers.distribution import ARCHIVE, Distribution, distribution_at
from headstone.brokers.processes import QUICK_JAVA, Cluster, Machine

VERSIONS = ("3.9.2", "4.3.1")
"""The last of the 3.x line, and the newest 4.x: before and after transactions v2 (KIP-890)."""

FETCH_SECONDS_MAX = 900
LOGGING = {
    "3": [("org.slf4j", "slf4j-reload4j", "1.7.36")],
    "4": [
        ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.2"),
        ("org.apache.logging.log4j", "log4j-core", "2.25.2"),
    ],
}
"""A release brings its logging library; Maven's jars leave the choice to the user. By major version."""


SPARK_CONNECTOR = [
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
]
"""Spark's Kafka source and what it needs besides Spark's own jars; releases that every mirror has, and that work with 4.3."""


class KafkaUnavailable(Exception):
    """Why there is no Kafka here, and what would provide it."""


def kafka(version: str) -> Distribution:
    """KAFKA_HOME if it is set, whatever its version; else this version from the cache or from Maven."""
    home = os.environ.get("KAFKA_HOME")
    if home:
        return distribution_at(home)
    root = fetched(version)
    with open(root / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second run waits for the first
        if not (root / ARCHIVE).exists():
            _leave_archive(root)
    return distribution_at(root)


def fetched(version: str) -> Path:
    root = cache_folder() / f"kafka-{version}"
    if not root.exists():
        _fetch(version, root)
    return root


def spark_connector() -> str:
    """The value for `spark.jars` that gives Spark its Kafka source."""
    root = cache_folder() / f"spark-kafka-{SPARK_CONNECTOR[0][2]}"
    if not root.exists():
        _fetch_jars("Spark's Kafka source", SPARK_CONNECTOR, root, alone=True)
    return ",".join(str(jar) for jar in sorted((root / "libs").glob("*.jar")))


def cache_folder() -> Path:
    given = os.environ.get("HEADSTONE_TESTBED_CACHE")
    return (
        Path(given)
        if given
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headstone" / "testbed"
    )


def _fetch(version: str, root: Path) -> None:
    wanted = [("org.apache.kafka", "kafka_2.13", version), ("org.apache.kafka", "kafka-tools", version)]
    _fetch_jars(f"Kafka {version}", wanted + LOGGING[version[0]], root)


def _leave_archive(root: Path) -> None:
    """An archive of the classes that a broker loads from start to end."""
    draft = root / f"{ARCHIVE}.{os.getpid()}"
    machine = Machine(java_options=(*QUICK_JAVA, f"-XX:ArchiveClassesAtExit={draft}"))
    with (
        tempfile.TemporaryDirectory(prefix="headstone-") as directory,
        Cluster(distribution_at(root), Path(directory), machine=machine) as cluster,
    ):
        cluster.stop()
    if draft.exists():
        draft.rename(root / ARCHIVE)


def _fetch_jars(what: str, wanted: Sequence[tuple[str, str, str]], root: Path, *, alone: bool = False) -> None:
    """Into a folder beside the final one, renamed when complete: a run that is killed, or not alone, does no harm."""
    if shutil.which("mvn") is None:
        raise KafkaUnavailable(
            f"{what} is fetched with Maven, and there is no mvn on PATH: install maven, or set KAFKA_HOME"
        )
    root.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{root.name}-", dir=root.parent))
    (work / "pom.xml").write_text(_pom(wanted, alone=alone))
    command = [
        "mvn", "--batch-mode", "--quiet", "-f", str(work / "pom.xml"), "dependency:copy-dependencies",
        f"-DoutputDirectory={work / 'libs'}", "-DincludeScope=runtime",
    ]  # fmt: skip
    try:
        done = _run(command, what)
        if done.returncode != 0:
            raise KafkaUnavailable(f"Maven could not fetch {what}:\n{(done.stdout + done.stderr)[-1500:]}")
        if not root.exists():  # else another run was first
            work.rename(root)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run(command: list[str], what: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired as error:
        raise KafkaUnavailable(f"Maven did not fetch {what} in {FETCH_SECONDS_MAX} s") from error


def _pom(wanted: Sequence[tuple[str, str, str]], *, alone: bool) -> str:
    """`alone`: without dependencies."""
    nothing = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    entries = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{release}</version>"
        f"{nothing if alone else ''}</dependency>"
        for group, name, release in wanted
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>headstone</groupId><artifactId>testbed</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{entries}</dependencies></project>"
    )
