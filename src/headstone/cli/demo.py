"""`headstone demo`: the one-command tour on local Spark. Needs Java 17, no Kafka, no Docker.

Exit 0 if the tour ran and no live key was lost on the way; 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from headstone.cli.options import add_spark_arguments, cores, spark_conf, tell
from headstone.errors import UsageError
from headstone.sim.tour import live_keys, tour
from headstone.spark.session import StartingSession
from headstone.spark.stages import OnSpark


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, help="keep the sample here (default: a temporary directory)")
    add_spark_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    started = time.monotonic()
    directory = arguments.dir or Path(tempfile.mkdtemp(prefix="headstone-demo-"))
    if directory.exists() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty; name a new directory")
    say = tell if arguments.output == "json" else _print
    session = StartingSession(
        app_name="headstone demo", master=arguments.master, remote=arguments.spark_remote, conf=spark_conf(arguments)
    )
    with session:
        session.begin()
        steps = tour(directory, OnSpark(session.get, parallelism=cores()), say)
    replicas = sorted(directory.glob("replica-*"))
    keys = [live_keys(replica) for replica in replicas]
    same = len(set(keys)) == 1
    say(f"\nlive keys per replica: {', '.join(f'{n:,}' for n in keys)}: {'the same table' if same else 'THEY DIFFER'}")
    say(f"look around: headstone inspect {replicas[0]}    ({time.monotonic() - started:.0f} s in all)")
    if arguments.output == "json":
        print(json.dumps({"directory": str(directory), "steps": steps, "live_keys": keys, "same": same}, indent=2))
    return 0 if same else 1


def _print(text: str) -> None:
    print(text)
    sys.stdout.flush()
