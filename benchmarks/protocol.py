"""What coordinated compaction costs: messages, bytes, the leader's processor time, and storage held back.

    python -m benchmarks.protocol --output json

Drives the real `coordination/` classes and simulated logs in Kafka's format. Ratios are against the records themselves
(bytes of the log) and against Kafka's rule in the same run; only the processor time depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from headstone.coordination import leader as leading
from headstone.coordination import replica as following
from headstone.coordination.leader import Leader, poll_interval_ms
from headstone.coordination.messages import Poll, Report, Send
from headstone.coordination.replica import Replica
from headstone.coordination.watermarks import GroupWatermarks, ReplicaWatermarks
from headstone.retention.policy import COORDINATED, RULES, Policy
from headstone.sim.broker import Parts
from headstone.sim.cluster import SimCluster, SimProducer
from headstone.units import DAY_MS

HOUR_MS = 3_600_000
PARTITIONS = (1_000, 100_000)
OUTAGE_HOURS = (0, 12, 24, 48, 96, 168)
AFTER_HOURS = 60


class Group:
    """One partition's leader and members, wired without a network; counts what would cross one."""

    def __init__(self, members: int) -> None:
        self.replicas = [Replica(number) for number in range(members)]
        self.leader = Leader(0)
        self.messages = self.bytes = 0
        for replica in self.replicas:
            local = ReplicaWatermarks(mcco=0, mxfo=0)
            replica.step(following.Started(durable=None, local=local, fresh=1))
        self.perform(
            self.leader.step(
                leading.Elected(
                    leader_epoch=1, members=tuple(range(members)), readers=(), group=GroupWatermarks(mtro=0, mxro=0),
                    log_end=0, now_ms=0,
                )
            )
        )  # fmt: skip

    def perform(self, effects: list[leading.Effect] | list[following.Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, Send):
                continue
            message = effect.message
            sender = message.leader if isinstance(message, Poll) else message.member
            if sender != effect.to:
                self.messages += 1
                self.bytes += len(message.encode())
            if isinstance(message, Report):
                self.perform(self.leader.step(leading.Reported(report=message, now_ms=0)))
            else:
                self.perform(self.replicas[effect.to].step(message))

    def hour(self, offset: int) -> None:
        """Everyone has cleaned up to the offset, and the leader polls."""
        for replica in self.replicas:
            replica.step(following.Progressed(local=ReplicaWatermarks(mcco=offset, mxfo=offset)))
        self.perform(self.leader.step(leading.Tick(now_ms=0)))


def traffic(members: int) -> dict[str, float]:
    """Messages and bytes of a partition whose watermarks rise between all polls, per hour at the default retention."""
    group = Group(members)
    group.messages = group.bytes = 0
    hours = 24
    for hour in range(1, hours + 1):
        group.hour(hour * 1_000)
    polls_an_hour = HOUR_MS / poll_interval_ms(DAY_MS)
    return {"messages": group.messages / hours * polls_an_hour, "bytes": group.bytes / hours * polls_an_hour}


def leader_microseconds(members: int, partitions: int = 2_000) -> float:
    """Processor time of the leader for one poll of one partition: makes polls, takes reports, distributes the rise."""
    leaders = [Leader(0) for _ in range(partitions)]
    elected = leading.Elected(
        leader_epoch=1, members=tuple(range(members)), readers=(), group=GroupWatermarks(mtro=0, mxro=0), log_end=0,
        now_ms=0,
    )  # fmt: skip
    for leader in leaders:
        leader.step(elected)
    best = float("inf")
    for turn in range(1, 4):
        reports = [
            leading.Reported(
                report=Report(member=m, incarnation=1, leader_epoch=1, mcco=turn * 100, mxfo=turn * 100), now_ms=0
            )
            for m in range(members)
        ]
        started = time.process_time()
        for leader in leaders:
            leader.step(leading.Tick(now_ms=0))
            for report in reports:
                leader.step(report)
        best = min(best, time.process_time() - started)
    return best / partitions * 1e6


def storage(rules: str, outage_hours: int, deletions_an_hour: int, replicas: int = 3) -> tuple[int, int]:
    """(bytes of the leader's log when the absent replica returns, and AFTER_HOURS later).

    Every hour new keys are written, those of the hour before are deleted, and a transaction is committed. So all that stays in
    a clean log is what must not go yet.
    """
    policy = Policy(now_ms=0, delete_retention_ms=DAY_MS, producer_id_expiration_ms=DAY_MS)
    cluster = SimCluster(
        brokers=replicas, replicas=replicas, rules=rules, policy=policy, parts=Parts(), skews_ms=[0] * replicas
    )
    producer = SimProducer(producer_id=7, marker_bumps_epoch=True)
    cluster.producers.append(producer)
    away = replicas - 1
    warm_hours = 30
    size = 0
    for hour in range(warm_hours + outage_hours + AFTER_HOURS):
        if hour == warm_hours and outage_hours and replicas > 1:
            cluster.crash(away, clean_stop=True)
        if hour == warm_hours + outage_hours:
            size = _log_bytes(cluster)
            if outage_hours and replicas > 1:
                cluster.restart(away, kept_to=cluster.brokers[away].log.log_end)
        _one_hour(cluster, producer, hour, deletions_an_hour)
    return size, _log_bytes(cluster)


def _one_hour(cluster: SimCluster, producer: SimProducer, hour: int, deletions: int) -> None:
    leader = cluster.leader()
    assert leader is not None
    cluster.produce(leader, [(b"k%d-%d" % (hour, i), b"v" * 100) for i in range(deletions)])
    if hour:
        cluster.produce(leader, [(b"k%d-%d" % (hour - 1, i), None) for i in range(deletions)])
    cluster.produce(leader, [(b"t", b"%d" % hour)], producer)
    cluster.decide(producer, commit=True)
    for _ in range(3):
        cluster.write_marker(producer)
        for broker in cluster.brokers:
            cluster.learn(broker)
            cluster.fetch(broker)
        cluster.expand_isr()
    for broker in cluster.brokers:
        if broker.alive:
            broker.log.roll()
            cluster.clean(broker)
    cluster.tick(leader)
    cluster.gossip()
    cluster.now_ms += HOUR_MS


def _log_bytes(cluster: SimCluster) -> int:
    leader = cluster.leader()
    assert leader is not None
    return sum(len(batch.raw) for batch in leader.log.batches())


def measure(replicas_max: int) -> dict[str, object]:
    cost = []
    for members in range(1, replicas_max + 1):
        asked = traffic(members)
        micros = leader_microseconds(members)
        row: dict[str, object] = {"replicas": members, **asked, "leader_us_per_poll": round(micros, 1)}
        for count in PARTITIONS:
            row[f"bytes_per_second_{count}"] = round(asked["bytes"] * count / 3600, 1)
            row[f"leader_cores_{count}"] = round(micros / 1e6 * count / 3600, 6)
        cost.append(row)
        print(f"replicas {members}: {asked['messages']:.0f} messages, {asked['bytes']:.0f} bytes per partition and hour, "
              f"{micros:.0f} us of the leader a poll", file=sys.stderr)  # fmt: skip
    held = []
    for hours in OUTAGE_HOURS:
        for deletions in (10, 40):
            row = {"outage_hours": hours, "deletions_an_hour": deletions}
            for rules in RULES:
                row[f"{rules}_bytes"], row[f"{rules}_bytes_after"] = storage(rules, hours, deletions)
            held.append(row)
            print(f"away {hours} h, {deletions} deletions an hour: {row['kafka_bytes']} bytes by Kafka's rule, "
                  f"{row['coordinated_bytes']} coordinated, {row['coordinated_bytes_after']} after {AFTER_HOURS} h back",
                  file=sys.stderr)  # fmt: skip
    by_replicas = {n: storage(COORDINATED, 48, 10, n)[0] for n in range(1, replicas_max + 1)}
    return {"traffic": cost, "storage": held, "storage_48h_by_replicas": by_replicas}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas-max", type=int, default=9)
    parser.add_argument("--output", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    measured = measure(arguments.replicas_max)
    if arguments.output == "json":
        print(json.dumps(measured, indent=2))
    else:
        print(f"leader's log after 48 h away, by replicas: {measured['storage_48h_by_replicas']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
