"""What a seed decides before the first step: rules of the cluster, its clocks, its keys, and how often each action happens.

Swarm testing: each seed changes the weights in its own way, so some stories are all crashes and some have none.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from headstone.retention.policy import Policy

DELETE_RETENTION_MS = 1_000
KEYS = [b"%c%d" % (97 + i % 26, i // 26) if i >= 26 else b"%c" % (97 + i) for i in range(40)]

WEIGHTS = {
    "write": 16, "write_txn": 14, "end_txn": 9, "delete": 10, "pump": 8, "roll": 6, "clean": 30, "pass_time": 18,
    "replicate": 40, "tick": 10, "deliver": 14, "read": 14, "learn": 12, "elect": 4, "grow_isr": 8, "shrink_isr": 4,
    "crash": 5, "restart": 7, "lose_disk": 1, "new_disk": 2, "isolate": 2, "join_network": 4, "fence": 2, "add_member": 2,
    "remove_member": 2, "flush": 2, "trim": 1, "slow_fetch": 3, "duplicate": 2, "lose_message": 2, "stale_write": 2,
    "declare_reader": 2, "long_outage": 3, "slow_reader": 3,
}  # fmt: skip
"""How often each action happens, before a seed changes it. The order is part of a seed's meaning."""

LONG_ACTIONS = frozenset({"new_disk", "long_outage", "slow_reader", "elect"})
"""Actions with so many steps that a check follows each of them."""

FAULTS = frozenset(
    {
        "crash", "lose_disk", "isolate", "fence", "elect", "add_member", "remove_member", "shrink_isr", "duplicate",
        "lose_message", "stale_write", "slow_fetch", "long_outage", "trim", "new_disk",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What a seed decides before the first step."""

    rules: str
    replicas: int
    brokers: int
    policy: Policy
    skews_ms: tuple[int, ...]
    direct: float
    """Share of messages that arrive at once and in order."""
    txn_v2: float
    readers: int
    keys: int
    pace: int
    """Divides the time that passes: a slow clock keeps readers inside delete.retention.ms."""
    old_version: int | None
    """A broker that reports no MXFO until it is upgraded, half-way."""
    weights: tuple[int, ...]


def draw_scenario(seed: int, *, rules: str, replicas: int | None, rng: random.Random) -> Scenario:
    count = replicas if replicas is not None else rng.choice((1, 2, 3, 3, 3, 3, 4, 5))
    brokers = count + rng.choice((0, 1, 1, 2)) if count > 1 else count
    skewed = rng.random() < 0.5
    skews = tuple(rng.randrange(-150, 151) if skewed else 0 for _ in range(brokers))
    policy = Policy(
        now_ms=0, delete_retention_ms=DELETE_RETENTION_MS, producer_id_expiration_ms=rng.choice((500, 2_000, 20_000)),
        segment_bytes=rng.choice((300, 600, 2_000)),
        index_keys_max=rng.choice((None, None, None, 2, 3)), min_cleanable_dirty_ratio=0.0,
    )  # fmt: skip
    bent = [_bent(weight, rng) for weight in WEIGHTS.values()]
    return Scenario(
        rules=rules, replicas=count, brokers=brokers, policy=policy, skews_ms=skews,
        direct=rng.choice((1.0, 0.9, 0.6, 0.2)), txn_v2=rng.choice((0.0, 0.5, 1.0)), readers=rng.choice((0, 1, 2, 3)),
        keys=rng.choice((3, 6, 12, 40)), pace=rng.choice((1, 1, 1, 10)),
        old_version=rng.randrange(brokers) if rng.random() < 0.1 else None, weights=tuple(bent),
    )  # fmt: skip


def _bent(weight: int, rng: random.Random) -> int:
    roll = rng.random()
    if roll < 0.15:
        return 0
    return weight * 12 if roll > 0.9 else weight * 4
