"""Random clusters of the simulator, with crashes, lag, uneven cleaning, uneven starts and transactions in flight.

By coordinated rules nothing may be found: every finding would be a false alarm. By Kafka's rule things go wrong; whatever is
found must then be true, or about a replica that is behind what the others have already forgotten.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.sim.broker import Parts
from headstone.sim.chaos import Corrupt
from headstone.sim.checkers import check_log
from headstone.sim.ordeals import Ordeals
from headstone.sim.partition_log import PartitionLog
from headstone.sim.runs import draw
from headstone.sim.truth import Truth
from tests.divergence.replicas import audit_logs, findings, said

STEPS = 200
SEEDS_AT_ONCE = 10


def played(seed: int, rules: str) -> tuple[dict[str, PartitionLog], Truth]:
    """The logs as they are in the middle of everything, or where something went wrong."""
    scenario, story = draw(seed, rules=rules, replicas=None, steps=STEPS)
    driver = Ordeals(scenario, Parts())
    try:
        for at, (name, number) in enumerate(story):
            driver.do(name, number)
            if rules == "kafka" and at % 5 == 0:
                driver.check()
    except Corrupt:
        pass
    # A log of an earlier membership is no replica: the broker throws it away as soon as it learns.
    since = driver.cluster.metadata.members
    logs = {str(b.number): b.log for b in driver.cluster.brokers if b.member_since == since.get(b.number, -1)}
    return {name: log for name, log in logs.items() if log.log_end > log.log_start}, driver.cluster.truth


@pytest.mark.parametrize("first", range(5000, 5040, SEEDS_AT_ONCE))
def test_no_false_alarm(first: int, tmp_path: Path) -> None:
    audited = 0
    for seed in range(first, first + SEEDS_AT_ONCE):
        logs, _ = played(seed, "coordinated")
        if len(logs) > 1:
            one = audit_logs(logs, tmp_path / str(seed))
            # With nothing replicated for sure, or nothing in common with one that lags, it says so; else there is no problem.
            assert all("could be compared" in text for text in one.problems)
            assert (seed, findings(one)) == (seed, [])
            audited += 1
    assert audited > SEEDS_AT_ONCE // 3


def test_what_is_found_is_true(tmp_path: Path) -> None:
    found_at_all = 0
    for seed in range(60):
        logs, truth = played(seed, "kafka")
        if len(logs) < 2:
            continue
        wrong = {(finding.kind, name) for name, log in logs.items() for finding in check_log(name, log, truth)}
        found = said(audit_logs(logs, tmp_path / str(seed)))
        furthest = max(log.log_end for log in logs.values())
        doubtful = [
            one
            for one in found
            if one.misleads and not {(one.kind, one.replica), (one.or_kind, one.or_replica)} & wrong
            if logs[one.replica].log_end == furthest
        ]
        assert (seed, doubtful) == (seed, [])
        found_at_all += bool(found)
    assert found_at_all > 2
