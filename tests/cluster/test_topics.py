"""Whether every broker knows of a new topic: each is asked, since any may be asked next."""

from __future__ import annotations

from headstone.cluster.connection import Connection, wire_settings
from headstone.cluster.topics import unaware_brokers
from tests.cluster.fake_brokers import listening, metadata

UNKNOWN_TOPIC, NO_LEADER = 3, -1


def unaware(leaders: dict[int, int | None]) -> list[int]:
    """leaders: who leads `orders`, by each broker's own word; None: that one does not know the topic."""

    def told(broker: int) -> list[tuple[int, int]] | int:
        leader = leaders[broker]
        return UNKNOWN_TOPIC if leader is None else [(leader, 0)]

    with listening(leaders, lambda asked: metadata(ports, {"orders": told(asked.broker)})) as ports:
        connection = Connection.parse(f"127.0.0.1:{ports[1]}", {})
        return unaware_brokers(connection, wire_settings(connection), "orders")


def test_a_topic_is_known_when_each_broker_says_so_and_knows_its_leader() -> None:
    assert unaware({1: 1, 2: 1, 3: 1}) == []
    assert unaware({1: 1, 2: None, 3: NO_LEADER}) == [2, 3]
