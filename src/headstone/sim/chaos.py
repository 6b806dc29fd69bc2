"""Random life of a cluster: what can happen, and what is checked after it. One seed, one story.

A story is a list of (action, number); the number seeds the action's own choices, so a story with steps left out is still a
story.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headstone.coordination.messages import VERSION, Report, Send
from headstone.coordination.replica import without_mxfo
from headstone.coordination.watermarks import GroupWatermarks
from headstone.retention.policy import COORDINATED
from headstone.sim import checkers
from headstone.sim.broker import Parts, SimBroker
from headstone.sim.checkers import CheckerFinding, check_log, check_reader, check_removals, check_watermarks
from headstone.sim.cluster import RecordPairs, SimCluster, SimProducer
from headstone.sim.readers import Reader
from headstone.sim.scenario import DELETE_RETENTION_MS, KEYS, Scenario

Step = tuple[str, int]
CHECK_EVERY = 8
HEAL_ROUNDS = 10


@dataclass(slots=True, kw_only=True)
class ChaosOutcome:
    seed: int
    steps: list[Step]
    finding: CheckerFinding | None = None
    at_step: int = -1
    faults: Counter[str] = field(default_factory=Counter)
    checks: int = 0


class Driver:
    """Carries out steps on one cluster and checks. Every public method is an action; it may find nothing to do."""

    def __init__(self, scenario: Scenario, parts: Parts) -> None:
        self.scenario = scenario
        self.cluster = SimCluster(
            brokers=scenario.brokers, replicas=scenario.replicas, rules=scenario.rules, policy=scenario.policy,
            parts=parts, skews_ms=list(scenario.skews_ms),
        )  # fmt: skip
        self.grace_ms = DELETE_RETENTION_MS - (max(scenario.skews_ms) - min(scenario.skews_ms))
        self.upgraded = True
        if scenario.old_version is not None:
            self.upgraded = False
            self.cluster.brokers[scenario.old_version].version = 1
        self.highest = GroupWatermarks(mtro=0, mxro=0)
        self.groups_seen: dict[int, tuple[int, GroupWatermarks]] = {}
        self.checks = 0
        self._writes = 0
        for i in range(3):
            self.cluster.producers.append(SimProducer(producer_id=100 + i, marker_bumps_epoch=i < 3 * scenario.txn_v2))
        for i in range(scenario.readers):
            self.cluster.readers.append(Reader(f"reader {i}", committed=i != 1))

    def do(self, name: str, number: int) -> bool:
        rng = random.Random(number)
        action: Callable[[random.Random], bool] = getattr(self, name)
        done = action(rng)
        self.exchange(rng)
        return done

    def exchange(self, rng: random.Random) -> None:
        """New messages arrive at once, or wait in the network."""
        sends = self.cluster.collect()
        while sends:
            for send in sends:
                send = self.aged(send)
                if rng.random() < self.scenario.direct:
                    self.cluster.deliver(send)
                else:
                    self.cluster.network.append(send)
            sends = self.cluster.collect()
        self.cluster.take_grants()

    def upgrade(self) -> None:
        self.upgraded = True
        for broker in self.cluster.brokers:
            broker.version = VERSION

    def aged(self, send: Send) -> Send:
        message = send.message
        if self.upgraded or not isinstance(message, Report) or message.member != self.scenario.old_version:
            return send
        return Send(to=send.to, message=without_mxfo(message))

    def pick_broker(self, rng: random.Random, *, alive: bool = True) -> SimBroker | None:
        chosen = [broker for broker in self.cluster.brokers if broker.alive == alive]
        return rng.choice(chosen) if chosen else None

    def records(self, rng: random.Random, *, deletion: bool) -> RecordPairs:
        out: RecordPairs = []
        for _ in range(rng.choice((1, 1, 2))):
            self._writes += 1
            key = KEYS[rng.randrange(self.scenario.keys)]
            live = sorted(self.cluster.truth.table()) if deletion else []
            if live and rng.random() < 0.7:
                key = rng.choice(live)
            out.append((key, None if deletion else b"v%d" % self._writes))
        return out

    def write(self, rng: random.Random) -> bool:
        leader = self.cluster.leader()
        return leader is not None and self.cluster.produce(leader, self.records(rng, deletion=rng.random() < 0.25))

    def delete(self, rng: random.Random) -> bool:
        leader = self.cluster.leader()
        return leader is not None and self.cluster.produce(leader, self.records(rng, deletion=True))

    def stale_write(self, rng: random.Random) -> bool:
        """Writes to a broker that takes itself for the leader; if it is not, the record is lost."""
        leads = [broker for broker in self.cluster.brokers if broker.leads]
        return bool(leads) and self.cluster.produce(rng.choice(leads), self.records(rng, deletion=False))

    def write_txn(self, rng: random.Random) -> bool:
        leader = self.cluster.leader()
        producer = rng.choice(self.cluster.producers)
        if leader is None or (producer.txn is not None and producer.txn.outcome != "open"):
            return False
        return self.cluster.produce(leader, self.records(rng, deletion=rng.random() < 0.3), producer)

    def end_txn(self, rng: random.Random) -> bool:
        producer = rng.choice(self.cluster.producers)
        self.cluster.decide(producer, commit=rng.random() < 0.5)
        return self.cluster.write_marker(producer)

    def pump(self, rng: random.Random) -> bool:
        """Every follower in reach copies, and the segment rolls: this makes a log cleanable."""
        leader = self.cluster.leader()
        if leader is None:
            return False
        self.cluster.learn(leader)
        for _ in range(3):  # records; that they arrived; that therefore they are committed
            for broker in self.cluster.brokers:
                self.cluster.fetch(broker)
        for broker in self.cluster.brokers:
            if broker.alive:
                broker.log.roll()
        return True

    def roll(self, rng: random.Random) -> bool:
        broker = self.pick_broker(rng)
        if broker is not None:
            broker.log.roll()
        return broker is not None

    def clean(self, rng: random.Random) -> bool:
        broker = self.pick_broker(rng)
        return broker is not None and self.cluster.clean(broker) is not None

    def pass_time(self, rng: random.Random) -> bool:
        self.cluster.wait(rng.choice((10, 100, 500, 1_100, 2_500)) // self.scenario.pace)
        return True

    def replicate(self, rng: random.Random) -> bool:
        broker = self.pick_broker(rng)
        return broker is not None and self.cluster.fetch(broker, rng.choice((1, 2, 100)))

    def slow_fetch(self, rng: random.Random) -> bool:
        """Keeps an answer on its way for a while; it arrives with a later step, if it still fits."""
        broker = self.pick_broker(rng)
        if broker is None:
            return False
        if broker.pending is not None:
            return self.cluster.receive(broker)
        return self.cluster.request(broker, rng.choice((1, 100)))

    def tick(self, rng: random.Random) -> bool:
        leads = [broker for broker in self.cluster.brokers if broker.leads]
        return bool(leads) and self.cluster.tick(rng.choice(leads))

    def deliver(self, rng: random.Random) -> bool:
        for _ in range(rng.choice((1, 2, 4))):
            if self.cluster.network:
                self.cluster.network.rotate(rng.randrange(len(self.cluster.network)))
                self.cluster.deliver(self.cluster.network.popleft())
        return True

    def duplicate(self, rng: random.Random) -> bool:
        network = self.cluster.network
        if network:
            network.append(network[rng.randrange(len(network))])
        return bool(network)

    def lose_message(self, rng: random.Random) -> bool:
        network = self.cluster.network
        if network:
            network.rotate(rng.randrange(len(network)))
            network.popleft()
        return bool(network)

    def learn(self, rng: random.Random) -> bool:
        broker = self.pick_broker(rng)
        if broker is not None:
            self.cluster.learn(broker)
        return broker is not None

    def elect(self, rng: random.Random) -> bool:
        if not self.cluster.elect(rng.choice(self.cluster.metadata.isr)):
            return False
        for broker in self.cluster.brokers:
            if rng.random() < 0.7:
                self.cluster.learn(broker)
        return True

    def grow_isr(self, rng: random.Random) -> bool:
        if self.cluster.metadata.leader is None:
            return self.elect(rng)
        return self.cluster.expand_isr()

    def shrink_isr(self, rng: random.Random) -> bool:
        done = self.cluster.shrink_isr(rng.choice(self.cluster.metadata.isr))
        leader = self.cluster.leader()
        if done and leader is not None:
            self.cluster.learn(leader)
        return done

    def crash(self, rng: random.Random) -> bool:
        broker = self.pick_broker(rng)
        if broker is None or sum(b.alive for b in self.cluster.brokers) <= 1:
            return False
        self.cluster.crash(broker.number, clean_stop=rng.random() < 0.5)
        return True

    def restart(self, rng: random.Random) -> bool:
        broker = self.pick_broker(rng, alive=False)
        if broker is None:
            return False
        log, last = broker.log, broker.number in self.cluster.metadata.isr
        kept_to = (
            log.log_end if last or broker.stopped_clean else rng.randint(min(log.flushed, log.log_end), log.log_end)
        )
        self.cluster.restart(broker.number, kept_to=kept_to)
        self.cluster.learn(broker)
        return True

    def lose_disk(self, rng: random.Random) -> bool:
        broker = self.pick_broker(rng, alive=False)
        return broker is not None and self.cluster.lose_disk(broker.number)

    def isolate(self, rng: random.Random) -> bool:
        broker = self.pick_broker(rng)
        if broker is None or self.cluster.isolated:
            return False
        self.cluster.isolated.add(broker.number)
        return True

    def join_network(self, rng: random.Random) -> bool:
        done = bool(self.cluster.isolated)
        self.cluster.isolated.clear()
        return done

    def fence(self, rng: random.Random) -> bool:
        for number in sorted(self.cluster.isolated):
            self.cluster.fence(number)
            return True
        return False

    def add_member(self, rng: random.Random) -> bool:
        return self.cluster.add_member(rng.randrange(self.scenario.brokers))

    def remove_member(self, rng: random.Random) -> bool:
        if len(self.cluster.metadata.members) <= max(1, self.scenario.replicas - 1):
            return False
        return self.cluster.remove_member(rng.randrange(self.scenario.brokers))

    def flush(self, rng: random.Random) -> bool:
        broker = self.pick_broker(rng)
        if broker is not None:
            broker.log.flushed = broker.log.log_end
            broker.saved_high_watermark = broker.log.high_watermark
        return broker is not None

    def trim(self, rng: random.Random) -> bool:
        """DeleteRecords: log start rises on the leader, and on followers as they fetch."""
        leader = self.cluster.leader()
        if leader is None:
            return False
        ends = [batch.last + 1 for batch in leader.log.batches() if batch.last < leader.log.high_watermark]
        if ends:
            leader.log.advance_start(rng.choice(ends))
        return bool(ends)

    def declare_reader(self, rng: random.Random) -> bool:
        waiting = [reader for reader in self.cluster.readers if reader.name not in self.cluster.metadata.readers]
        if waiting and self.scenario.rules == COORDINATED:
            self.cluster.declare_reader(rng.choice(waiting))
        return bool(waiting)

    def read(self, rng: random.Random) -> bool:
        """Reads from the leader or, as KIP-392 allows, from any replica in sync."""
        if not self.cluster.readers:
            return False
        return self._poll(rng.choice(self.cluster.readers), rng.choice((1, 2, 100)), rng)

    def _poll(self, reader: Reader, limit: int, rng: random.Random) -> bool:
        broker = self.cluster.leader()
        if broker is None or rng.random() < 0.3:
            broker = self.cluster.brokers[rng.choice(self.cluster.metadata.isr)]
        if not broker.alive or broker.metadata is None:
            return False
        start, records = reader.poll(broker.log, limit)
        self.checks += 1
        findings = check_reader(
            reader, max(start, broker.log.log_start), records, self.cluster.truth, now_ms=self.cluster.now_ms,
            grace_ms=self.grace_ms,
        )  # fmt: skip
        self.cluster.pass_position(reader)
        _raise_first(findings)
        return True

    def check(self) -> None:
        """Raises Corrupt with the first finding."""
        cluster = self.cluster
        for broker in cluster.brokers:
            member = broker.number in cluster.metadata.members and broker.metadata is not None
            if not broker.alive or not member or broker.member_since != cluster.metadata.members[broker.number]:
                continue
            self.checks += 1
            _raise_first(check_log(f"broker {broker.number}", broker.log, cluster.truth))
        if self.scenario.rules == COORDINATED:
            self._check_watermarks()

    def _check_watermarks(self) -> None:
        cluster = self.cluster
        for broker in cluster.brokers:
            group, incarnation = broker.replica.group, broker.replica.incarnation
            before = self.groups_seen.get(broker.number)
            if before is not None and before[0] == incarnation:
                fell = group.mtro < before[1].mtro or group.mxro < before[1].mxro
                text = f"went from {before[1].mtro}/{before[1].mxro} to {group.mtro}/{group.mxro}"
                if fell and broker.alive:
                    raise Corrupt(
                        CheckerFinding(kind=checkers.WATERMARK_FELL, where=f"broker {broker.number}", text=text)
                    )
            self.groups_seen[broker.number] = (incarnation, group)
            self.highest = GroupWatermarks(
                mtro=max(self.highest.mtro, group.mtro), mxro=max(self.highest.mxro, group.mxro)
            )
        self.checks += 1
        since = cluster.metadata.members
        members = [(f"broker {b.number}", b.log) for b in cluster.brokers if b.member_since == since.get(b.number, -1)]
        _raise_first(check_watermarks(self.highest, members))
        _raise_first(check_removals(members, cluster.truth))


class Corrupt(Exception):
    """Ends a story."""

    def __init__(self, finding: CheckerFinding) -> None:
        super().__init__(finding.text)
        self.finding = finding


def _raise_first(findings: Sequence[CheckerFinding]) -> None:
    if findings:
        raise Corrupt(findings[0])
