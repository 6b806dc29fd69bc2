"""Replicas read over the wire from running brokers: under load, one of them out of sync or off, and with TLS and SASL."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from headstone.brokers.distribution import Distribution
from headstone.brokers.processes import Cluster, free_ports, wait_until
from headstone.cli.main import main
from testbed.maven import VERSIONS
from testbed.workloads import second_client
from tests.cluster.certificates import self_signed

USER, PASSWORD = "auditor", "se,cr=et"
JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required"


def told(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> Any:
    capsys.readouterr()
    assert main(["audit", *arguments, "--in-process", "--output", "json"]) == code
    return json.loads(capsys.readouterr().out)


def create(bootstrap: str, topic: str, copies: int, **settings: str) -> None:
    """Two partitions on the first brokers; the last of them leads none."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **settings})
    config = {"cleanup.policy": "compact", "min.insync.replicas": "1"}
    brokers = list(range(1, copies + 1))
    placed = [brokers, [*brokers[-2::-1], brokers[-1]]]
    admin.create_topics([NewTopic(topic, num_partitions=2, replica_assignment=placed, config=config)])[topic].result(60)


def hold_back(cluster: Cluster, topic: str, number: int) -> None:
    """This broker was away for a while, and is back with leave to copy a byte a second: it runs, and stays out of sync."""
    from confluent_kafka import Consumer, TopicPartition
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    entries = [
        (ConfigResource.Type.TOPIC, topic, "follower.replication.throttled.replicas", f"0:{number},1:{number}"),
        (ConfigResource.Type.BROKER, str(number), "follower.replication.throttled.rate", "1"),
    ]
    for kind, name, setting, value in entries:
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        changed = admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=[entry])])
        next(iter(changed.values())).result(60)
    broker = cluster.brokers[number]
    broker.stop()
    asking = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "none", "log_level": 0})

    def end(partition: int) -> int:
        return int(asking.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1])

    ends = [end(partition) for partition in (0, 1)]
    wait_until(lambda: all(end(n) > ends[n] + 300 for n in (0, 1)), "more records", seconds_max=120)
    asking.close()
    broker.settings["replica.fetch.response.max.bytes"] = "1"
    broker.start()
    partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions.values()
    assert [number in partition.isrs for partition in partitions] == [False, False]


@pytest.mark.parametrize("distribution", VERSIONS[-1:], indirect=True)
def test_a_cluster_under_load_is_clean_and_a_broker_that_is_off_is_not_covered(
    distribution: Distribution, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster(distribution, tmp_path / "cluster", brokers=3) as cluster:
        create(cluster.bootstrap, "orders", 3)
        stop, going = threading.Event(), threading.Event()

        def load() -> None:
            plain, txn = second_client(cluster.bootstrap), second_client(cluster.bootstrap, **{"transactional.id": "w"})
            txn.init_transactions(60)
            number = 0
            while not stop.is_set():
                txn.begin_transaction()
                for producer in (plain, txn):
                    for _ in range(10):
                        number += 1
                        value = None if number % 7 == 0 else b"%d" % number
                        producer.produce("orders", partition=number % 2, key=b"k%d" % (number % 50), value=value)
                txn.flush(60)
                (txn.abort_transaction if number % 3 == 0 else txn.commit_transaction)(60)
                if number > 400:
                    going.set()
                stop.wait(0.01)
            plain.flush(60)

        thread = threading.Thread(target=load)
        thread.start()
        try:
            assert going.wait(120)
            for _ in range(5):
                one = told(capsys, 0, "--bootstrap", cluster.bootstrap, "--topic", "orders")
                assert [len(part["replicas"]) for part in one["partitions"]] == [3, 3]
            hold_back(cluster, "orders", 3)
            behind = told(capsys, 0, "--bootstrap", cluster.bootstrap, "--topic", "orders")
            for part in behind["partitions"]:
                ends = {replica["replica"]: replica["log_end"] for replica in part["replicas"]}
                assert 0 < ends["3"] < min(ends["1"], ends["2"])
                # Copies are made one after the other, so under load others may be a few records behind as well.
                assert max(part["forecast"], key=lambda risk: risk["behind"])["replica"] == "3"
            cluster.brokers[3].stop()
            away = told(capsys, 3, "--bootstrap", cluster.bootstrap)
            assert away["verdict"] == "incomplete"
            assert all("broker 3" in part["problems"][0] for part in away["partitions"])
        finally:
            stop.set()
            thread.join()
        assert one["partitions"][0]["replicas"][0]["records"] > 0
        assert main(["audit", "--bootstrap", cluster.bootstrap, "--topic", "nothing"]) == 2
        assert "topic nothing" in capsys.readouterr().err
    assert main(["audit", "--bootstrap", cluster.bootstrap]) == 3
    assert "can't be reached" in capsys.readouterr().err


@pytest.mark.parametrize("distribution", VERSIONS[-1:], indirect=True)
def test_tls_and_sasl(distribution: Distribution, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority, _, store = self_signed(tmp_path)
    secure = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN", "ssl.keystore.type": "PKCS12", "ssl.keystore.location": store,
        "ssl.keystore.password": "changeit", "ssl.key.password": "changeit",
        "listener.name.secure.scram-sha-512.sasl.jaas.config": f"{JAAS};",
        "listener.name.secure.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'user_{USER}="{PASSWORD}";',
    }  # fmt: skip
    cluster = Cluster(distribution, tmp_path / "cluster", brokers=2, settings=secure)
    ports = dict(zip(cluster.brokers, free_ports(2), strict=True))
    for number, broker in cluster.brokers.items():
        broker.settings["listeners"] = f"{broker.settings['listeners']},SECURE://127.0.0.1:{ports[number]}"
        plain = broker.settings["advertised.listeners"]
        broker.settings["advertised.listeners"] = f"{plain},SECURE://127.0.0.1:{ports[number]}"
    with cluster:
        create(cluster.bootstrap, "orders", 2)
        from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        secret = UserScramCredentialUpsertion(
            USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), PASSWORD.encode()
        )
        admin.alter_user_scram_credentials([secret])[USER].result(60)
        producer = second_client(cluster.bootstrap)
        producer.produce("orders", partition=0, key=b"k", value=b"v")
        assert producer.flush(60) == 0
        where = ["--bootstrap", f"127.0.0.1:{ports[1]}", "--kafka-conf", "security.protocol=SASL_SSL", "--kafka-conf",
                 f"ssl.ca.location={authority}", "--kafka-conf", f"sasl.username={USER}"]  # fmt: skip
        right = ["--kafka-conf", f"sasl.password={PASSWORD}"]
        _without_permission(admin, [*where, *right, "--kafka-conf", "sasl.mechanism=PLAIN"], capsys)
        for mechanism in ("SCRAM-SHA-512", "PLAIN"):
            one = told(capsys, 0, *where, *right, "--kafka-conf", f"sasl.mechanism={mechanism}")
            assert [part["replicas"][0]["records"] for part in one["partitions"]] == [1, 0]
            wrong = [*where, "--kafka-conf", "sasl.password=no", "--kafka-conf", f"sasl.mechanism={mechanism}"]
            assert main(["audit", *wrong]) == 3
            assert "refused the login" in capsys.readouterr().err
        assert main(["audit", *where[:2], "--kafka-conf", "security.protocol=SSL"]) == 3
        assert "certificate" in capsys.readouterr().err.lower()
        assert main(["audit", *where[:2]]) == 3
        assert "plain Kafka was spoken, it speaks TLS" in capsys.readouterr().err
        assert main(["audit", "--bootstrap", cluster.bootstrap, *where[2:4]]) == 2
        for mistaken, said in (
            ("SSL", "TLS was spoken, it speaks plain Kafka"), ("SASL_PLAINTEXT", "asks for no login"),
        ):  # fmt: skip
            login = ("--kafka-conf", "sasl.mechanism=PLAIN", *where[6:], *right) if mistaken != "SSL" else ()
            asked = ["audit", "--bootstrap", cluster.bootstrap, "--kafka-conf", f"security.protocol={mistaken}", *login]
            assert main(asked) == 3
            assert said in capsys.readouterr().err


def _without_permission(admin: Any, where: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A user who may see nothing, then one who may describe a topic; in the end one who may read it. Never clean too early."""
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    def allow(operation: AclOperation) -> None:
        acl = AclBinding(
            ResourceType.TOPIC,
            "orders",
            ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        admin.create_acls([acl])[acl].result(60)

    def said(*codes: int, more: tuple[str, ...] = ()) -> str:
        capsys.readouterr()
        assert main(["audit", *where, *more, "--in-process"]) in codes
        shown = capsys.readouterr()
        return shown.out + shown.err

    assert "topic orders: TOPIC_AUTHORIZATION_FAILED" in said(2, more=("--topic", "orders"))
    assert "shows no topic" in said(3)
    allow(AclOperation.DESCRIBE)
    denied = "the replica on broker 1 was not read: TOPIC_AUTHORIZATION_FAILED"
    wait_until(lambda: denied in said(3), "the permission to describe", seconds_max=60)
    allow(AclOperation.READ)
    wait_until(lambda: "clean" in said(0, 3), "the permission to read", seconds_max=60)
