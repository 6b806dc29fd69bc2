"""Retention by time and size: whole extents from the beginning, by the topic's own settings, and nothing without them."""

from __future__ import annotations

import random

import pytest
from sqlalchemy import event

from headstone.lake.format.extents import Extent
from headstone.lake.format.spans import Span
from headstone.lake.jobs.expiry import EXTENTS_FIRST, Expired, expire, expired, find_expired
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Append, CommitRefused, Partition
from headstone.lake.metastore.holds import Holds
from headstone.lake.metastore.metastore import Metastore
from headstone.log.topic_partition import TopicPartition
from headstone.retention.policy import NO_LIMIT
from headstone.storage.stores import Store
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


def test_a_hold_that_comes_in_between_counts(scene: Scene) -> None:
    for name in ("a", "b"):
        scene.write(f"N[{name}]")
    Holds(scene.lake.metastore).hold("reader", AT, 1, expires_ms=2000)
    with pytest.raises(CommitRefused, match="reader holds t-0 from offset 1"):
        scene.lake.metastore.start_at(AT, 2, now_ms=1500, unless_held=True)
    scene.lake.metastore.start_at(AT, 1, now_ms=1500, unless_held=True)
    assert [key for _, key, _ in scene.held()] == [b"b"]


LIMITS = ({"retention.ms": 500}, {"retention.bytes": 700}, {"retention.ms": 800, "retention.bytes": 900}, {})


def fill(store: Metastore, chance: random.Random, name: TopicPartition, count: int) -> None:
    """Extents of one offset each: runs of empty ones, of old ones and of young ones, some without a timestamp."""
    (made,) = store.register(1)
    extents: list[Extent] = []
    while len(extents) < count:
        length, newest_ms = chance.choice((0, 10, 100)), chance.choice((-1, 100, 100, 100, 400, 900))
        for _ in range(chance.choice((1, 3, 90))):
            at = len(extents)
            extents.append(
                Extent(
                    span=Span(at, at + 1), object_id=made, position=0, length=length, records=int(length > 0),
                    max_timestamp_ms=newest_ms, checksum=0,
                )
            )  # fmt: skip
    store.append({name: Append(expected_next=0, extents=tuple(extents))}, {made: 1}, now_ms=1)


def test_a_hold_that_comes_while_another_partition_is_cut_keeps_its_own_and_is_told(metastore: Metastore) -> None:
    lake = Lake(metastore=metastore, store=Store.open("memory://expiry"))
    metastore.create_topic("t", 3, {"cleanup.policy": "compact,delete", "retention.ms": 500})
    first, second, third = sorted(metastore.partitions())
    for name in (first, second, third):
        (made,) = metastore.register(1)
        old = Extent(
            span=Span(0, 1), object_id=made, position=0, length=10, records=1, max_timestamp_ms=100, checksum=0
        )  # fmt: skip
        metastore.append({name: Append(expected_next=0, extents=(old,))}, {made: 10}, now_ms=1)
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        Holds(metastore).hold("reader", second, 0, expires_ms=5000)

    assert [gone.partition for gone in expire(lake, clock=lambda: 1000, tell=tell)] == [first, third]
    assert [line.split(";")[0] for line in told] == [
        "t-0: now starts at 1, by retention.ms",
        "t-1: retrying later: reader holds t-1 from offset 0",
        "t-2: now starts at 1, by retention.ms",
    ]
    assert [metastore.partition(name).start_offset for name in (first, second, third)] == [1, 0, 1]


@pytest.mark.parametrize("seed", range(4))
def test_what_the_first_extents_tell_is_what_all_would(metastore: Metastore, seed: int) -> None:
    chance, lake = random.Random(seed), Lake(metastore=metastore, store=Store.open("memory://expiry"))
    for i, limits in enumerate(LIMITS):
        metastore.create_topic(f"t{i}", 6, {"cleanup.policy": "compact,delete", **limits})
    for name in metastore.partitions():
        if count := chance.choice((0, 1, 70, 300)):
            fill(metastore, chance, name, count)
        if chance.random() < 0.3:
            Holds(metastore).hold("reader", name, chance.randrange(200), expires_ms=5000)
    settings, holds = metastore.topics(), Holds(metastore).lowest(now_ms=1000)
    slowly = [
        expired(
            name, partition, settings[name.topic], now_ms=1000, held_from=holds.get(name, NO_LIMIT)
        )
        for name, partition in metastore.snapshot().items()
    ]  # fmt: skip
    assert find_expired(lake, now_ms=1000) == [gone for gone in slowly if gone is not None]


def test_what_stays_is_not_read(metastore: Metastore) -> None:
    """However long the logs are: the oldest extents of all by one statement, and of the log that has expired its beginning."""
    lake = Lake(metastore=metastore, store=Store.open("memory://expiry"))
    metastore.create_topic("t", 3, {"cleanup.policy": "compact,delete", "retention.ms": 500})
    for name in metastore.partitions():
        (made,) = metastore.register(1)
        extents = tuple(
            Extent(
                span=Span(i, i + 1), object_id=made, position=0, length=10, records=1, checksum=0,
                max_timestamp_ms=100 if i < 5 and name.number == 1 else 900,
            )
            for i in range(1000)
        )  # fmt: skip
        metastore.append({name: Append(expected_next=0, extents=extents)}, {made: 1}, now_ms=1)
    read: list[int] = []

    def note(connection: object, cursor: object, statement: str, parameters: object, *_: object) -> None:
        if "extents.span_start" in statement.partition("FROM")[0]:
            read.append(EXTENTS_FIRST in tuple(parameters.values() if isinstance(parameters, dict) else parameters))  # type: ignore[call-overload]

    event.listen(metastore._engine, "before_cursor_execute", note)
    assert [(str(gone.partition), gone.start_after) for gone in find_expired(lake, now_ms=1000)] == [("t-1", 5)]
    assert read == [False, True]
