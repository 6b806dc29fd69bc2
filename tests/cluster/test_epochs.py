"""What brokers tell of topics: leader epochs, one question after the other, ends of logs, and whether each knows of a topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headstone.cluster.connection import Connection, wire_settings
from headstone.cluster.encoding import Writer
from headstone.cluster.epochs import Epochs, leader_epochs
from headstone.cluster.topics import leaders_end, unaware_brokers
from headstone.cluster.wire import EARLIEST, NOBODY
from headstone.errors import Unfinished
from headstone.log.topic_partition import TopicPartition
from tests.cluster.fake_brokers import METADATA, Request, listening, metadata

OFFSET_FOR_LEADER_EPOCH = 23
NOT_LEADER = 6
WATERMARK, END = 990, 1000
ORDERS = [TopicPartition("orders", number) for number in range(3)]


class Broker:
    """Leads `orders`: of each partition the epochs that it knows, or None if it does not lead it; and where the logs begin."""

    def __init__(self, caches: list[Epochs | None], log_start: int) -> None:
        self._caches, self._log_start = caches, log_start
        self.asked: list[int] = []
        self._ports: dict[int, int] = {}

    @contextmanager
    def running(self) -> Iterator[Connection]:
        with listening([7], self._answer) as self._ports:
            yield Connection.parse(f"127.0.0.1:{self._ports[7]}", {})

    def _answer(self, asked: Request) -> Writer:
        self.asked.append(asked.key)
        if asked.key == METADATA:
            newest = [(7, cache[-1][0] if cache else 0) for cache in self._caches]
            return metadata(self._ports, {"orders": newest})
        request, of_epochs = asked.fields(), asked.key == OFFSET_FOR_LEADER_EPOCH
        replica, *_ = request.take("i" if of_epochs else "ib")
        answer = Writer().put("i", 0).array(1)
        for _ in request.array():
            answer.text(request.text())
            partitions = [request.take("iii" if of_epochs else "iiq") for _ in request.array()]
            answer.array(len(partitions))
            for number, _, wanted in partitions:
                cache = self._caches[number]
                error = NOT_LEADER if cache is None else 0
                if of_epochs:
                    answer.put("hiiq", error, number, *end_of(cache or (), wanted))
                else:
                    offset = self._log_start if wanted == EARLIEST else WATERMARK if replica == NOBODY else END
                    answer.put("ihqqi", number, error, -1, offset, 0)
        return answer


def end_of(cache: Epochs, asked: int) -> tuple[int, int]:
    """LeaderEpochFileCache.endOffsetFor."""
    if not cache or asked > cache[-1][0] or asked < 0:
        return -1, -1
    if asked == cache[-1][0]:
        return asked, END
    above = next(start for epoch, start in cache if epoch > asked)
    return next((epoch for epoch, _ in reversed(cache) if epoch <= asked), asked), above


@pytest.mark.parametrize(
    ("cache", "log_start", "expected"),
    [
        (((0, 0),), 0, ((0, 0),)),
        (((0, 0), (1, 5), (4, 9)), 0, ((0, 0), (1, 5), (4, 9))),
        (((2, 0), (3, 5), (7, 9)), 0, ((2, 0), (3, 5), (7, 9))),
        (((3, 5), (7, 9)), 5, ((3, 5), (7, 9))),
        (((1, 5), (7, 9)), 5, ((1, 5), (7, 9))),
        (((3, 5), (7, 9)), 4, ((3, 5), (7, 9))),  # the oldest does not begin with the log: nobody knows what was before
        (((5, END),), END, ((5, END),)),
    ],
)  # fmt: skip
def test_every_epoch_is_told_with_its_start(cache: Epochs, log_start: int, expected: Epochs) -> None:
    with Broker([cache], log_start).running() as connection:
        assert leader_epochs(connection, wire_settings(connection), ["orders"], {}) == {ORDERS[0]: expected}


def test_who_does_not_lead_is_absent_and_what_has_not_changed_is_not_asked() -> None:
    broker = Broker([((0, 0), (2, 5)), None, ((3, 0), (8, 7))], 0)
    with broker.running() as connection:
        settings = wire_settings(connection)
        epochs = leader_epochs(connection, settings, ["orders"], {})
        assert epochs == {ORDERS[0]: ((0, 0), (2, 5)), ORDERS[2]: ((3, 0), (8, 7))}
        newest = {ORDERS[0]: 2, ORDERS[1]: 0, ORDERS[2]: 6}
        assert leader_epochs(connection, settings, ["orders"], newest) == {ORDERS[2]: ((3, 0), (8, 7))}
        del broker.asked[:]
        assert leader_epochs(connection, settings, ["orders"], {**newest, ORDERS[2]: 8}) == {}
        assert broker.asked == [METADATA]
    assert leader_epochs(connection, settings, ["orders"], {}) == {}


def test_a_leaders_log_ends_behind_what_is_committed() -> None:
    with Broker([((0, 0),), None], 0).running() as connection:
        settings = wire_settings(connection)
        assert leaders_end(connection, settings, ORDERS[0]) == END
        for partition, why in ((ORDERS[1], "end of orders-1: NOT_LEADER"), (ORDERS[2], "orders-2 has no leader")):
            with pytest.raises(Unfinished, match=why):
                leaders_end(connection, settings, partition)


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
