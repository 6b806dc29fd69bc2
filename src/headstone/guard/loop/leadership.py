"""Whether this guard leads, and for how long without a break: it takes its lease, keeps it, and takes it anew.

Owns what a lease that ran out means. Its row is the journal's (`ledger/journal.py`), how late it is now is
`looks/look_age.py`'s; what is done with a lease is `watcher.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Lease
from headstone.guard.looks.look_age import LookAge


class Leadership:
    """Of the guard `name`. `anew` is called when another one may have led since: what is remembered is read again."""

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
        """After a look, which may outlast the lease: of a large cluster, of brokers that answer late. Nothing is decided yet,
        and what will be counts with the look's age: it is taken anew. LeaseLost if another guard has led since."""
        now_ms = self._age.now_ms()
        newest = self._journal.lease()
        if newest is not None and newest.epoch == lease.epoch and newest.until_ms <= now_ms:
            return self.lead(now_ms)
        return self.renew()

    def ends(self) -> Callable[[], bool]:
        """Renews, and says from then on whether another guard could lead by now: without a wait, just before a call."""
        until_ms = self.renew().until_ms
        return lambda: self._age.now_ms() >= until_ms

    def renew(self) -> Lease:
        """LeaseLost if another guard has led since, or could have: whoever stood still for so long must look again."""
        return self._journal.renew(self._name, now_ms=self._age.now_ms(), lease_ms=self._lease_ms)
