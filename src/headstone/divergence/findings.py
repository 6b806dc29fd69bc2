"""What an audit says about one key of one replica: class, certainty, and what the replicas serve. Values only.

If the evidence does not decide between two readings, a difference carries both, the likelier one first.
"""

from __future__ import annotations

from dataclasses import dataclass

REAPPEARS = "deleted-reappears"
ABORTED_SERVED = "aborted-as-committed"
HIDDEN = "committed-hidden"
FROZEN = "read-committed-frozen"
OTHER = "other"
CERTAIN, LIKELY, UNDECIDED = "certain", "likely", "undecided"
EVERYBODY, UNCOMMITTED = "every consumer", "read_uncommitted"
ABSENT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What one replica has of a key: the newest record that consumers get. `note`: how it differs from the others."""

    replica: str
    offset: int
    deleted: bool
    note: str = ""

    def __str__(self) -> str:
        if self.offset == ABSENT:
            return f"absent{self.note}"
        return f"{'deleted' if self.deleted else 'present'} at {self.offset}{self.note}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`place` is (replica, file, position) of the batch with the record at `offset`; key digests identify the key."""

    kind: str
    replica: str
    key: int
    key_high: int
    offset: int
    sure: str
    why: str
    place: tuple[str, int, int]
    producer_id: int
    producer_epoch: int
    marker: int | None
    served: tuple[Served, ...]
    isolation: str
    """Who is served it: every consumer, or only read_uncommitted ones, because the replica's LSO is before it."""
    misleads: bool
    """False if a reader that reads to the end still gets the same from every replica."""
    doubtful: tuple[str, ...]
    """Replicas that are, or may be, wrong about this key: none of them is a source to copy from."""
    or_kind: str | None = None
    or_replica: str | None = None
    """The other reading, if the evidence does not decide: its class, and the replica that would be wrong."""
    else_kind: str | None = None
    """A third reading, on the same replica, if even that is not excluded."""
