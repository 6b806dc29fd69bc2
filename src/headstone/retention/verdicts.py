"""What becomes of each batch and record, and why: the one statement of the retention rules.

Roles (transactions), states (keys) and headers come in as arrays; an action per batch and a count per reason come out. K1, K2
and R0 to R7 are the names of docs/rules.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headstone.log.intrinsics import kernel
from headstone.log.layout import CONTROL, DELETE_HORIZON
from headstone.log.reading import Batches
from headstone.retention.keys import CODE_MASK, HELD, KEYLESS, NEWEST, TOMBSTONE, UNMAPPED
from headstone.retention.producers import slots_of
from headstone.retention.transactions import ABORTED, COMMITTED, CONTROL_IDLE, CONTROL_NEEDED

DROP = 0
COPY = 1
COPY_AS_PLAIN = 2
"""Unchanged but for the transactional bit: committed data that no longer needs its marker."""
EMPTY = 3
"""Header only: no record is left, but the header is still needed."""
REBUILD = 4

REASONS = (
    "superseded",
    "aborted",
    "expired tombstone",
    "expired marker",
    "keyless",
    "newest",
    "unmapped",
    "tombstone: horizon not passed",
    "tombstone: above MTRO",
    "marker: data not gone",
    "marker: horizon not passed",
    "marker: above MXRO",
    "header: producer's last batch",
    "header: end of range",
    "made plain",
    "stamped",
    "tombstones before",
    "tombstones after",
    "markers before",
    "markers after",
)
(
    BY_SUPERSEDED,
    BY_ABORT,
    BY_EXPIRED_TOMBSTONE,
    BY_EXPIRED_MARKER,
    BY_KEYLESS,
    AS_NEWEST,
    AS_UNMAPPED,
    AS_TOMBSTONE_YOUNG,
    AS_TOMBSTONE_ABOVE_MTRO,
    AS_MARKER_NEEDED,
    AS_MARKER_YOUNG,
    AS_MARKER_ABOVE_MXRO,
    AS_LAST_OF_PRODUCER,
    AS_END_OF_RANGE,
    MADE_PLAIN,
    STAMPED,
    TOMBSTONES_BEFORE,
    TOMBSTONES_AFTER,
    MARKERS_BEFORE,
    MARKERS_AFTER,
) = range(len(REASONS))

NOT_KEPT = 0
LAST_OF_PRODUCER = 1
END_OF_RANGE = 2


def kept_headers(batches: Batches, active: npt.NDArray[Any], *, uncleanable: int) -> npt.NDArray[np.uint8]:
    """K1: the last batch of an active producer; K2: the batch that ends the pass. Their headers stay."""
    kept = np.zeros(batches.size, dtype=np.uint8)
    kept[batches["last_offset"] + 1 == uncleanable] = END_OF_RANGE
    slots = slots_of(active["producer_id"], batches["producer_id"])
    indices = np.flatnonzero((slots >= 0) & (batches["producer_id"] >= 0))
    if indices.size:
        producer = active[slots[indices]]
        by_active = batches[indices]
        by_offset = (producer["last_offset"] >= 0) & (by_active["last_offset"] == producer["last_offset"])
        is_control = by_active["attributes"] & CONTROL != 0
        by_epoch = (producer["last_offset"] < 0) & is_control & (by_active["producer_epoch"] == producer["epoch"])
        kept[indices[by_offset | by_epoch]] = LAST_OF_PRODUCER
    return kept


@kernel
def horizon_passed(batch: Any, now_ms: Any) -> Any:
    """Whether time allows its tombstones, or its marker, to go."""
    return batch.attributes & DELETE_HORIZON != 0 and batch.base_timestamp <= now_ms


@kernel
def survives(state: Any, expired: Any) -> Any:
    """R2 to R7 for one record; `expired`: its horizon has passed."""
    code = state & CODE_MASK
    if code == UNMAPPED:
        return True
    return code == NEWEST and not (expired and state & TOMBSTONE and not state & HELD)


@kernel
def mark_survivors(states: Any, expired: Any, stays: Any) -> None:
    """For many records, each with a horizon of its own."""
    for i in range(states.size):
        stays[i] = survives(states[i], expired[i])


@kernel
def _count_record(state: Any, expired: Any, reasons: Any) -> None:
    code = state & CODE_MASK
    tombstone = state & TOMBSTONE != 0
    if tombstone:
        reasons[TOMBSTONES_BEFORE] += 1
    if code == UNMAPPED:
        reasons[AS_UNMAPPED] += 1
        reasons[TOMBSTONES_AFTER] += tombstone
    elif code == KEYLESS:
        reasons[BY_KEYLESS] += 1
    elif code != NEWEST:
        reasons[BY_SUPERSEDED] += 1
    elif not tombstone:
        reasons[AS_NEWEST] += 1
    elif not expired:
        reasons[AS_TOMBSTONE_YOUNG] += 1
        reasons[TOMBSTONES_AFTER] += 1
    elif state & HELD:
        reasons[AS_TOMBSTONE_ABOVE_MTRO] += 1
        reasons[TOMBSTONES_AFTER] += 1
    else:
        reasons[BY_EXPIRED_TOMBSTONE] += 1


@kernel
def _judge_control(batch: Any, role: Any, expired: Any, markers_below: Any, has_horizon: Any, reasons: Any) -> Any:
    """(drops its records, wants a stamp)."""
    if batch.count > 0:
        reasons[MARKERS_BEFORE] += 1
    if role == CONTROL_NEEDED:
        reasons[AS_MARKER_NEEDED] += 1
        reasons[MARKERS_AFTER] += 1
        return False, False
    if batch.count == 0:
        return True, False
    if expired and batch.last_offset < markers_below:
        reasons[BY_EXPIRED_MARKER] += 1
        return True, False
    reasons[AS_MARKER_ABOVE_MXRO if expired else AS_MARKER_YOUNG] += 1
    reasons[MARKERS_AFTER] += 1
    return False, not has_horizon


@kernel
def judge(batches: Any, roles: Any, kept: Any, ordinals: Any, states: Any, now_ms: Any, new_horizon: Any,
          markers_below: Any, plain_below: Any, actions: Any, horizons: Any, reasons: Any) -> None:  # fmt: skip
    """Fills actions and, for rebuilt batches, horizons (-1: none)."""
    for i in range(batches.size):
        batch = batches[i]
        role = roles[i]
        has_horizon = batch.attributes & DELETE_HORIZON != 0
        expired = horizon_passed(batch, now_ms)
        survivors = 0
        stamp = False
        if role == CONTROL_NEEDED or role == CONTROL_IDLE:
            gone, stamp = _judge_control(batch, role, expired, markers_below, has_horizon, reasons)
            survivors = 0 if gone else batch.count
        elif role == ABORTED:
            reasons[BY_ABORT] += batch.count
        else:
            for r in range(batch.count):
                state = states[ordinals[i] + r]
                _count_record(state, expired, reasons)
                if survives(state, expired):
                    survivors += 1
                    stamp = stamp or (state & TOMBSTONE != 0 and not has_horizon)
        plain = role == COMMITTED and batch.last_offset < plain_below
        horizons[i] = -1
        if survivors == 0:
            actions[i] = EMPTY if kept[i] else DROP
            if kept[i]:
                reasons[AS_LAST_OF_PRODUCER if kept[i] == LAST_OF_PRODUCER else AS_END_OF_RANGE] += 1
        elif survivors == batch.count and not stamp:
            actions[i] = COPY_AS_PLAIN if plain else COPY
        else:
            actions[i] = REBUILD
            horizons[i] = new_horizon if stamp else (batch.base_timestamp if has_horizon else -1)
            reasons[STAMPED] += stamp and new_horizon >= 0
        if plain and actions[i] != DROP:
            reasons[MADE_PLAIN] += 1
