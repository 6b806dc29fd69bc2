"""After the faults: everything comes back, every replica catches up and cleans, and everything owed must be done.

Checks liveness. Safety is checked again at the end, when every replica must serve exactly the truth.
"""

from __future__ import annotations

from headstone.retention.policy import COORDINATED
from headstone.sim import checkers
from headstone.sim.broker import SimBroker
from headstone.sim.chaos import HEAL_ROUNDS, Corrupt, Driver
from headstone.sim.checkers import CheckerFinding
from headstone.sim.readers import read, table_of
from headstone.sim.scenario import DELETE_RETENTION_MS

WRITING_ROUNDS = 4
BOUNDED_PASSES = 40
"""A cleaner whose map holds two keys needs many passes for one log."""
LOSSY_ROUNDS = 6
"""In these rounds the network still loses messages that need no answer."""


def heal(driver: Driver) -> None:
    """Raises Corrupt if the cluster does not come to rest with every promise kept."""
    cluster = driver.cluster
    cluster.isolated.clear()
    cluster.network.clear()
    driver.upgrade()
    for broker in cluster.brokers:
        if not broker.alive:
            cluster.restart(broker.number, kept_to=broker.log.log_end)
    if cluster.metadata.leader is None:
        assert cluster.elect(next(b for b in cluster.metadata.isr if cluster.brokers[b].alive))
    _calm(driver)
    for producer in cluster.producers:
        cluster.decide(producer, commit=producer.producer_id % 2 == 0)
        cluster.write_marker(producer)
    _calm(driver)
    for producer in cluster.producers:
        cluster.write_marker(producer)
    driver.check()
    for i in range(HEAL_ROUNDS):
        _round(driver, quiet=i >= WRITING_ROUNDS, lossy=i < LOSSY_ROUNDS)
    driver.check()
    for broker in _members(driver):
        _complete(driver, broker)
        if driver.scenario.rules == COORDINATED:
            _settled(driver, broker)


def _members(driver: Driver) -> list[SimBroker]:
    return [driver.cluster.brokers[number] for number in driver.cluster.metadata.members]


def _calm(driver: Driver) -> None:
    """Metadata, records and messages reach everyone; slow ones arrive."""
    cluster = driver.cluster
    for broker in cluster.brokers:
        broker.pending = None
        cluster.learn(broker)
    for _ in range(4):
        for broker in cluster.brokers:
            cluster.fetch(broker)
        cluster.expand_isr()
        for broker in cluster.brokers:
            cluster.learn(broker)
    cluster.gossip()


def _round(driver: Driver, *, quiet: bool, lossy: bool) -> None:
    """A day in a healthy cluster: replication, cleaning, a poll, readers that keep up, and at first a little new data.

    With `quiet` nobody writes any more: what is owed must be done without new data to trigger it.
    """
    cluster = driver.cluster
    leader = cluster.leader()
    assert leader is not None, "after healing somebody leads"
    if not quiet:
        cluster.produce(leader, [(b"heal", b"beat")])
    _calm(driver)
    cluster.now_ms += 25 * DELETE_RETENTION_MS
    passes = 1 if driver.scenario.policy.index_keys_max is None else BOUNDED_PASSES
    for broker in _members(driver):
        broker.log.roll()
        for _ in range(passes):
            before = broker.log.first_dirty
            cluster.clean(broker)
            if broker.log.first_dirty == before:
                break
    for reader in cluster.readers:
        reader.poll(leader.log, 1 << 20)
        cluster.pass_position(reader)
    cluster.tick(leader)
    cluster.gossip(losing_rises=lossy)
    cluster.take_grants()


def _complete(driver: Driver, broker: SimBroker) -> None:
    """Every replica serves exactly the committed table, all of it."""
    served, _ = read(broker.log, broker.log.log_start, committed=True)
    start = broker.log.log_start
    truth = driver.cluster.truth
    expected = {
        key: value for key, value in truth.table().items()
        if (newest := truth.newest(key, truth.log_end)) is not None and newest.record.offset >= start
    }  # fmt: skip
    got = {key: record.value for key, record in table_of(served).items() if record.value is not None}
    if got != expected:
        missing = sorted(key.decode() for key in expected.keys() - got.keys())
        extra = sorted(key.decode() for key in got.keys() - expected.keys())
        text = f"after healing its table differs: missing {missing}, extra {extra}"
        kind = checkers.DELETED_REAPPEARS if extra else checkers.COMMITTED_HIDDEN
        raise Corrupt(CheckerFinding(kind=kind, where=f"broker {broker.number}", text=text))


def _settled(driver: Driver, broker: SimBroker) -> None:
    """Nothing is kept for ever: below the cleaned part no tombstone and no marker is left.

    Those of the last two rounds are not due yet: they are stamped in one and go in the next.
    """
    log = broker.log
    due = [segment for segment in log.segments if segment.base + 4 < log.first_dirty][:-3]
    end = due[-1].base if due else 0
    for batch in log.batches(log.log_start):
        if batch.last >= end:
            break
        tombstone = any(record.value is None for record in batch.records)
        if tombstone or batch.kind in ("COMMIT", "ABORT"):
            what = "a tombstone" if tombstone else f"a {batch.kind} marker"
            text = f"{what} at offset {batch.base} is still there, {HEAL_ROUNDS} rounds after everything healed"
            raise Corrupt(CheckerFinding(kind=checkers.NOT_CONVERGED, where=f"broker {broker.number}", text=text))
