"""Every duration and every moment on the command line is read by the one parser, whatever its flag is called."""

from __future__ import annotations

import argparse

import pytest

from headstone.api.ingesting import IngestSettings, settings_of_topics
from headstone.cli.lake_data import _topic_settings
from headstone.cli.main import parser
from headstone.cli.options import Duration, Moment
from headstone.errors import UsageError
from headstone.lake.topics import TopicFacts
from headstone.retention.settings import TOPIC_SETTINGS, checked, setting_of
from headstone.units import brief_duration
from tests.cli.test_help import VERBS
from tests.cli.test_numbers import OPTIONS

DURATIONS = [(words, action) for words, action in OPTIONS if isinstance(action.type, Duration)]
NAMED_OTHERWISE = {"--interval", "--deadline", "--outage-max"}


def test_whatever_is_named_in_milliseconds_is_a_duration_or_a_moment() -> None:
    named = [
        (words, action)
        for words, action in OPTIONS
        if any(flag.endswith("-ms") or flag in NAMED_OTHERWISE for flag in action.option_strings)
    ]
    assert [words for words, action in named if not isinstance(action.type, Duration | Moment)] == []
    assert len(DURATIONS) > 25


@pytest.mark.parametrize(("words", "action"), DURATIONS, ids=lambda value: getattr(value, "dest", None))
def test_a_duration_takes_units_and_milliseconds(words: tuple[str, ...], action: argparse.Action) -> None:
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


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["guard", "--poll-ms", "30x"], "--poll-ms: '30x' is not a duration, such as 90s, 15m, 12h, 1d, 500ms, or"),
        (["guard", "--poll-ms", "366d"], "--poll-ms: 366d is not between 1 and 31536000000 ms (365 d)"),
        (
            ["agent", "--log-dirs", "x", "--print", "--interval", "1ms"],
            "--interval: 1ms is not between 1000 and 3600000 ms",
        ),
        (["compact", "x", "--retention-ms=-2"], "--retention-ms: -2 is not between -1 and 9223372036854775807 ms"),
        (["compact", "x", "--now-ms", "noon"], "--now-ms: 'noon' is not a time, such as 2026-11-18T09:30:00Z, "),
    ],
)
def test_a_refused_duration_shows_how_one_is_written(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(words)
    assert says in capsys.readouterr().err


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
