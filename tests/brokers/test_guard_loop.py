"""The guard on three real brokers, with no more permissions than it needs: a hold in time, a killed guard, a release."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from headstone.brokers.distribution import Distribution
from headstone.brokers.ports import HOST, free_ports
from headstone.brokers.processes import Cluster, wait_until
from headstone.cli.main import main
from headstone.cli.parsing import UNFINISHED
from headstone.cluster.admin import Admin
from headstone.cluster.connection import Connection
from headstone.coordination.guard_values import DEFAULT_HOLD, HOLD, EndPasses
from headstone.guard.acting.changes import carry_out
from headstone.guard.acting.outcomes import ActionOutcome
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.overrides import Resource, own_values
from headstone.guard.loop.alarms import REFUSED, UNSEEN
from testbed.login import (
    PASSWORD,
    add_login,
    allow,
    login_bootstrap,
    login_settings,
    login_words,
    super_client,
    take_back,
)
from testbed.workloads import second_client

FOUND = {"min.cleanable.dirty.ratio": "0.2", "min.compaction.lag.ms": None, "max.compaction.lag.ms": None}
MARGINS = (
    "--poll-ms", "400", "--metadata-age-ms", "3000", "--clock-skew-ms", "200", "--effect-ms", "12000", "--pass-start-ms", "100",
    "--slack-share", "0.01",
)  # fmt: skip
CLUSTER = "kafka-cluster"
RETENTION_MS = 400_000
"""A hundredth of it is gone after four seconds: then the topic is held, minutes before anything can be missed."""


def guarded_cluster(distribution: Distribution, root: Path) -> Cluster:
    cluster = Cluster(distribution, root / "cluster", brokers=3)
    add_login(cluster)
    return cluster


class Scene:
    def __init__(self, cluster: Cluster, root: Path) -> None:
        self.cluster = cluster
        self.root = root
        self.admin = Admin(Connection.parse(cluster.bootstrap, {}))
        self.journal = root / "journal.sqlite"

    def words(self, *words: str) -> list[str]:
        """As the guard's own user."""
        where = ["--bootstrap", login_bootstrap(self.cluster), *login_words("env:GUARD_PASSWORD")]
        return ["guard", *words, *where, "--journal", str(self.journal)]

    def overrides(self, topic: str = "orders") -> dict[str, str | None]:
        return dict(own_values(self.admin, Resource(topic=topic), [name for name, _ in HOLD]))

    def default(self) -> dict[str, str | None]:
        """What of a hold is in the cluster default."""
        configs = self.admin.broker_configs(None)
        return {name: configs[name].value for name, _ in DEFAULT_HOLD if name in configs}

    def make_topics(self) -> None:
        """librdkafka forgets what it asked when it learns a broker's name: it is asked again."""
        brokers = len(self.cluster.brokers)
        wait_until(
            lambda: len(super_client(self.cluster).list_topics(timeout=60).brokers) == brokers,
            "brokers",
            seconds_max=60,
        )
        compacted = {
            "cleanup.policy": "compact",
            "delete.retention.ms": RETENTION_MS,
            "min.cleanable.dirty.ratio": "0.2",
        }
        for topic in (
            NewTopic("orders", 1, 3, config=compacted), NewTopic("plain", 1, 3, config={"cleanup.policy": "delete"}),
            NewTopic("calm", 1, 3, config={"cleanup.policy": "compact"}),
            NewTopic("moved", 1, replica_assignment=[[3, 1, 2]], config={"cleanup.policy": "compact"}),
        ):  # fmt: skip
            wait_until(partial(self._made, topic), f"topic {topic.topic}", seconds_max=60)
        self.produce(b"first")

    def _made(self, topic: NewTopic) -> bool:
        try:
            admin = super_client(self.cluster)
            admin.create_topics([topic])[topic.topic].result(60)
        except KafkaException as error:
            return bool(error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)
        return True

    def produce(self, value: bytes | None, *, topic: str = "orders") -> None:
        producer = second_client(self.cluster.bootstrap)
        producer.produce(topic, key=b"k", value=value)
        assert producer.flush(60) == 0

    def status(self, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        capsys.readouterr()
        assert main([*self.words("status"), "--output", "json"]) in (0, 1)
        return json.loads(capsys.readouterr().out)

    def is_fine(self, said: Path) -> bool:
        """By the guard's own metrics."""
        address = said.read_text().partition("metrics: ")[2].split()[0]
        with urllib.request.urlopen(address) as answer:
            return b'headstone_guard_partition_state{topic="orders",partition="0",state="fine"} 1' in answer.read()

    def is_quiet(self, capsys: pytest.CaptureFixture[str]) -> bool:
        status = self.status(capsys)
        return status["topics"] == [] and status["alarms"] == []

    def alarms_when(
        self, wanted: Callable[[dict[str, Any]], bool], capsys: pytest.CaptureFixture[str]
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Once every alarm is as wanted: a broker that has just stopped may be one that does not answer, for a look."""
        alarms: list[dict[str, Any]] = []

        def seen() -> bool:
            alarms[:] = self.status(capsys)["alarms"]
            return bool(alarms) and all(map(wanted, alarms))

        wait_until(seen, "the alarms", seconds_max=60)
        return alarms

    def held(self, capsys: pytest.CaptureFixture[str]) -> list[int]:
        """The brokers that have said themselves that they hold it, once every live one has."""
        topics = self.status(capsys)["topics"]
        return topics[0]["held"]["brokers"] if topics and (topics[0]["held"] or {}).get("in_effect_ms") else []


@contextmanager
def guarding(scene: Scene, said: Path, *how: str, topic: str = "orders") -> Iterator[subprocess.Popen[bytes]]:
    """A guard in a process of its own."""
    words = [*scene.words("--apply", "--metrics", f"{HOST}:0"), "--topic", topic, *how, *MARGINS]
    with open(said, "wb") as file:
        command = [sys.executable, "-m", "headstone.cli.main", *words]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def test_a_topic_is_held_while_a_broker_is_away_and_let_go_as_it_was(
    distribution: Distribution, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUARD_PASSWORD", PASSWORD)
    with guarded_cluster(distribution, tmp_path) as cluster:
        scene = Scene(cluster, tmp_path)
        scene.make_topics()
        what_is_wrong_is_told_and_changes_nothing(scene, capsys)
        allow(cluster, "TOPIC", "orders", ["READ", "DESCRIBE_CONFIGS"])
        allow(cluster, "BROKER", CLUSTER, ["DESCRIBE"])
        said = tmp_path / "said"
        with guarding(scene, said) as guard:
            wait_until(lambda: "metrics: " in said.read_text(), "the guard's start", seconds_max=60)
            wait_until(lambda: scene.is_fine(said), "the first look", seconds_max=60)
            another_stands_by(scene, capsys)
            a_hold_that_is_refused_is_an_alarm_and_comes_when_it_is_permitted(scene, capsys)
            guard.kill()
        # It is gone without a word: what is set stays, and the journal says so.
        assert scene.status(capsys)["topics"][0]["held"]["found"] == FOUND
        lines = Lines(scene, capsys)
        lines.what_the_cluster_default_and_cleaner_threads_need()
        lines.what_an_expulsion_needs()
        cluster.start_broker(3)
        again = scene.words("--topic", "orders", "--once", "--apply", *MARGINS)
        wait_until(lambda: main(again) in (0, 1) and scene.overrides() == FOUND, "a release", seconds_max=60)
        assert "read orders-0 on broker 3 and compare it with the others" in capsys.readouterr().out
        wait_until(lambda: main(again) == 0 and scene.is_quiet(capsys), "all is fine", seconds_max=60)
        lines.what_a_new_copy_needs()
        lines.all_is_put_back()
        rolling_restarts_touch_nothing(scene, capsys)
        scene.admin.close()


def what_is_wrong_is_told_and_changes_nothing(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    (nowhere,) = free_ports(1)
    plain = ["--bootstrap", scene.cluster.bootstrap, "--journal", str(scene.journal)]
    for words, code, why in (
        (["guard", *plain, "--apply", "--once", "--topic", "nothing"], 2, "--topic nothing: UNKNOWN_TOPIC_OR_PARTITION"),
        (["guard", *plain, "--apply", "--once", "--topic", "plain"], 2, "--topic plain: not compacted (cleanup.policy delete)"),
        (scene.words("--apply", "--once", "--topic", "orders"), 2, "--topic orders: TOPIC_AUTHORIZATION_FAILED"),
        (["guard", "--bootstrap", f"{HOST}:{nowhere}", "--once"], 3, f"{HOST}:{nowhere}"),
        (["guard", "status", *plain], 2, "no journal of cluster"),
    ):  # fmt: skip
        assert main(words) == code
        assert why in capsys.readouterr().err
    assert not scene.journal.exists()
    assert scene.overrides() == FOUND


def another_stands_by(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), ("--apply",)):
        assert main(scene.words("--topic", "orders", "--once", *MARGINS, *words)) == 0
        assert "standing by: " in capsys.readouterr().out


def a_hold_that_is_refused_is_an_alarm_and_comes_when_it_is_permitted(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.cluster.brokers[3].stop()
    scene.produce(b"missed")
    (alarm,) = scene.alarms_when(lambda alarm: alarm["kind"] == REFUSED, capsys)
    assert alarm["topic"] == "orders"
    assert "this user lacks ALTER_CONFIGS on the topic" in alarm["detail"]
    assert scene.overrides() == FOUND
    allow(scene.cluster, "TOPIC", "orders", ["ALTER_CONFIGS"])
    wait_until(lambda: scene.held(capsys) == [1, 2], "a hold on every live broker", seconds_max=60)
    assert scene.overrides() == dict(HOLD)


class Lines:
    """Lines of defence beside the hold, while broker 3 is away and when it is back: each with what docs/guard.md names for it,
    and refused by the name of what is missing. With journals of their own."""

    def __init__(self, scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
        self._scene = Scene(scene.cluster, scene.root)
        self._scene.journal = scene.root / "lines.sqlite"
        self._capsys = capsys
        for topic in ("calm", "moved"):
            allow(scene.cluster, "TOPIC", topic, ["READ", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"])

    def what_the_cluster_default_and_cleaner_threads_need(self) -> None:
        """Nothing is known of who is away: the topic is held at once. A robot undoes it, and the default holds instead."""
        scene, said = self._scene, self._scene.root / "lines said"
        self._restarts_lack("DESCRIBE_CONFIGS")
        with guarding(scene, said, "--allow", "cluster-default", topic="calm"):
            wait_until(lambda: scene.journal.exists() and scene.held(self._capsys) == [1, 2], "a hold", seconds_max=60)
            scene.admin.alter_topic("calm", dict.fromkeys(dict(HOLD)))
            self._refused_for("DESCRIBE_CONFIGS on the cluster")
            allow(scene.cluster, "BROKER", CLUSTER, ["DESCRIBE_CONFIGS"])
            self._refused_for("ALTER_CONFIGS on the cluster")
            self._restarts_lack("ALTER_CONFIGS")
            assert scene.default() == {}
            allow(scene.cluster, "BROKER", CLUSTER, ["ALTER_CONFIGS"])
            wait_until(lambda: scene.default() == dict(DEFAULT_HOLD), "the default's hold", seconds_max=60)
        wait_until(lambda: self._restarted() == ActionOutcome(), "a restart of cleaner threads", seconds_max=60)

    def _refused_for(self, permission: str) -> None:
        def refused() -> bool:
            alarms = self._scene.status(self._capsys)["alarms"]
            details = [alarm["detail"] for alarm in alarms if alarm["kind"] == REFUSED]
            return any(f"this user lacks {permission}" in detail for detail in details)

        wait_until(refused, f"an alarm for {permission}", seconds_max=60)

    def _restarts_lack(self, operation: str) -> None:
        """Each broker hears of a permission when it hears of it."""
        lacking = f"this user lacks {operation} on the cluster"
        wait_until(lambda: lacking in str(self._restarted().why), lacking, seconds_max=60)

    def _restarted(self) -> ActionOutcome:
        """Of cleaner threads, by the guard's own user."""
        cluster = self._scene.cluster
        journal = Journal.open(self._scene.root / "threads.sqlite", cluster_id=cluster.cluster_id)
        with Admin(Connection.parse(login_bootstrap(cluster), login_settings())) as admin, journal:
            return carry_out(EndPasses(topic="calm"), admin, journal, now_ms=time.time_ns() // 1_000_000)

    def _readmit(self, *words: str) -> tuple[int, str, str]:
        """Its exit code, what became of the replica, and what is said of failures. The other journal names a replica too."""
        self._capsys.readouterr()
        journal = ("--journal", str(self._scene.root / "moved.sqlite"))
        code = main([*self._scene.words("readmit"), *journal, *words, "--apply", "--output", "json"])
        told = self._capsys.readouterr()
        return code, json.loads(told.out)["replicas"][0]["ended"] if code in (0, 1) else "", told.err

    def what_an_expulsion_needs(self) -> None:
        named = ("--topic", "moved", "--broker", "3")
        code, _, error = self._readmit(*named)
        assert (code, "this user lacks ALTER on the cluster" in error) == (3, True)
        allow(self._scene.cluster, "BROKER", CLUSTER, ["ALTER"])
        wait_until(lambda: self._readmit(*named)[:2] == (1, "expelled"), "the expulsion", seconds_max=60)

    def what_a_new_copy_needs(self) -> None:
        cluster = self._scene.cluster
        take_back(cluster, "BROKER", CLUSTER, ["ALTER_CONFIGS"])

        def refused() -> bool:
            code, _, error = self._readmit()
            return code == 3 and "this user lacks ALTER_CONFIGS on the cluster" in error

        wait_until(refused, "a refusal", seconds_max=60)
        allow(cluster, "BROKER", CLUSTER, ["ALTER_CONFIGS"])
        wait_until(lambda: self._readmit()[:2] == (0, "readmitted"), "the readmission", seconds_max=60)

    def all_is_put_back(self) -> None:
        scene = self._scene
        again = scene.words("--topic", "calm", "--once", "--apply", "--allow", "cluster-default", *MARGINS)
        wait_until(lambda: main(again) in (0, 1) and scene.default() == {}, "a release", seconds_max=60)
        assert {value for topic in ("calm", "moved") for value in scene.overrides(topic).values()} == {None}
        take_back(scene.cluster, "BROKER", CLUSTER, ["ALTER", "ALTER_CONFIGS", "DESCRIBE_CONFIGS"])
        scene.admin.close()


def rolling_restarts_touch_nothing(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """With the margins and the retention that everybody has; deletions are missed by each broker in its turn."""
    journal = scene.root / "calm.sqlite"
    where = ["--bootstrap", scene.cluster.bootstrap, "--journal", str(journal)]

    def state() -> str | None:
        """After one more look: None where there is nothing to tell of any replica."""
        code = main(["guard", *where, "--topic", "calm", "--apply", "--once"])
        if code == UNFINISHED:
            return UNSEEN  # a broker stopped while it was asked
        capsys.readouterr()
        assert main(["guard", "status", *where, "--output", "json"]) == code
        status = json.loads(capsys.readouterr().out)
        if [alarm["kind"] for alarm in status["alarms"]] == [UNSEEN]:
            return UNSEEN  # a broker that has just stopped was asked
        assert (code, status["alarms"]) == (0, [])
        return status["topics"][0]["partitions"][0]["state"] if status["topics"] else None

    wait_until(lambda: state() is None, "all in sync", seconds_max=60)
    for broker in scene.cluster.brokers.values():
        broker.stop()
        scene.produce(None, topic="calm")
        wait_until(lambda: state() == "watched", "a replica that is away is seen", seconds_max=60)
        broker.start()
        wait_until(lambda: state() is None, "it is back", seconds_max=60)
    with closing(sqlite3.connect(journal)) as connection:
        assert connection.execute("SELECT * FROM changes").fetchall() == []
