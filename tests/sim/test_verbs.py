"""`headstone reproduce` and `headstone simulate` as a user has them: output, JSON, exit codes, bad input."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from headstone.cli.main import main
from headstone.cli.output import Output
from headstone.cli.simulate import as_text
from headstone.sim.campaign_run import CampaignRun, settings_of
from headstone.sim.tallies import Tally
from headstone.sim.variants import VARIANTS

README = Path(__file__).resolve().parents[2] / "README.md"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_reproduce_shows_each_variant_corrupt_and_then_correct(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "reproduce", "--output", "json")
    runs = json.loads(out)["runs"]
    assert code == 0
    assert [(r["variant"], r["rules"], r["corrupt"]) for r in runs] == [
        (variant, rules, rules == "kafka") for variant in VARIANTS for rules in ("kafka", "coordinated")
    ]
    assert all({"broker", "log", "table", "lso", "mtro", "mxro"} <= r["replicas"][0].keys() for r in runs)


def test_reproduce_tells_one_story_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "reproduce", "aborted-to-committed")
    assert code == 0
    assert "CORRUPT: broker 2 serves poison=x at offset 0, which is aborted." in out
    assert "Correct on every replica." in out
    assert "reads good=data, poison=x" in out
    assert out.splitlines()[-2:] == [
        "aborted-to-committed   kafka        corrupt",
        "aborted-to-committed   coordinated  correct",
    ]


def test_simulate_finds_a_violation_and_says_how_to_replay_it(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("simulate", "--rules", "kafka", "--seeds", "60", "--jobs", "1", "--output", "json")
    code, out, _ = run(capsys, *arguments)
    found = json.loads(out)
    assert code == 1
    assert (found["seeds"], found["rules"]) == (60, "kafka")
    assert found["checks"] > 1000
    first = found["violations"][0]
    again, text, _ = run(capsys, *first["replay"].split()[1:], "--jobs", "1", "--shrink")
    assert again == 1
    assert first["kind"] in text
    assert first["text"] in text
    assert "shortest story found" in text
    assert not [word for word in ("Finding(", "kind=", "where=") if word in text]


def test_the_seed_that_the_readme_names_is_a_violation(capsys: pytest.CaptureFixture[str]) -> None:
    named = re.findall(r"\$ headstone (simulate --seed .*)", README.read_text())
    assert len(named) == 1
    assert run(capsys, *shlex.split(named[0], comments=True), "--jobs", "1")[0] == 1


def test_simulate_is_content_with_the_coordinated_rule(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "simulate", "--seeds", "20", "--jobs", "1")
    assert code == 0
    assert "coordinated rules: 0 violations" in out
    assert "faults injected: " in out


def test_simulate_runs_the_guard_in_place_of_coordination(capsys: pytest.CaptureFixture[str]) -> None:
    """The seeds of tests/sim/test_guarded.py: 3 and 5 corrupt without it."""
    code, out, _ = run(capsys, "simulate", "--rules", "guarded", "--seed", "3", "--seeds", "3", "--jobs", "1")
    assert code == 0
    assert "guarded rules: 0 violations" in out
    code, out, _ = run(
        capsys, "simulate", "--rules", "guarded", "--seed", "5", "--seeds", "1", "--jobs", "1", "--output", "json"
    )
    ran = json.loads(out)
    assert (code, sum(ran["corrupt_without_guard"].values()), ran["prevented"], ran["foretold"]) == (0, 1, 1, 0)
    assert ran["actions"]["SetHold"] > 0


def test_a_guard_without_a_margin_is_found_replayed_and_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    margin = ("simulate", "--rules", "guarded", "--mutant", "poll_ms")
    code, out, _ = run(capsys, *margin, "--seed", "5", "--seeds", "1", "--jobs", "1", "--output", "json")
    (violation,) = json.loads(out)["violations"]
    assert (code, violation["seed"]) == (1, 5)
    again, text, _ = run(capsys, *violation["replay"].split()[1:], "--jobs", "1", "--shrink")
    assert again == 1
    assert violation["text"] in text
    assert re.search(r"shortest story found: [0-9]+ of 16 steps", text)


def test_a_rate_of_one_has_its_own_plural() -> None:
    settings = settings_of(rules="kafka", steps=None, replicas=None, mutant=None)
    for seeds, rate in ((2, "1 seed/s"), (4, "2 seeds/s"), (2400, "1,200 seeds/s")):
        ran = CampaignRun(settings=settings, first=0, tally=Tally(seeds=seeds), seconds=2.0, short=None)
        assert f"(2 s, {rate})" in as_text(ran, Output())[0]
