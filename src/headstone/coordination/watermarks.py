"""MCCO, MXFO, MTRO, MXRO: what each replica has reached, and what that allows everywhere. All exclusive.

The minimum over all members of the replica set; a member that was never heard of counts as 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaWatermarks:
    """`mcco`: below it no record is superseded by a newer one below it. `mxfo`: below it there is no transactional data
    batch."""

    mcco: int
    mxfo: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWatermarks:
    """`mtro`: tombstones below it may go. `mxro`: markers below it may go."""

    mtro: int
    mxro: int


NEVER_HEARD = ReplicaWatermarks(mcco=0, mxfo=0)


def group_watermarks(members: Sequence[ReplicaWatermarks]) -> GroupWatermarks:
    assert members
    return GroupWatermarks(mtro=min(m.mcco for m in members), mxro=min(m.mxfo for m in members))
