"""Prometheus' text format: what is exposed, labels that nobody can break out of, and the server that hands it out."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import replace

import pytest

from headstone.coordination.danger import NEVER_MS
from headstone.coordination.guard_values import AlarmKind, State, Status
from headstone.errors import UsageError
from headstone.guard.ledger.journal_values import KeptAlarm, Lease
from headstone.guard.monitoring.metrics import Counters, MetricsServer, metrics_text
from headstone.guard.monitoring.status import GuardStatus, Held, TopicStatus, Waiting
from headstone.guard.prometheus import escaped, metric

COUNTERS = Counters(looks=7, calls_failed=2, applies=True, leads=True)
AWAY = Status(partition=1, state=State.HELD, blockers=(3,), since_ms=0, unsafe_ms=70_000, countdown_ms=60_000)
HELD = Held(
    since_ms=4_000,
    confirmed=(1, 2),
    confirmed_ms=5_000,
    undone_ms=None,
    by_default=False,
    found=(),
    bytes_held_back=123,
)
STATUS = GuardStatus(
    cluster_id="c", now_ms=10_000, looked_ms=8_000, fresh=True, lease=Lease(holder="a", until_ms=11_000, applies=True),
    topics=(
        TopicStatus(
            topic='or"ders', partitions=(Status(partition=0, state=State.FINE), AWAY), held=HELD,
            waiting=(Waiting(partition=1, broker=3, since_ms=0, expelled_ms=None),),
        ),
    ),
    alarms=(KeptAlarm(kind=AlarmKind.WRONG, topic='or"ders', partition=1, broker=3),),
)  # fmt: skip


def samples(text: str) -> list[str]:
    return [line.removeprefix("headstone_guard_") for line in text.splitlines() if not line.startswith("#")]


def test_everything_an_alert_needs_is_there() -> None:
    assert samples(metrics_text(STATUS, COUNTERS)) == [
        "leads 1",
        "applies 1",
        "looks_total 7",
        "calls_failed_total 2",
        "last_look_age_seconds 2",
        'partition_state{topic="or\\"ders",partition="0",state="fine"} 1',
        'partition_state{topic="or\\"ders",partition="1",state="held"} 1',
        'countdown_seconds{topic="or\\"ders",partition="1"} 60',
        'held_seconds{topic="or\\"ders"} 6',
        'hold_in_effect{topic="or\\"ders"} 1',
        'held_back_bytes{topic="or\\"ders"} 123',
        'waiting_for_readmission{topic="or\\"ders",partition="1",broker="3"} 1',
        'alarm{kind="a replica is wrong",topic="or\\"ders",partition="1",broker="3"} 1',
    ]


def test_what_never_comes_has_no_countdown_and_who_never_looked_no_age() -> None:
    never = replace(AWAY, unsafe_ms=NEVER_MS, countdown_ms=NEVER_MS - 10)
    topic = replace(STATUS.topics[0], partitions=(never,), held=None, waiting=())
    text = metrics_text(replace(STATUS, topics=(topic,), looked_ms=None, alarms=()), COUNTERS)
    assert not any(name in text for name in ("countdown_seconds{", "last_look_age_seconds", "held_seconds{"))


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ('a"} 1\nfake{x="', r"a\"} 1\nfake{x=\""),
        ("back\\slash", r"back\\slash"),
        ("\x1b[31mred\r", r"\\x1b[31mred\\x0d"),
    ],
)
def test_a_name_stays_inside_its_label(text: str, label: str) -> None:
    assert escaped(text) == label


def test_every_metric_is_explained() -> None:
    lines = metrics_text(STATUS, COUNTERS).splitlines()
    helped = {line.split()[2] for line in lines if line.startswith("# HELP")}
    typed = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert helped == typed == {line.split()[0].partition("{")[0] for line in lines if not line.startswith("#")}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_server_hands_out_metrics_and_nothing_else(host: str) -> None:
    with MetricsServer(host, 0, lambda: metrics_text(STATUS, COUNTERS)) as server:
        with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=60) as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert answer.read().decode() == metrics_text(STATUS, COUNTERS)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{server.address}/", timeout=60)
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(UsageError, match=f"--metrics {host}:{port}: "):
            MetricsServer(host, port, str)


def test_whole_numbers_are_printed_to_the_last_digit() -> None:
    values = (123_456_789, 2**62 + 1, 123_456_789.0, 1_234_567.125, 0.5, True)
    lines = list(metric("mtro", "gauge", "", [({}, value) for value in values]))[2:]
    assert [line.split()[1] for line in lines] == [
        "123456789", "4611686018427387905", "123456789", "1234567.125", "0.5", "1",
    ]  # fmt: skip
