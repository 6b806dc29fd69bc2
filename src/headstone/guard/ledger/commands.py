"""What the guard does, as commands for Kafka's own tools: to be read before it acts, and to undo it by hand.

Words only. How they are quoted is `divergence/kafka_tools.py`'s; what is done, and when, is decided elsewhere.
"""

from __future__ import annotations

from headstone.cluster.connection import Connection
from headstone.coordination.guard_values import HOLD, Configs
from headstone.divergence.kafka_tools import BOOTSTRAP, CONFIG_FILE, Address, Bootstrap, alter_broker, alter_topic


def address_of(connection: Connection) -> Address:
    """Without its secrets, which are by other names there: whoever runs the commands has a file with them."""
    secured = connection.protocol != "PLAINTEXT"
    return Address(servers=connection.address, config=CONFIG_FILE if secured else None)


def hold(topic: str, configs: Configs = HOLD, *, bootstrap: Bootstrap = BOOTSTRAP) -> str:
    return alter_topic(topic, dict(configs), bootstrap=bootstrap)


def release(topic: str, restore: Configs, *, bootstrap: Bootstrap = BOOTSTRAP) -> str:
    """restore: what was found before the hold; None: there was no override."""
    return alter_topic(topic, dict(restore), bootstrap=bootstrap)


def release_default(restore: Configs, *, bootstrap: Bootstrap = BOOTSTRAP) -> str:
    return alter_broker(None, dict(restore), bootstrap=bootstrap)


def release_broker(broker: int, restore: Configs, *, bootstrap: Bootstrap = BOOTSTRAP) -> str:
    return alter_broker(broker, dict(restore), bootstrap=bootstrap)
