"""Whole misfortunes, each one action: an outage of days, a new disk, a reader that stands still meanwhile.

Chance alone would rarely put their steps together in the right order. They add nothing that could not happen step by step.
"""

from __future__ import annotations

import random

from headstone.sim.broker import SimBroker
from headstone.sim.chaos import Driver
from headstone.sim.cluster import SimProducer


class Ordeals(Driver):
    """The driver of random stories."""

    def long_outage(self, rng: random.Random) -> bool:
        """A broker is away for longer than every retention, while the others continue: Kafka's assumption is broken.

        It stops where it hurts most: inside a transaction, or just before a deletion.
        """
        broker = self.pick_broker(rng)
        if broker is None or sum(b.alive for b in self.cluster.brokers) <= 1:
            return False
        self._all_learn()
        producer = rng.choice(self.cluster.producers)
        where = rng.choice(("in a transaction", "in a deletion", "clean"))
        if where == "clean":
            self._tidy(broker, rng)
        else:
            self._write_by(producer, rng, deletion=where == "in a deletion")
            self.pump(rng)
        self.cluster.crash(broker.number, clean_stop=rng.random() < 0.5)
        self._all_learn()
        if where == "in a transaction" and rng.random() < 0.5:
            self._write_by(producer, rng, deletion=False)
        self.cluster.decide(producer, commit=where == "in a deletion" or rng.random() < 0.5)
        self._days(producer, 8 if where == "in a deletion" else rng.choice((1, 2, 3, 8)), rng)
        self._write_by(producer, rng, deletion=False)
        self.cluster.decide(producer, commit=where != "in a deletion" and rng.random() < 0.5)
        self.cluster.write_marker(producer)
        return True

    def _all_learn(self) -> None:
        for broker in self.cluster.brokers:
            self.cluster.learn(broker)

    def _days(self, producer: SimProducer, passes: int, rng: random.Random) -> None:
        for _ in range(passes):
            self.cluster.write_marker(producer)
            self.write(rng)
            self.pump(rng)
            self._clean_all(rng)
            self.cluster.wait(rng.choice((100, 1_200, 1_200)))

    def _write_by(self, producer: SimProducer, rng: random.Random, *, deletion: bool) -> None:
        leader = self.cluster.leader()
        if leader is not None and (producer.txn is None or producer.txn.outcome == "open"):
            self.cluster.produce(leader, self.records(rng, deletion=deletion), producer)

    def _tidy(self, broker: SimBroker, rng: random.Random) -> None:
        """Cleans up to its very end and reports it; the next thing written is a deletion."""
        self.write(rng)
        self.pump(rng)
        self.pump(rng)
        self.cluster.clean(broker)
        self.tick(rng)
        self.exchange(rng)
        self.delete(rng)

    def new_disk(self, rng: random.Random) -> bool:
        """A broker that had cleaned comes back on an empty disk and copies, while the others clean and are polled."""
        broker = self.pick_broker(rng)
        if broker is None or sum(b.alive for b in self.cluster.brokers) <= 1:
            return False
        self.pump(rng)
        self.cluster.clean(broker)
        self.tick(rng)
        self.exchange(rng)
        self.cluster.crash(broker.number, clean_stop=False)
        self.cluster.lose_disk(broker.number)
        self.cluster.restart(broker.number, kept_to=broker.log.log_end)
        self._all_learn()
        done = self.cluster.fetch(broker, rng.choice((1, 2, 100)))
        self._clean_all(rng, besides=broker)
        return done

    def slow_reader(self, rng: random.Random) -> bool:
        """A reader is half-way when a key that it has seen is deleted and the log is cleaned again and again; then it reads
        on."""
        leader = self.cluster.leader()
        if leader is None or not self.cluster.readers:
            return False
        reader = rng.choice(self.cluster.readers)
        self._poll(reader, rng.choice((1, 2)), rng)
        believed = sorted(key for key, record in reader.table.items() if record.value is not None)
        if not believed:
            return False
        self.cluster.produce(leader, [(rng.choice(believed), None)])
        for _ in range(rng.randrange(2, 5)):
            self.pump(rng)
            self._clean_all(rng)
            self.cluster.wait(rng.choice((10, 10, 1_200)))
        return self._poll(reader, 100, rng)

    def _clean_all(self, rng: random.Random, *, besides: SimBroker | None = None) -> None:
        for broker in self.cluster.brokers:
            if broker.alive and broker is not besides:
                self.cluster.clean(broker)
        self.tick(rng)
        self.exchange(rng)
