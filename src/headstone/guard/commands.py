"""What the guard does, as commands for Kafka's own tools: to be read before it acts, and to undo it by hand.

Words only. How they are quoted is `audit/kafka_tools.py`'s; what is done, and when, is decided elsewhere.
"""

from __future__ import annotations

from headstone.audit.kafka_tools import BOOTSTRAP, alter_broker, alter_topic
from headstone.coordination.guard_values import DEFAULT_HOLD, HOLD, Configs


def hold(topic: str, configs: Configs = HOLD, *, bootstrap: str = BOOTSTRAP) -> str:
    return alter_topic(topic, dict(configs), bootstrap=bootstrap)


def release(topic: str, restore: Configs, *, bootstrap: str = BOOTSTRAP) -> str:
    """restore: what was found before the hold; None: there was no override."""
    return alter_topic(topic, dict(restore), bootstrap=bootstrap)


def hold_by_default(configs: Configs = DEFAULT_HOLD, *, bootstrap: str = BOOTSTRAP) -> str:
    return alter_broker(None, dict(configs), bootstrap=bootstrap)


def release_default(restore: Configs, *, bootstrap: str = BOOTSTRAP) -> str:
    return alter_broker(None, dict(restore), bootstrap=bootstrap)


def release_broker(broker: int, restore: Configs, *, bootstrap: str = BOOTSTRAP) -> str:
    return alter_broker(broker, dict(restore), bootstrap=bootstrap)
