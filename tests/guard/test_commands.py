"""What the guard does, in the words of Kafka's own tools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headstone.cli.guard_check import _lines as check_lines
from headstone.cli.output import Output
from headstone.cluster.connection import Connection
from headstone.coordination.guard_values import RATIO
from headstone.divergence.kafka_tools import Address, config_remarks
from headstone.guard.acting.release import Undo
from headstone.guard.by_hand import release_lines
from headstone.guard.check.rules import check
from headstone.guard.ledger.commands import address_of, hold, release, release_default
from headstone.guard.ledger.journal import Journal
from headstone.guard.monitoring.current_status import journal_status
from tests.guard.test_checks import CLUSTER, HEALTHY

TOOL = "kafka-configs.sh --bootstrap-server"
LONG_MAX = "9223372036854775807"


def test_a_hold_and_its_release_say_exactly_what_is_set_and_what_is_put_back() -> None:
    assert hold("orders", bootstrap="k1:9092") == (
        f"{TOOL} k1:9092 --entity-type topics --entity-name orders --alter --add-config min.cleanable.dirty.ratio=1.0,"
        f"min.compaction.lag.ms={LONG_MAX},max.compaction.lag.ms={LONG_MAX}"
    )
    found = (("min.cleanable.dirty.ratio", "0.2"), ("min.compaction.lag.ms", None), ("max.compaction.lag.ms", None))
    assert release("orders", found, bootstrap="k1:9092") == (
        f"{TOOL} k1:9092 --entity-type topics --entity-name orders --alter --add-config min.cleanable.dirty.ratio=0.2 "
        "--delete-config min.compaction.lag.ms,max.compaction.lag.ms"
    )


def test_the_release_of_the_default_is_of_all_brokers() -> None:
    assert release_default((("log.cleaner.min.cleanable.ratio", None),)) == (
        f"{TOOL} BOOTSTRAP --entity-type brokers --entity-default --alter --delete-config log.cleaner.min.cleanable.ratio"
    )


def test_a_connection_with_a_login_or_tls_names_a_file_and_none_of_its_secrets() -> None:
    plain = Connection.parse("k:9092", {})
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "guard", "sasl.password": "hidden"}
    secured = Connection.parse("k:9093", {"security.protocol": "SASL_SSL", **login})
    assert address_of(plain) == Address(servers="k:9092")
    assert address_of(secured) == Address(servers="k:9093", config="client.properties")
    assert address_of(Connection.parse("k:9093", {"security.protocol": "SSL"})).config == "client.properties"
    assert hold("orders", bootstrap=address_of(secured)).startswith(
        f"{TOOL} k:9093 --command-config client.properties --entity-type topics"
    )


def test_what_the_file_is_that_commands_name_is_said_once(tmp_path: Path) -> None:
    plan = [Undo(topic=topic, restore=((RATIO, None),)) for topic in ("orders", "users")]
    with Journal.open(tmp_path / "journal.sqlite", cluster_id="c") as journal:
        status = journal_status(journal, now_ms=1, why="")
    for address in (Address(servers="k:9093", config="client.properties"), Address(servers="k:9093")):
        lines = list(release_lines(plan, status, address, applied=False))
        assert tuple(line for line in lines if line.startswith("#")) == config_remarks(address)
        facts = replace(
            CLUSTER, bootstrap=address, topics=(replace(HEALTHY, copies=2), replace(HEALTHY, topic="b", copies=2))
        )
        said = list(check_lines(facts, check(facts), (), Output()))
        assert tuple(line for line in said if line.startswith("#")) == config_remarks(address)
