"""Commands for Kafka's own tools, as text for a person to read and run: reassignments, elections, settings, checks.

Names come from a cluster's answers and are not trusted: whatever is in them stays one word of the shell, and one line of the
terminal. Nothing is executed here, and what should be done is decided elsewhere.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headstone.log.topic_partition import TopicPartition

BOOTSTRAP = "BOOTSTRAP"
"""Stands for the cluster where nobody has said how to reach it."""
CONFIG_FILE = "client.properties"
ESCAPES = {"\\": "\\\\", "'": "\\'"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """How the tools reach a cluster. `config` is the file that has its security settings; None: it asks for none."""

    servers: str = BOOTSTRAP
    config: str | None = None


Bootstrap = str | Address
"""A cluster that asks for no login needs no more than its address."""


def address(bootstrap: Bootstrap) -> Address:
    return bootstrap if isinstance(bootstrap, Address) else Address(servers=bootstrap)


def reached(bootstrap: Bootstrap, *, option: str = "--command-config") -> str:
    """The words of a tool that say which cluster, and who asks."""
    place = address(bootstrap)
    words = f"--bootstrap-server {quoted(place.servers)}"
    return words if place.config is None else f"{words} {option} {quoted(place.config)}"


def config_remarks(bootstrap: Bootstrap) -> tuple[str, ...]:
    """What the file is that the commands name, as a comment of the shell; nothing where they name none."""
    file = address(bootstrap).config
    if file is None:
        return ()
    return (
        f"# {quoted(file)} is a file of yours with the security settings of this cluster, by the names of Kafka's own clients "
        "(security.protocol, sasl.mechanism, sasl.jaas.config, ssl.truststore.location)",
    )


def quoted(word: str) -> str:
    """One word of a shell. With control codes it is written as $'...', so that it is seen and not obeyed."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(ESCAPES.get(c, c) if c.isprintable() else _octal(c) for c in word) + "'"


def _octal(character: str) -> str:
    """Always three digits: what follows may be a digit too."""
    return "".join(f"\\{byte:03o}" for byte in character.encode())


def reassignment_json(wanted: Mapping[TopicPartition, Sequence[int]]) -> str:
    """What `kafka-reassign-partitions.sh` takes as its file; ASCII only."""
    partitions = [
        {"topic": partition.topic, "partition": partition.number, "replicas": list(replicas)}
        for partition, replicas in wanted.items()
    ]
    return json.dumps({"version": 1, "partitions": partitions}).replace("\x7f", "\\u007f")


def reassign(
    wanted: Mapping[TopicPartition, Sequence[int]], file: str, *, bootstrap: Bootstrap = BOOTSTRAP
) -> tuple[str, ...]:
    """Write the file, start, and ask whether it is done: the last is run until it says so."""
    # Not echo: some shells' takes the backslashes of JSON for its own.
    write = f"printf '%s\\n' {quoted(reassignment_json(wanted))} > {quoted(file)}"
    tool = f"kafka-reassign-partitions.sh {reached(bootstrap)} --reassignment-json-file {quoted(file)}"
    # Without it the tool would delete every throttle of these brokers and topics, whoever set it.
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
    """Its own overrides."""
    return f"kafka-configs.sh {reached(bootstrap)} --entity-type brokers --entity-name {broker} --describe"


def alter_topic(topic: str, changes: Mapping[str, str | None], *, bootstrap: Bootstrap = BOOTSTRAP) -> str:
    """None deletes the override."""
    return _alter(f"--entity-type topics --entity-name {quoted(topic)}", changes, bootstrap)


def alter_broker(broker: int | None, changes: Mapping[str, str | None], *, bootstrap: Bootstrap = BOOTSTRAP) -> str:
    """Of one broker; None: the default of all brokers."""
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
    """The tool splits at commas, except in brackets."""
    return f"[{value}]" if "," in value else value
