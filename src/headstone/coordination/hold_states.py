"""The states of a hold, and the table of all steps between them, each with its reason.

Owns the names and the table, from which docs/guard.md is drawn. `guarding.py` decides when a step is due, `holding.py` what a
look shows of a hold; both make every step through `move`. Pure.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from enum import StrEnum

from headstone.coordination.absences import is_held
from headstone.coordination.guard_values import Hold, Memory


class HoldState(StrEnum):
    NONE = "no hold"
    ASKED = "requested"
    BY_OTHERS = "in effect by others"
    SHOWN = "shown"
    IN_EFFECT = "in effect"
    FOREIGN = "foreign"
    FOREIGN_IN_EFFECT = "foreign, in effect"
    UNDONE_BY_ROBOT = "undone by a robot"
    UNDONE_BY_PERSON = "undone by a person"
    DEFAULT_ASKED = "default requested"
    DEFAULT_SHOWN = "default shown"
    BY_DEFAULT = "in effect by default"
    OUT_OF_REACH = "out of reach"
    DEFAULT_UNDONE = "default undone"
    RELEASING = "releasing"


class Reason(StrEnum):
    DUE = "a replica is behind, and a hold is due"
    DUE_FOREIGN = "a hold is due, and somebody else's is there"
    SHOWN = "the cluster shows it"
    CONFIRMED = "every live broker confirms it"
    OTHERS_ENDED = "somebody else's cluster default no longer holds the topic"
    OWNER_RELEASED = "its owner removed it"
    OWN_RELEASE = "an earlier release by the guard arrived after it"
    ROBOT = "a robot undid it"
    PERSON = "a person changed it"
    ANSWERED = "the guard may hold by the cluster default"
    NOT_SHOWN = "the brokers confirmed the default, but the cluster does not show it"
    OWN_OVERRIDES = "the topic got overrides of its own"
    OVERRIDES_GONE = "the topic's own overrides are gone"
    DEFAULT_CHANGED = "somebody changed the cluster default"
    SETTLED = "no replica needs it any more"
    OVER = "nothing of it is left, and no earlier call can still arrive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    source: HoldState
    target: HoldState
    reason: Reason


MEANINGS = {
    HoldState.NONE: "the guard needs none",
    HoldState.ASKED: "the guard requests it at every look; no look has shown it yet",
    HoldState.BY_OTHERS: "as requested, but every live broker holds the topic already, by somebody else's cluster default",
    HoldState.SHOWN: "the cluster shows it; the guard asks each live broker",
    HoldState.IN_EFFECT: "every live broker has confirmed it",
    HoldState.FOREIGN: "somebody else's hold was there first; the guard asks each live broker, and will not remove it",
    HoldState.FOREIGN_IN_EFFECT: "somebody else's, and every live broker has confirmed it",
    HoldState.UNDONE_BY_ROBOT: "reverted within `--robot-ms` to what was there before; the cluster default may answer it",
    HoldState.UNDONE_BY_PERSON: "reported, and left alone",
    HoldState.DEFAULT_ASKED: "the guard requests the hold as cluster default at every look",
    HoldState.DEFAULT_SHOWN: "the cluster shows the default; the guard asks each live broker",
    HoldState.BY_DEFAULT: "every live broker has confirmed that it holds by the cluster default",
    HoldState.OUT_OF_REACH: "the topic has overrides of its own, so the cluster default does not hold it",
    HoldState.DEFAULT_UNDONE: "reported, and left alone",
    HoldState.RELEASING: "the guard restores what it found until the cluster shows that, and no earlier call can still arrive",
}
IN_EFFECT = frozenset(
    {HoldState.BY_OTHERS, HoldState.IN_EFFECT, HoldState.FOREIGN_IN_EFFECT, HoldState.BY_DEFAULT}
)  # fmt: skip
"""States in which nothing that a replica lacks can be removed."""
ENDED = frozenset({HoldState.NONE, HoldState.RELEASING})
STANDING = IN_EFFECT - {HoldState.BY_DEFAULT} | {HoldState.ASKED, HoldState.SHOWN, HoldState.FOREIGN}
"""States in which the guard relies on the topic's own overrides, and nobody has undone them."""


_S, _R = HoldState, Reason
_OWN = (_S.ASKED, _S.BY_OTHERS, _S.SHOWN, _S.IN_EFFECT)
_FOREIGN = (_S.FOREIGN, _S.FOREIGN_IN_EFFECT)
_DEFAULT = (_S.DEFAULT_ASKED, _S.DEFAULT_SHOWN, _S.BY_DEFAULT)
GROUPS = {"the guard's own hold": _OWN, "somebody else's hold": _FOREIGN, "a hold by the cluster default": _DEFAULT}
ROWS: tuple[tuple[tuple[HoldState, ...], HoldState, Reason], ...] = (
    ((_S.NONE, _S.RELEASING), _S.ASKED, _R.DUE),
    ((_S.NONE,), _S.FOREIGN, _R.DUE_FOREIGN),
    ((_S.ASKED,), _S.SHOWN, _R.SHOWN),
    ((_S.BY_OTHERS,), _S.IN_EFFECT, _R.SHOWN),
    ((_S.SHOWN,), _S.IN_EFFECT, _R.CONFIRMED),
    ((_S.ASKED,), _S.BY_OTHERS, _R.CONFIRMED),
    ((_S.FOREIGN,), _S.FOREIGN_IN_EFFECT, _R.CONFIRMED),
    ((_S.BY_OTHERS,), _S.ASKED, _R.OTHERS_ENDED),
    (_FOREIGN, _S.ASKED, _R.OWNER_RELEASED),
    ((_S.BY_OTHERS, _S.SHOWN, _S.IN_EFFECT), _S.ASKED, _R.OWN_RELEASE),
    (_OWN, _S.UNDONE_BY_ROBOT, _R.ROBOT),
    (_OWN, _S.UNDONE_BY_PERSON, _R.PERSON),
    ((_S.UNDONE_BY_ROBOT,), _S.DEFAULT_ASKED, _R.ANSWERED),
    ((_S.DEFAULT_ASKED,), _S.DEFAULT_SHOWN, _R.SHOWN),
    ((_S.DEFAULT_ASKED, _S.DEFAULT_SHOWN), _S.BY_DEFAULT, _R.CONFIRMED),
    ((_S.BY_DEFAULT,), _S.DEFAULT_ASKED, _R.NOT_SHOWN),
    (_DEFAULT, _S.OUT_OF_REACH, _R.OWN_OVERRIDES),
    ((_S.OUT_OF_REACH,), _S.DEFAULT_ASKED, _R.OVERRIDES_GONE),
    ((_S.OUT_OF_REACH,), _S.DEFAULT_SHOWN, _R.OVERRIDES_GONE),
    ((*_DEFAULT, _S.OUT_OF_REACH), _S.DEFAULT_UNDONE, _R.DEFAULT_CHANGED),
    (tuple(state for state in _S if state not in (_S.NONE, _S.RELEASING)), _S.RELEASING, _R.SETTLED),
    ((_S.RELEASING,), _S.NONE, _R.OVER),
)
TABLE = frozenset(
    Step(source=source, target=target, reason=reason) for sources, target, reason in ROWS for source in sources
)


class UnlistedStep(RuntimeWarning):
    """Our own bug. Tests and the simulator raise it; on a live cluster the guard continues, because a guard that ends holds
    nothing."""


def state_of(memory: Memory) -> HoldState:
    """The memory keeps the cluster default beside the hold; both together tell whether the default stands in for the hold."""
    hold = memory.hold
    if hold is None:
        return HoldState.NONE
    if hold.released_ms is not None:
        return HoldState.RELEASING
    if hold.undone_ms is not None:
        return _state_undone(hold, by_default=asked_by_default(memory))
    confirmed = hold.confirmed_ms is not None
    if is_held(hold.found):
        return HoldState.FOREIGN_IN_EFFECT if confirmed else HoldState.FOREIGN
    if hold.seen_ms is None:
        return HoldState.BY_OTHERS if confirmed else HoldState.ASKED
    return HoldState.IN_EFFECT if confirmed else HoldState.SHOWN


def asked_by_default(memory: Memory) -> bool:
    """Requested for this hold: the memory may still have the cluster default of an earlier one that is not fully restored."""
    return memory.default_hold is not None and memory.hold is not None and memory.hold.default_asked_ms is not None


def _state_undone(hold: Hold, *, by_default: bool) -> HoldState:
    if not by_default:
        return HoldState.UNDONE_BY_ROBOT if hold.by_robot else HoldState.UNDONE_BY_PERSON
    if hold.default_undone_ms is not None:
        return HoldState.DEFAULT_UNDONE
    if hold.out_of_reach_ms is not None:
        return HoldState.OUT_OF_REACH
    if hold.confirmed_ms is not None:
        return HoldState.BY_DEFAULT
    return HoldState.DEFAULT_ASKED if hold.default_seen_ms is None else HoldState.DEFAULT_SHOWN


def move(before: Memory, after: Memory, reason: Reason) -> Memory:
    """The memory after one step; staying in the same state is not a step."""
    source, target = state_of(before), state_of(after)
    step = Step(source=source, target=target, reason=reason)
    if source is not target and not is_in_table(step):
        warnings.warn(UnlistedStep(f"a hold's step is not in the table: {source} → {target}, {reason}"), stacklevel=2)
    return after


def is_in_table(step: Step) -> bool:
    return step in TABLE
