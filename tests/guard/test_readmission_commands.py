"""What the guard and a readmission do, in the words of Kafka's own tools: whole, with what must be waited for."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

from headstone.cli.guard_check import _lines as check_lines
from headstone.cli.output import Output
from headstone.cluster.connection import Connection
from headstone.coordination.guard_values import HOLD, RATIO, Hold, Memory
from headstone.coordination.readmission import PartitionNow, Readmission
from headstone.divergence.kafka_tools import Address, config_remarks
from headstone.guard.acting.release import Undo
from headstone.guard.by_hand import release_lines
from headstone.guard.check.rules import check
from headstone.guard.ledger.commands import address_of, hold, release, release_default
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import RememberedTopic
from headstone.guard.ledger.readmissions import keep_readmission
from headstone.guard.ledger.temporary_changes import RATE, THROTTLED, hold_for_a_while, throttle_copy
from headstone.guard.monitoring.current_status import journal_status
from headstone.guard.readmission.commands import Found, ReadmissionOverrides, readmission_commands
from headstone.guard.readmission.plan import CopyLimits, Wanted, plan
from headstone.log.topic_partition import TopicPartition
from tests.guard.test_checks import CLUSTER, HEALTHY
from tests.guard.world import ClusterTwin, Topic

OWN = {"min.cleanable.dirty.ratio": "0.2"}
AT = "--bootstrap-server k1:9092"
CONFIGS = f"kafka-configs.sh {AT} --entity-type"
LONG_MAX = "9223372036854775807"
SET_HOLD = (
    f"{CONFIGS} topics --entity-name orders --alter --add-config min.cleanable.dirty.ratio=1.0,"
    f"min.compaction.lag.ms={LONG_MAX},max.compaction.lag.ms={LONG_MAX}"
)
RELEASE = (
    f"{CONFIGS} topics --entity-name orders --alter --add-config min.cleanable.dirty.ratio=0.2 "
    "--delete-config min.compaction.lag.ms,max.compaction.lag.ms"
)
SET_RATE = f"{CONFIGS} brokers --entity-name 3 --alter --add-config {RATE}=7000"
DELETE_RATE = f"{CONFIGS} brokers --entity-name 3 --alter --delete-config {RATE}"
SET_LIST = f"{CONFIGS} topics --entity-name orders --alter --add-config {THROTTLED}=0:3"
DELETE_LIST = f"{CONFIGS} topics --entity-name orders --alter --delete-config {THROTTLED}"
COPIES = f"kafka-log-dirs.sh {AT} --describe --broker-list 3 --topic-list orders"
GONE = "# run this until broker 3 answers and shows no copy of orders-0 any more, and only then go on:"
STARTED = (
    "# start broker 3, which renames its old folder of orders-0 and goes on without it, then run this until broker 3 answers "
    "and shows no copy of orders-0 any more, and only then go on:"
)
HELD = "# wait a minute: every broker must have the hold before the copy begins"
ELECT = f"kafka-leader-election.sh {AT} --election-type PREFERRED --topic orders --partition 0"
JUDGED = (
    "# go on only if the audit finds nothing wrong on broker 3:",
    "headstone audit --bootstrap k1:9092 --topic orders",
)

BEGUN = Readmission(topic="orders", partition=0, broker=3, order=(3, 1, 2), topic_id="first")
EXPELLED = replace(BEGUN, expelled=True)
NOW = PartitionNow(replicas=(3, 1, 2), isr=(1, 2, 3), leader=1, in_sync_min=1)
PLAIN = ReadmissionOverrides(hold=tuple((name, OWN.get(name)) for name, _ in HOLD), listed=None, rate=None)


def moved(replicas: str, file: str, *, runs: bool = False) -> tuple[str, ...]:
    document = f'{{"version": 1, "partitions": [{{"topic": "orders", "partition": 0, "replicas": [{replicas}]}}]}}'
    tool = f"kafka-reassign-partitions.sh {AT} --reassignment-json-file {file}"
    return (
        f"printf '%s\\n' '{document}' > {file}", *(() if runs else (f"{tool} --execute",)),
        "# run this until it says that the reassignment is complete, and only then go on:",
        f"{tool} --preserve-throttles --verify",
    )  # fmt: skip


LEAVE, AGAIN, PLACE = moved("1, 2", "without.json"), moved("1, 2, 3", "again.json"), moved("3, 1, 2", "order.json")


def planned(twin: ClusterTwin, journal: Journal) -> tuple[str, ...]:
    """Of a replica that need not be read: it is away, or its readmission was begun."""
    (only,) = plan(
        twin, Connection.parse("k1:9092", {}), journal, Wanted(topics=("orders",), broker=3), work=journal.path.parent,
        limits=CopyLimits(copy_bytes_per_second=7_000), tell=print,
    )  # type: ignore[arg-type]  # fmt: skip
    return only.commands


def told(readmission: Readmission, now: PartitionNow, found: Found) -> tuple[str, ...]:
    return readmission_commands(
        readmission, now, found, away=False, bytes_per_second=7_000, bootstrap="k1:9092"
    )  # fmt: skip


def test_of_a_broker_that_is_back_the_old_copy_is_gone_before_it_is_added_again() -> None:
    assert told(BEGUN, NOW, Found(present=PLAIN, before=PLAIN)) == (
        *LEAVE, GONE, COPIES, SET_HOLD, HELD, SET_RATE, SET_LIST, *AGAIN, *JUDGED, *PLACE, ELECT, DELETE_RATE, DELETE_LIST,
        RELEASE,
    )  # fmt: skip


def test_a_broker_that_is_away_is_started_before_anything_is_set_on_it_or_added(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(replicas=(3, 1, 2), overrides=dict(OWN)))
    twin.stop(3)
    own_rate = (
        f"# if this shows a {RATE} of its own, leave out the two changes of that below:",
        f"{CONFIGS} brokers --entity-name 3 --describe",
    )
    assert planned(twin, journal) == (
        *LEAVE, STARTED, COPIES, SET_HOLD, HELD, *own_rate, SET_RATE, SET_LIST, *AGAIN, *JUDGED, *PLACE, ELECT, DELETE_RATE,
        DELETE_LIST, RELEASE,
    )  # fmt: skip


def interrupted(journal: Journal, readmission: Readmission, *, replicas: tuple[int, ...]) -> ClusterTwin:
    """As a killed run leaves it, with its temporary changes."""
    twin = ClusterTwin(orders=Topic(replicas=replicas, isr=(1, 2), overrides={**OWN, THROTTLED: "1:2"}))
    hold_for_a_while(twin, journal, "orders", reason="copies", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    throttle_copy(twin, journal, TopicPartition("orders", 0), 3, bytes_per_second=7, evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    keep_readmission(journal, readmission)
    return twin


BACK_AS_FOUND = (
    DELETE_RATE, f"{CONFIGS} topics --entity-name orders --alter --add-config {THROTTLED}=1:2", RELEASE,
)  # fmt: skip


def test_after_a_kill_temporary_changes_go_back_to_the_old_values_in_the_journal(journal: Journal) -> None:
    twin = interrupted(journal, EXPELLED, replicas=(1, 2))
    added = (*AGAIN, *JUDGED, *PLACE, ELECT)
    assert planned(twin, journal) == (GONE, COPIES, SET_HOLD, HELD, *added, *BACK_AS_FOUND)
    twin.stop(3)
    assert planned(twin, journal) == (STARTED, COPIES, SET_HOLD, HELD, *added, *BACK_AS_FOUND)


def test_one_that_copies_already_is_not_waited_for_to_be_gone_nor_added_twice(journal: Journal) -> None:
    twin = interrupted(journal, replace(EXPELLED, added_ms=7), replicas=(1, 2, 3))
    again = moved("1, 2, 3", "again.json", runs=True)
    assert planned(twin, journal) == (SET_HOLD, *again, *JUDGED, *PLACE, ELECT, *BACK_AS_FOUND)


def test_one_that_was_read_and_is_right_only_gets_its_place_and_the_settings_back(journal: Journal) -> None:
    twin = interrupted(journal, replace(EXPELLED, added_ms=7, verified=True), replicas=(1, 2, 3))
    assert planned(twin, journal) == (*PLACE, ELECT, *BACK_AS_FOUND)


def test_one_that_leaves_already_is_not_taken_out_twice() -> None:
    leaves = replace(NOW, removing=(3,))
    commands = told(BEGUN, leaves, Found(present=PLAIN, before=PLAIN))
    assert commands[:5] == (*moved("1, 2", "without.json", runs=True), GONE, COPIES)


def test_a_limit_of_somebody_elses_and_a_hold_that_stood_before_stay_as_they_are() -> None:
    theirs = ReadmissionOverrides(hold=HOLD, listed="*", rate="5")
    assert told(BEGUN, NOW, Found(present=theirs, before=theirs)) == (
        *LEAVE, GONE, COPIES, SET_HOLD, HELD, *AGAIN, *JUDGED, *PLACE, ELECT,
        "# the topic was held before, or the guard counts on it: the hold stays",
    )  # fmt: skip


def test_a_hold_that_the_guard_counts_on_by_now_is_not_released_by_hand(journal: Journal) -> None:
    twin = interrupted(journal, EXPELLED, replicas=(1, 2))
    journal.lead("guard", now_ms=1, lease_ms=1_000, applies=True)
    counts = RememberedTopic(memory=Memory(hold=Hold(asked_ms=1, found=HOLD, seen_ms=1)))
    journal.remember_all({"orders": counts}, holder="guard", now_ms=1, looked_ms=1)
    assert planned(twin, journal)[-1] == "# the topic was held before, or the guard counts on it: the hold stays"


def test_the_old_values_of_a_topic_that_is_gone_are_not_what_its_namesake_goes_back_to(journal: Journal) -> None:
    interrupted(journal, EXPELLED, replicas=(1, 2))
    namesake = ClusterTwin(orders=Topic(replicas=(3, 1, 2), overrides=dict(HOLD), topic_id="second"))  # type: ignore[arg-type]
    namesake.stop(3)
    assert planned(namesake, journal)[-1].startswith("# the topic was held before")


def test_a_hostile_name_is_one_word_of_a_remark_too(tmp_path: Path) -> None:
    """Some shells take # for a word when they are typed into."""
    hostile = replace(BEGUN, topic="or'ders$(touch stung)`touch stung`;touch stung\x1b[2J\n")
    commands = readmission_commands(
        hostile, NOW, Found(present=PLAIN, before=PLAIN), away=True, bytes_per_second=7, bootstrap="k1:9092"
    )
    remarks = [line for line in commands if line.startswith("#")]
    assert [line for line in remarks if not line.isprintable()] == []
    for remark in remarks:
        subprocess.run(["bash", "-c", f": \\{remark}"], cwd=tmp_path, check=True, capture_output=True)
    assert list(tmp_path.iterdir()) == []


def test_on_a_cluster_with_a_login_the_same_commands_name_its_file_and_say_once_what_it_is() -> None:
    found = Found(present=PLAIN, before=PLAIN)

    def commands(bootstrap: str | Address) -> tuple[str, ...]:
        return readmission_commands(BEGUN, NOW, found, away=False, bytes_per_second=7_000, bootstrap=bootstrap)

    secured = Address(servers="k1:9092", config="client.properties")
    remark, *steps = commands(secured)
    assert (remark,) == config_remarks(secured)
    named = [
        step.replace(" --command-config client.properties", "").replace(" --admin.config client.properties", "")
        for step in steps
    ]
    login = ", which takes the login of this command (--kafka-conf, --cluster)"
    assert tuple(step.replace(login, "") for step in named) == commands("k1:9092")
    assert all(" client.properties " in step for step in steps if step.startswith("kafka-"))


TOOL = "kafka-configs.sh --bootstrap-server"


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
