"""Whether this guard leads, and since when without a break: takes its lease, renews it, and takes it again.

Owns what an expired lease means. The lease itself is a row of the journal (`ledger/journal.py`), `looks/look_age.py` has the
time, `watcher.py` decides what to do with a lease.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Lease
from headstone.guard.looks.look_age import LookAge


class Leadership:
    """For the guard `name`. Calls `anew` when another guard may have led since, so that the memory is read again."""

    def __init__(
        self, name: str, journal: Journal, age: LookAge, *, lease_ms: int, applies: bool, topics: Collection[str],
        anew: Callable[[], None],
    ) -> None:  # fmt: skip
        self._name, self._journal, self._age = name, journal, age
        self._lease_ms, self._applies, self._topics = lease_ms, applies, topics
        self._anew = anew
        self._epoch = 0

    def lead(self, now_ms: int) -> Lease:
        lease = self._journal.lead(
            self._name, now_ms=now_ms, lease_ms=self._lease_ms, applies=self._applies, topics=self._topics
        )  # fmt: skip
        if lease.epoch != self._epoch:
            self._epoch = lease.epoch
            self._anew()
        return lease

    def lead_on(self, lease: Lease) -> Lease:
        """Call after a look, which may outlast the lease in a large cluster or with slow brokers. Nothing was decided yet, and
        decisions count with the look's age, so the lease may simply be taken again. Raises LeaseLost if another guard has led
        since."""
        now_ms = self._age.now_ms()
        newest = self._journal.lease()
        if newest is not None and newest.epoch == lease.epoch and newest.until_ms <= now_ms:
            return self.lead(now_ms)
        return self.renew()

    def ends(self) -> Callable[[], bool]:
        """Renews, and returns a function that says, without waiting, whether another guard could lead by now. Call it just
        before a change."""
        until_ms = self.renew().until_ms
        return lambda: self._age.now_ms() >= until_ms

    def renew(self) -> Lease:
        """Raises LeaseLost if another guard has led since, or could have: a guard that stood still for that long must look
        again."""
        return self._journal.renew(self._name, now_ms=self._age.now_ms(), lease_ms=self._lease_ms)
