"""What `headstone demo` shows, told by one run of it without Spark: the tour's own tests are those of `compact`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from headstone.pages.story_report import report_html
from headstone.pipeline.inprocess import InProcess
from headstone.sim.demo import Shown, show
from headstone.sim.stories import STORIES


@dataclass(frozen=True, kw_only=True)
class Given:
    shown: Shown
    said: list[str]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    said: list[str] = []
    return Given(shown=show(tmp_path_factory.mktemp("demo"), InProcess(), said.append, report_html), said=said)


def test_the_tour_keeps_every_live_key_and_lets_tombstones_go_in_the_end(given: Given) -> None:
    assert given.shown.same
    assert len(given.shown.live_keys) == 3
    assert any(line.endswith("the same table") for line in given.said)
    expired = [
        sum(facts["reasons"].get("expired tombstone", 0) for facts in step["partitions"])  # type: ignore[attr-defined]
        for step in given.shown.steps
    ]
    assert expired[:-1] == [0, 0, 0, 0]
    assert expired[-1] > 0


def test_each_story_is_a_line_for_each_rule(given: Given) -> None:
    assert [line.split() for line in given.said if line.strip().startswith(tuple(s.variant for s in STORIES))] == [
        line.split()
        for line in (
            "tombstone-divergence kafka corrupt: broker 2 serves k=v instead of nothing",
            "tombstone-divergence coordinated correct: broker 2 serves nothing",
            "aborted-to-committed kafka corrupt: broker 2 serves good=data, poison=x instead of good=data",
            "aborted-to-committed coordinated correct: broker 2 serves good=data",
            "committed-to-aborted kafka corrupt: broker 2 serves k=v instead of nothing",
            "committed-to-aborted coordinated correct: broker 2 serves nothing",
            "stuck-read-committed kafka corrupt: broker 2 serves nothing instead of k=v2",
            "stuck-read-committed coordinated correct: broker 2 serves k=v2",
        )
    ]


def test_the_report_is_where_it_says(given: Given) -> None:
    report = given.shown.report
    assert given.said[-1].endswith(f": {report}")
    assert sorted(path.name for path in report.parent.iterdir() if path.is_file()) == ["report.html"]
    page = report.read_text(encoding="utf-8")
    assert all(
        f'data-variant="{telling.variant}" data-rules="{telling.rules}"' in page for telling in given.shown.tellings
    )
    assert "orders-0" in page


def test_json_has_the_stories_and_the_report(given: Given) -> None:
    answer = given.shown.as_json()
    assert answer["stories"] == [
        {"variant": story.variant, "rules": rules, "corrupt": rules == "kafka"}
        for story in STORIES
        for rules in ("kafka", "coordinated")
    ]
    assert Path(str(answer["report"])).is_file()
    assert answer["live_keys"] == given.shown.live_keys


def test_only_the_tour_and_the_stories_as_they_must_be_are_as_expected(given: Given) -> None:
    shown = given.shown
    assert shown.as_expected
    assert not replace(shown, live_keys=[1, 1, 2]).as_expected
    by_kafka, coordinated, *others = shown.tellings
    assert not replace(shown, tellings=[replace(by_kafka, findings=[]), coordinated, *others]).as_expected
    harmed = replace(coordinated, findings=by_kafka.findings)
    assert not replace(shown, tellings=[by_kafka, harmed, *others]).as_expected
