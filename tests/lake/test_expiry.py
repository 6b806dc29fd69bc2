"""Retention by time and size: whole extents from the beginning, by the topic's own settings, and nothing without them."""

from __future__ import annotations

import pytest

from headstone.lake.commits import Extent, Partition
from headstone.lake.expiry import Expired, expire, expired, find_expired
from headstone.lake.holds import Holds
from headstone.lake.spans import Span
from tests.lake.scene import AT, Scene

NOW_MS = 10_000


def log_of(*extents: tuple[int, int]) -> Partition:
    """(newest timestamp, length) of extents of ten offsets each; a length of 0 is an extent without records."""
    made = tuple(
        Extent(
            span=Span(10 * i, 10 * i + 10), object_id="o", position=0, length=length, records=10 if length else 0,
            max_timestamp_ms=newest_ms, checksum=0,
        )
        for i, (newest_ms, length) in enumerate(extents)
    )  # fmt: skip
    return Partition(
        start_offset=0, next_offset=10 * len(made), compaction_epoch=0, extents=made, cleaned=(), tombstones=()
    )  # fmt: skip


def start_of(
    partition: Partition, held_from: int = 10**9, policy: str = "compact,delete", **settings: int
) -> int | None:
    named = {f"retention.{name}": value for name, value in settings.items()}
    gone = expired(AT, partition, {"cleanup.policy": policy, **named}, now_ms=NOW_MS, held_from=held_from)
    return None if gone is None else gone.start_after


def test_extents_go_when_their_newest_record_is_too_old() -> None:
    """As Kafka's segments: strictly older, from the beginning, up to the first that is young enough."""
    log = log_of((1000, 5), (8999, 5), (9000, 5), (1, 5))
    assert [start_of(log, ms=limit_ms) for limit_ms in (10_000, 9000, 8999, 1001, 1000, 999)] == [
        None, None, 10, 10, 20, 40
    ]  # fmt: skip


def test_extents_go_as_long_as_enough_is_left() -> None:
    """What is left is never smaller than the limit."""
    log = log_of((1, 5), (1, 5), (1, 5))
    assert [start_of(log, bytes=limit) for limit in (15, 14, 10, 9, 5, 4, 0)] == [None, None, 10, 10, 20, 20, 30]


def test_the_stricter_of_both_limits_counts() -> None:
    log = log_of((1, 5), (9999, 5), (9999, 5))
    gone = expired(
        AT, log, {"cleanup.policy": "compact,delete", "retention.ms": 5000, "retention.bytes": 5}, now_ms=NOW_MS
    )
    assert gone == Expired(
        partition=AT, start_before=0, start_after=20, extents=2, records=20, bytes=10,
        reason="retention.ms and retention.bytes",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        ("compact", {"ms": 1}),
        ("unknown", {"ms": 1}),
        ("delete", {"ms": 1}),
        ("compact,delete", {}),
        ("compact,delete", {"ms": -1, "bytes": -1}),
    ],
)
def test_nothing_goes_without_a_policy_and_a_limit(policy: str, settings: dict[str, int]) -> None:
    """Kafka's default of seven days is not the lake's: a log that was stored to be kept is kept."""
    named = {f"retention.{name}": value for name, value in settings.items()}
    assert expired(AT, log_of((1, 5), (1, 5)), {"cleanup.policy": policy, **named}, now_ms=10**12) is None


def test_extents_without_records_or_timestamps() -> None:
    """The former go along with what follows; the latter are never too old."""
    assert start_of(log_of((-1, 0), (1, 5), (-1, 0), (9999, 5)), ms=5000) == 20
    assert start_of(log_of((-1, 0), (9999, 5)), ms=5000) is None
    assert start_of(log_of((-1, 5), (1, 5)), ms=5000) is None


def test_what_a_reader_holds_stays() -> None:
    log = log_of((1, 5), (1, 5), (1, 5))
    assert [start_of(log, held_from, ms=5) for held_from in (0, 9, 10, 19, 20, 30)] == [None, None, 10, 10, 20, 30]


def test_a_log_begins_where_retention_lets_it(scene: Scene) -> None:
    """Records are of 1000, 1001 and 1002 ms; running it twice does nothing twice."""
    for name in ("a", "b", "c"):
        scene.write(f"N[{name}]")
    scene.lake.metastore.configure("t", {"cleanup.policy": "compact,delete", "retention.ms": "100"})
    assert find_expired(scene.lake, now_ms=1100) == []
    assert [gone.start_after for gone in find_expired(scene.lake, now_ms=1102)] == [2]
    assert find_expired(scene.lake, now_ms=1102, topics=["other"]) == []
    Holds(scene.lake.metastore).hold("reader", AT, 1, expires_ms=2000)
    assert [gone.start_after for gone in expire(scene.lake, clock=lambda: 1102)] == [1]
    Holds(scene.lake.metastore).release("reader")
    assert [gone.start_after for gone in expire(scene.lake, clock=lambda: 1102)] == [2]
    assert expire(scene.lake, clock=lambda: 1102) == []
    assert ([key for _, key, _ in scene.held()], scene.lake.metastore.check()) == ([b"c"], [])
    assert [gone.start_after for gone in expire(scene.lake, clock=lambda: 9999)] == [3]
    assert scene.held() == []
