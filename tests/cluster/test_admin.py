"""What becomes of questions and of changes when connections are lost, and which permission a refusal names."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from headstone.cluster.admin import Admin, MayHaveArrived
from headstone.cluster.connection import Connection, Host
from headstone.cluster.encoding import Writer
from headstone.cluster.refusals import NoAnswer, NotPermitted
from headstone.errors import Unfinished
from headstone.log.topic_partition import TopicPartition
from tests.cluster.fake_brokers import METADATA, Request, listening
from tests.cluster.test_wire import silent

DESCRIBE_CONFIGS, ALTER_CONFIGS = 32, 44
TIMED_OUT = 7
QUESTIONS = (METADATA, DESCRIBE_CONFIGS, ALTER_CONFIGS)
"""What a failed connection is asked besides, for a better message, is not counted."""


class Broker:
    """One broker of a cluster of one, or with `others` that it tells of, whose answers are given by the request's key (None:
    the connection is closed). It counts as controller."""

    def __init__(self, answering: Callable[[int], bytes | None], *, seconds_max: float = 60) -> None:
        self.asked: list[int] = []
        self.others: list[Host] = []
        self._seconds_max, self._answering = seconds_max, answering
        self._ports: dict[int, int] = {}

    @contextmanager
    def running(self) -> Iterator[Admin]:
        with (
            listening([7], self._answer) as self._ports,
            Admin(Connection.parse(f"127.0.0.1:{self._ports[7]}", {}), seconds_max=self._seconds_max) as admin,
        ):
            yield admin

    def _answer(self, request: Request) -> bytes | None:
        if request.key in QUESTIONS:
            self.asked.append(request.key)
        return self._metadata() if request.key == METADATA else self._answering(request.key)

    def _metadata(self) -> bytes:
        hosts = [Host("127.0.0.1", self._ports[7]), *self.others]
        answer = Writer(flexible=True).tags().put("i", 0).array(len(hosts))
        for number, (name, port) in enumerate(hosts, start=7):
            answer = answer.put("i", number).text(name).put("i", port).text(None).tags()
        return answer.text("id").put("i", 7).array(0).put("i", 0).tags().data


def configs(error: int, name: str) -> bytes:
    text = struct.pack(">h", len(name)) + name.encode()
    return struct.pack(">iih", 0, 1, error) + b"\xff\xff" + b"\2" + text + struct.pack(">i", 0)


def altered(error: int) -> bytes:
    return struct.pack(">iih", 0, 1, error) + b"\0\2no" + b"\2" + b"\0\1t"


def test_a_question_is_asked_again_on_a_new_connection_if_an_old_one_was_lost() -> None:
    answers = iter([configs(0, "t"), None, configs(0, "t")])
    broker = Broker(lambda key: next(answers))
    with broker.running() as admin:
        assert admin.topic_configs(["t"], broker=7) == {"t": {}}
        assert admin.topic_configs(["t"], broker=7) == {"t": {}}
    assert broker.asked == [METADATA, DESCRIBE_CONFIGS, DESCRIBE_CONFIGS, DESCRIBE_CONFIGS]


def test_a_question_that_a_new_connection_does_not_answer_is_not_repeated() -> None:
    broker = Broker(lambda key: None)
    with broker.running() as admin:
        admin.describe([])
        admin.close()
        with pytest.raises(NoAnswer, match="does not answer: the broker closed the connection"):
            admin.topic_configs(["t"], broker=7)
    assert broker.asked == [METADATA, DESCRIBE_CONFIGS]


def test_a_connection_that_is_lost_says_nothing_about_settings_that_have_worked() -> None:
    """On a connection that never worked it may be that the broker asks for a login."""
    broker = Broker(lambda key: None)
    with broker.running() as admin:
        admin.describe([])
        for _ in range(2):
            with pytest.raises(NoAnswer, match=r"the broker closed the connection$"):
                admin.topic_configs(["t"], broker=7)
        with pytest.raises(
            MayHaveArrived, match=r"the broker closed the connection; the change may have been applied or not$"
        ):
            admin.alter_topic("t", {"a": "1"})
    with (
        broker.running() as admin,
        pytest.raises(NoAnswer, match=r"if it asks for a login, security\.protocol is SASL_SSL"),
    ):
        admin.topic_configs(["t"])


def test_a_change_whose_answer_was_lost_is_not_repeated() -> None:
    broker = Broker(lambda key: None)
    with broker.running() as admin:
        with pytest.raises(MayHaveArrived, match="the change may have been applied or not"):
            admin.alter_topic("t", {"a": "1"})
        with pytest.raises(MayHaveArrived):
            admin.alter_topic("t", {"a": "1"})
    assert broker.asked == [METADATA, ALTER_CONFIGS, ALTER_CONFIGS]


def hanging(awake: threading.Event) -> Broker:
    def never(key: int) -> None:
        awake.wait(3)

    return Broker(never, seconds_max=0.3)


def test_a_hold_goes_to_another_broker_if_the_one_that_counts_as_controller_hangs() -> None:
    """Each of many changes would wait for it, and none would be made."""
    awake = threading.Event()
    hangs, other = hanging(awake), Broker(lambda key: altered(0))
    with other.running() as neighbour, hangs.running() as admin:
        hangs.others = [neighbour.connection.hosts[0]]
        with pytest.raises(MayHaveArrived):
            admin.alter_topic("t", {"a": "1"})
        admin.alter_topic("t", {"a": "1"})
        assert (hangs.asked.count(ALTER_CONFIGS), other.asked) == (1, [ALTER_CONFIGS])
        awake.set()
    awake.clear()
    with other.running() as neighbour, hangs.running() as admin:
        hangs.others = [neighbour.connection.hosts[0]]
        for _ in range(3):
            admin.alter_topic("t", {"a": "1"}, repeatable=True)
        assert (hangs.asked.count(ALTER_CONFIGS), other.asked) == (2, [ALTER_CONFIGS] * 4)
        awake.set()


def test_a_hold_that_no_broker_answers_waits_once_for_each() -> None:
    awake = threading.Event()
    brokers = [hanging(awake) for _ in range(2)]
    with brokers[1].running() as neighbour, brokers[0].running() as admin:
        brokers[0].others = [neighbour.connection.hosts[0]]
        asked = []
        for _ in range(3):
            with pytest.raises(MayHaveArrived):
                admin.alter_topic("t", {"a": "1"}, repeatable=True)
            asked.append(sum(broker.asked.count(ALTER_CONFIGS) for broker in brokers))
        assert asked == [2, 3, 4]
        awake.set()


def test_what_speaks_against_a_change_is_asked_once_a_broker_is_reached_and_keeps_it_from_being_sent() -> None:
    broker, partition = Broker(lambda key: altered(0)), TopicPartition("t", 0)
    checks: list[list[int]] = []

    def refuse() -> None:
        checks.append(list(broker.asked))
        raise Unfinished("too late")

    with broker.running() as admin:
        admin.describe([])
        for change in (
            partial(admin.alter_topic, "t", {"a": None}),
            partial(admin.alter_broker, 7, {"a": None}),
            partial(admin.alter_broker_default, {"a": None}),
            partial(admin.reassign, {partition: None}),
            partial(admin.elect_preferred, [partition]),
        ):
            with pytest.raises(Unfinished, match="too late"):
                change(check=refuse)
    with pytest.raises(Unfinished, match="nothing listens there"):
        admin.alter_topic("t", {"a": None}, check=refuse)
    assert checks == [[METADATA]] * 5
    assert broker.asked == [METADATA]


def test_a_change_that_nobody_could_be_told_has_not_arrived() -> None:
    with silent() as nobody:
        pass
    broker = Broker(lambda key: altered(0))
    with broker.running() as admin, Admin(Connection.parse(str(nobody), {}), seconds_max=60) as alone:
        admin.alter_topic("t", {"a": None})
        with pytest.raises(Unfinished, match="nothing listens there") as caught:
            alone.alter_topic("t", {"a": None})
    assert not isinstance(caught.value, MayHaveArrived)


def test_a_change_for_which_the_controllers_did_not_answer_in_time_may_have_arrived() -> None:
    """The broker passed it on, and says REQUEST_TIMED_OUT: nobody refused anything."""
    timed_out = b"\0" + struct.pack(">ih", 0, TIMED_OUT) + b"\0\1\0"
    with Broker(lambda key: altered(TIMED_OUT)).running() as admin:
        for change in (partial(admin.alter_topic, "t", {"a": "1"}), partial(admin.alter_broker, 7, {"a": "1"})):
            with pytest.raises(
                MayHaveArrived, match=r"REQUEST_TIMED_OUT: no; the change may have been applied or not$"
            ):
                change()
    with Broker(lambda key: timed_out).running() as admin, pytest.raises(MayHaveArrived, match="REQUEST_TIMED_OUT"):
        admin.reassign({TopicPartition("t", 0): None})


def test_a_change_that_no_broker_could_be_told_any_more_was_refused_by_nobody() -> None:
    broker = Broker(lambda key: altered(0))
    with broker.running() as admin:
        admin.alter_topic("t", {"a": "1"})
    with pytest.raises(NoAnswer, match=r"nothing listens there$"):
        admin.alter_topic("t", {"a": "2"})


def test_a_broker_that_is_off_is_told_by_its_number() -> None:
    broker = Broker(lambda key: None)
    with broker.running() as admin, pytest.raises(Unfinished, match="broker 8: its address is unknown to the cluster"):
        admin.log_dirs(8)


def offsets(error: int) -> bytes:
    return struct.pack(">ii", 0, 1) + b"\0\1t" + struct.pack(">iihqqi", 1, 0, error, -1, -1, -1)


NOT_OF_THE_CLUSTER = b"\0" + struct.pack(">ih", 0, 31) + b"\0\1\0"


@pytest.mark.parametrize(
    ("answer", "ask", "permission"),
    [
        (configs(29, "t"), lambda admin: admin.topic_configs(["t"]), "DESCRIBE_CONFIGS on the topic"),
        (configs(31, "7"), lambda admin: admin.broker_configs(7), "DESCRIBE_CONFIGS on the cluster"),
        (altered(29), lambda admin: admin.alter_topic("t", {"a": "1"}), "ALTER_CONFIGS on the topic"),
        (altered(31), lambda admin: admin.alter_broker_default({"a": "1"}), "ALTER_CONFIGS on the cluster"),
        (NOT_OF_THE_CLUSTER, lambda admin: admin.reassignments(), "DESCRIBE on the cluster"),
        (NOT_OF_THE_CLUSTER, lambda admin: admin.reassign({TopicPartition("t", 0): None}), "ALTER on the cluster"),
        (offsets(29), lambda admin: admin.replica_ends(7, [TopicPartition("t", 0)]), "DESCRIBE on the topic"),
    ],
)
def test_a_refusal_names_the_permission_that_is_missing(
    answer: bytes, ask: Callable[[Admin], object], permission: str
) -> None:
    with Broker(lambda key: answer).running() as admin, pytest.raises(NotPermitted) as caught:
        ask(admin)
    assert caught.value.permission == permission
    assert str(caught.value).endswith(f"; this user lacks {permission}")


def test_what_a_broker_says_moves_no_cursor() -> None:
    hostile = struct.pack(">iih", 0, 1, 40) + b"\0\5\x1b[2Jx" + b"\2" + b"\0\1t"
    with Broker(lambda key: hostile).running() as admin, pytest.raises(Unfinished) as caught:
        admin.alter_topic("t\n", {"a": "1"})
    assert str(caught.value).endswith("configs of topic t\\n: INVALID_CONFIG: \\x1b[2Jx")


def test_what_is_not_permitted_is_said_without_the_request_that_brokers_print() -> None:
    broker = Broker(lambda key: altered(29))
    with broker.running() as admin, pytest.raises(NotPermitted) as refused:
        admin.alter_topic("t", {"a": "1"})
    assert str(refused.value).endswith(
        ": configs of topic t: TOPIC_AUTHORIZATION_FAILED; this user lacks ALTER_CONFIGS on the topic"
    )
