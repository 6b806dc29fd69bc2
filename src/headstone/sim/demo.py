"""What `headstone demo` shows: the tour, then each story by both rules in a line, and a page of all of it beside the sample.

The caller's function draws the page; `tour.py` and `stories.py` have what happens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headstone.pipeline.engine import Engine
from headstone.retention.policy import KAFKA, RULES
from headstone.sim.stories import AWAY, STORIES, Telling, show_table, tell_story
from headstone.sim.tour import Say, live_keys, tour

REPORT = "report.html"
Page = Callable[[list[Telling], list[dict[str, object]]], str]


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

    @property
    def as_expected(self) -> bool:
        return self.same and all(telling.corrupt == (telling.rules == KAFKA) for telling in self.tellings)

    def as_json(self) -> dict[str, object]:
        stories = [{"variant": t.variant, "rules": t.rules, "corrupt": t.corrupt} for t in self.tellings]
        return {
            "directory": str(self.directory), "steps": self.steps, "live_keys": self.live_keys, "same": self.same,
            "stories": stories, "report": str(self.report),
        }  # fmt: skip


def show(directory: Path, engine: Engine, say: Say, page: Page) -> Shown:
    steps = tour(directory, engine, say)
    keys = [live_keys(replica) for replica in sorted(directory.glob("replica-*"))]
    tellings = [tell_story(story, rules) for story in STORIES for rules in RULES]
    shown = Shown(directory=directory, steps=steps, live_keys=keys, tellings=tellings)
    table = "the same table" if shown.same else "THEY DIFFER"
    say(f"\nlive keys per replica: {', '.join(f'{n:,}' for n in keys)}: {table}")
    say(f"\nbroker {AWAY} of a simulated cluster is away too long, then leads; by Kafka's rule and coordinated:")
    for telling in tellings:
        say("  " + _line(telling))
    shown.report.write_text(page(tellings, steps), encoding="utf-8")
    say(f"\nscene by scene, with drawings: {shown.report}")
    return shown


def _line(telling: Telling) -> str:
    """For example `stuck-read-committed   kafka        corrupt: broker 2 serves nothing instead of k=v2`."""
    away = next(view for view in telling.scenes[-1].replicas if view.broker == AWAY)
    served, wanted = show_table(away.table), show_table(telling.expected)
    instead = "" if served == wanted else f" instead of {wanted}"
    verdict = "corrupt" if telling.corrupt else "correct"
    return f"{telling.variant:22} {telling.rules:12} {verdict}: broker {AWAY} serves {served}{instead}"
