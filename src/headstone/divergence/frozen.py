"""Transactions that never end on one replica, though they ended elsewhere: read_committed consumers of that replica stop there.

A transaction that is open everywhere is in flight. One whose end a lagging replica has not seen yet is no finding, as long as
the marker is still there for it to copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstone.divergence.views import ReplicaFacts
from headstone.retention.transactions import OpenTxn


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    replica: str
    offset: int
    producer_id: int
    marker: int | None
    """Where another replica has its marker; None if no replica has it any more."""
    ended_on: str


def frozen_transactions(replicas: Sequence[ReplicaFacts]) -> list[Frozen]:
    return [
        frozen
        for facts in replicas
        for txn in facts.open_txns
        if txn.first_offset < facts.trusted_end
        if (frozen := _frozen(facts, txn, [other for other in replicas if other is not facts])) is not None
    ]


def _frozen(facts: ReplicaFacts, txn: OpenTxn, peers: Sequence[ReplicaFacts]) -> Frozen | None:
    for peer in peers:
        if peer.trusted_end < facts.trusted_end or peer.log_start > txn.first_offset:
            continue  # it may not have got that far, or may have forgotten it
        if any(known.producer_id == txn.producer_id for known in peer.open_txns):
            continue
        marker = peer.decision(txn.producer_id, txn.first_offset)
        if marker is not None and int(marker["offset"]) >= facts.trusted_end:
            continue  # the replica will still copy it
        where = None if marker is None else int(marker["offset"])
        if where is None and peer.has(txn.first_offset):
            continue  # no marker, not open, but the first batch is there: the peer knows no more than this replica
        return Frozen(
            replica=facts.name, offset=txn.first_offset, producer_id=txn.producer_id, marker=where, ended_on=peer.name
        )
    return None
