"""Commands for Kafka's own tools, as text for a person to read and run: reassignments, elections, settings, checks.

Names come from a cluster's answers and are not trusted: whatever they contain, each stays one word of the shell and one line of
the terminal. Executes nothing; what should be done is decided elsewhere.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headstone.log.topic_partition import TopicPartition

BOOTSTRAP = "BOOTSTRAP"
"""Stands for the cluster if its address is not given."""
CONFIG_FILE = "client.properties"
ESCAPES = {"\\": "\\\\", "'": "\\'"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """How the tools reach a cluster. `config` is the file with its security settings; None if it needs none."""

    servers: str = BOOTSTRAP
    config: str | None = None


Bootstrap = str | Address
"""For a cluster without login, its address is enough."""


def address(bootstrap: Bootstrap) -> Address:
    return bootstrap if isinstance(bootstrap, Address) else Address(servers=bootstrap)


def reached(bootstrap: Bootstrap, *, option: str = "--command-config") -> str:
    """The options that name the cluster and the config file."""
    place = address(bootstrap)
    words = f"--bootstrap-server {quoted(place.servers)}"
    return words if place.config is None else f"{words} {option} {quoted(place.config)}"


def config_remarks(bootstrap: Bootstrap) -> tuple[str, ...]:
    """A shell comment that explains the config file in the commands; empty if they name none."""
    file = address(bootstrap).config
    if file is None:
        return ()
    return (
        f"# {quoted(file)} is a file of yours with the security settings of this cluster, by the names of Kafka's own clients "
        "(security.protocol, sasl.mechanism, sasl.jaas.config, ssl.truststore.location)",
    )


def quoted(word: str) -> str:
    """One word of a shell. With control codes it is written as $'...', so that they are visible and have no effect."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(ESCAPES.get(c, c) if c.isprintable() else _octal(c) for c in word) + "'"


def _octal(character: str) -> str:
    """Always three digits, because a digit may follow."""
    return "".join(f"\\{byte:03o}" for byte in character.encode())


def reassignment_json(wanted: Mapping[TopicPartition, Sequence[int]]) -> str:
    """The file that `kafka-reassign-partitions.sh` takes; ASCII only."""
    partitions = [
        {"topic": partition.topic, "partition": partition.number, "replicas": list(replicas)}
        for partition, replicas in wanted.items()
    ]
    return json.dumps({"version": 1, "partitions": partitions}).replace("\x7f", "\\u007f")


def reassign(
    wanted: Mapping[TopicPartition, Sequence[int]], file: str, *, bootstrap: Bootstrap = BOOTSTRAP
) -> tuple[str, ...]:
    """Writes the file, starts the reassignment, and verifies it: repeat the last command until it says complete."""
    # Not echo: in some shells it interprets the backslashes of JSON.
    write = f"printf '%s\\n' {quoted(reassignment_json(wanted))} > {quoted(file)}"
    tool = f"kafka-reassign-partitions.sh {reached(bootstrap)} --reassignment-json-file {quoted(file)}"
    # Without --preserve-throttles the tool would delete every throttle of these brokers and topics, whoever set it.
    return write, f"{tool} --execute", f"{tool} --preserve-throttles --verify"


def elect_preferred(partition: TopicPartition, *, bootstrap: Bootstrap = BOOTSTRAP) -> str:
    return (
        f"kafka-leader-election.sh {reached(bootstrap, option='--admin.config')} --election-type PREFERRED "
        f"--topic {quoted(partition.topic)} --partition {partition.number}"
    )


def describe_copies(broker: int, topic: str, *, bootstrap: Bootstrap = BOOTSTRAP) -> str:
    """Which partitions of the topic the broker itself has copies of."""
    return f"kafka-log-dirs.sh {reached(bootstrap)} --describe --broker-list {broker} --topic-list {quoted(topic)}"


def describe_broker(broker: int, *, bootstrap: Bootstrap = BOOTSTRAP) -> str:
    """The broker's own overrides."""
    return f"kafka-configs.sh {reached(bootstrap)} --entity-type brokers --entity-name {broker} --describe"


def alter_topic(topic: str, changes: Mapping[str, str | None], *, bootstrap: Bootstrap = BOOTSTRAP) -> str:
    """None deletes the override."""
    return _alter(f"--entity-type topics --entity-name {quoted(topic)}", changes, bootstrap)


def alter_broker(broker: int | None, changes: Mapping[str, str | None], *, bootstrap: Bootstrap = BOOTSTRAP) -> str:
    """One broker's config; None: the default of all brokers."""
    entity = "--entity-default" if broker is None else f"--entity-name {broker}"
    return _alter(f"--entity-type brokers {entity}", changes, bootstrap)


def _alter(entity: str, changes: Mapping[str, str | None], bootstrap: Bootstrap) -> str:
    added = ",".join(f"{name}={_value(value)}" for name, value in changes.items() if value is not None)
    deleted = ",".join(name for name, value in changes.items() if value is None)
    words = [f"kafka-configs.sh {reached(bootstrap)} {entity} --alter"]
    words += [f"--add-config {quoted(added)}"] if added else []
    words += [f"--delete-config {quoted(deleted)}"] if deleted else []
    return " ".join(words)


def _value(value: str) -> str:
    """Bracketed where needed: the tool splits at commas, except in brackets."""
    return f"[{value}]" if "," in value else value
