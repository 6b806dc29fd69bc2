"""A Kafka distribution on this machine: its jars, its version, and the main classes of its tools.

Any folder with `libs/*.jar` will do: an unpacked release, or what the testbed fetched. Writes nothing into it.
"""

from __future__ import annotations

import os
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from headstone.errors import Unfinished, UsageError

TOOL_CLASSES: Mapping[str, Sequence[str]] = {
    "storage": ("kafka.tools.StorageTool",),
    "server": ("kafka.Kafka",),
    "dump-log": ("org.apache.kafka.tools.DumpLogSegments", "kafka.tools.DumpLogSegments"),
    "console-consumer": ("org.apache.kafka.tools.consumer.ConsoleConsumer", "kafka.tools.ConsoleConsumer"),
    "console-producer": ("org.apache.kafka.tools.ConsoleProducer", "kafka.tools.ConsoleProducer"),
    "configs": ("org.apache.kafka.tools.ConfigCommand", "kafka.admin.ConfigCommand"),
    "topics": ("org.apache.kafka.tools.TopicCommand", "kafka.admin.TopicCommand"),
    "leader-election": ("org.apache.kafka.tools.LeaderElectionCommand", "kafka.admin.LeaderElectionCommand"),
    "reassign-partitions": (
        "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
        "kafka.admin.ReassignPartitionsCommand",
    ),
    "transactions": ("org.apache.kafka.tools.TransactionsCommand",),
    "features": ("org.apache.kafka.tools.FeatureCommand", "kafka.admin.FeatureCommand"),
    "replica-verification": ("org.apache.kafka.tools.ReplicaVerificationTool", "kafka.tools.ReplicaVerificationTool"),
}
"""By the names of Kafka's scripts. Classes moved between versions: the first one that the jars have is used."""

ARCHIVE = "classes.jsa"
"""An optional file beside `libs`: a JVM's class archive (JEP 350), with which it starts in half the time. The JVM itself
rejects an archive of other jars or another build, and reads the jars."""
QUIET_JVM = ("-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr")
"""Keeps the JVM's own messages, such as those about the archive, out of a tool's answer."""

TOOL_HEAP = "256m"
TOOL_SECONDS_MAX = 300

LOG4J1_FILE, LOG4J2_FILE = "log4j.properties", "log4j2.properties"
LOG4J1 = """log4j.rootLogger={level}, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.target={target}
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
"""
LOG4J2 = """rootLogger.level={level}
rootLogger.appenderRef.out.ref=OUT
appender.out.type=Console
appender.out.name=OUT
appender.out.target={target}
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=[%d] %p %m (%c)%n
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    version: str
    libs: Path
    archive: Path | None = None

    @property
    def release(self) -> tuple[int, ...]:
        """For comparisons: (3, 9, 2)."""
        return tuple(int(part) for part in self.version.split("-")[0].split("."))

    def class_path(self, *more: Path) -> str:
        return os.pathsep.join([f"{self.libs}/*", *map(str, more)])

    def java(
        self, main: str, *arguments: str, heap: str = TOOL_HEAP, options: Sequence[str] = (), config: Path
    ) -> list[str]:
        """The command that runs a main class, with one collector thread and the logging that `config` holds.

        Logging is not on the class path: an archive covers jars only."""
        memory = [f"-Xmx{heap}", "-XX:+UseSerialGC"]
        archive = [] if self.archive is None else [f"-XX:SharedArchiveFile={self.archive}", *QUIET_JVM]
        return [
            java_path(), *memory, *archive, *options, *self._logging(config.absolute()), "-cp", self.class_path(), main,
            *arguments,
        ]  # fmt: skip

    def _logging(self, config: Path) -> list[str]:
        if self.release < (4,):
            return [f"-Dlog4j.configuration={(config / LOG4J1_FILE).as_uri()}"]
        return [f"-Dlog4j2.configurationFile={(config / LOG4J2_FILE).as_uri()}"]

    def tool(self, name: str, *arguments: str, config: Path, seconds_max: float = TOOL_SECONDS_MAX) -> str:
        """Runs one of Kafka's own tools to its end; returns what it printed on stdout. Raises Unfinished if it failed."""
        write_logging(config, level="WARN", target="SYSTEM_ERR")
        command = self.java(self.main_class(name), *arguments, options=("-XX:TieredStopAtLevel=1",), config=config)
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds_max, check=False)
        if done.returncode != 0:
            raise Unfinished(f"Kafka's {name} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
        return done.stdout

    def main_class(self, tool: str) -> str:
        classes = _classes(self.libs)
        for name in TOOL_CLASSES[tool]:
            if name in classes:
                return name
        raise UsageError(f"Kafka {self.version} in {self.libs} does not have the tool {tool}")


def distribution_at(home: str | Path) -> Distribution:
    """The distribution in `home`, or a UsageError that says what was looked for."""
    libs = Path(home).absolute() / "libs"
    for jar in sorted(libs.glob("kafka_2.1*.jar")):
        version = jar.stem.partition("-")[2]
        if version[:1].isdigit() and not version.endswith(("-sources", "-test", "-javadoc", "-scaladoc")):
            archive = libs.parent / ARCHIVE
            return Distribution(version=version, libs=libs, archive=archive if archive.is_file() else None)
    raise UsageError(f"{home}: no libs/kafka_2.13-*.jar; name the directory of an unpacked Kafka release")


def java_path() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def write_logging(config: Path, *, level: str = "INFO", target: str = "SYSTEM_OUT") -> None:
    """Writes files for both generations: Kafka 3.x reads the first, 4.x the second."""
    config.mkdir(parents=True, exist_ok=True)
    stream = {"SYSTEM_OUT": "System.out", "SYSTEM_ERR": "System.err"}[target]
    (config / LOG4J1_FILE).write_text(LOG4J1.format(level=level, target=stream))
    (config / LOG4J2_FILE).write_text(LOG4J2.format(level=level, target=target))


@cache
def _classes(libs: Path) -> frozenset[str]:
    classes: set[str] = set()
    for jar in libs.glob("kafka*.jar"):
        with zipfile.ZipFile(jar) as file:
            names = (name for name in file.namelist() if name.endswith(".class"))
            classes.update(name.removesuffix(".class").replace("/", ".") for name in names)
    return frozenset(classes)
