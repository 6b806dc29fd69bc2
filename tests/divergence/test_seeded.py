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
from tests.divergence.histories import Cluster, generate
from tests.divergence.judging import Judgement, Said, judge, mistakes
from tests.divergence.replicas import audited, said

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


if __name__ == "__main__":
    main()
