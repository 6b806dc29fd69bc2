"""Every duration and every moment on the command line is read by the one parser, whatever its flag is called."""

from __future__ import annotations

import argparse

import pytest

from headstone.api.ingesting import IngestSettings, settings_of_topics
from headstone.cli.lake_data import _topic_settings
from headstone.cli.options import Duration, Moment
from headstone.errors import UsageError
from headstone.lake.topics import TopicFacts
from headstone.retention.settings import TOPIC_SETTINGS, checked, setting_of
from headstone.units import brief_duration
from tests.cli.parsers import OPTIONS, VERBS

DURATIONS = [(prog, action) for prog, action in OPTIONS if isinstance(action.type, Duration)]
NAMED_OTHERWISE = {"--interval", "--deadline", "--outage-max"}


def test_whatever_is_named_in_milliseconds_is_a_duration_or_a_moment() -> None:
    named = [
        (prog, action)
        for prog, action in OPTIONS
        if any(flag.endswith("-ms") or flag in NAMED_OTHERWISE for flag in action.option_strings)
    ]
    assert [prog for prog, action in named if not isinstance(action.type, Duration | Moment)] == []
    assert len(DURATIONS) > 25


@pytest.mark.parametrize(("prog", "action"), DURATIONS, ids=lambda value: getattr(value, "dest", None))
def test_a_duration_takes_units_and_milliseconds(prog: str, action: argparse.Action) -> None:
    assert isinstance(action.type, Duration)
    assert [action.type(text) for text in ("90s", "1m", "90000", "90000ms")] == [90_000, 60_000, 90_000, 90_000]
    assert action.metavar == "DURATION"


@pytest.mark.parametrize("prog", VERBS)
def test_help_shows_a_duration_as_it_is_given_and_says_once_how(prog: str) -> None:
    text = VERBS[prog].format_help()
    durations = [action for action in VERBS[prog]._actions if isinstance(action.type, Duration)]
    shown = " ".join(text.split())
    for action in durations:
        if isinstance(action.default, int):
            assert f"(default {brief_duration(action.default)})" in shown
    assert text.count("a DURATION is 90s, 15m, 12h, 1d, 500ms, or plain milliseconds") == bool(durations)


def test_a_topics_settings_take_durations_too_and_are_kept_as_kafka_has_them() -> None:
    durations = [setting.name for setting in TOPIC_SETTINGS if setting.is_duration]
    assert len(durations) > 4
    assert {checked(name, "36h") for name in durations} == {"129600000"}
    assert setting_of({"delete.retention.ms": "1d"}, "delete.retention.ms") == 86_400_000
    given = {"orders": {"delete.retention.ms": "1d", "segment.bytes": "100"}}
    assert _topic_settings(["orders:delete.retention.ms=1d", "orders:segment.bytes=100"]) == given
    kept = settings_of_topics(IngestSettings(topic_settings=given), {"orders": TopicFacts(partitions=1)})
    assert kept == {"orders": {"delete.retention.ms": "86400000", "segment.bytes": "100"}}
    with pytest.raises(UsageError, match=r"segment\.bytes of the topic: '1d' is not a number"):
        checked("segment.bytes", "1d")
