"""A cluster of one partition: brokers, controller, transaction coordinator, network. Deterministic: chance comes in as
arguments, and time is a number. Each method is one thing that can happen; `checkers.py` sees what must not.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Protocol

from headstone.coordination import leader as leading
from headstone.coordination.messages import Poll, Report, Send
from headstone.retention.policy import Policy
from headstone.sim.batches import Batch, data_batch, marker_batch
from headstone.sim.broker import PartitionMetadata, Parts, SimBroker
from headstone.sim.cleaning import Cleaned
from headstone.sim.readers import Reader
from headstone.sim.truth import ABORTED, COMMITTED, Truth, Txn

RecordPairs = list[tuple[bytes, bytes | None]]
FIRST_INCARNATION = 1
START_MS = 1_000_000


@dataclass(slots=True, kw_only=True)
class SimProducer:
    """`marker_bumps_epoch` is the behaviour of transactions v2: the marker carries the data's epoch + 1."""

    producer_id: int
    marker_bumps_epoch: bool
    epoch: int = 0
    sequence: int = 0
    txn: Txn | None = None


class Onlooker(Protocol):
    """An outside observer that is called while time passes."""

    def next_ms(self) -> int:
        """When it wants to look again."""
        ...

    def watch(self) -> None: ...

    def changing(self) -> None:
        """The controller's state is about to change."""
        ...


class SimCluster:
    """Brokers 0 to n - 1 exist; the first `replicas` of them are members at the start."""

    def __init__(
        self, *, brokers: int, replicas: int, rules: str, policy: Policy, parts: Parts, skews_ms: list[int]
    ) -> None:
        self.now_ms = START_MS
        self.watcher: Onlooker | None = None
        self.hold = False
        """The topic's config, as the controller has it: a hold of all cleaning."""
        self.compacted = True
        """Whether the topic's cleanup.policy contains compact; if not, no broker cleans."""
        self.delete_retention_ms = policy.delete_retention_ms
        self.truth = Truth()
        self.brokers = [SimBroker(i, rules, policy, parts, skews_ms[i]) for i in range(brokers)]
        self.producers: list[SimProducer] = []
        self.readers: list[Reader] = []
        self.isolated: set[int] = set()
        self.network: deque[Send] = deque()
        self._incarnations = FIRST_INCARNATION
        self.active_epoch = -1
        members = dict.fromkeys(range(replicas), 0)
        self.metadata = PartitionMetadata(
            version=0, leader=0, leader_epoch=0, isr=tuple(members), members=members, readers=()
        )  # fmt: skip
        for broker in self.brokers:
            broker.start(self.fresh())
            broker.member_since = members.get(broker.number)
        for broker in self.brokers:
            self.learn(broker)

    def wait(self, ms: int) -> None:
        """Time passes, and nothing else happens, except that outside observers look."""
        end_ms = self.now_ms + ms
        while self.watcher is not None and self.watcher.next_ms() <= end_ms:
            self.now_ms = max(self.now_ms, self.watcher.next_ms())
            self.watcher.watch()
        self.now_ms = end_ms

    def fresh(self) -> int:
        """An incarnation never used before; a real cluster takes it from the broker's registration."""
        self._incarnations += 1
        return self._incarnations

    def reachable(self, broker: SimBroker) -> bool:
        return broker.alive and broker.number not in self.isolated

    def leader(self) -> SimBroker | None:
        """The leader according to the controller, if it can be reached and knows that it leads."""
        number = self.metadata.leader
        if number is None:
            return None
        broker = self.brokers[number]
        knows = broker.metadata is not None and broker.metadata.leader_epoch == self.metadata.leader_epoch
        return broker if self.reachable(broker) and knows else None

    def _change(self, **changes: object) -> None:
        if self.watcher is not None:
            self.watcher.changing()
        self.metadata = replace(self.metadata, version=self.metadata.version + 1, **changes)  # type: ignore[arg-type]

    def learn(self, broker: SimBroker) -> None:
        """The controller's metadata reaches a broker."""
        if not self.reachable(broker):
            return
        metadata = self.metadata
        broker.learn(metadata, self.now_ms, self.fresh())
        broker.held, broker.compacted = self.hold, self.compacted
        if broker.policy.delete_retention_ms != self.delete_retention_ms:
            broker.policy = replace(broker.policy, delete_retention_ms=self.delete_retention_ms)
        if metadata.leader == broker.number and metadata.leader_epoch > self.active_epoch:
            self.active_epoch = metadata.leader_epoch
            self.truth.led_by(broker.log.batches())
        if broker.leads:
            self.commit(broker)

    def elect(self, number: int) -> bool:
        """Makes an in-sync member that can be reached the leader, in a new epoch."""
        if number not in self.metadata.isr or not self.reachable(self.brokers[number]):
            return False
        self._change(leader=number, leader_epoch=self.metadata.leader_epoch + 1)
        return True

    def add_member(self, number: int) -> bool:
        if number in self.metadata.members:
            return False
        self._change(members={**self.metadata.members, number: self.metadata.version + 1})
        return True

    def remove_member(self, number: int) -> bool:
        """Never removes the leader, nor the last in-sync member."""
        metadata = self.metadata
        if number not in metadata.members or number == metadata.leader or metadata.isr == (number,):
            return False
        members = {broker: since for broker, since in metadata.members.items() if broker != number}
        self._change(members=members, isr=tuple(b for b in metadata.isr if b != number))
        return True

    def declare_reader(self, reader: Reader) -> None:
        self._change(readers=(*self.metadata.readers, reader.name))

    def shrink_isr(self, number: int) -> bool:
        metadata = self.metadata
        if number not in metadata.isr or len(metadata.isr) == 1 or number == metadata.leader:
            return False
        self._change(isr=tuple(b for b in metadata.isr if b != number))
        return True

    def expand_isr(self) -> bool:
        """The leader lets every replica in that has all that is committed and what its epoch began with.

        Its request is refused if it has not seen the newest metadata, as the partition epoch ensures in Kafka, or if a member
        has restarted since it fetched (KIP-903): it may have lost what it had.
        """
        broker = self.leader()
        if broker is None or broker.metadata is None:
            return False
        if broker.metadata.version != self.metadata.version:
            self.learn(broker)
            return False
        need = max(broker.log.high_watermark, broker.epoch_start)
        metadata = self.metadata
        caught_up = [
            b for b, end in broker.ends.items()
            if b in metadata.members and b not in metadata.isr and end >= need and self._same(broker, self.brokers[b])
        ]  # fmt: skip
        if not caught_up:
            return False
        self._change(isr=(*metadata.isr, *caught_up))
        self.learn(broker)
        return True

    def _same(self, leader: SimBroker, follower: SimBroker) -> bool:
        return self.reachable(follower) and leader.seen.get(follower.number) == follower.registration

    def crash(self, number: int, *, clean_stop: bool) -> None:
        self.brokers[number].stop(clean_stop=clean_stop)
        self._gone(number)

    def fence(self, number: int) -> None:
        """The controller has not heard of a broker for too long."""
        self._gone(number)

    def _gone(self, number: int) -> None:
        metadata = self.metadata
        left = tuple(b for b in metadata.isr if b != number)
        leader = None if metadata.leader == number else metadata.leader
        self._change(isr=left or metadata.isr, leader=leader)
        self._elect_any()

    def _elect_any(self) -> None:
        """The controller gives a partition without a leader to an in-sync member as soon as one can be reached."""
        if self.metadata.leader is None:
            for number in self.metadata.isr:
                if self.elect(number):
                    return

    def restart(self, number: int, *, kept_to: int) -> None:
        broker = self.brokers[number]
        if not broker.alive:
            broker.restart(kept_to=kept_to, fresh=self.fresh())
            self._elect_any()

    def lose_disk(self, number: int) -> bool:
        """For a broker that is down. Never the last in-sync member: its disk would take committed records with it."""
        broker = self.brokers[number]
        if broker.alive or number in self.metadata.isr:
            return False
        broker.wipe(self.fresh())
        return True

    def append(self, broker: SimBroker, batch: Batch, txn: Txn | None) -> None:
        """A leader appends, or a broker that still takes itself for it. Only the newest leader's appends are the truth."""
        assert broker.metadata is not None
        broker.log.append(batch)
        by_leader = broker.metadata.leader_epoch == self.active_epoch
        self.truth.offered(batch, txn, self.now_ms, by_leader=by_leader)
        self.commit(broker)

    def commit(self, broker: SimBroker) -> None:
        broker.advance_high_watermark()
        assert broker.metadata is not None
        if broker.metadata.leader_epoch == self.active_epoch:
            self.truth.committed_end = max(self.truth.committed_end, broker.log.high_watermark)

    def produce(self, broker: SimBroker, records: RecordPairs, producer: SimProducer | None = None) -> bool:
        """Plain data, or data of the producer's open transaction."""
        if not broker.leads:
            return False
        assert broker.metadata is not None
        epoch = broker.metadata.leader_epoch
        if producer is None:
            batch = data_batch(records, base=broker.log.log_end, leader_epoch=epoch, timestamp=self.now_ms)
            self.append(broker, batch, None)
            return True
        if producer.txn is None and not self._begin(producer):
            return False
        batch = data_batch(
            records, base=broker.log.log_end, leader_epoch=epoch, timestamp=self.now_ms,
            producer_id=producer.producer_id, producer_epoch=producer.epoch, sequence=producer.sequence,
            transactional=True,
        )  # fmt: skip
        producer.sequence += len(records)
        self.append(broker, batch, producer.txn)
        return True

    def _begin(self, producer: SimProducer) -> bool:
        producer.txn = Txn(producer_id=producer.producer_id)
        self.truth.txns.append(producer.txn)
        return True

    def decide(self, producer: SimProducer, *, commit: bool) -> bool:
        """The coordinator decides; the marker is written when a leader can be reached, and again if it got lost."""
        txn = producer.txn
        if txn is None or txn.outcome in (COMMITTED, ABORTED):
            return False
        txn.outcome = COMMITTED if commit else ABORTED
        return True

    def write_marker(self, producer: SimProducer) -> bool:
        """Only once it is committed may the producer begin the next transaction."""
        txn, broker = producer.txn, self.leader()
        if txn is None or txn.outcome not in (COMMITTED, ABORTED) or broker is None or not broker.leads:
            return False
        if txn.marker is None:
            assert broker.metadata is not None
            epoch = producer.epoch + 1 if producer.marker_bumps_epoch else producer.epoch
            batch = marker_batch(
                commit=txn.outcome == COMMITTED, base=broker.log.log_end, leader_epoch=broker.metadata.leader_epoch,
                timestamp=self.now_ms, producer_id=producer.producer_id, producer_epoch=epoch,
            )  # fmt: skip
            self.append(broker, batch, txn)
        if txn.marker is not None and txn.marker < broker.log.high_watermark:
            if producer.marker_bumps_epoch:
                producer.epoch, producer.sequence = producer.epoch + 1, 0
            producer.txn = None
            return True
        return False

    def source_of(self, follower: SimBroker) -> SimBroker | None:
        """The leader that a follower would fetch from now, if both agree on the epoch and can talk."""
        metadata = follower.metadata
        if not self.reachable(follower) or metadata is None or metadata.leader in (None, follower.number):
            return None
        assert metadata.leader is not None
        broker = self.brokers[metadata.leader]
        agrees = broker.metadata is not None and broker.metadata.leader_epoch == metadata.leader_epoch
        return broker if self.reachable(broker) and broker.leads and agrees else None

    def request(self, follower: SimBroker, limit: int) -> bool:
        """A fetch leaves and its answer is on its way; at most one at a time."""
        source = self.source_of(follower)
        if source is None or follower.pending is not None:
            return False
        follower.pending = source.serve_fetch(follower, limit, self.now_ms)
        self.commit(source)
        return follower.pending is not None

    def receive(self, follower: SimBroker) -> bool:
        got = follower.pending
        follower.pending = None
        if got is None or not follower.alive or follower.metadata is None:
            return False
        if got.leader_epoch != follower.metadata.leader_epoch or got.position != follower.log.log_end:
            return False
        follower.apply_fetch(got, self.fresh())
        return True

    def fetch(self, follower: SimBroker, limit: int = 1000) -> bool:
        return self.request(follower, limit) and self.receive(follower)

    def clean(self, broker: SimBroker, *, chosen: bool = False) -> Cleaned | None:
        return broker.clean(self.now_ms, chosen=chosen)

    def tick(self, broker: SimBroker) -> bool:
        """The leader polls; its own answer does not cross the network."""
        if not broker.leads:
            return False
        broker.progress()
        broker.perform(broker.leader.step(leading.Tick(now_ms=broker.clock(self.now_ms))))
        return True

    def collect(self) -> list[Send]:
        """Collects the messages that brokers want to send; those to themselves arrive at once."""
        out: list[Send] = []
        for broker in self.brokers:
            while broker.outbox:
                waiting, broker.outbox = broker.outbox, []
                for send in waiting:
                    if send.to == broker.number:
                        self.deliver(send)
                    else:
                        out.append(send)
        return out

    def deliver(self, send: Send) -> bool:
        broker = self.brokers[send.to]
        if not broker.alive or (self.isolated and not self._connected(send)):
            return False
        match send.message:
            case Poll():
                broker.progress()
                broker.perform(broker.replica.step(send.message))
            case Report():
                reported = leading.Reported(report=send.message, now_ms=broker.clock(self.now_ms))
                broker.perform(broker.leader.step(reported))
        return True

    def _connected(self, send: Send) -> bool:
        message = send.message
        sender = message.leader if isinstance(message, Poll) else message.member
        return sender == send.to or not {sender, send.to} & self.isolated

    def gossip(self, *, losing_rises: bool = False) -> None:
        """Delivers everything at once, as a calm network does; with `losing_rises`, everything except the news that watermarks
        rose."""
        waiting = deque(self.collect())
        while waiting:
            send = waiting.popleft()
            if not (losing_rises and isinstance(send.message, Poll) and not send.message.answer):
                self.deliver(send)
            waiting.extend(self.collect())

    def pass_position(self, reader: Reader) -> None:
        """A declared reader tells the leader how far it is."""
        broker = self.leader()
        if broker is not None and reader.name in self.metadata.readers:
            passed = leading.ReaderPassed(
                reader=reader.name, position=reader.position, now_ms=broker.clock(self.now_ms)
            )
            broker.perform(broker.leader.step(passed))

    def take_grants(self) -> None:
        """A hold begins where the leader says; a later leader's grant never begins it again."""
        for broker in self.brokers:
            for grant in broker.grants:
                for reader in self.readers:
                    if reader.name == grant.reader and reader.held_from is None:
                        reader.held_from = grant.from_offset
            broker.grants = []
