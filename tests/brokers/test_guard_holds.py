"""Holds that must not end, and some that must not begin, on real brokers: a purge during a hold, a topic with one replica, one
that nobody leads, a guard that is suspended when it is about to let go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from headstone.brokers.distribution import Distribution
from headstone.brokers.ports import HOST
from headstone.brokers.processes import Cluster, wait_until
from headstone.cluster.admin import Admin
from headstone.cluster.connection import Connection
from headstone.coordination.guard_values import HOLD, LAG_MAX, LAG_MIN, RATIO, State
from headstone.errors import Unfinished, UsageError
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.overrides import Resource, own_values
from testbed.stopping_guard import ACTING, DECIDING
from testbed.workloads import second_client

FOUND = {RATIO: "0.2", LAG_MIN: None, LAG_MAX: None}
RETENTION_MS = 400_000
"""A hundredth of it is gone after four seconds: then the topic is held, minutes before anything can be missed."""
EFFECT_MS, POLL_MS = 4_000, 400
MARGINS = (
    "--poll-ms", str(POLL_MS), "--metadata-age-ms", "2000", "--clock-skew-ms", "200", "--effect-ms", str(EFFECT_MS),
    "--pass-start-ms", "100", "--slack-share", "0.01",
)  # fmt: skip
SECONDS_MAX = 120
SOLE, PAIR, ALL = "sole", "pair", "orders"
REPLICAS = {ALL: [1, 2, 3], PAIR: [2, 3], SOLE: [3]}
STOPPED = "T"


def one_controller(distribution: Distribution, root: Path) -> Cluster:
    """Broker 1, so that the other two can be away at the same time."""
    cluster = Cluster(distribution, root, brokers=3)
    own = {number: str(broker.settings["listeners"]) for number, broker in cluster.brokers.items()}
    voter = own[1].rpartition("/")[2]
    for number, broker in cluster.brokers.items():
        broker.settings["controller.quorum.voters"] = f"1@{voter}"
        if number != 1:
            broker.settings |= {"process.roles": "broker", "listeners": own[number].partition(",")[0]}
    return cluster


class Scene:
    def __init__(self, cluster: Cluster, root: Path) -> None:
        self.cluster, self.root = cluster, root
        self.admin = Admin(Connection.parse(cluster.bootstrap, {}))
        self.journal = root / "journal.sqlite"
        clients = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topics = [
            NewTopic(name, 1, replica_assignment=[replicas], config={
                "cleanup.policy": "compact", "delete.retention.ms": str(RETENTION_MS), RATIO: "0.2",
            })
            for name, replicas in REPLICAS.items()
        ]  # fmt: skip
        for made in clients.create_topics(topics).values():
            made.result(60)

    def overrides(self, topic: str) -> dict[str, str | None]:
        return dict(own_values(self.admin, Resource(topic=topic), [name for name, _ in HOLD]))

    def delete_key(self, topic: str) -> None:
        producer = second_client(self.cluster.bootstrap)
        for value in (b"v", None):
            producer.produce(topic, key=b"k", value=value)
        assert producer.flush(60) == 0

    def policy(self, topic: str, policy: str) -> None:
        """Not by librdkafka: it sends changes to whom it takes for the controller, which may be the broker that is off."""
        self.admin.alter_topic(topic, {"cleanup.policy": policy})

    def has_journal(self) -> bool:
        """Its file is there a moment before there is anything in it."""
        with suppress(UsageError, Unfinished), Journal.open(self.journal, cluster_id=None):
            return True
        return False

    def states(self) -> dict[str, str]:
        with Journal.open(self.journal, cluster_id=None) as journal:
            return {topic: str(statuses[0].state) for topic, statuses in journal.shown().items() if topic in REPLICAS}

    def blockers(self, topic: str) -> tuple[int, ...]:
        with Journal.open(self.journal, cluster_id=None) as journal:
            return journal.shown()[topic][0].blockers

    def alarms(self) -> set[str]:
        with Journal.open(self.journal, cluster_id=None) as journal:
            return {alarm.kind for alarm in journal.alarms() if alarm.topic in REPLICAS}

    def releases(self) -> int:
        with Journal.open(self.journal, cluster_id=None) as journal:
            return sum(change.times for change in journal.changes() if change.new != HOLD)

    def looked_ms(self) -> int:
        with Journal.open(self.journal, cluster_id=None) as journal:
            return journal.looked_ms() or 0

    def wait_looks(self, looks: int) -> None:
        for _ in range(looks):
            newest_ms = self.looked_ms()
            wait_until(lambda: self.looked_ms() > newest_ms, "another look", seconds_max=SECONDS_MAX)  # noqa: B023

    def wait_states(self, **states: State) -> None:
        wanted = {topic: str(state) for topic, state in states.items()}
        wait_until(lambda: self.states() == wanted, str(wanted), seconds_max=SECONDS_MAX)


@contextmanager
def guarding(scene: Scene, *module: str) -> Iterator[subprocess.Popen[bytes]]:
    words = [
        "guard",
        "--bootstrap",
        f"{HOST}:{scene.cluster.ports[1]}",
        "--journal",
        str(scene.journal),
        "--apply",
        *MARGINS,
    ]
    with open(scene.root / "said", "ab") as said:
        process = subprocess.Popen([sys.executable, "-m", *module, *words], stdout=said, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def test_holds_outlast_a_purge_and_a_suspended_guard_and_a_sole_replica_needs_none(
    distribution: Distribution, tmp_path: Path
) -> None:
    with one_controller(distribution, tmp_path / "cluster") as cluster:
        scene = Scene(cluster, tmp_path)
        with guarding(scene, "headstone.cli.main"):
            wait_until(scene.has_journal, "the guard's start", seconds_max=SECONDS_MAX)
            scene.wait_states(orders=State.FINE, pair=State.FINE, sole=State.FINE)
            scene.delete_key(SOLE)
            cluster.stop_broker(3)
            for topic in (ALL, PAIR):
                scene.delete_key(topic)
            scene.wait_states(orders=State.HELD, pair=State.HELD, sole=State.FINE)
            a_purge_ends_no_hold(scene)
            who_leads_first_again_is_not_read(scene)
            assert (scene.overrides(SOLE), scene.alarms()) == (FOUND, set())
        for place in (DECIDING, ACTING):
            a_guard_that_was_suspended_lets_nothing_go(scene, place)
        with guarding(scene, "headstone.cli.main"):
            cluster.start_broker(3)
            scene.wait_states(orders=State.FINE, pair=State.FINE, sole=State.FINE)
            for topic in REPLICAS:
                wait_until(lambda: scene.overrides(topic) == FOUND, f"{topic} as it was", seconds_max=SECONDS_MAX)  # noqa: B023
        assert scene.alarms() == set()
        scene.admin.close()


def a_purge_ends_no_hold(scene: Scene) -> None:
    for policy in ("delete", "compact"):
        scene.policy(ALL, policy)
        scene.wait_looks(4)
        assert (policy, scene.overrides(ALL), scene.states()[ALL]) == (policy, dict(HOLD), State.HELD)


def who_leads_first_again_is_not_read(scene: Scene) -> None:
    """Broker 2 alone had all of `pair`; while it is down, nobody leads it, and Kafka 4.1 and later shows nobody in sync."""
    scene.cluster.stop_broker(2)
    scene.wait_looks(3)
    scene.cluster.start_broker(2)
    wait_until(
        lambda: scene.blockers(PAIR) == (3,) and scene.blockers(ALL) == (3,), "only 3 is away", seconds_max=SECONDS_MAX
    )
    assert (scene.overrides(PAIR), scene.overrides(SOLE)) == (dict(HOLD), FOUND)


def a_guard_that_was_suspended_lets_nothing_go(scene: Scene, place: str) -> None:
    with guarding(scene, "testbed.stopping_guard", place) as guard:
        releases = scene.releases()  # while it runs: it may be stopped with its journal locked
        scene.cluster.start_broker(3)
        wait_until(lambda: state_of(guard) == STOPPED, "it is about to let go", seconds_max=SECONDS_MAX)
        old_ms = time.time_ns() // 1_000_000 + EFFECT_MS + 2 * POLL_MS
        scene.cluster.stop_broker(3)
        for topic in (ALL, PAIR):
            scene.delete_key(topic)
        wait_until(lambda: time.time_ns() // 1_000_000 > old_ms, "its look is old", seconds_max=SECONDS_MAX)
        os.kill(guard.pid, signal.SIGCONT)
        scene.wait_looks(2)
        assert (scene.releases(), scene.overrides(ALL), scene.overrides(PAIR)) == (releases, dict(HOLD), dict(HOLD))
        scene.wait_states(orders=State.HELD, pair=State.HELD, sole=State.FINE)
        assert scene.releases() == releases


def state_of(process: subprocess.Popen[bytes]) -> str:
    assert process.poll() is None, "the guard ended"
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
