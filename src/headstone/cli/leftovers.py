"""What a run that did not finish leaves behind, by verb: shown when it is interrupted, or stopped by an error.

Knows verbs only by their names and options.
"""

from __future__ import annotations

import argparse

NOTHING = "it has changed nothing"
BEGUN = "what it had begun to change is finished or undone by the next run, the rest is as it was"
NEW = "what it has written is not whole, remove {place}"
READERS = {
    ("inspect", None), ("audit", None), ("simulate", None), ("reproduce", None), ("completion", None), ("lake", "status"),
    ("lake", "read"), ("lake", "prove-erased"), ("guard", "check"), ("guard", "status"), ("agent", None),
    ("list", "topics"), ("describe", "topics"),
}  # fmt: skip
"""Verbs, and actions of verbs, that make no lasting change; `lake topics` has a verb of its own."""


def left_by(arguments: argparse.Namespace) -> str:
    verb, action = arguments.verb, getattr(arguments, "action", None)
    plans = getattr(arguments, "dry_run", False) or getattr(arguments, "apply", True) is False
    if (verb, action) in READERS or plans:
        return NOTHING
    place = {"demo": "dir", "synth": "directory"}.get(verb)
    return BEGUN if place is None else NEW.format(place=getattr(arguments, place) or "it")
