"""A cluster with TLS, certificates of clients, SASL and permissions: by our own client, by librdkafka, and by Spark's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headstone.brokers.distribution import Distribution
from headstone.brokers.ports import HOST, free_ports
from headstone.brokers.processes import Cluster, wait_until
from headstone.cli.main import main
from testbed.workloads import second_client
from tests.brokers.ingesting import ingesting
from tests.cluster.certificates import Certificate, self_signed

USER, PASSWORD = "auditor", 'se,cr="et'
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def secure_cluster(distribution: Distribution, root: Path, broker: Certificate, client: Certificate) -> Cluster:
    """Two brokers with a plain listener for whoever sets the scene, and a secure one for whom it is about."""
    quoted = PASSWORD.replace('"', r"\\\"")  # of a properties file, then of JAAS
    cluster = Cluster(distribution, root / "cluster", brokers=2, settings={
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN", "ssl.keystore.type": "PKCS12", "ssl.keystore.location": broker.store,
        "ssl.keystore.password": "changeit", "ssl.key.password": "changeit", "ssl.truststore.type": "PEM",
        "ssl.truststore.location": client.certificate, "listener.name.secure.ssl.client.auth": "required",
        "listener.name.secure.scram-sha-512.sasl.jaas.config": SCRAM,
        "listener.name.secure.plain.sasl.jaas.config": f'{PLAIN} user_{USER}="{quoted}";',
    })  # fmt: skip
    for number, port in zip(cluster.brokers, free_ports(2), strict=True):
        settings = cluster.brokers[number].settings
        for name in ("listeners", "advertised.listeners"):
            settings[name] = f"{settings[name]},SECURE://{HOST}:{port}"
    return cluster


def secure_bootstrap(cluster: Cluster) -> str:
    listeners = [str(broker.settings["listeners"]) for broker in cluster.brokers.values()]
    return ",".join(text.partition("SECURE://")[2] for text in listeners)


def conf(**settings: str) -> list[str]:
    pairs = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
    return [argument for pair in pairs for argument in ("--kafka-conf", pair)]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    """What a command says, on either stream, if it ends with one of these codes."""

    def run(codes: tuple[int, ...], *arguments: str) -> str:
        capsys.readouterr()
        assert main([*arguments]) in codes, capsys.readouterr()
        shown = capsys.readouterr()
        return shown.out + shown.err

    return run


def test_the_same_settings_serve_all_three_clients(
    distribution: Distribution, connector: str, tmp_path: Path, said: Any
) -> None:
    broker, client = self_signed(tmp_path, "broker"), self_signed(tmp_path, "client")
    with secure_cluster(distribution, tmp_path, broker, client) as cluster:
        admin = set_the_scene(cluster)
        secure = conf(
            security_protocol="SASL_SSL", ssl_ca_location=broker.certificate, ssl_certificate_location=client.certificate,
            ssl_key_location=client.key, sasl_username=USER,
        )  # fmt: skip
        where, right = secure_bootstrap(cluster), conf(sasl_password=PASSWORD)
        audit = ("audit", "--engine", "process", "--bootstrap", where, *secure)
        permissions_are_needed(admin, said, *audit, *right, *conf(sasl_mechanism="PLAIN"))
        for mechanism in ("SCRAM-SHA-512", "PLAIN"):
            assert "clean: 1 partition, no findings" in said((0,), *audit, *right, *conf(sasl_mechanism=mechanism))
            wrong = conf(sasl_password="wrong", sasl_mechanism=mechanism)
            assert "refused the login" in said((3,), *audit, *wrong)
        wrong_listeners_are_told(cluster, said, where, broker)
        scram = [*secure, *right, *conf(sasl_mechanism="SCRAM-SHA-512")]
        there_and_back(tmp_path / "lake", where, connector, scram, said)


def set_the_scene(cluster: Cluster) -> Any:
    from confluent_kafka.admin import (
        AdminClient,
        NewTopic,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    wait_until(lambda: len(admin.list_topics(timeout=60).brokers) == len(cluster.brokers), "brokers")
    admin.create_topics([NewTopic("orders", 1, 2, config={"cleanup.policy": "compact"})])["orders"].result(60)
    secret = UserScramCredentialUpsertion(
        USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), PASSWORD.encode()
    )
    admin.alter_user_scram_credentials([secret])[USER].result(60)
    producer = second_client(cluster.bootstrap)
    producer.produce("orders", partition=0, key=b"k", value=b"v")
    assert producer.flush(60) == 0
    return admin


def allow(admin: Any, topic: str, operation: str) -> None:
    from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

    acl = AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation[operation],
        AclPermissionType.ALLOW,
    )  # fmt: skip
    admin.create_acls([acl])[acl].result(60)


def permissions_are_needed(admin: Any, said: Any, *audit: str) -> None:
    """A user who may see nothing, then one who may describe a topic; in the end one who may read it. Never clean too early."""
    assert "topic orders: TOPIC_AUTHORIZATION_FAILED" in said((2,), *audit, "--topic", "orders")
    assert "lists no topics" in said((3,), *audit)
    allow(admin, "orders", "DESCRIBE")
    denied = "the replica on broker 1 was not read: TOPIC_AUTHORIZATION_FAILED"
    wait_until(lambda: denied in said((3,), *audit), "the permission to describe")
    allow(admin, "orders", "READ")
    wait_until(lambda: "clean" in said((0, 3), *audit), "the permission to read")
    allow(admin, "again", "ALL")


def wrong_listeners_are_told(cluster: Cluster, said: Any, where: str, broker: Certificate) -> None:
    """By the real thing; tests/cluster/test_wire.py has every case."""
    login = conf(sasl_mechanism="PLAIN", sasl_username=USER, sasl_password=PASSWORD)
    plain = cluster.bootstrap
    for bootstrap, settings, why in (
        (where, conf(security_protocol="SSL"), "certificate verify failed"),
        (where, (), "plain Kafka was spoken, it speaks TLS"),
        (plain, conf(security_protocol="SSL"), "TLS was spoken, it speaks plain Kafka"),
        (plain, [*conf(security_protocol="SASL_PLAINTEXT"), *login], "does not require a login"),
    ):
        assert why in said((3,), "audit", "--bootstrap", bootstrap, *settings)
    trusting = conf(security_protocol="SASL_SSL", ssl_ca_location=broker.certificate)
    assert "certificate" in said((3,), "audit", "--bootstrap", where, *trusting, *login).lower()


def there_and_back(lake_dir: Path, where: str, connector: str, secure: list[str], said: Any) -> None:
    """Settings may not be described by this user: the policy has to be told."""
    said((0,), "lake", "init", str(lake_dir))
    with ingesting(lake_dir, where, "orders", connector, *secure, "--cleanup-policy", "compact") as child:
        printed, shown = child.communicate(timeout=300)
        assert child.returncode == 0, shown
    assert [(row["partition"], row["records"]) for row in json.loads(printed)["partitions"]] == [("orders-0", 1)]
    assert PASSWORD not in shown
    restored = said(
        (0,), "lake", "restore", str(lake_dir), "orders", "--bootstrap", where, "--to-topic", "again", *secure
    )
    assert "orders-0: 1 record, 0 tombstones, 1 key, verified" in restored
