"""Generated histories of three and five replicas, audited; what is said is held against what happened.

    python -m tests.divergence.test_seeded --seeds 5000      # as many corrupt partitions, and as many healthy ones

Healthy: nothing may be found. Corrupt: whatever is wrong is found on the replica that is wrong, with its class, or with two
classes of which one is right; no healthy replica is blamed. In between are partitions in which something went wrong that
misleads no reader, and replicas that are behind: there, what is said must be true.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from headstone.pipeline import auditing
from headstone.pipeline.auditing import uncompared
from headstone.sim.broker import Parts
from headstone.sim.chaos import Corrupt
from headstone.sim.checkers import check_log
from headstone.sim.ordeals import Ordeals
from headstone.sim.partition_log import PartitionLog
from headstone.sim.runs import draw
from headstone.sim.stories import STORIES, StoryStage, tell_story
from headstone.sim.truth import Truth
from tests.divergence.histories import Cluster, generate
from tests.divergence.judging import Judgement, Said, judge, mistakes
from tests.divergence.replicas import audit_logs, audited, findings, said

SEEDS, SEEDS_AT_ONCE = 240, 60
CORRUPT, HEALTHY, BETWEEN = "corrupt", "healthy", "in between"


def audit_history(cluster: Cluster, root: Path) -> list[Said]:
    one = audited([copy.write(root / copy.name) for copy in cluster.copies])
    furthest = max(facts.trusted_end for result in one.results for facts in result.facts)
    lagging = {facts.name for result in one.results for facts in result.facts if facts.trusted_end < furthest}
    # Of one that lags perhaps nothing can be compared: all of it was written again since, and cleaned away elsewhere.
    assert one.problems == tuple(text for name, text in uncompared(one.results).items() if name in lagging)
    return said(one)


def kind_of(judgement: Judgement) -> str:
    return CORRUPT if judgement.corrupt else HEALTHY if judgement.healthy else BETWEEN


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_AT_ONCE))
def test_what_is_said_is_true_and_nothing_is_missed(first: int, tmp_path: Path) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(first, first + SEEDS_AT_ONCE):
        cluster = generate(seed)
        judgement = judge(cluster)
        assert (seed, mistakes(judgement, audit_history(cluster, tmp_path / str(seed)))) == (seed, [])
        kinds[kind_of(judgement)] += 1
    assert min(kinds[CORRUPT], kinds[HEALTHY]) > SEEDS_AT_ONCE // 10


def test_many_shares_of_the_keys_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a partition that does not fit into memory: rows go through files."""
    found_at_all = 0
    for seed in range(SEEDS, SEEDS + 10):
        cluster = generate(seed)
        roots = [copy.write(tmp_path / str(seed) / copy.name) for copy in cluster.copies]
        whole = audited(roots, keys=[b"k0", b"end"])
        with monkeypatch.context() as patched:
            patched.setattr(auditing, "TASK_BYTES", 700)
            many = audited(roots, keys=[b"k0", b"end"])
        assert len(many.results) > 1
        assert sorted(said(many), key=str) == sorted(said(whole), key=str)
        found_at_all += bool(said(whole))
        proofs = [[proof for result in one.results for proof in result.proofs] for one in (many, whole)]
        assert sorted(proofs[0]) == sorted(proofs[1])
        assert sum(result.compared.keys for result in many.results) == whole.results[0].compared.keys
        for number, counts in enumerate(whole.results[0].counts):
            live = sum(result.counts[number].live_keys for result in many.results)
            assert (live, many.results[0].counts[number].records) == (counts.live_keys, counts.records)
    assert found_at_all > 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="corrupt partitions, and healthy ones")
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    root = Path(tempfile.mkdtemp(prefix="headstone-"))
    for seed in itertools.count(given.first):
        cluster = generate(seed)
        judgement = judge(cluster)
        kind = kind_of(judgement)
        if counts[kind] < (given.seeds if kind != BETWEEN else given.seeds // 5):
            counts[kind] += 1
            found = audit_history(cluster, root)
            shutil.rmtree(root)
            counts["mistakes"] += _report(seed, mistakes(judgement, found))
            counts[f"{kind}, undecided"] += any(one.or_kind for one in found)
            counts["findings"] += sum(one.misleads for one in found)
            counts["findings undecided"] += sum(one.or_kind is not None for one in found)
            counts["findings of three readings"] += sum(one.else_kind is not None for one in found)
        if seed % 1000 == 999 or min(counts[CORRUPT], counts[HEALTHY]) >= given.seeds:
            share = counts["findings undecided"] / max(counts["findings"], 1)
            print(
                f"{seed + 1 - given.first} histories: {dict(sorted(counts.items()))}; undecided {share:.1%}", flush=True
            )
        if min(counts[CORRUPT], counts[HEALTHY]) >= given.seeds:
            return


def _report(seed: int, wrong: list[str]) -> bool:
    for text in wrong:
        print(f"seed {seed}: {text}", flush=True)
    return bool(wrong)


STEPS = 200
CLUSTERS_AT_ONCE = 10


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


@pytest.mark.parametrize("first", range(5000, 5040, CLUSTERS_AT_ONCE))
def test_no_false_alarm(first: int, tmp_path: Path) -> None:
    audited = 0
    for seed in range(first, first + CLUSTERS_AT_ONCE):
        logs, _ = played(seed, "coordinated")
        if len(logs) > 1:
            one = audit_logs(logs, tmp_path / str(seed))
            # With nothing replicated for sure, or nothing in common with one that lags, it says so; else there is no problem.
            assert all("could be compared" in text for text in one.problems)
            assert (seed, findings(one)) == (seed, [])
            audited += 1
    assert audited > CLUSTERS_AT_ONCE // 3


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


EXPECTED = {
    "tombstone-divergence": [("deleted-reappears", "2", b"k")],
    "aborted-to-committed": [("aborted-as-committed", "2", b"poison")],
    "committed-to-aborted": [("committed-hidden", "2", b"k")],
    "stuck-read-committed": [("read-committed-frozen", "2", None)],
}


@pytest.mark.parametrize("rules", ["kafka", "coordinated"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.variant)
def test_what_was_done_is_named(story, rules: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    stages: list[StoryStage] = []
    real = StoryStage.__init__

    def remembered(self: StoryStage, *arguments: object) -> None:
        real(self, *arguments)  # type: ignore[arg-type]
        stages.append(self)

    monkeypatch.setattr(StoryStage, "__init__", remembered)
    tell_story(story, rules)
    (stage,) = stages
    one = audit_logs({str(broker.number): broker.log for broker in stage.cluster.brokers}, tmp_path)
    assert one.problems == ()
    assert findings(one) == (EXPECTED[story.variant] if rules == "kafka" else [])


if __name__ == "__main__":
    main()
