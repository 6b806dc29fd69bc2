"""Golden conversations (`golden.py`) of the guard's decision: an outage as a story, told in `conversations/guard/`.

The cluster does `orders has replicas 1 2 3`, `orders keeps tombstones for 4 hours`, `cleanup.policy is delete`, `3 stops`,
`3 starts` (it is behind), `3 is in sync`, `3 is wrong`, `3 is silent` (of holds it says nothing), `2 leads`,
`a reassignment to 1 2 4 begins`, `a reassignment to 1 2 4 ends`, `changes are refused`, `changes are not answered`,
`changes are accepted`, `the guard's earlier release arrives`.

Other people do `somebody writes values`, `somebody deletes`, `somebody sets min.cleanable.dirty.ratio=0.2`, `somebody holds the
topic`, `somebody restores the overrides`, `somebody holds by the cluster default`, `somebody restores the cluster default`.

The guard does `the guard may use readmission`, `the guard may use the cluster default`, `the guard may read the topic`, `agents
run beside the brokers`, `the guard looks`, `the guard looks, and decides 10 minutes later`, `the guard looks, and acts 10
minutes later`, `the guard watches for 3 hours` (at every poll; only news are told), `nobody looks for 3 hours`, `state of the
hold`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from headstone.coordination.guard_values import DEFAULT_HOLD, HOLD
from tests.coordination import golden
from tests.coordination.guard_story import NO_DEFAULT, GuardStory, allow, with_override
from tests.coordination.guard_watch import HOUR_MS, NOTHING, SECOND_MS

STORIES = sorted((Path(__file__).parent / "conversations" / "guard").glob("*.txt"))
UNITS_MS = {"second": SECOND_MS, "minute": 60 * SECOND_MS, "hour": HOUR_MS}
TIME = r"(?P<number>\d+) (?P<unit>second|minute|hour)s?"
WHO = r"(?P<who>\d+)"
BROKERS = r"(?P<brokers>[\d ]+)"


def duration_ms(said: re.Match[str]) -> int:
    return int(said["number"]) * UNITS_MS[said["unit"]]


def brokers(said: re.Match[str]) -> list[int]:
    return [int(broker) for broker in said["brokers"].split()]


def keep_tombstones(story: GuardStory, said: re.Match[str]) -> None:
    story.retention_ms = duration_ms(said)


def set_policy(story: GuardStory, said: re.Match[str]) -> None:
    story.compacted = said["policy"] == "compact"


def make_wrong(story: GuardStory, said: re.Match[str]) -> None:
    story.replicas[int(said["who"])].is_wrong = True


def set_override(story: GuardStory, said: re.Match[str]) -> None:
    story.overrides = with_override(story.overrides, said["name"], said["value"])


def set_overrides(story: GuardStory, said: re.Match[str]) -> None:
    story.overrides = HOLD if said["verb"] == "holds the topic" else NOTHING


def set_default(story: GuardStory, said: re.Match[str]) -> None:
    story.default = DEFAULT_HOLD if said["verb"] == "holds by" else NO_DEFAULT


def answer_changes(story: GuardStory, said: re.Match[str]) -> None:
    story.refuses, story.answers_lost = said["how"] == "refused", said["how"] == "not answered"


def read_topic(story: GuardStory, said: re.Match[str]) -> None:
    story.guard_reads = True


def run_agents(story: GuardStory, said: re.Match[str]) -> None:
    story.agents = True


def look(story: GuardStory, said: re.Match[str]) -> None:
    later_ms = 0 if said["number"] is None else duration_ms(said)
    decides = said["verb"] == "decides"
    story.guard_looks(decides_later_ms=later_ms if decides else 0, acts_later_ms=0 if decides else later_ms)


def let_time_pass(story: GuardStory, said: re.Match[str]) -> None:
    story.now_ms += duration_ms(said)


COMMANDS: dict[str, Callable[[GuardStory, re.Match[str]], None]] = {
    rf"orders has replicas {BROKERS}": lambda story, said: story.create(brokers(said)),
    rf"orders keeps tombstones for {TIME}": keep_tombstones,
    r"cleanup.policy is (?P<policy>compact|delete)": set_policy,
    rf"{WHO} stops": lambda story, said: story.stop(int(said["who"])),
    rf"{WHO} starts": lambda story, said: story.start(int(said["who"])),
    rf"{WHO} is in sync": lambda story, said: story.catch_up(int(said["who"])),
    rf"{WHO} is wrong": make_wrong,
    rf"{WHO} is silent": lambda story, said: story.silent.add(int(said["who"])),
    rf"{WHO} leads": lambda story, said: story.lead(int(said["who"])),
    r"somebody (?P<verb>writes values|deletes)": lambda story, said: story.write(deletes=said["verb"] == "deletes"),
    rf"a reassignment to {BROKERS} begins": lambda story, said: story.assign(brokers(said)),
    rf"a reassignment to {BROKERS} ends": lambda story, said: story.finish(brokers(said)),
    r"somebody sets (?P<name>[a-z.]+)=(?P<value>[\d.]+)": set_override,
    r"somebody (?P<verb>holds the topic|restores the overrides)": set_overrides,
    r"the guard's earlier release arrives(?P<verb>)": set_overrides,
    r"somebody (?P<verb>holds by|restores) the cluster default": set_default,
    r"changes are (?P<how>refused|not answered|accepted)": answer_changes,
    r"the guard may use (?P<what>readmission|the cluster default)": lambda story, said: allow(story, said["what"]),
    r"the guard may read the topic": read_topic,
    r"agents run beside the brokers": run_agents,
    rf"the guard looks(?:, and (?P<verb>decides|acts) {TIME} later)?": look,
    rf"the guard watches for {TIME}": lambda story, said: story.guard_watches(duration_ms(said)),
    rf"nobody looks for {TIME}": let_time_pass,
    r"state of the hold": lambda story, said: story.show_hold(),
}


def converse(text: str) -> str:
    story = GuardStory()

    def answer(line: str) -> list[str]:
        story.told.clear()
        golden.obey(story, COMMANDS, line)
        return story.told

    return golden.converse(text, answer)


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_outage_goes_as_written(path: Path) -> None:
    golden.compare(path, converse(path.read_text(encoding="utf-8")))


def test_every_story_says_what_it_shows() -> None:
    assert len(STORIES) >= 12
    silent = [path.name for path in STORIES if not path.read_text(encoding="utf-8").startswith("# ")]
    assert not silent


def test_what_is_not_a_command_is_refused() -> None:
    with pytest.raises(golden.BadConversation, match="not a command: the guard sleeps"):
        converse("orders has replicas 1 2 3\nthe guard sleeps\n")


def test_a_line_that_the_guard_did_not_say_does_not_stay() -> None:
    true = "orders has replicas 1 2 3\nthe guard looks\n    day 1, 00:00:00\n        fine\n"
    assert converse(true) == true
    assert converse(true + "        -> release the topic: 3 overrides deleted: done\n") == true
