"""The Admin API by our own wire, on real brokers: what is told and changed, and what each line of defence must be permitted.

One cluster for all of it: a plain listener for whoever sets the scene, and one with logins for the guard.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headstone.brokers.distribution import Distribution
from headstone.brokers.ports import HOST, free_ports
from headstone.brokers.processes import Cluster, wait_until
from headstone.cli.main import main
from headstone.cluster.admin import Admin
from headstone.cluster.connection import Connection, wire_settings
from headstone.cluster.epochs import leader_epochs
from headstone.cluster.librdkafka import Clients
from headstone.cluster.questions import ConfigValue, Source
from headstone.cluster.refusals import NotPermitted
from headstone.cluster.topics import topic_ids
from headstone.cluster.wire import ClusterState
from headstone.coordination.guard_values import HOLD, LONG_MAX, EndPasses
from headstone.errors import Unfinished
from headstone.guard.acting.changes import BACKOFF, carry_out
from headstone.guard.acting.outcomes import ActionOutcome
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.topic_identity import still_there
from headstone.guard.looks.leader_reading import LeaderReading
from headstone.guard.looks.look import Look, held_brokers, look
from headstone.guard.looks.missed import Missed
from headstone.log.topic_partition import TopicPartition
from testbed.workloads import second_client
from tests.brokers.test_facts import produce_raw
from tests.oracle.batches import Batch, Record, encode

ORDERS = TopicPartition("orders", 0)
NO_OVERRIDES = tuple((name, None) for name, _ in HOLD)
USER, PASSWORD = "guard", "secret"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
SECONDS_MAX = 60
HASTY_SECONDS = 10
"""Of an Admin that is to give a silent broker up soon, and the others not on a busy machine."""
HOUR_MS = 3_600_000
STAMP_MS = 1_000_000_000_000


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.fixture(scope="module")
def cluster(distribution: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(distribution, tmp_path_factory.mktemp("cluster"), brokers=3, settings={
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_PLAINTEXT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER", "broker.session.timeout.ms": 6000,
        "listener.name.secure.plain.sasl.jaas.config": f'{PLAIN} user_{USER}="{PASSWORD}";',
        "listener.name.secure.oauthbearer.sasl.jaas.config": f'{BEARER} unsecuredLoginStringClaim_sub="admin";',
    })  # fmt: skip
    for number, port in zip(cluster.brokers, free_ports(3), strict=True):
        settings = cluster.brokers[number].settings
        for name in ("listeners", "advertised.listeners"):
            settings[name] = f"{settings[name]},SECURE://{HOST}:{port}"
    with cluster:
        create(cluster, "orders", "payments")
        produce(cluster, committed=5, then_open=True)
        yield cluster


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(Connection.parse(cluster.bootstrap, {})) as admin:
        wait_until(lambda: len(admin.describe([]).brokers) == 3, "brokers", seconds_max=SECONDS_MAX)
        yield admin


def secure(cluster: Cluster, **settings: str) -> Admin:
    return Admin(secure_connection(cluster, **settings))


def secure_connection(cluster: Cluster, **settings: str) -> Connection:
    listeners = [str(broker.settings["listeners"]) for broker in cluster.brokers.values()]
    given = {name.replace("_", "."): value for name, value in settings.items()}
    bootstrap = ",".join(text.partition("SECURE://")[2] for text in listeners)
    return Connection.parse(bootstrap, {"security.protocol": "SASL_PLAINTEXT", **given})


def create(cluster: Cluster, *topics: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    config = {"cleanup.policy": "compact", "min.insync.replicas": "2", "delete.retention.ms": "5000000"}
    wanted = [NewTopic(topic, num_partitions=1, replica_assignment=[[1, 2, 3]], config=config) for topic in topics]
    for created in admin.create_topics(wanted).values():
        created.result(SECONDS_MAX)


def produce(cluster: Cluster, *, committed: int, then_open: bool) -> None:
    """Offsets: the records, a marker, and one record of a transaction that stays open."""
    producer = second_client(cluster.bootstrap, **{"transactional.id": "t", "transaction.timeout.ms": 600_000})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    for number in range(committed):
        producer.produce("orders", partition=0, key=b"%d" % number, value=b"v")
    producer.commit_transaction(SECONDS_MAX)
    if then_open:
        producer.begin_transaction()
        producer.produce("orders", partition=0, key=b"k", value=b"v")
        assert producer.flush(SECONDS_MAX) == 0


def allow(cluster: Cluster, operation: str, *, topic: str | None = None) -> None:
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    kind, name = (ResourceType.BROKER, "kafka-cluster") if topic is None else (ResourceType.TOPIC, topic)
    acl = AclBinding(
        kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation[operation], AclPermissionType.ALLOW
    )  # fmt: skip
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_acls([acl])[acl].result(SECONDS_MAX)


def test_replicas_are_told_each_by_its_own_broker(admin: Admin) -> None:
    state = admin.describe(["orders", "nope"])
    assert (state.topics["orders"][0].replicas, state.topics["orders"][0].leader) == ((1, 2, 3), 1)
    assert state.topics["nope"][-1].error == 3
    wait_until(
        lambda: all(
            [(end.log_end, end.high_watermark, end.last_stable) for end in admin.log_ends(broker, [ORDERS]).values()]
            == [(7, 7, 6)]
            for broker in (1, 2, 3)
        ),
        "every replica has everything",
        seconds_max=SECONDS_MAX,
    )
    nothing = TopicPartition("nope", 0)
    assert [admin.committed_ends(broker, [ORDERS, nothing]) for broker in (1, 2, 3)] == [{ORDERS: 7}, {}, {}]
    firsts = [admin.first_ms(broker, [ORDERS, nothing]) for broker in (1, 2, 3)]
    assert [set(first) for first in firsts] == [{ORDERS}, set(), set()]
    assert now_ms() - HOUR_MS < firsts[0][ORDERS] <= now_ms() + SECONDS_MAX * 1000
    for broker in (1, 2, 3):
        (producer,) = admin.producers(broker, [ORDERS])[ORDERS]
        assert producer.transaction_start == 6
        assert admin.log_dirs(broker)[ORDERS].size > 0


def test_configs_are_told_with_their_source_and_restored_exactly(admin: Admin) -> None:
    """As a hold does it."""
    own = ConfigValue(value="5000000", own=True, source=Source.TOPIC)
    assert admin.topic_configs(["orders"], keys=["delete.retention.ms"])["orders"] == {"delete.retention.ms": own}
    with pytest.raises(Unfinished, match=r"INVALID_CONFIG: .*no more than 1"):
        admin.alter_topic("orders", {"min.cleanable.dirty.ratio": "2.0"}, validate_only=True)
    hold = dict(HOLD)
    admin.alter_topic("orders", hold, validate_only=True)
    assert held_brokers(admin, "orders", (1, 2, 3)) == ()
    admin.alter_topic("orders", hold)
    wait_until(lambda: held_brokers(admin, "orders", (1, 2, 3)) == (1, 2, 3), "the hold", seconds_max=SECONDS_MAX)
    (held,) = look(admin, ["orders"], now_ms).topics
    assert (held.overrides, held.held_on) == (HOLD, (1, 2, 3))
    admin.alter_topic("orders", dict.fromkeys(hold))
    wait_until(lambda: held_brokers(admin, "orders", (1, 2, 3)) == (), "the release", seconds_max=SECONDS_MAX)
    assert look(admin, ["orders"], now_ms).topics[0].overrides == NO_OVERRIDES


def test_the_default_of_all_brokers_holds_too_and_each_broker_has_its_own(admin: Admin) -> None:
    """A topic without overrides; the smallest default of delete.retention.ms counts."""
    default = {"log.cleaner.min.cleanable.ratio": "1.0", "log.cleaner.min.compaction.lag.ms": LONG_MAX}
    admin.alter_broker_default(default)
    admin.alter_broker(2, {"log.cleaner.delete.retention.ms": "4000000"})
    wait_until(lambda: held_brokers(admin, "orders", (1, 2, 3)) == (1, 2, 3), "the hold", seconds_max=SECONDS_MAX)
    retention = "log.cleaner.delete.retention.ms"
    wait_until(lambda: admin.broker_configs(2)[retention].own, "broker 2's own", seconds_max=SECONDS_MAX)
    admin.alter_topic("orders", {"delete.retention.ms": None})

    def seen() -> tuple[object, ...]:
        (topic,) = look(admin, ["orders"], now_ms).topics
        return topic.held_on, topic.overrides, topic.default_overrides, topic.delete_retention_ms

    expected = ((1, 2, 3), NO_OVERRIDES, (*default.items(), ("log.cleaner.max.compaction.lag.ms", None)), 4_000_000)
    wait_until(lambda: seen() == expected, "both", seconds_max=SECONDS_MAX)
    admin.alter_broker_default(dict.fromkeys(default))
    admin.alter_broker(2, {retention: None})
    admin.alter_topic("orders", {"delete.retention.ms": "5000000"})
    wait_until(lambda: held_brokers(admin, "orders", (1, 2, 3)) == (), "the release", seconds_max=SECONDS_MAX)
    wait_until(lambda: not default.keys() & admin.broker_configs(None).keys(), "nothing left", seconds_max=SECONDS_MAX)


def test_a_replica_is_expelled_and_added_again(admin: Admin) -> None:
    payments = TopicPartition("payments", 0)

    def assigned() -> tuple[int, ...]:
        return admin.describe(["payments"]).topics["payments"][0].replicas

    admin.reassign({payments: (1, 2)})
    wait_until(lambda: assigned() == (1, 2), "expelled", seconds_max=SECONDS_MAX)
    with pytest.raises(Unfinished, match="reassignment of payments-0: NO_REASSIGNMENT_IN_PROGRESS"):
        admin.reassign({payments: None})
    with pytest.raises(Unfinished, match="INVALID_REPLICA_ASSIGNMENT"):
        admin.reassign({payments: (1, 99)})
    admin.reassign({payments: (2, 1, 3)})
    wait_until(
        lambda: (assigned(), admin.reassignments()) == ((2, 1, 3), {}), "added again", seconds_max=SECONDS_MAX
    )  # fmt: skip
    admin.elect_preferred([payments, ORDERS])
    wait_until(
        lambda: admin.describe(["payments"]).topics["payments"][0].leader == 2, "its leader", seconds_max=SECONDS_MAX
    )


def test_a_topic_that_is_made_anew_has_another_id(cluster: Cluster, admin: Admin) -> None:
    from confluent_kafka.admin import AdminClient

    def wait_everywhere(there: bool) -> None:
        """By each broker's own word: other tests list all topics, and librdkafka asks whom it likes."""
        for host in cluster.bootstrap.split(","):
            with Admin(Connection.parse(host, {})) as asked:
                wait_until(
                    lambda: ("passing" in asked.describe(None).topics) == there, "all know", seconds_max=SECONDS_MAX
                )

    create(cluster, "passing")
    wait_everywhere(True)
    first = admin.describe(["passing"]).topic_ids["passing"]
    assert first == topic_ids(Clients(admin.connection), ["passing"])["passing"]
    assert still_there(admin.describe(["passing"]), "passing", first)
    client = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    client.delete_topics(["passing"])["passing"].result(SECONDS_MAX)
    wait_everywhere(False)
    assert not still_there(admin.describe(["passing"]), "passing", None)
    create(cluster, "passing")
    wait_everywhere(True)
    assert not still_there(admin.describe(["passing"]), "passing", first)
    client.delete_topics(["passing"])["passing"].result(SECONDS_MAX)
    wait_everywhere(False)


def described(admin: Admin, topics: Sequence[str]) -> ClusterState:
    """Without the controller: with KRaft a broker names any broker that is alive."""
    return replace(admin.describe(topics), controller=None)


def all_configs(admin: Admin, topics: Iterable[str]) -> dict[str, Any]:
    """Of topics, of each broker that answers, and the cluster's default; own ones told apart from inherited ones."""
    brokers = [None, *sorted(admin.describe([]).brokers)]
    return {
        **admin.topic_configs(sorted(topics)),
        **{f"broker {number}": admin.broker_configs(number) for number in brokers},
    }


def test_cleaner_threads_restart_and_every_brokers_own_value_is_as_it_was(admin: Admin, tmp_path: Path) -> None:
    admin.alter_broker_default({BACKOFF: "16000"})
    admin.alter_broker(2, {BACKOFF: "14000"})
    wait_until(
        lambda: [admin.broker_configs(number)[BACKOFF].value for number in (1, 2, 3)] == ["16000", "14000", "16000"],
        "the settings", seconds_max=SECONDS_MAX,
    )  # fmt: skip
    before = all_configs(admin, [])
    with Journal.open(tmp_path / "journal.sqlite", cluster_id=admin.describe([]).cluster_id) as journal:
        assert carry_out(EndPasses(topic="orders"), admin, journal, now_ms=now_ms()) == ActionOutcome()
        assert [(change.resource, dict(change.new)[BACKOFF], change.outcome) for change in journal.changes()] == [
            ("cluster default", "16001", "done, and put back"), ("broker 2", "16001", "done, and put back"),
        ]  # fmt: skip
    wait_until(lambda: all_configs(admin, []) == before, "all as it was", seconds_max=SECONDS_MAX)
    admin.alter_broker_default({BACKOFF: None})
    admin.alter_broker(2, {BACKOFF: None})


def problems_of(admin: Admin, topics: list[str] | None = None) -> Callable[[], tuple[str, ...]]:
    return lambda: look(admin, topics, now_ms).problems


def wait_problems(problems: Callable[[], tuple[str, ...]], *ends: str) -> None:
    """These and no others, by what they end with."""

    def true() -> bool:
        told = problems()
        return len(told) == len(ends) and all(end in problem for problem, end in zip(told, ends, strict=True))

    wait_until(true, f"these problems: {ends}; told were {problems()}", seconds_max=SECONDS_MAX)


def refused(change: Callable[[], None]) -> str:
    with pytest.raises(NotPermitted) as caught:
        change()
    return caught.value.permission


def test_each_line_of_defence_needs_its_permissions_and_no_more(cluster: Cluster) -> None:
    login = {"sasl_mechanism": "PLAIN", "sasl_username": USER, "sasl_password": PASSWORD}
    with secure(cluster, **login) as admin:
        named = problems_of(admin, ["orders"])
        assert "shows no topic: there is none, or this user may describe none" in problems_of(admin)()[0]
        no_reassignments = "this user lacks DESCRIBE on the cluster; without it a reassignment is not seen"
        wait_problems(named, "topic orders: TOPIC_AUTHORIZATION_FAILED; this user lacks DESCRIBE", no_reassignments)
        allow(cluster, "DESCRIBE", topic="orders")
        wait_problems(named, "this user lacks DESCRIBE_CONFIGS on the topic", no_reassignments)
        connection = secure_connection(cluster, **login)
        assert leader_epochs(connection, wire_settings(connection), ["orders"], {}) == {ORDERS: ((0, 0),)}
        allow(cluster, "DESCRIBE_CONFIGS", topic="orders")
        wait_problems(named, no_reassignments)
        allow(cluster, "DESCRIBE")
        wait_problems(named)
        hold = dict(HOLD)
        assert refused(lambda: admin.alter_topic("orders", hold)) == "ALTER_CONFIGS on the topic"
        assert refused(lambda: admin.alter_broker_default({"log.cleaner.backoff.ms": "600"})) == (
            "ALTER_CONFIGS on the cluster"
        )
        assert refused(lambda: admin.reassign({ORDERS: (1, 2)})) == "ALTER on the cluster"
        assert refused(lambda: admin.elect_preferred([ORDERS])) == "ALTER on the cluster"
        assert refused(lambda: void(admin.producers(1, [ORDERS]))) == "READ on the topic"
        assert admin.log_ends(1, [ORDERS])[ORDERS].high_watermark is None
        assert look(admin, ["orders"], now_ms).topics[0].overrides == NO_OVERRIDES
        for operation, topic, change in (
            ("READ", "orders", lambda: void(admin.producers(1, [ORDERS]))),
            ("ALTER_CONFIGS", "orders", lambda: admin.alter_topic("orders", hold, validate_only=True)),
            (
                "ALTER_CONFIGS",
                None,
                lambda: admin.alter_broker_default({"log.cleaner.backoff.ms": "600"}, validate_only=True),
            ),
            ("ALTER", None, lambda: admin.elect_preferred([ORDERS])),
        ):
            allow(cluster, operation, topic=topic)
            wait_until(lambda change=change: permitted(change), f"{operation} on {topic}", seconds_max=SECONDS_MAX)


def void(_: object) -> None:
    """What is asked for its refusal only."""


def permitted(change: Callable[[], None]) -> bool:
    try:
        change()
    except NotPermitted:
        return False
    return True


def test_a_bearer_token_logs_in(cluster: Cluster) -> None:
    """The brokers' own handler of unsecured tokens; librdkafka has the same settings."""
    settings = {
        "sasl_mechanism": "OAUTHBEARER", "enable_sasl_oauthbearer_unsecure_jwt": "true",
        "sasl_oauthbearer_config": f"principal={USER}",
    }  # fmt: skip
    with secure(cluster, **settings) as admin:
        assert admin.describe([]).cluster_id == cluster.cluster_id
    settings["sasl_oauthbearer_config"] = f"principal={USER} lifeSeconds=-1000"
    with secure(cluster, **settings) as admin, pytest.raises(Unfinished, match="refused the login"):
        admin.describe([])


def look_without(admin: Admin, *, seconds_max: int) -> Look:
    """While a broker says nothing. If that one leads the controllers there is no news, until another one does."""
    looks: list[Look] = []

    def looked() -> bool:
        started = time.monotonic()
        try:
            looks.append(look(admin, ["orders"], now_ms))
        except Unfinished as error:
            if "no broker's answer is known to be up to date" not in str(error):
                raise
        assert time.monotonic() - started < seconds_max
        return bool(looks)

    wait_until(looked, "a look", seconds_max=5 * SECONDS_MAX)
    return looks[0]


def answers(admin: Admin) -> bool:
    """On a busy machine the first connections take their time."""
    try:
        admin.describe([])
    except Unfinished:
        return False
    return True


def test_internal_topics_are_looked_at_and_a_broker_that_is_away_is_seen(cluster: Cluster, admin: Admin) -> None:
    """First it says nothing, then it is gone: one deadline, and no end of the look."""
    leaders = LeaderReading(Missed())
    seen = look(admin, None, now_ms, leaders=leaders)
    assert [topic.topic for topic in seen.topics] == ["__transaction_state", "orders", "payments"]
    assert {topic.in_sync_min for topic in seen.topics[1:]} == {2}
    assert (seen.problems, seen.brokers, seen.cluster_id) == ((), (1, 2, 3), cluster.cluster_id)
    # On one machine all clocks are the same; an hour behind it, the guard sees one broker ahead, less the time since it wrote.
    assert {topic.skew_ms for topic in seen.topics} == {0}
    (ahead_ms,) = {topic.skew_ms for topic in look(admin, None, lambda: now_ms() - HOUR_MS).topics}
    assert HOUR_MS - 600_000 < ahead_ms <= HOUR_MS
    broker = cluster.brokers[3]
    with Admin(Connection.parse(f"{HOST}:{cluster.ports[1]}", {}), seconds_max=HASTY_SECONDS) as hasty:
        wait_until(lambda: answers(hasty), "a broker that answers at all", seconds_max=SECONDS_MAX)
        os.kill(broker.process_id, signal.SIGSTOP)
        silent = look_without(hasty, seconds_max=30 * HASTY_SECONDS)
    broker.kill()  # as it stands: one that goes on for a moment may be taken in again
    if 3 in silent.brokers:
        assert f"said nothing for {HASTY_SECONDS} s" in "".join(silent.problems)
    assert [replica.log_end for replica in silent.topics[0].partitions[0].replicas] == [7, 7, None]

    def away() -> Any:
        (topic,) = look_without(admin, seconds_max=5 * SECONDS_MAX).topics
        (partition,) = topic.partitions
        return topic.alive, partition.isr, [replica.log_end for replica in partition.replicas]

    wait_until(lambda: away() == ((1, 2), (1, 2), [7, 7, None]), "the absence", seconds_max=5 * SECONDS_MAX)
    # What it lacks comes with a client's own stamp, which no setting explains.
    record = Record(offset=0, timestamp=STAMP_MS, key=b"k", value=None)
    stamped = Batch(
        base_offset=0, last_offset_delta=0, records=(record,), count=1, base_timestamp=STAMP_MS, horizon_ms=STAMP_MS,
        max_timestamp=STAMP_MS, leader_epoch=0, codec="none", transactional=False, producer_id=-1, producer_epoch=-1,
        base_sequence=-1,
    )  # fmt: skip
    assert produce_raw(cluster.ports[1], "orders", encode(stamped)) == 0

    def horizons() -> Any:
        return look(admin, ["orders"], now_ms, leaders=leaders).topics[0].partitions[0].horizons

    # It is read when it is committed, which the leader knows a moment after it has answered.
    wait_until(lambda: horizons() == ((7, STAMP_MS),), "the stamp", seconds_max=SECONDS_MAX)


def test_a_dry_run_says_what_it_would_do_and_changes_nothing_at_all(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replica is away of which nothing is known: with --apply its topics would be held at once."""
    cluster.brokers[3].kill()
    words = ["guard", "--bootstrap", cluster.bootstrap, "--journal", str(tmp_path / "journal.sqlite"), "--once"]
    with Admin(Connection.parse(cluster.bootstrap, {})) as admin:
        wait_until(lambda: _in_sync(admin) == {1, 2}, "the absence", seconds_max=SECONDS_MAX)
        for port in (cluster.ports[1], cluster.ports[2]):  # each by its own word: any of them may be asked below
            with Admin(Connection.parse(f"{HOST}:{port}", {})) as one:
                wait_until(lambda one=one: {*one.describe([]).brokers} == {1, 2}, "it is gone", seconds_max=SECONDS_MAX)
        topics = sorted(admin.describe(None).topics)
        before = all_configs(admin, topics), described(admin, topics)
        for _ in range(2):
            assert main([*words, "--allow", "cluster-default", "--allow", "readmission"]) == 1
        assert (all_configs(admin, topics), described(admin, topics)) == before
    said = capsys.readouterr().out
    for topic in ("orders", "payments"):
        assert f"would hold topic {topic} (behind: partition 0: broker 3), at once: it may be too late already" in said
    with Journal.open(tmp_path / "journal.sqlite", cluster_id=cluster.cluster_id) as journal:
        assert (journal.changes(), [journal.memory(topic).hold for topic in topics]) == ([], [None] * len(topics))


def _in_sync(admin: Admin) -> set[int]:
    """Of any partition."""
    topics = admin.describe(None).topics.values()
    return {broker for partitions in topics for partition in partitions.values() for broker in partition.isr}
