"""Overrides of a topic, of one broker and of the cluster's default: reads them, and changes them with the journal before and
after.

A change is in the journal before it is made, and again when its outcome is known. Journal and connection both take time, so
whether the change may still be made is checked once its broker is reached. Which, when and why is decided elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from headstone.cluster.admin import Admin
from headstone.coordination.guard_values import HOLD, Configs
from headstone.errors import Unfinished
from headstone.guard.ledger.journal import FAILED, Journal
from headstone.guard.ledger.journal_values import Change

BROKER = "broker "
DONE = "done"
Void = Callable[[], bool]
"""Checked just before a call: true if it comes too late."""


class TooLate(Unfinished):
    """The decision is based on data that is too old: nothing was sent."""


def never() -> bool:
    """For changes that do no harm however late they come."""
    return False


def refuse_late(void: Void) -> None:
    if void():
        raise TooLate("too late: this decision is based on data that is too old now; nothing was changed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A topic or a broker; with neither, the cluster's default."""

    topic: str | None = None
    broker: int | None = None

    def __str__(self) -> str:
        """As in the journal."""
        if self.topic is not None:
            return f"topic {self.topic}"
        return "cluster default" if self.broker is None else f"{BROKER}{self.broker}"


CLUSTER_DEFAULT = Resource()


def broker_or_default(text: str) -> Resource:
    """The resource of a journal entry that is not about a topic."""
    return Resource(broker=int(text.removeprefix(BROKER))) if text.startswith(BROKER) else CLUSTER_DEFAULT


def own_values(admin: Admin, resource: Resource, names: Sequence[str]) -> Configs:
    """By name; None if there is no override of that name."""
    configs = (
        admin.broker_configs(resource.broker)
        if resource.topic is None
        else admin.topic_configs([resource.topic])[resource.topic]
    )
    return tuple((name, configs[name].value if name in configs and configs[name].own else None) for name in names)


def alter(admin: Admin, resource: Resource, changes: Mapping[str, str | None], *, void: Void = never) -> None:
    """Changes without the journal. Raises TooLate if `void()` is true when the broker is reached."""
    check = partial(refuse_late, void)
    if resource.topic is not None:
        admin.alter_topic(resource.topic, changes, check=check, repeatable=dict(changes) == dict(HOLD))
    elif resource.broker is not None:
        admin.alter_broker(resource.broker, changes, check=check)
    else:
        admin.alter_broker_default(changes, check=check)


def change(admin: Admin, journal: Journal, resource: Resource, entry: Change, *, void: Void = never) -> None:
    """Sets the entry's new values."""
    journaled(journal, entry, lambda: alter(admin, resource, dict(entry.new), void=void))


def journaled(journal: Journal, entry: Change, make: Callable[[], None]) -> None:
    number = journal.begin(entry)
    began = time.monotonic()
    try:
        make()
    except Unfinished as error:
        journal.end(number, f"{FAILED}{error}", now_ms=entry.began_ms + _since_ms(began))
        raise
    journal.end(number, DONE, now_ms=entry.began_ms + _since_ms(began))


def _since_ms(began: float) -> int:
    return int((time.monotonic() - began) * 1000)
