"""Commands for Kafka's tools, as a shell reads them and as a terminal shows them, with names that mean harm."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from headstone.divergence.kafka_tools import (
    Address,
    alter_broker,
    alter_topic,
    config_remarks,
    describe_broker,
    describe_copies,
    elect_preferred,
    reassign,
)
from headstone.log.shown import visible
from headstone.log.topic_partition import TopicPartition

HOSTILE = (
    "orders", "$(touch harmed)", "`touch harmed`", "a; touch harmed", "a' ; touch harmed; '", 'a" & touch harmed "',
    "a\ntouch harmed", "\x1b]0;owned\x07\x1b[2J", "a\\n\\101", "-rf", "\u202egnp.exe", "a\x7f", "a\x011", "größe", "",
)  # fmt: skip


def words(command: str, work: Path) -> list[str]:
    """As bash takes them apart, when the tools only print what they were given."""
    tools = ("kafka-configs.sh", "kafka-reassign-partitions.sh", "kafka-leader-election.sh", "kafka-log-dirs.sh")
    echo = "".join(f"{tool}() {{ printf '%s\\0' \"$@\"; }}\n" for tool in tools)
    run = subprocess.run(["bash", "-c", echo + command], cwd=work, capture_output=True, check=True, text=True)
    assert run.stderr == ""
    return run.stdout.split("\0")[:-1]


@pytest.mark.parametrize("topic", HOSTILE)
def test_a_topic_is_one_word_of_the_shell_and_one_line_of_the_terminal(topic: str, tmp_path: Path) -> None:
    partition = TopicPartition(topic, 7)
    write, execute, verify = reassign({partition: [1, 2]}, "plan.json", bootstrap="k1:9092,k2:9092")
    altered = alter_topic(topic, {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": None})
    elected = elect_preferred(partition)
    shared = ["--bootstrap-server", "BOOTSTRAP"]
    assert words(altered, tmp_path) == [
        *shared, "--entity-type", "topics", "--entity-name", topic, "--alter", "--add-config", "min.compaction.lag.ms=5",
        "--delete-config", "max.compaction.lag.ms",
    ]  # fmt: skip
    assert words(elected, tmp_path) == [*shared, "--election-type", "PREFERRED", "--topic", topic, "--partition", "7"]
    assert words(write, tmp_path) == []
    placed = {"topic": topic, "partition": 7, "replicas": [1, 2]}
    assert json.loads((tmp_path / "plan.json").read_text()) == {"version": 1, "partitions": [placed]}
    moved = ["--bootstrap-server", "k1:9092,k2:9092", "--reassignment-json-file", "plan.json"]
    assert (words(execute, tmp_path), words(verify, tmp_path)) == (
        [*moved, "--execute"], [*moved, "--preserve-throttles", "--verify"],
    )  # fmt: skip
    copies = describe_copies(3, topic)
    assert words(copies, tmp_path) == [*shared, "--describe", "--broker-list", "3", "--topic-list", topic]
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert all(command.isprintable() for command in (write, execute, verify, altered, elected, copies))


def test_settings_of_brokers_and_lists_with_commas() -> None:
    assert alter_broker(3, {"follower.replication.throttled.rate": "10"}) == (
        "kafka-configs.sh --bootstrap-server BOOTSTRAP --entity-type brokers --entity-name 3 --alter "
        "--add-config follower.replication.throttled.rate=10"
    )
    assert alter_broker(None, {"log.cleaner.min.cleanable.ratio": None}) == (
        "kafka-configs.sh --bootstrap-server BOOTSTRAP --entity-type brokers --entity-default --alter "
        "--delete-config log.cleaner.min.cleanable.ratio"
    )
    assert "--add-config 'follower.replication.throttled.replicas=[0:1,0:2]'" in alter_topic(
        "t", {"follower.replication.throttled.replicas": "0:1,0:2"}
    )


def test_what_is_shown_moves_no_cursor() -> None:
    assert visible("a\x1b[2J\n\u202eb größe") == "a\\x1b[2J\\n\\u202eb größe"


@pytest.mark.parametrize("file", ["client.properties", "a b; touch harmed"])
def test_where_a_login_is_needed_every_tool_gets_its_file_by_its_own_option(file: str, tmp_path: Path) -> None:
    secured, partition = Address(servers="k:9093", config=file), TopicPartition("orders", 0)
    _, execute, verify = reassign({partition: [1]}, "plan.json", bootstrap=secured)
    commands = [
        execute, verify, alter_topic("orders", {"a": "1"}, bootstrap=secured), alter_broker(3, {"a": None}, bootstrap=secured),
        describe_copies(3, "orders", bootstrap=secured), describe_broker(3, bootstrap=secured),
    ]  # fmt: skip
    for command in commands:
        assert words(command, tmp_path)[:4] == ["--bootstrap-server", "k:9093", "--command-config", file]
    elected = words(elect_preferred(partition, bootstrap=secured), tmp_path)
    assert elected[:4] == ["--bootstrap-server", "k:9093", "--admin.config", file]
    (remark,) = config_remarks(secured)
    assert remark.startswith("# ")
    assert words(remark, tmp_path) == []
    assert config_remarks("k:9093") == ()
    assert alter_broker(3, {}, bootstrap=Address(servers="k:9092")) == alter_broker(3, {}, bootstrap="k:9092")
