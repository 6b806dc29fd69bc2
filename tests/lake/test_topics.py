"""Topics of the lake: which one it is, whether it is compacted at all; made, altered, dropped; what retention takes."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event

from headstone.cli.main import main
from headstone.errors import UsageError
from headstone.lake.format.extents import Extent
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.compaction import compact_partition
from headstone.lake.jobs.erasure import make_lakes_own
from headstone.lake.jobs.expiry import EXTENTS_FIRST, Expired, expire, expired, find_expired
from headstone.lake.jobs.urgencies import urgencies
from headstone.lake.lake import Lake, create_lake
from headstone.lake.metastore.catalog import PartitionRow
from headstone.lake.metastore.commits import EMPTY, Append, CommitRefused, Partition
from headstone.lake.metastore.holds import Holds
from headstone.lake.metastore.leases import Leases
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.topics import alter_topic, create_topic, drop_topic
from headstone.lake.transfer.ingest import LogIngestSettings, ingest
from headstone.lake.transfer.reading import records
from headstone.log import checkpoints
from headstone.log.directory import find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from headstone.retention.policy import NO_LIMIT
from headstone.storage.stores import Store
from tests.lake.appending import append, extent, log_of
from tests.lake.scene import AT, Said, Scene
from tests.lake.single import worker
from tests.lake.town import ORDERS, USERS, Town
from tests.oracle.notation import TOPIC_ID

EVENTS = TopicPartition("events", 0)
ANOTHER_ID = "BBBBBBBBQACAAAAAAAAAAQ"


def identify(partition: Path, topic_id: str) -> None:
    checkpoints.write_topic_id(partition / checkpoints.PARTITION_METADATA, topic_id)


def test_a_topic_that_was_created_again_is_refused(lake: Lake, tmp_path: Path) -> None:
    """It is longer than the old one was: nothing but its id tells them apart."""
    ingest(lake, find_partitions([log_of(tmp_path / "old", "events", "N[a] N[b]")]), clock=lambda: 1)
    before = lake.metastore.partition(EVENTS)
    again = log_of(tmp_path / "new", "events", "N[x] N[y] N[z] N[a]")
    identify(again, ANOTHER_ID)
    with pytest.raises(UsageError, match=f"has the topic with ID {TOPIC_ID}, but this one .*ID {ANOTHER_ID}.*new lake"):
        ingest(lake, find_partitions([again]), clock=lambda: 2)
    assert lake.metastore.partition(EVENTS) == before
    identify(again, TOPIC_ID)
    ingest(lake, find_partitions([again]), clock=lambda: 3)
    assert lake.metastore.partition(EVENTS).next_offset == 4


def test_a_topic_whose_id_nobody_told_gets_it_from_the_next_log(lake: Lake, tmp_path: Path) -> None:
    partition = log_of(tmp_path, "events", "N[a]")
    (partition / checkpoints.PARTITION_METADATA).unlink()
    ingest(lake, find_partitions([partition]), clock=lambda: 1)
    for topic_id in (TOPIC_ID, TOPIC_ID):
        identify(partition, topic_id)
        ingest(lake, find_partitions([partition]), clock=lambda: 2)
    identify(partition, ANOTHER_ID)
    with pytest.raises(UsageError, match="created again"):
        ingest(lake, find_partitions([partition]), clock=lambda: 3)


def test_partitions_of_two_topics_of_one_name_are_refused(lake: Lake, tmp_path: Path) -> None:
    """What is left of a deleted one beside its successor, in two log directories."""
    found = [log_of(tmp_path / str(number), "events", "N[a]", number) for number in range(2)]
    identify(found[1], ANOTHER_ID)
    with pytest.raises(UsageError, match=r"events: partitions of different topics.*events-0: AAAA.*events-1: BBBB"):
        ingest(lake, find_partitions(found), clock=lambda: 1)
    assert lake.metastore.topics() == {}


@pytest.mark.parametrize("policy", ["delete", "unknown", ""])
def test_a_topic_that_is_not_compacted_keeps_every_record(scene: Scene, policy: str) -> None:
    """Whoever asks, however dirty it is; its records are served."""
    scene.lake.metastore.configure("t", {"cleanup.policy": policy, "max.compaction.lag.ms": 1})
    scene.write("N[a]", "T[a]", "N[a]", "U")
    Leases(scene.lake.metastore).request(AT, now_ms=10**6)
    (state,) = urgencies(scene.lake, now_ms=10**7).values()
    assert (state.eligible, state.reason.startswith("cleanup.policy is ")) == (False, True)
    assert (worker(scene.lake, now_ms=10**7).work(), scene.compact(now_ms=10**7).committed) == (0, False)
    assert scene.keys() == [(0, b"a"), (1, b"a"), (2, b"a"), (3, None)]


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete,compact"])
def test_a_topic_that_is_compacted_among_others_is(scene: Scene, policy: str) -> None:
    scene.lake.metastore.configure("t", {"cleanup.policy": policy})
    scene.write("N[a]", "N[a]")
    assert scene.compact(now_ms=10).records_after == 1


def test_a_broker_tells_which_topics_it_compacts(lake: Lake, tmp_path: Path) -> None:
    """Its cleaner has an entry for them. Of the others nobody knows, until somebody says it; then it is kept."""
    for topic in ("events", "users", "never"):
        log_of(tmp_path, topic, "N[a] N[a]")
    (tmp_path / checkpoints.META_PROPERTIES).write_text("version=1\n")
    checkpoints.write_offsets(tmp_path / checkpoints.CLEANER, {("users", 3): 1})
    ends = {(topic, 0): 2 for topic in ("events", "users", "never")}
    checkpoints.write_offsets(tmp_path / checkpoints.HIGH_WATERMARK, ends)
    ingest(lake, find_partitions([tmp_path]), clock=lambda: 1)
    assert lake.metastore.topics() == {
        "events": {"cleanup.policy": "unknown"}, "never": {"cleanup.policy": "unknown"}, "users": {}
    }  # fmt: skip
    ingest(
        lake, find_partitions([tmp_path / "events-0"]), clock=lambda: 2, settings=LogIngestSettings(policy="compact")
    )
    ingest(lake, find_partitions([tmp_path]), clock=lambda: 3)
    done = [compact_partition(lake, at, InProcess(1), now_ms=9).committed for at in lake.metastore.partitions()]
    assert done == [True, False, True]


def test_only_the_topics_that_are_named_are_ingested(tmp_path: Path, said: Said, told: Said) -> None:
    lake, logs = str(tmp_path / "lake"), str(tmp_path / "logs")
    for topic in ("orders", "users", "events"):
        log_of(tmp_path / "logs", topic, "N[a] N[a]")
    told("init", lake)
    some = told("ingest", lake, logs, "--topic", "orders", "--topic", "events", "--cleanup-policy", "delete")
    assert [one["partition"] for one in some["partitions"]] == ["events-0", "orders-0"]
    status = told("status", lake)
    kept = "cleanup.policy is delete: every record is kept"
    reasons = [(one["topic"], one["partitions"][0]["reason"]) for one in status["topics"]]
    assert reasons == [("events", kept), ("orders", kept)]
    for wrong, problem in (
        (["--topic", "nosuch"], "no partition of topic nosuch"),
        (
            ["--topic", "users", "--topic-conf", "orders:delete.retention.ms=1"],
            "orders is not among the ingested topics",
        ),
        (["--continuous"], "--continuous is for clusters"),
    ):
        assert problem in said("ingest", lake, logs, *wrong, code=2).err
    assert [one["topic"] for one in told("status", lake)["topics"]] == ["events", "orders"]


def test_the_time_before_a_topic_was_known_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: Said, told: Said
) -> None:
    """An empty answer would say that there was nothing."""
    where, begun = str(tmp_path / "lake"), 1_800_000_000_000
    log_of(tmp_path / "logs", "orders", "N[a]")
    told("init", where, "--now-ms", str(begun - 1000))
    told("ingest", where, str(tmp_path / "logs"), "--now-ms", str(begun))
    for moment in (1, begun - 1):
        for view in ("records", "table"):
            assert main(["lake", "read", where, "orders", "--view", view, "--as-of", str(moment)]) == 2
            assert "the lake has no topic orders before 2027-01-15 08:00:00 UTC (18000" in capsys.readouterr().err
    assert len(said("read", where, "orders", "--as-of", str(begun + 10**6)).out.splitlines()) == 1


def test_an_empty_partition_beside_others_was_empty_then(lake: Lake, tmp_path: Path) -> None:
    ingest(lake, find_partitions([log_of(tmp_path, "events", "N[a]")]), clock=lambda: 50)
    lake.metastore.add_partitions("events", 2)
    later = TopicPartition("events", 1)
    assert list(records(lake, later, as_of_ms=60)) == []
    with pytest.raises(UsageError, match=r"before 1970-01-01 00:00:00 UTC \(50\)"):
        list(records(lake, later, as_of_ms=49))


def filled(lake: Lake, root: Path) -> None:
    """Two topics that share an object, and a compaction that leaves another one."""
    town = Town(lake, root)
    town.grow(orders="N[a] N[a] N[b]", users="N[c] N[d]")
    town.compact(ORDERS, now_ms=10)


def test_a_dropped_topic_is_forgotten_and_its_objects_are_garbage(any_lake: Lake, tmp_path: Path) -> None:
    """Those that another topic shares stay; requests, leases and the past go along."""
    filled(any_lake, tmp_path)
    shared = {extent.object_id for extent in any_lake.metastore.partition(USERS).extents}
    Leases(any_lake.metastore).request(ORDERS, now_ms=11)
    assert Leases(any_lake.metastore).take(ORDERS, "worker", now_ms=11)
    assert drop_topic(any_lake, "orders", now_ms=20) == 1
    assert [row.topic for row in any_lake.metastore.topic_rows()] == ["users"]
    assert any_lake.metastore.partitions() == [USERS]
    with pytest.raises(UsageError, match="no partition orders-0"):
        any_lake.metastore.partition(ORDERS)
    assert garbage(any_lake, now_ms=100, grace_ms=100).rows == []
    collect(any_lake, garbage(any_lake, now_ms=100, grace_ms=50))
    assert set(any_lake.metastore.objects()) == shared
    assert [entry.key for entry in records(any_lake, USERS)] == [b"c", b"d"]
    assert any_lake.metastore.check() == []
    with pytest.raises(UsageError, match="no topic orders"):
        drop_topic(any_lake, "orders", now_ms=21)
    create_topic(any_lake, "orders", 2, {})
    empty = {"start_offset": 0, "next_offset": 0, "compaction_epoch": 0, "extents": 0, "records": 0, "bytes": 0}
    assert any_lake.metastore.topic_rows()[0].partitions == tuple(
        PartitionRow(partition=number, **empty) for number in range(2)
    )


def test_what_is_made_and_altered_is_checked(lake: Lake) -> None:
    create_topic(lake, "orders", 3, {"delete.retention.ms": "60", "cleanup.policy": "compact,delete"})
    alter_topic(lake, "orders", {"retention.ms": "1000", "delete.retention.ms": "70"})
    (row,) = lake.metastore.topic_rows()
    assert (row.kafka_id, len(row.partitions)) == (None, 3)
    assert row.settings == {"delete.retention.ms": "70", "cleanup.policy": "compact,delete", "retention.ms": "1000"}
    for settings, said in (
        ({"retention": "1"}, "no topic setting retention; did you mean retention.ms"),
        ({"retention.ms": "-2"}, "between -1 and"),
        ({"retention.ms": "soon"}, "not a duration"),
        ({"cleanup.policy": "compact,erase"}, "compact, delete or compact,delete"),
        ({"cleanup.policy": ""}, "compact, delete or compact,delete"),
        ({"min.cleanable.dirty.ratio": "1.5"}, "between 0 and 1"),
    ):
        with pytest.raises(UsageError, match=said):
            alter_topic(lake, "orders", settings)
        with pytest.raises(UsageError, match=said):
            create_topic(lake, "others", 1, settings)
    for name in ("", "..", "a b", "x" * 250):
        with pytest.raises(UsageError, match="not a valid topic name"):
            create_topic(lake, name, 1, {})
    with pytest.raises(UsageError, match="no topic users"):
        alter_topic(lake, "users", {"retention.ms": "1"})
    assert lake.metastore.topic_rows() == [row]


def test_offsets_that_were_given_away_do_not_come_back(lake: Lake) -> None:
    create_topic(lake, "orders", 1, {})
    make_lakes_own(lake, "orders")
    alter_topic(lake, "orders", {"retention.ms": "1", "headstone.source": "lake"})
    with pytest.raises(UsageError, match="cannot be taken back"):
        alter_topic(lake, "orders", {"headstone.source": "kafka"})


def test_topics_on_the_command_line(tmp_path: Path, said: Said, told: Said) -> None:
    where = str(tmp_path / "lake")
    told("init", where, "--now-ms", "0")
    lake = create_lake(f"sqlite:///{tmp_path / 'other.db'}", f"file://{tmp_path / 'other'}", now_ms=0)
    filled(lake, tmp_path)
    told("ingest", where, str(tmp_path / "logs"))
    told("topics", where, "create", "events", "--partitions", "2", "--conf", "cleanup.policy=delete")
    listed = told("topics", where)["topics"]
    assert [(row["topic"], row["kafka_id"], row["cleanup_policy"], len(row["partitions"])) for row in listed] == [
        ("events", None, "delete", 2), ("orders", TOPIC_ID, "compact", 1), ("users", TOPIC_ID, "compact", 1)
    ]  # fmt: skip
    settings = ("--conf", "cleanup.policy=compact,delete", "--conf", "retention.ms=100")
    altered = told("topics", where, "alter", "orders", *settings)
    assert altered == told("topics", where, "describe", "orders")
    assert [(part["next_offset"], part["extents"], part["records"]) for part in altered["partitions"]] == [(3, 1, 3)]
    expired = told("retain", where, "--now-ms", "2000")
    assert ([part["start_after"] for part in expired["partitions"]], expired["applied"]) == ([3], False)
    assert told("topics", where, "describe", "orders") == altered
    told("retain", where, "--topic", "orders", "--apply")
    (log,) = told("topics", where, "describe", "orders")["partitions"]
    assert (log["start_offset"], log["next_offset"], log["records"]) == (3, 3, 0)
    assert told("retain", where, "--apply")["partitions"] == []
    assert told("topics", where, "drop", "orders", "--dry-run")["dropped"] is False
    told("topics", where, "drop", "orders", code=2)
    assert [row["topic"] for row in told("topics", where)["topics"]] == ["events", "orders", "users"]
    assert told("topics", where, "drop", "orders", "--yes")["dropped"] is True
    for wrong in (["describe"], ["describe", "orders"], ["alter", "users"], ["drop", "orders", "--yes"]):
        told("topics", where, *wrong, code=2)
    told("retain", where, "--topic", "orders", code=2)
    for verb in ([], ["describe", "users"]):
        assert "users" in said("topics", where, *verb).out


def test_records_before_an_offset_are_deleted_when_somebody_says_yes(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(lake, tmp_path)
    command = ["lake", "topics", f"sqlite:///{tmp_path / 'lake.db'}", "delete-records", "users", "--partition", "0"]

    def shown() -> list[bytes | None]:
        return [entry.key for entry in records(lake, USERS)]

    assert main([*command, "--before", "1", "--dry-run"]) == 0
    assert capsys.readouterr().out == "users-0: would begin at 1, it begins at 0; nothing was changed\n"
    assert main([*command, "--before", "1"]) == 2
    assert ("use --yes to skip the question" in capsys.readouterr().err, shown()) == (True, [b"c", b"d"])
    assert main([*command, "--before", "1", "--yes"]) == 0
    assert (capsys.readouterr().out, shown()) == ("users-0: now starts at 1, before at 0\n", [b"d"])
    assert main([*command, "--before", "0", "--yes", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "partition": "users-0", "start_before": 1, "start_after": 1, "applied": False,
    }  # fmt: skip
    Holds(lake.metastore).hold("reader", USERS, 1, expires_ms=10**9)
    assert main([*command, "--before", "2", "--yes"]) == 3
    assert "reader holds users-0 from offset 1" in capsys.readouterr().err
    assert main([*command, "--before", "3", "--yes"]) == 2
    assert "users-0 ends at 2: cannot delete records before offset 3" in capsys.readouterr().err
    assert main([*command[:-1], "7", "--before", "1", "--yes"]) == 2
    assert "the lake has no users-7" in capsys.readouterr().err
    assert main([*command, "--yes"]) == 2
    assert ("--before OFFSET" in capsys.readouterr().err, shown()) == (True, [b"d"])


NOW_MS = 10_000


def log_with(*extents: tuple[int, int]) -> Partition:
    """(newest timestamp, length) of extents of ten offsets each; a length of 0 is an extent without records."""
    made = tuple(
        extent(10 * i, 10 * i + 10, length=length, records=10 if length else 0, newest_ms=newest_ms)
        for i, (newest_ms, length) in enumerate(extents)
    )
    return replace(EMPTY, next_offset=10 * len(made), extents=made)


def start_of(
    partition: Partition, held_from: int = 10**9, policy: str = "compact,delete", **settings: int
) -> int | None:
    named = {f"retention.{name}": value for name, value in settings.items()}
    gone = expired(AT, partition, {"cleanup.policy": policy, **named}, now_ms=NOW_MS, held_from=held_from)
    return None if gone is None else gone.start_after


def test_extents_go_when_their_newest_record_is_too_old() -> None:
    """As Kafka's segments: strictly older, from the beginning, up to the first that is young enough."""
    log, limits_ms = log_with((1000, 5), (8999, 5), (9000, 5), (1, 5)), (10_000, 9000, 8999, 1001, 1000, 999)
    assert [start_of(log, ms=limit_ms) for limit_ms in limits_ms] == [None, None, 10, 10, 20, 40]


def test_extents_go_as_long_as_enough_is_left() -> None:
    """What is left is never smaller than the limit."""
    log = log_with((1, 5), (1, 5), (1, 5))
    assert [start_of(log, bytes=limit) for limit in (15, 14, 10, 9, 5, 4, 0)] == [None, None, 10, 10, 20, 20, 30]


def test_the_stricter_of_both_limits_counts() -> None:
    log = log_with((1, 5), (9999, 5), (9999, 5))
    settings = {"cleanup.policy": "compact,delete", "retention.ms": 5000, "retention.bytes": 5}
    assert expired(AT, log, settings, now_ms=NOW_MS) == Expired(
        partition=AT, start_before=0, start_after=20, extents=2, records=20, bytes=10,
        reason="retention.ms and retention.bytes",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        ("compact", {"ms": 1}), ("unknown", {"ms": 1}), ("delete", {"ms": 1}), ("compact,delete", {}),
        ("compact,delete", {"ms": -1, "bytes": -1}),
    ],
)  # fmt: skip
def test_nothing_goes_without_a_policy_and_a_limit(policy: str, settings: dict[str, int]) -> None:
    """Kafka's default of seven days is not the lake's: a log that was stored to be kept is kept."""
    named = {f"retention.{name}": value for name, value in settings.items()}
    assert expired(AT, log_with((1, 5), (1, 5)), {"cleanup.policy": policy, **named}, now_ms=10**12) is None


def test_extents_without_records_or_timestamps() -> None:
    """The former go along with what follows; the latter are never too old."""
    assert start_of(log_with((-1, 0), (1, 5), (-1, 0), (9999, 5)), ms=5000) == 20
    assert start_of(log_with((-1, 0), (9999, 5)), ms=5000) is None
    assert start_of(log_with((-1, 5), (1, 5)), ms=5000) is None


def test_what_a_reader_holds_stays() -> None:
    log = log_with((1, 5), (1, 5), (1, 5))
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
            extents.append(extent(at, at + 1, made, length=length, records=int(length > 0), newest_ms=newest_ms))
    store.append({name: Append(expected_next=0, extents=tuple(extents))}, {made: 1}, now_ms=1)


def test_a_hold_that_comes_while_another_partition_is_cut_keeps_its_own_and_is_told(metastore: Metastore) -> None:
    lake = Lake(metastore=metastore, store=Store.open("memory://expiry"))
    metastore.create_topic("t", 3, {"cleanup.policy": "compact,delete", "retention.ms": 500})
    first, second, third = sorted(metastore.partitions())
    for name in (first, second, third):
        append(metastore, name, 0, 1)
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        Holds(metastore).hold("reader", second, 0, expires_ms=5000)

    assert [gone.partition for gone in expire(lake, clock=lambda: 1000, tell=tell)] == [first, third]
    cut, kept = "now starts at 1, by retention.ms", "retrying later: reader holds t-1 from offset 0"
    assert [line.split(";")[0] for line in told] == [f"t-0: {cut}", f"t-1: {kept}", f"t-2: {cut}"]
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
        expired(name, partition, settings[name.topic], now_ms=1000, held_from=holds.get(name, NO_LIMIT))
        for name, partition in metastore.snapshot().items()
    ]
    assert find_expired(lake, now_ms=1000) == [gone for gone in slowly if gone is not None]


def test_what_stays_is_not_read(metastore: Metastore) -> None:
    """However long the logs are: the oldest extents of all by one statement, and of the log that has expired its beginning."""
    lake = Lake(metastore=metastore, store=Store.open("memory://expiry"))
    metastore.create_topic("t", 3, {"cleanup.policy": "compact,delete", "retention.ms": 500})
    for name in metastore.partitions():
        (made,) = metastore.register(1)
        extents = tuple(
            extent(i, i + 1, made, newest_ms=100 if i < 5 and name.number == 1 else 900) for i in range(1000)
        )
        metastore.append({name: Append(expected_next=0, extents=extents)}, {made: 1}, now_ms=1)
    read: list[int] = []

    def note(connection: object, cursor: object, statement: str, parameters: object, *_: object) -> None:
        if "extents.span_start" in statement.partition("FROM")[0]:
            read.append(EXTENTS_FIRST in tuple(parameters.values() if isinstance(parameters, dict) else parameters))  # type: ignore[call-overload]

    event.listen(metastore._engine, "before_cursor_execute", note)
    assert [(str(gone.partition), gone.start_after) for gone in find_expired(lake, now_ms=1000)] == [("t-1", 5)]
    assert read == [False, True]
