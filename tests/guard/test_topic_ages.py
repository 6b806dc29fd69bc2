"""Which looks prove that a topic was made since: whole ones, by a user who would have been shown it."""

from __future__ import annotations

import pytest

from headstone.coordination.guard_values import TopicSeen
from headstone.guard.looks.look import look
from headstone.guard.looks.topic_ages import NEW_MS, Sightings
from tests.guard import scripted
from tests.guard.scripted import Model, asking

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
