"""`headstone demo`: the one-command tour on local Spark, then the four stories. Needs Java 17, no Kafka, no Docker.

Leaves report.html beside the sample. What is shown is in `sim/tour.py` and `sim/stories.py`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headstone.cli.engines import ON_SPARK, add_engine_arguments, engine_of
from headstone.cli.output import Output
from headstone.cli.parsing import DONE, FINDINGS
from headstone.errors import UsageError
from headstone.retention.policy import KAFKA, RULES

if TYPE_CHECKING:
    from headstone.pipeline.engine import Engine
    from headstone.sim.stories import Telling
    from headstone.sim.tour import Say

REPORT = "report.html"
EXAMPLES = ("headstone demo", "headstone demo --dir /tmp/tour")
EXIT_CODES = {
    DONE: "no live key was lost on the tour; each story ends corrupt by Kafka's rule and correct by the coordinated one",
    FINDINGS: "not so",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the demo has shown; `live_keys` of each replica."""

    directory: Path
    steps: list[dict[str, object]]
    live_keys: list[int]
    tellings: list[Telling]

    @property
    def same(self) -> bool:
        return len(set(self.live_keys)) == 1

    @property
    def report(self) -> Path:
        return self.directory / REPORT

    def exit_code(self) -> int:
        as_expected = all(telling.corrupt == (telling.rules == KAFKA) for telling in self.tellings)
        return 0 if self.same and as_expected else 1

    def as_json(self) -> dict[str, object]:
        stories = [{"variant": t.variant, "rules": t.rules, "corrupt": t.corrupt} for t in self.tellings]
        return {
            "directory": str(self.directory),
            "steps": self.steps,
            "live_keys": self.live_keys,
            "same": self.same,
            "stories": stories,
            "report": str(self.report),
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, help="keep sample and report here (default: a temporary directory)")
    add_engine_arguments(parser, auto=ON_SPARK)


def run(arguments: argparse.Namespace, output: Output) -> int:
    started = time.monotonic()
    directory = arguments.dir or Path(tempfile.mkdtemp(prefix="headstone-demo-"))
    if directory.exists() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty; name a new directory")
    with engine_of(arguments, verb="demo", spark_by_default=True) as engine:
        engine.begin()
        shown = show(directory, engine, output.say)
    output.say(
        f"look around: headstone inspect {directory / 'replica-1'}    ({time.monotonic() - started:.0f} s in all)"
    )
    output.answer(shown.as_json, ())
    return shown.exit_code()


def show(directory: Path, engine: Engine, say: Say) -> Shown:
    from headstone.pages.story_report import report_html
    from headstone.sim.stories import AWAY, STORIES, tell_story
    from headstone.sim.tour import live_keys, tour

    steps = tour(directory, engine, say)
    keys = [live_keys(replica) for replica in sorted(directory.glob("replica-*"))]
    tellings = [tell_story(story, rules) for story in STORIES for rules in RULES]
    shown = Shown(directory=directory, steps=steps, live_keys=keys, tellings=tellings)
    table = "the same table" if shown.same else "THEY DIFFER"
    say(f"\nlive keys per replica: {', '.join(f'{n:,}' for n in keys)}: {table}")
    say(f"\nbroker {AWAY} of a simulated cluster is away too long, then leads; by Kafka's rule and coordinated:")
    for telling in tellings:
        say("  " + story_line(telling))
    shown.report.write_text(report_html(tellings, steps), encoding="utf-8")
    say(f"\nscene by scene, with drawings: {shown.report}")
    return shown


def story_line(telling: Telling) -> str:
    """Such as `stuck-read-committed   kafka        corrupt: broker 2 serves nothing instead of k=v2`."""
    from headstone.sim.stories import AWAY, show_table

    away = next(view for view in telling.scenes[-1].replicas if view.broker == AWAY)
    served, wanted = show_table(away.table), show_table(telling.expected)
    instead = "" if served == wanted else f" instead of {wanted}"
    verdict = "corrupt" if telling.corrupt else "correct"
    return f"{telling.variant:22} {telling.rules:12} {verdict}: broker {AWAY} serves {served}{instead}"
