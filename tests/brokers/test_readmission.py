"""`guard readmit` and `guard check` on real brokers, through the command line: replicas that missed a deletion for good.

One cluster and one outage of broker 3 for all of it: in every topic it misses a tombstone that the others have cleaned away.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from headstone.brokers.client import ClientPartition, JavaClient, KafkaClient
from headstone.brokers.distribution import Distribution
from headstone.brokers.outages import (
    BROKER_SETTINGS,
    STORIES,
    TOPIC_SETTINGS,
    Outage,
    OutageScene,
    wait_removed,
    wait_replicated,
)
from headstone.brokers.processes import Cluster, wait_until
from headstone.cli.main import main
from headstone.cluster.admin import Admin
from headstone.cluster.connection import Connection
from testbed.kafka_scripts import with_scripts

BROKERS, AWAY = (1, 2, 3), 3
ORDER = (3, 1, 2)
"""Broker 3 is the leader by preference."""
BACK, GONE, KILLED, KEPT, BY_HAND = "back", "gone", "killed", "kept", "by-hand"
"""Readmitted when it is back; expelled while it is away; killed in the middle; refused; by the commands that are printed."""
PLAIN = "plain"


@dataclass
class World:
    """The cluster in its outage, and what the command line says of it."""

    cluster: Cluster
    client: KafkaClient
    journal: Path
    capsys: pytest.CaptureFixture[str]

    def words(self, action: str, *words: str) -> list[str]:
        return ["guard", action, "--bootstrap", self.cluster.bootstrap, "--journal", str(self.journal), *words]

    def readmit(self, code: int, *words: str) -> Any:
        assert main(self.words("readmit", "--output", "json", *words)) == code
        return json.loads(self.capsys.readouterr().out)["replicas"]

    def refused(self, *words: str) -> str:
        assert main(self.words("readmit", "--apply", *words)) == 2
        return self.capsys.readouterr().err

    def state(self, topic: str) -> tuple[ClientPartition, dict[str, str | None]]:
        with Admin(Connection.parse(self.cluster.bootstrap, {})) as admin:
            own = {name: config.value for name, config in admin.topic_configs([topic])[topic].items() if config.own}
        return self.client.state(topic), own

    def becomes(self, topic: str, state: ClientPartition, own: dict[str, str | None]) -> None:
        """Whichever broker is asked may hear of a change a moment later than the one that the command asked."""
        wait_until(lambda: self.state(topic) == (state, own), f"{topic} is {state}, {own}", seconds_max=120)

    def audit(self, topic: str) -> int:
        code = main(["audit", "--bootstrap", self.cluster.bootstrap, "--topic", topic, "--engine", "process"])
        self.capsys.readouterr()
        return code


@pytest.fixture
def world(
    distribution: Distribution, java: JavaClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[World]:
    with Cluster(distribution, tmp_path / "cluster", brokers=len(BROKERS), settings=BROKER_SETTINGS) as cluster:
        client = java.connect(cluster.bootstrap)
        client.create_topic(PLAIN, [list(ORDER)], {"cleanup.policy": "delete"})
        scenes = []
        for topic in (BACK, GONE, KILLED, KEPT, BY_HAND):
            client.create_topic(topic, [list(ORDER)], TOPIC_SETTINGS)
            outage = Outage(variant=topic, about="", kafka=distribution.version, expected={})
            scenes.append(OutageScene(replace(STORIES[0], variant=topic), client, outage))
        for scene in scenes:
            scene.play(scene.moves.before)
        for scene in scenes:
            wait_replicated(cluster, client, scene.topic)
        cluster.brokers[AWAY].stop()
        for scene in scenes:
            scene.play(scene.moves.missed)
        for scene in scenes:
            wait_removed(cluster, scene)
        client.alter_topic(KEPT, {"min.insync.replicas": 3})
        yield World(cluster, client, tmp_path / "guard.sqlite", capsys)
        client.close()


def test_replicas_that_missed_a_deletion_are_readmitted(world: World) -> None:
    expelled_while_it_is_away(world)
    world.cluster.start_broker(AWAY)
    for topic in (BACK, KILLED, KEPT, BY_HAND):
        world.client.wait_in_sync(topic, brokers=BROKERS)
    a_dry_run_tells_the_plan_and_changes_nothing(world)
    refusals_change_nothing(world)
    assert (world.audit(BACK), world.audit(KILLED)) == (1, 1)
    before = world.state(BACK)
    assert world.readmit(0, "--topic", BACK, "--broker", "3", "--apply") == [
        {"topic": BACK, "partition": 0, "broker": 3, "ended": "readmitted", "why": "", "stray_folder": None}
    ]
    world.becomes(BACK, replace(before[0], leader=AWAY), before[1])
    assert (world.audit(BACK), world.readmit(0, "--topic", BACK, "--broker", "3")[0]["verdict"]) == (0, "right")
    one_that_was_away_goes_on_where_the_journal_says(world)
    killed_in_the_middle_and_run_again(world)
    by_the_commands_that_are_printed(world)
    settings_that_widen_the_danger_are_found(world)


def expelled_while_it_is_away(world: World) -> None:
    before = world.state(GONE)
    (planned,) = world.readmit(1, "--topic", GONE, "--broker", "3")
    assert (planned["verdict"], planned["away"], planned["stray_folder"]) == (
        "cannot be judged",
        True,
        "gone-0.*-stray",
    )
    assert world.state(GONE) == before
    (ended,) = world.readmit(1, "--topic", GONE, "--broker", "3", "--apply")
    assert (ended["ended"], ended["stray_folder"]) == ("expelled", "gone-0.*-stray")
    world.becomes(GONE, ClientPartition(leader=before[0].leader, isr=(1, 2), replicas=(1, 2)), before[1])
    (again,) = world.readmit(1, "--apply")
    assert again == ended


def a_dry_run_tells_the_plan_and_changes_nothing(world: World) -> None:
    before = world.state(BACK)
    (planned,) = world.readmit(1, "--topic", BACK)
    assert (planned["broker"], planned["verdict"], planned["needed"], planned["replicas"]) == (
        3,
        "wrong",
        True,
        [3, 1, 2],
    )
    assert planned["why"].startswith("deleted-reappears of key k at offset 0 on broker 3")
    moved = [
        json.loads(command.split("'")[3])["partitions"][0] for command in planned["commands"] if "printf" in command
    ]
    assert [(each["topic"], each["replicas"]) for each in moved] == [
        (BACK, [1, 2]),
        (BACK, [1, 2, 3]),
        (BACK, [3, 1, 2]),
    ]
    assert main(world.words("readmit", "--topic", BACK)) == 1
    text = world.capsys.readouterr().out
    assert text.startswith("back-0 on broker 3: wrong: deleted-reappears of key ")
    assert "  1. take broker 3 out of the assignment: [1, 2]; it cannot lead any more\n" in text
    assert text.endswith("nothing was changed; --apply does it\n")
    assert world.state(BACK) == before


def refusals_change_nothing(world: World) -> None:
    before = world.state(KEPT)
    (refused,) = world.readmit(1, "--topic", KEPT, "--broker", "3", "--apply")
    assert (refused["ended"], refused["why"].split(":")[0]) == (
        "refused", "without broker 3 kept-0 has 2 in sync, and min.insync.replicas is 3",
    )  # fmt: skip
    assert world.state(KEPT) == before
    assert "topic nothing: no such topic" in world.refused("--topic", "nothing")
    assert "topic plain is not compacted" in world.refused("--topic", PLAIN)
    assert "broker 9 has no replica" in world.refused("--topic", BACK, "--broker", "9")
    assert ": no partition 7" in world.refused("--topic", BACK, "--partition", "7")


def one_that_was_away_goes_on_where_the_journal_says(world: World) -> None:
    """Its broker has called the old folder -stray by now."""
    own = world.state(GONE)[1]
    folders = [path.name for path in world.cluster.brokers[AWAY].log_dir.glob("gone-0*")]
    assert [name.endswith("-stray") for name in folders] == [True]
    (ended,) = world.readmit(0, "--apply")
    assert (ended["topic"], ended["ended"], ended["stray_folder"]) == (GONE, "readmitted", "gone-0.*-stray")
    world.becomes(GONE, ClientPartition(leader=AWAY, isr=BROKERS, replicas=ORDER), own)
    assert world.audit(GONE) == 0


def killed_in_the_middle_and_run_again(world: World) -> None:
    """kill -9, when it has asked to expel it, when it has begun to hold, and when the copy is there and not read yet."""
    own = world.state(KILLED)[1]
    for said in (b"leaves the assignment", b"holding the topic", b"reading broker 3"):
        command = [sys.executable, "-m", "headstone.cli.main", *world.words("readmit", "--apply", "--topic", KILLED)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as run:
            assert run.stderr is not None
            assert any(said in line for line in run.stderr), said
            run.send_signal(signal.SIGKILL)
    assert [ended["ended"] for ended in world.readmit(0, "--apply")] == ["readmitted"]
    world.becomes(KILLED, ClientPartition(leader=AWAY, isr=BROKERS, replicas=ORDER), own)
    assert world.audit(KILLED) == 0


def by_the_commands_that_are_printed(world: World) -> None:
    """As a person would, with Kafka's own tools: what the line above says is waited for."""
    before = world.state(BY_HAND)
    (planned,) = world.readmit(1, "--topic", BY_HAND, "--broker", "3")
    folder = world.journal.parent
    environment = with_scripts(world.cluster.distribution, folder / "bin")
    said = ""

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    for line in planned["commands"]:
        if line.startswith("#"):
            said = line
            continue
        if "until it says that the reassignment is complete" in said:
            wait_until(lambda line=line: "is completed" in run(line), said)  # type: ignore[misc]
        elif "shows no copy" in said:
            wait_until(lambda line=line: f'"{BY_HAND}-0"' not in run(line), said)  # type: ignore[misc]
        else:
            run(line)
        said = ""
    world.becomes(BY_HAND, ClientPartition(leader=AWAY, isr=BROKERS, replicas=ORDER), before[1])
    assert world.audit(BY_HAND) == 0


def settings_that_widen_the_danger_are_found(world: World) -> None:
    assert main(world.words("check", "--topic", BACK, "--outage-max", "12h", "--output", "json")) == 1
    document = json.loads(world.capsys.readouterr().out)
    names = {finding["name"] for finding in document["findings"] if BACK in finding["topics"]}
    assert names == {"short-retention", "hurried-compaction", "min-insync-too-low"}
    assert (document["topics"], document["outage_max_ms"], document["problems"]) == (1, 43_200_000, [])
    assert main(world.words("check", "--topic", PLAIN)) == 2
    assert "topic plain is not compacted" in world.capsys.readouterr().err
