"""`headstone demo`: the one-command tour on local Spark, then the four stories. Needs Java 17, no Kafka, no Docker.

Writes report.html beside the sample. `sim/demo.py` has the contents.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from headstone.cli.engines import ON_SPARK, add_engine_arguments, engine_of
from headstone.cli.output import Output
from headstone.cli.parsing import DONE, FINDINGS
from headstone.errors import UsageError

EXAMPLES = ("headstone demo", "headstone demo --dir /tmp/tour")
EXIT_CODES = {
    DONE: "the tour lost no live key; every story ends corrupt under Kafka's rules and correct under coordinated rules",
    FINDINGS: "a live key was lost, or a story ended otherwise",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, help="keep the sample and the report here (default: a temporary directory)")
    add_engine_arguments(parser, auto=ON_SPARK)


def run(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.log.directory import refuse_broker_directory
    from headstone.pages.story_report import report_html
    from headstone.sim.demo import show

    started = time.monotonic()
    directory = arguments.dir or Path(tempfile.mkdtemp(prefix="headstone-demo-"))
    if directory.exists() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty; name a new directory")
    refuse_broker_directory(directory, instead="name a new directory elsewhere")
    with engine_of(arguments, verb="demo", spark_by_default=True) as engine:
        engine.begin()
        shown = show(directory, engine, output.say, report_html)
    output.say(
        f"look around: headstone inspect {directory / 'replica-1'}    ({time.monotonic() - started:.0f} s in all)"
    )
    output.answer(shown.as_json, ())
    return DONE if shown.as_expected else FINDINGS
