"""A cluster with a second listener that requires a login, and a user whose permissions come and go.

On the plain listener everything is permitted. Knows nothing of what the user is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headstone.brokers.ports import HOST, free_ports
from headstone.brokers.processes import Cluster

USER, PASSWORD = "guard", "watchful"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
ANSWER_SECONDS_MAX = 60


def add_login(cluster: Cluster) -> None:
    """Call before the cluster starts."""
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": f'{PLAIN} user_{USER}="{PASSWORD}";',
    }  # fmt: skip
    for broker, port in zip(cluster.brokers.values(), free_ports(len(cluster.brokers)), strict=True):
        broker.settings.update(settings)
        for name in ("listeners", "advertised.listeners"):
            broker.settings[name] = f"{broker.settings[name]},LOGIN://{HOST}:{port}"


def login_bootstrap(cluster: Cluster) -> str:
    listeners = [str(broker.settings["listeners"]) for broker in cluster.brokers.values()]
    return ",".join(text.partition("LOGIN://")[2] for text in listeners)


def login_settings(password: str = PASSWORD) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": password,
    }  # fmt: skip


def login_words(password: str) -> list[str]:
    """Options for a headstone command; `password` may be a reference."""
    return [
        word for name, value in login_settings(password).items() for word in ("--kafka-conf", f"{name}={value}")
    ]  # fmt: skip


def super_client(cluster: Cluster) -> Any:
    """Uses librdkafka, which has calls for permissions. A new client each time: an old one would wait for a controller that is
    gone."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})


def allow(cluster: Cluster, kind: str, name: str, operations: Sequence[str]) -> None:
    """`kind` is TOPIC or BROKER, librdkafka's name for the cluster; a topic `*` is every topic."""
    for operation in operations:
        rule, client = _rule("AclBinding", kind, name, operation), super_client(cluster)
        client.create_acls([rule])[rule].result(ANSWER_SECONDS_MAX)


def take_back(cluster: Cluster, kind: str, name: str, operations: Sequence[str]) -> None:
    for operation in operations:
        rule, client = _rule("AclBindingFilter", kind, name, operation), super_client(cluster)
        client.delete_acls([rule])[rule].result(ANSWER_SECONDS_MAX)


def _rule(shape: str, kind: str, name: str, operation: str) -> Any:
    import confluent_kafka.admin

    admin: Any = confluent_kafka.admin  # its names exist, but its type stubs lack them
    return getattr(admin, shape)(
        admin.ResourceType[kind], name, admin.ResourcePatternType.LITERAL, f"User:{USER}", "*",
        admin.AclOperation[operation], admin.AclPermissionType.ALLOW,
    )  # fmt: skip
