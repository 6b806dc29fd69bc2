"""Explores the coordination protocol within bounds, completely, and looks for the shortest way to break each mutant.

    python campaigns/explore.py
    python campaigns/explore.py --only messages --paths

One process, one core, a quarter of a gigabyte for a million states; seconds are of its processor time. Exit code 0: no
violation within any bounds, and every mutant found; 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace

from headstone.coordination import replica as following
from headstone.coordination.replica import NOTHING, Replica
from headstone.coordination.watermarks import ReplicaWatermarks
from headstone.sim.broker import Parts
from headstone.sim.explore import ExploreBounds, Explored, explore
from headstone.sim.mutants import MUTANTS

BOUNDS = {
    "messages": ExploreBounds(),
    "faults": ExploreBounds(waiting=0, faults=2),
    "late-metadata": ExploreBounds(waiting=0, faults=2, late_metadata=True),
    "elections": ExploreBounds(waiting=0, elections=2),
    "members": ExploreBounds(waiting=0, changes=1),
    "plain": ExploreBounds(waiting=0, transactional=False),
    "offsets": ExploreBounds(waiting=0, elections=0, transactional=False, offsets=2, written=2),
}
"""Each goes further in one direction: in all of them at once there would be too many states."""

ALONE = ExploreBounds(waiting=0, elections=0)
WEAKEST = {
    "maximum": ALONE,
    "reachable-only": ALONE,
    "unheard-not-counted": ALONE,
    "stale-incarnation": ALONE,
    "same-incarnation": ALONE,
    "claims-not-persisted": ALONE,
    "group-forgotten": ALONE,
    "newcomer-at-log-end": replace(ALONE, transactional=False),
    "watermark-may-fall": replace(ALONE, waiting=1, faults=0),
    "old-log-kept": replace(ALONE, faults=0, changes=2),
    "old-leaders-answered": ExploreBounds(waiting=0),
    "epoch-not-persisted": ExploreBounds(waiting=0, faults=2, late_metadata=True),
}
"""Bounds in which each mutant fails. A mutant that breaks only a cleaner's rule, a reader's hold or progress fails in none."""


class ForgetsClaims(Replica):
    """Claims are not on disk: a restart cannot tell that one was lost, and the leader keeps counting it."""

    def _started(self, event: following.Started) -> list[following.Effect]:
        durable = event.durable
        return super()._started(event if durable is None else replace(event, durable=replace(durable, claimed=NOTHING)))

    def _truncated(self, local: ReplicaWatermarks, fresh: int) -> list[following.Effect]:
        self._local, self.claimed = local, NOTHING
        return []


class ForgetsEpoch(Replica):
    """After a restart any leader counts as the newest."""

    def _started(self, event: following.Started) -> list[following.Effect]:
        durable = event.durable
        return super()._started(event if durable is None else replace(event, durable=replace(durable, leader_epoch=-1)))


MORE = {"claims-not-persisted": Parts(replica=ForgetsClaims), "epoch-not-persisted": Parts(replica=ForgetsEpoch)}
"""Chance hardly ever finds these, so `sim/mutants.py` does not have them."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=[*BOUNDS, "mutants"], help="one of the parts")
    parser.add_argument("--paths", action="store_true", help="print each counterexample")
    arguments = parser.parse_args()
    print(f"{'':22}{'states':>10}{'transitions':>13}{'depth':>7}{'seconds':>9}")
    broken = 0
    for name, bounds in BOUNDS.items():
        if arguments.only in (None, name):
            explored = timed(name, bounds, Parts(), paths=True)
            broken += explored.violation is not None or not explored.complete
    for name, bounds in WEAKEST.items():
        if arguments.only in (None, "mutants"):
            parts = MORE[name] if name in MORE else MUTANTS[name].parts
            broken += timed(name, bounds, parts, paths=arguments.paths).violation is None
    return 1 if broken else 0


def timed(name: str, bounds: ExploreBounds, parts: Parts, *, paths: bool) -> Explored:
    started = time.process_time()
    explored = explore(bounds, parts)
    seconds = time.process_time() - started
    verdict = explored.violation or (
        "no violation" if explored.complete else "no violation so far: states_max was reached"
    )
    if explored.violation is not None:
        verdict = f"after {len(explored.path)} actions {verdict}"
    numbers = f"{explored.states:10}{explored.transitions:13}{explored.depth:7}{seconds:9.1f}"
    print(f"{name:22}{numbers}  {verdict}", flush=True)
    for action in explored.path if paths else ():
        print(f"    {action}", flush=True)
    return explored


if __name__ == "__main__":
    sys.exit(main())
