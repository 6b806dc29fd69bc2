"""Kafka's own command-line tools under their usual names, to run commands as they are printed for operators.

A folder of shell scripts, each of which starts the tool's class from the testbed's libraries; `headstone` is there too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headstone.brokers.distribution import Distribution

TOOLS = {
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-reassign-partitions.sh": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-log-dirs.sh": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-leader-election.sh": "org.apache.kafka.tools.LeaderElectionCommand",
}
QUICK = "-XX:TieredStopAtLevel=1 -Xshare:auto -Xmx256m"
"""A tool lives for a second or two."""


def with_scripts(distribution: Distribution, folder: Path) -> dict[str, str]:
    """An environment whose PATH begins with them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, java_class in TOOLS.items():
        _write(folder / name, f'exec java {QUICK} -cp "{distribution.libs}/*" {java_class} "$@"')
    _write(folder / "headstone", f'exec "{sys.executable}" -m headstone.cli.main "$@"')
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def _write(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
