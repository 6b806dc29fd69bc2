"""The guard's actions as commands for Kafka's own tools: to read before it acts, and to undo them by hand.

Words only. `divergence/kafka_tools.py` quotes them; what is done, and when, is decided elsewhere.
"""

from __future__ import annotations

from headstone.cluster.connection import Connection
from headstone.coordination.guard_values import HOLD, Configs
from headstone.divergence.kafka_tools import BOOTSTRAP, CONFIG_FILE, Address, Bootstrap, alter_broker, alter_topic


def address_of(connection: Connection) -> Address:
    """Without secrets, which Kafka's tools name differently: the person who runs the commands has a config file with them."""
    secured = connection.protocol != "PLAINTEXT"
    return Address(servers=connection.address, config=CONFIG_FILE if secured else None)


def hold(topic: str, configs: Configs = HOLD, *, bootstrap: Bootstrap = BOOTSTRAP) -> str:
    return alter_topic(topic, dict(configs), bootstrap=bootstrap)


def release(topic: str, restore: Configs, *, bootstrap: Bootstrap = BOOTSTRAP) -> str:
    """`restore`: the values before the hold; None if there was no override."""
    return alter_topic(topic, dict(restore), bootstrap=bootstrap)


def release_default(restore: Configs, *, bootstrap: Bootstrap = BOOTSTRAP) -> str:
    return alter_broker(None, dict(restore), bootstrap=bootstrap)


def release_broker(broker: int, restore: Configs, *, bootstrap: Bootstrap = BOOTSTRAP) -> str:
    return alter_broker(broker, dict(restore), bootstrap=bootstrap)
