"""A look: what it costs, whose word counts, what it proves of clocks and new topics, what becomes of it when brokers fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from headstone.cluster.admin import Admin
from headstone.coordination.guard_values import HOLD, DeletionsRead, PartitionSeen, ReplicaSeen, TopicSeen
from headstone.errors import Unfinished
from headstone.guard.looks.clock_skew import (
    KEPT_MS,
    KEPT_POLLS,
    UNCOMMITTED_MS,
    ClockReading,
    Clocks,
    Stamps,
    largest_difference_ms,
)
from headstone.guard.looks.leader_reading import LeaderReading
from headstone.guard.looks.look import Look, held_brokers, held_on, look
from headstone.guard.looks.missed import Missed
from headstone.guard.looks.topic_ages import NEW_MS, Sightings
from headstone.log.topic_partition import TopicPartition
from tests.guard import scripted
from tests.guard.scripted import Model, asking
from tests.guard.test_missed import batch

COMPACTED = {"cleanup.policy": "compact,delete"}
NOW_MS = 1_000_000
REQUEST_TIMED_OUT, CLUSTER_AUTHORIZATION_FAILED = 7, 31


SILENCE_SECONDS = 5
"""Where a broker is silent its whole deadline is waited for; those that answer have no more, also on a busy machine."""


def compacted(*topics: str, own: Mapping[str, Mapping[str, str | None]] | None = None, **more: Any) -> Model:
    """Topics of one partition. own: their overrides."""
    return Model(
        topics=dict.fromkeys(topics, 1), configs={name: {**COMPACTED, **(own or {}).get(name, {})} for name in topics}, **more
    )  # type: ignore[dict-item]  # fmt: skip


def looked(model: Model, topics: list[str] | None = None, *, seconds_max: float = 60) -> Look:
    with asking(model, seconds_max=seconds_max) as admin:
        return look(admin, topics, lambda: NOW_MS)


def test_every_compacted_topic_is_told_whole() -> None:
    model = compacted("orders", own={"orders": {"min.insync.replicas": "2"}}, topic_ids={"orders": 1})
    model.topics["logs"] = 1
    replicas = tuple(ReplicaSeen(broker=broker, log_end=10 * broker) for broker in (1, 2, 3))
    assert looked(model) == Look(
        cluster_id="scripted", asked_ms=NOW_MS, brokers=(1, 2, 3), problems=(),
        topics=(
            TopicSeen(
                topic="orders", asked_ms=NOW_MS, compacted=True, delete_retention_ms=86_400_000,
                overrides=tuple((name, None) for name, _ in HOLD), alive=(1, 2, 3), in_sync_min=2,
                topic_id="AAAAAAAAAAAAAAAAAAAAAQ",
                default_overrides=(
                    ("log.cleaner.min.cleanable.ratio", None), ("log.cleaner.min.compaction.lag.ms", None),
                    ("log.cleaner.max.compaction.lag.ms", None),
                ),
                partitions=(
                    PartitionSeen(partition=0, leader=1, replicas=replicas, isr=(1, 2, 3), committed_end=10, leader_epoch=5),
                ),
            ),
        ),
    )  # fmt: skip


def test_a_look_is_as_old_as_its_first_question() -> None:
    """What was deleted between the question and the answer is not known to whoever was in sync when it was asked."""
    model = compacted("orders")
    with asking(model) as admin:
        seen = look(admin, None, lambda: NOW_MS + sum(model.asked.values()))
    assert (seen.asked_ms, [topic.asked_ms for topic in seen.topics]) == (NOW_MS, [NOW_MS])


@pytest.mark.parametrize(("error", "told"), [(REQUEST_TIMED_OUT, None), (CLUSTER_AUTHORIZATION_FAILED, ())])
def test_a_default_that_nobody_tells_of_is_unknown_and_not_empty(error: int, told: tuple[()] | None) -> None:
    """Whoever may not ask for it may not hold by it."""
    model = compacted("orders", broker_configs_error=error)
    seen = looked(model)
    assert ([topic.default_overrides for topic in seen.topics], bool(seen.problems)) == ([told], told is None)


def test_ten_thousand_partitions_cost_a_handful_of_questions_per_broker() -> None:
    topics = {f"topic-{number}": 10 for number in range(1000)}
    model = Model(topics=topics, configs=dict.fromkeys(topics, COMPACTED))
    seen = looked(model, seconds_max=60)
    assert (sum(len(topic.partitions) for topic in seen.topics), seen.problems) == (10_000, ())
    assert {topic.partitions[9].replicas[2].log_end for topic in seen.topics} == {30}
    counts = {broker: sum(n for (asked, _), n in model.asked.items() if asked == broker) for broker in (1, 2, 3)}
    assert counts == {1: 8, 2: 3, 3: 3}


@pytest.mark.parametrize(
    ("model", "asked", "told", "problems"),
    [
        (
            compacted("orders", "payments", own={"orders": {"delete.retention.ms": "a day"}}), None, {"payments": True},
            ["topic orders: delete.retention.ms is 'a day', not a number"],
        ),
        (
            compacted("orders", retention_ms={3: "long"}), None, {"orders": True},
            ["broker 3: topic orders: delete.retention.ms is 'long', not a number"],
        ),
        (
            compacted("gone", "orders", deleted={"gone"}), None, {"orders": True},
            [": configs of gone: UNKNOWN_TOPIC_OR_PARTITION"],
        ),
        (Model(topics={"logs": 1}), ["logs", "nope"], {"logs": False}, [": topic nope: UNKNOWN_TOPIC_OR_PARTITION"]),
    ],
    ids=["a number of a topic", "a number of a broker", "a topic that goes away meanwhile", "named topics"],
)  # fmt: skip
def test_what_cannot_be_understood_or_is_not_there_costs_itself_and_not_the_look(
    model: Model, asked: list[str] | None, told: dict[str, bool], problems: list[str]
) -> None:
    """told: topics, and whether they are compacted; of one that is not only if it is named."""
    seen = looked(model, asked)
    assert {topic.topic: topic.compacted for topic in seen.topics} == told
    assert {topic.delete_retention_ms for topic in seen.topics} == {86_400_000}
    assert [problem.endswith(end) for problem, end in zip(seen.problems, problems, strict=True)] == [True]


def test_the_smallest_default_of_any_broker_counts_and_only_without_an_override() -> None:
    own = {**COMPACTED, "delete.retention.ms": "70000"}
    model = Model(
        topics={"all": 1, "own": 1, "orders": 1}, retention_ms={3: "5000"},
        configs={"all": own, "orders": COMPACTED, "own": own},
    )  # fmt: skip
    told = {topic.topic: topic.delete_retention_ms for topic in looked(model).topics}
    assert told == {"all": 70_000, "orders": 5000, "own": 70_000}


def test_what_is_committed_is_less_than_what_a_leader_has() -> None:
    """Whoever lacks the rest lacks nothing yet, and no claim of an agent reaches so far."""
    model = Model(topics={"orders": 2}, configs={"orders": COMPACTED}, uncommitted=3)
    (topic,) = looked(model).topics
    ends = [
        (partition.committed_end, [replica.log_end for replica in partition.replicas]) for partition in topic.partitions
    ]
    assert ends == [(7, [10, 20, 30]), (17, [10, 20, 30])]


def test_who_says_nothing_costs_one_deadline_at_the_same_time_as_others_and_has_no_log_end() -> None:
    model = compacted("orders", own={"orders": dict(HOLD)}, silent={2, 3})
    seen = looked(model, seconds_max=SILENCE_SECONDS)
    (topic,) = seen.topics
    assert [replica.log_end for replica in topic.partitions[0].replicas] == [10, None, None]
    assert (topic.held_on, topic.alive) == ((1,), (1, 2, 3))
    assert [problem.endswith(f"it said nothing for {SILENCE_SECONDS} s") for problem in seen.problems] == [True] * 2
    assert [sum(n for (asked, _), n in model.asked.items() if asked == broker) for broker in (2, 3)] == [1, 1]
    assert abs(model.first_asked[3] - model.first_asked[2]) < SILENCE_SECONDS, (
        "nobody is asked when the one before is given up"
    )


def test_a_broker_that_hangs_is_waited_for_once_at_a_look_whatever_is_asked_of_it() -> None:
    """Also where it is the one that any question went to, and for what is asked behind the look."""
    model = Model(topics={"orders": 3}, configs={"orders": COMPACTED})
    with asking(model, seconds_max=SILENCE_SECONDS) as admin:
        assert look(admin, None, lambda: NOW_MS).problems == ()
        for _ in range(2):
            model.silent = {1}
            model.asked.clear()
            (problem,) = look(admin, None, lambda: NOW_MS).problems
            assert problem.startswith("broker 1: broker 127.0.0.1:")
            assert held_on(admin, {"orders": (1, 2, 3)}) == {"orders": ()}
            for _ in range(2):
                with pytest.raises(Unfinished, match=f"it said nothing for {SILENCE_SECONDS} s"):
                    admin.log_dirs(1)
            assert sum(n for (asked, _), n in model.asked.items() if asked == 1) == 1
        model.silent = set()
        assert look(admin, None, lambda: NOW_MS).problems == ()


@pytest.mark.parametrize(
    ("key", "error", "said", "topics"),
    [
        (scripted.METADATA, scripted.DENIED, "this user lacks DESCRIBE on the topic", 0),
        (scripted.DESCRIBE_CONFIGS, scripted.DENIED, "this user lacks DESCRIBE_CONFIGS on the topic", 0),
        (scripted.LIST_OFFSETS, scripted.DENIED, "this user lacks DESCRIBE on the topic", 1),
        (scripted.LIST_REASSIGNMENTS, scripted.CLUSTER_DENIED, "this user lacks DESCRIBE on the cluster", 1),
    ],
)
def test_what_is_refused_is_a_problem_and_not_the_end(key: int, error: int, said: str, topics: int) -> None:
    seen = looked(compacted("orders", refused={key: error}), ["orders"])
    assert len(seen.topics) == topics
    assert {said in problem for problem in seen.problems} == {True}


def test_without_read_what_is_missed_is_not_known_which_is_told_apart_from_what_is_not_seen() -> None:
    """Nobody is unseen for that: it is held earlier."""
    model = compacted("orders", isr=(1, 2))
    missed = Missed()
    missed.expect("orders", {(0, 3): 4})
    leaders = LeaderReading(missed)
    with asking(model) as admin:
        permitted = look(admin, None, lambda: NOW_MS, leaders=leaders)
        model.unreadable.add("orders")
        refused = [look(admin, None, lambda: NOW_MS, leaders=leaders) for _ in range(2)]
    assert (permitted.problems, permitted.unread) == ((), ())
    assert [(seen.problems, len(seen.unread)) for seen in refused] == [((), 1)] * 2
    assert refused[0].unread == refused[1].unread
    assert "this user lacks READ on the topic: what those that are away" in refused[0].unread[0]


def test_a_broker_that_does_not_reach_the_controllers_is_not_believed_and_another_is_asked() -> None:
    """Its metadata may be of any age: it goes on to call everybody in sync."""
    model = compacted("orders", cut_off={1}, isr=(1, 2))
    with asking(model) as admin:
        seen = [look(admin, None, lambda: NOW_MS) for _ in range(2)]
    assert [(one.topics[0].partitions[0].isr, one.problems) for one in seen] == [((1, 2), ())] * 2
    assert model.asked[1, scripted.LIST_REASSIGNMENTS] == 1


def test_where_no_broker_reaches_the_controllers_there_is_no_look() -> None:
    model = compacted("orders", cut_off={1, 2, 3}, isr=(1, 2))
    with pytest.raises(Unfinished, match="TIMED_OUT: no broker's answer is known to be up to date"):
        looked(model)


@pytest.mark.parametrize(
    ("newest_ms", "controller_ms", "skew_ms"),
    [(-1, -1, 0), (NOW_MS - 7000, NOW_MS, 0), (NOW_MS + 7000, NOW_MS - 500, 7500), (-1, NOW_MS + 900, 900)],
)
def test_clocks_differ_by_what_is_proved(newest_ms: int, controller_ms: int, skew_ms: int) -> None:
    """Whichever topics are looked at."""
    model = Model(topics={"__consumer_offsets": 3, "orders": 1}, newest_ms=newest_ms, controller_ms=controller_ms)
    assert [(topic.topic, topic.skew_ms) for topic in looked(model, ["orders"]).topics] == [("orders", skew_ms)]


def test_a_timestamp_that_a_look_at_one_topic_saw_first_is_told_to_all_others() -> None:
    """Whoever follows one topic each second uses it up; theirs would be held too late."""
    model = Model(topics={"orders": 1, "logs": 1, "__consumer_offsets": 1}, newest_ms=1)
    model.configs = {"orders": COMPACTED, "logs": COMPACTED}
    with asking(model) as admin:
        clocks = Clocks()

        def skews(topics: list[str] | None) -> dict[str, int]:
            return {topic.topic: topic.skew_ms for topic in look(admin, topics, lambda: NOW_MS, clocks=clocks).topics}

        assert skews(None) == {"orders": 0, "logs": 0}
        model.newest_ms = NOW_MS + 3_600_000
        assert skews(["orders"]) == {"orders": 3_600_000}
        assert skews(None) == {"orders": 3_600_000, "logs": 3_600_000}


def test_each_broker_is_asked_itself_whether_it_holds_once_for_many_topics() -> None:
    class Counting(Admin):
        questions = 0

        def try_topic_configs(self, topics: Sequence[str], **more: Any) -> Any:
            self.questions += 1
            return super().try_topic_configs(topics, **more)

    model = compacted("a", "b", "c", own={"a": dict(HOLD), "c": dict(HOLD)}, silent={2})
    asked = {"a": (1, 2, 3), "b": (1,), "c": (2, 3)}
    with asking(model, seconds_max=SILENCE_SECONDS, client=Counting) as admin:
        assert held_on(admin, asked) == {"a": (1, 3), "b": (), "c": (3,)}
        assert admin.questions == 3  # type: ignore[attr-defined]
        model.configs["a"]["max.compaction.lag.ms"] = "5"
        assert held_brokers(admin, "a", (1, 3)) == ()


def test_one_topic_that_may_not_be_read_keeps_nobody_from_the_others_of_its_leader() -> None:
    """Broker 3 is away; every partition is led by broker 1, and each lacks its first ten offsets."""
    topics = {"__consumer_offsets": 1, "a-secret": 1, "orders": 1}
    model = Model(
        topics=topics, configs=dict.fromkeys(topics, COMPACTED), isr=(1, 2), records=batch(0, 500, records=10),
        unreadable={"__consumer_offsets", "a-secret"},
    )  # fmt: skip
    missed = Missed()
    for topic in topics:
        missed.expect(topic, {(0, 3): 0})
    leaders = LeaderReading(missed)
    with asking(model) as admin:
        seen = look(admin, None, lambda: NOW_MS, leaders=leaders)
    assert {topic.topic: topic.partitions[0].deletions for topic in seen.topics} == {
        "__consumer_offsets": DeletionsRead(start=0, end=0), "a-secret": DeletionsRead(start=0, end=0),
        "orders": DeletionsRead(start=0, end=10),
    }  # fmt: skip
    lacking = "topics __consumer_offsets, a-secret: this user lacks READ on the topic: "
    assert (seen.problems, seen.unread) == ((), (lacking + "what those that are away have missed counts as deletions",))


@pytest.mark.parametrize(("below", "read"), [(4, DeletionsRead(start=4, end=4)), (5, DeletionsRead(start=5, end=10))])
def test_nothing_behind_what_a_leader_has_no_more_counts_as_read(below: int, read: DeletionsRead) -> None:
    """A purge removed all below offset 5, plain values or not. Broker 3 is away and has every deletion below this offset."""
    model = Model(
        topics={"orders": 1}, configs={"orders": COMPACTED}, isr=(1, 2), records=batch(5, records=5), log_start=5
    )
    missed = Missed()
    missed.expect("orders", {(0, 3): below})
    leaders = LeaderReading(missed)
    with asking(model) as admin:
        looks = [look(admin, None, lambda: NOW_MS, leaders=leaders) for _ in range(2)]
    assert [seen.topics[0].partitions[0].deletions for seen in looks] == [read, read]
    assert (looks[1].problems, looks[1].unread) == ((), ())


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("readings", "difference_ms"),
    [
        ([], 0),
        ([(-50, 20), (None, None)], 0),
        ([(HOUR_MS, None), (-50, 20)], HOUR_MS),
        ([(-HOUR_MS, None)], 0),
        ([(None, -HOUR_MS)], HOUR_MS),
        ([(HOUR_MS, None), (-2 * HOUR_MS, -HOUR_MS)], 2 * HOUR_MS),
    ],
    ids=["nothing told", "right as far as told", "ahead", "an old timestamp says nothing", "behind", "both"],
)
def test_only_what_is_certain_counts(readings: list[tuple[int | None, int | None]], difference_ms: int) -> None:
    bounds = [ClockReading(earliest_ms=earliest, latest_ms=latest) for earliest, latest in readings]
    assert largest_difference_ms(bounds) == difference_ms


def test_a_timestamp_that_came_since_and_is_older_than_the_last_look_proves_a_clock_behind() -> None:
    """An old one says nothing: nobody knows when it was written."""
    offsets, clocks = TopicPartition("__consumer_offsets", 0), Clocks()

    def read(newest_ms: int, asked_ms: int) -> ClockReading:
        return clocks.reading(Stamps(newest_ms={offsets: newest_ms}, asked_ms=asked_ms, answered_ms=asked_ms + 10))

    assert read(5_000, 9_000_000) == ClockReading(earliest_ms=5_000 - 9_000_010, latest_ms=None)
    assert read(5_000, 9_030_000).latest_ms is None
    assert read(6_000, 9_060_000).latest_ms == 6_000 - 9_030_000 + UNCOMMITTED_MS
    assert clocks.reading(Stamps(newest_ms={}, asked_ms=0, answered_ms=1)) == ClockReading(
        earliest_ms=None, latest_ms=None
    )


def test_a_timestamp_in_the_future_counts_when_it_is_first_seen_and_not_for_as_long_as_its_record_lives() -> None:
    offsets, clocks = TopicPartition("__consumer_offsets", 0), Clocks()

    def skew_ms(newest_ms: int, hours: int) -> int:
        now_ms = hours * HOUR_MS
        stamps = Stamps(newest_ms={offsets: newest_ms}, asked_ms=now_ms, answered_ms=now_ms)
        return largest_difference_ms([clocks.reading(stamps)])

    assert [skew_ms(10 * HOUR_MS, 0), skew_ms(10 * HOUR_MS, 1), skew_ms(10 * HOUR_MS, 2)] == [10 * HOUR_MS, 0, 0]
    assert skew_ms(10 * HOUR_MS + 5, 2) == 8 * HOUR_MS + 5


@pytest.mark.parametrize(("poll_ms", "kept_ms"), [(30_000, KEPT_MS), (HOUR_MS, KEPT_POLLS * HOUR_MS)])
def test_what_was_proved_is_told_to_every_look_for_a_while_and_not_for_ever(poll_ms: int, kept_ms: int) -> None:
    """Also by a clock that was set back meanwhile; a year ahead counts no longer than an hour ahead."""
    year_ms, now_ms = 365 * 24 * HOUR_MS, 100 * HOUR_MS
    clocks = Clocks(poll_ms=poll_ms)
    assert clocks.difference_ms([ClockReading(earliest_ms=year_ms, latest_ms=None)], now_ms) == year_ms
    assert clocks.difference_ms([ClockReading(earliest_ms=5, latest_ms=-7)], now_ms + 1_000) == year_ms + 7
    assert clocks.difference_ms([], now_ms - 60_000) == year_ms + 7
    assert clocks.difference_ms([], now_ms + kept_ms) == year_ms + 7
    assert clocks.difference_ms([], now_ms + kept_ms + 1) == 5 + 7
    assert clocks.difference_ms([], now_ms + kept_ms + 1_001) == 0


def test_a_difference_that_is_proved_again_counts_from_then() -> None:
    clocks = Clocks()
    assert [clocks.difference_ms([ClockReading(earliest_ms=50, latest_ms=None)], ms) for ms in (0, KEPT_MS)] == [50, 50]
    assert [clocks.difference_ms([], ms) for ms in (2 * KEPT_MS, 2 * KEPT_MS + 1)] == [50, 0]


TOPIC_AUTHORIZATION_FAILED = 29
POLICY = {"cleanup.policy": "compact"}


def model(**changes: object) -> Model:
    return Model(topics={"orders": 1, "logs": 1}, topic_ids={"orders": 1, "logs": 2}, **changes)  # type: ignore[arg-type]


def sighted(cluster: Model, *, topics: list[str] | None = None) -> dict[str, int | None]:
    return {topic.topic: topic.unseen_ms for topic in last_look(cluster, topics=topics)}


def last_look(cluster: Model, *, topics: list[str] | None = None) -> tuple[TopicSeen, ...]:
    """Looks at 100 and 200; then payments is there, at 300 without what it takes to be told, and at 400."""
    cluster.configs = {"orders": POLICY, "logs": POLICY}
    with asking(cluster) as admin:
        sightings = Sightings()
        for asked_ms in (100, 200, 300, 400):
            if asked_ms == 300:
                cluster.topics["payments"] = 1
                cluster.topic_ids["payments"] = 3
            if asked_ms == 400:
                cluster.configs["payments"] = POLICY
            seen = look(admin, topics, lambda: asked_ms, sightings=sightings)  # noqa: B023
    return seen.topics


def test_a_topic_that_an_earlier_look_did_not_show_was_made_since() -> None:
    """Also if it could be told of only at the look after: what counts is when its id was first shown."""
    assert sighted(model()) == {"orders": None, "logs": None, "payments": 200}


@pytest.mark.parametrize("topics", [["orders", "logs", "payments"], None])
def test_who_may_not_describe_every_topic_or_looks_at_some_cannot_tell(topics: list[str] | None) -> None:
    cluster = model(unknown_error=TOPIC_AUTHORIZATION_FAILED if topics is None else scripted.UNKNOWN_TOPIC)
    assert set(sighted(cluster, topics=topics).values()) == {None}


def test_a_look_that_shows_a_topic_without_its_id_proves_nothing() -> None:
    cluster = model()
    del cluster.topic_ids["logs"]
    assert sighted(cluster)["payments"] is None


def test_a_topic_that_is_not_compacted_when_it_is_first_shown_is_not_made_when_it_becomes_so() -> None:
    cluster = model()
    cluster.topics["payments"] = 1
    cluster.topic_ids["payments"] = 3
    assert sighted(cluster)["payments"] is None


@pytest.mark.parametrize(("first", "first_ms"), [((0, 250), 250), ((7, 250), None), ((-1, -1), None)])
def test_of_a_new_topic_and_of_no_other_it_is_asked_when_its_very_first_record_was_stamped(
    first: tuple[int, int], first_ms: int | None
) -> None:
    """A cleaner may have taken that one, so that the first which is left is young."""
    seen = last_look(model(first=first))
    assert {topic.topic: [partition.first_ms for partition in topic.partitions] for topic in seen} == {
        "logs": [None], "orders": [None], "payments": [first_ms],
    }  # fmt: skip


def test_a_topic_is_new_for_an_hour() -> None:
    cluster = model(configs={"orders": POLICY})
    with asking(cluster) as admin:
        sightings = Sightings()
        unseen = []
        for asked_ms in (100, 200, 100 + NEW_MS, 101 + NEW_MS):
            seen = look(admin, None, lambda: asked_ms, sightings=sightings)  # noqa: B023
            unseen.append({topic.topic: topic.unseen_ms for topic in seen.topics})
            cluster.topics["payments"], cluster.topic_ids["payments"] = 1, 3
            cluster.configs["payments"] = POLICY
    assert [look.get("payments") for look in unseen] == [None, 100, 100, None]
