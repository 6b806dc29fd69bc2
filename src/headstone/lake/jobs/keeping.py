"""Keeps leases alive while their partitions are worked on: a thread renews all of them at once.

A lease only saves others the work. The epoch of the commit keeps the data right, whatever becomes of the lease.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from headstone import units
from headstone.errors import HeadstoneError
from headstone.lake.defaults import LEASE_MS
from headstone.lake.lake import Lake
from headstone.lake.metastore.clock import Clock
from headstone.lake.metastore.commits import CommitRefused
from headstone.lake.metastore.leases import Leases
from headstone.log.topic_partition import TopicPartition

HEARTBEATS = 4
"""Renewals per lease: a late one does not cost it."""


class LeaseLost(HeadstoneError):
    """Another worker may have begun the same work: the job is given up before its commit, and nothing was changed."""


class KeptLeases:
    """`refused`: those that another worker has; `lost` says why a lease could not be kept."""

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        self.refused: dict[TopicPartition, CommitRefused] = {}
        self.lost: dict[TopicPartition, str] = {}
        self._held = set(partitions)

    @property
    def held(self) -> list[TopicPartition]:
        return sorted(self._held - self.lost.keys())

    def check(self, topic_partition: TopicPartition) -> None:
        if topic_partition in self.lost:
            raise LeaseLost(self.lost[topic_partition])

    def let_go(self, topic_partition: TopicPartition) -> None:
        """Its work is over: it is not renewed any more."""
        self._held.discard(topic_partition)

    def lose(self, topic_partition: TopicPartition, why: str) -> None:
        if topic_partition in self._held:
            self.lost[topic_partition] = why


@contextmanager
def kept_alive(
    leases: Leases, partitions: Collection[TopicPartition], worker: str, clock: Clock, *, lease_ms: int
) -> Iterator[KeptLeases]:
    """Renews leases in the background. A failed renewal is retried until the leases expire."""
    kept, over = KeptLeases(partitions), threading.Event()

    def beat() -> None:
        alive = time.monotonic()
        while not over.wait(lease_ms / HEARTBEATS / 1000) and (held := kept.held):
            try:
                renewed = leases.renew_all(held, worker, now_ms=clock(), lease_ms=lease_ms)
            except (HeadstoneError, OSError) as error:
                if (time.monotonic() - alive) * 1000 >= lease_ms:
                    for topic_partition in held:
                        kept.lose(topic_partition, f"lease expired, renewals failed: {said(error)}")
                    return
                continue
            for topic_partition in set(held) - renewed:
                kept.lose(topic_partition, "the lease is another worker's now, or the topic is gone")
            alive = time.monotonic()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield kept
    finally:
        over.set()
        thread.join()


@contextmanager
def leased(
    lake: Lake, topic_partition: TopicPartition, worker: str, *, lease_ms: int = LEASE_MS
) -> Iterator[KeptLeases]:
    """Has the partition's lease while the block runs; CommitRefused if another worker has it."""
    with leased_all(lake, [topic_partition], worker, lease_ms=lease_ms) as kept:
        for error in kept.refused.values():
            raise error
        yield kept


@contextmanager
def leased_all(
    lake: Lake, partitions: Collection[TopicPartition], worker: str, *, lease_ms: int = LEASE_MS
) -> Iterator[KeptLeases]:
    """Has the leases of all partitions that are free while the block runs."""
    leases, clock = Leases(lake.metastore), lake.metastore.clock
    taken = leases.take_all(partitions, worker, now_ms=clock(), lease_ms=lease_ms)
    holders = leases.held(now_ms=clock()) if len(taken) < len(partitions) else {}
    try:
        with kept_alive(leases, taken, worker, clock, lease_ms=lease_ms) as kept:
            for name in set(partitions) - taken:
                kept.refused[name] = CommitRefused(
                    f"{holders[name]} works on it; look again when that has ended, or in {units.duration(lease_ms)} "
                    "if it was killed"
                    if name in holders
                    else "another worker had it until now, or the topic was dropped"
                )
            yield kept
    finally:
        leases.release_all(taken, worker)


def name_of_worker(what: str = "") -> str:
    """The name by which others see who works on a partition."""
    return "-".join(filter(None, (what, socket.gethostname(), str(os.getpid()))))


def said(error: Exception) -> str:
    """The message; errors that are not ours get their kind, because the words alone may be just a number."""
    return str(error) if isinstance(error, HeadstoneError) else f"{type(error).__name__}: {error}"
