"""Random logs on three replicas, unevenly compacted by the real pipeline, lagging, cut at the head; then one that is wrong.

    python -m tests.audit.test_seeded --seeds 1000      # healthy ones, and as many with one corruption each

Healthy: nothing may be found. Corrupt: what was done to one replica is found on that replica, with its class.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from headstone.audit.comparison import ABORTED_SERVED, FROZEN, HIDDEN, REAPPEARS
from headstone.log.checkpoints import LOG_START, write_offsets
from headstone.retention.policy import Policy, kafka_rules
from headstone.spark import auditing
from headstone.spark.compaction import CompactionRequest, compact
from headstone.spark.inprocess import InProcess
from tests.audit.replicas import audited, findings
from tests.oracle.notation import History

CODECS = ("", "", "/gzip", "/snappy", "/lz4", "/zstd", "/lat")
LATE_MS = 10**9
SEEDS = 40
PLOTS: dict[str, tuple[str, str, bytes | None]] = {
    # before ! what one replica misses ! after; "." is other traffic
    REAPPEARS: ("N[victim] . ! T[victim] ! .", "N[victim] . ! T[victim] ! . N[x]", b"victim"),
    ABORTED_SERVED: ("P77[victim] . ! A77 ! . P77[good] C77", "N[old] P77[victim] ! A77 ! P77[good] . C77", b"victim"),
    HIDDEN: (
        "N[victim] . P77[~victim] ! C77 ! . P77[junk] A77",
        "N[victim] P77[~victim] . ! C77 ! P77[junk] . A77",
        b"victim",
    ),
    FROZEN: ("P77[victim] . ! C77 ! .", "P77[victim] ! A77 ! . N[victim]", None),
}
"""By class: two ways to get there, and the key of the finding."""


def traffic(chance: random.Random, count: int) -> list[str]:
    """Batches, transactions, rolls; producers 1 to 3, whose transactions end sooner or later."""
    words: list[str] = []
    open_txns: set[int] = set()
    for _ in range(count):
        keys = ",".join(chance.choice(("", "~")) + f"k{chance.randrange(12)}" for _ in range(chance.randint(1, 3)))
        kind, producer = chance.random(), chance.randint(1, 3)
        if kind < 0.5:
            words.append(f"N[{keys}]{chance.choice(CODECS)}")
        elif kind < 0.7:
            words.append(f"P{producer}[{keys}]{chance.choice(CODECS[:-1])}")
            open_txns.add(producer)
        elif kind < 0.85 and producer in open_txns:
            words.append(f"{chance.choice('CA')}{producer}")
            open_txns.discard(producer)
        elif words and words[-1] != "|":
            words.append("|")
    return words + [f"{chance.choice('CA')}{producer}" for producer in sorted(open_txns)]


def write(words: Sequence[str], root: Path) -> Path:
    history = History()
    for word in words:
        history.append(word)
    history.write_partition(root, "t-0")
    return root


def clean(root: Path, chance: random.Random, passes: int) -> None:
    """As a broker's cleaner does, some passes, late enough for tombstones and markers to go."""
    for number in range(passes):
        policy = kafka_rules(
            Policy(now_ms=LATE_MS * (number + 1), delete_retention_ms=chance.choice((1, 1, 1, LATE_MS)))
        )
        request = CompactionRequest(paths=(str(root),), out=None, policy=policy, dirty_from=0, progress=False)
        compact(request, InProcess(), lambda text: None)


def cut_head(root: Path) -> None:
    """The first segment is gone, as after DeleteRecords on one replica only."""
    files = sorted((root / "t-0").glob("*.log"))
    if len(files) > 2:
        for path in (root / "t-0").glob(files[0].stem + ".*"):
            path.unlink()
        write_offsets(root / LOG_START, {("t", 0): int(files[1].stem)})


def healthy(seed: int, root: Path) -> list[tuple[str, str, bytes | None]]:
    chance = random.Random(seed)
    words = traffic(chance, 40)
    in_flight = ["P9[k1,k2]", "N[k3]"] if chance.random() < 0.5 else []
    lags = [number > 0 and chance.random() < 0.3 for number in range(3)]
    roots = []
    for number, behind in enumerate(lags):
        words_here = words + in_flight
        if behind:
            words_here = words_here[: chance.randint(len(words_here) // 2, len(words_here))]
        roots.append(write(words_here if behind else [*words_here, "|", "N[z]"], root / str(number)))
        if not behind:
            # Tombstones and markers may be gone only if everybody has had them.
            clean(roots[-1], chance, chance.randint(0, 1 if any(lags) else 3))
        if chance.random() < 0.2:
            cut_head(roots[-1])
    return findings(audited(roots))


def corrupt(seed: int, root: Path) -> tuple[str, bytes | None, list[tuple[str, str, bytes | None]]]:
    """(class, key, what was found); replica 2 is the one that misses something."""
    chance = random.Random(seed)
    kind = chance.choice(sorted(PLOTS))
    plot, key = PLOTS[kind][chance.randrange(2)], PLOTS[kind][2]
    before, missed, after = (_filled(part, chance) for part in plot.split("!"))
    end = ["|", "N[z]", "|", "N[z]"]
    right, wrong = [*before, *missed, *after, *end], [*before, *("+1" for _ in missed), *after, *end]
    roots = [write(right, root / "0"), write(right, root / "1"), write(wrong, root / "2")]
    for path in roots[:2]:
        clean(path, chance, chance.randint(0, 4))
    return kind, key, findings(audited(roots))


def _filled(part: str, chance: random.Random) -> list[str]:
    return [
        word for text in part.split() for word in ([f"N[f{chance.randrange(5)}]", "|"] if text == "." else [text])
    ]  # fmt: skip


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_nothing_is_found_on_healthy_replicas(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 10):
        assert (seed, healthy(seed, tmp_path / str(seed))) == (seed, [])


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_what_was_done_to_one_replica_is_found(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 10):
        kind, key, found = corrupt(seed, tmp_path / str(seed))
        assert (seed, found) == (seed, [(kind, "2", key)])


def test_many_shares_of_the_keys_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a partition that does not fit into memory: rows go through files."""
    monkeypatch.setattr(auditing, "TASK_BYTES", 700)
    for seed in range(SEEDS, SEEDS + 10):
        assert healthy(seed, tmp_path / f"h{seed}") == []
        kind, key, found = corrupt(seed, tmp_path / f"c{seed}")
        assert (seed, found) == (seed, [(kind, "2", key)])
        roots = [tmp_path / f"c{seed}" / name for name in "012"]
        many = audited(roots, keys=[b"victim", b"z"])
        monkeypatch.setattr(auditing, "TASK_BYTES", 1 << 30)
        (whole,) = audited(roots, keys=[b"victim", b"z"]).results
        monkeypatch.setattr(auditing, "TASK_BYTES", 700)
        assert len(many.results) > 1
        assert sorted(proof for result in many.results for proof in result.proofs) == sorted(whole.proofs)
        assert sum(result.compared.keys for result in many.results) == whole.compared.keys
        for number, counts in enumerate(whole.counts):
            live = sum(result.counts[number].live_keys for result in many.results)
            assert (live, many.results[0].counts[number].records) == (counts.live_keys, counts.records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    root = Path(tempfile.mkdtemp(prefix="headstone-"))
    for seed in range(given.first, given.first + given.seeds):
        false = healthy(seed, root / "h")
        kind, key, found = corrupt(seed, root / "c")
        counts["false alarms"] += bool(false)
        counts[f"{kind} {'found' if found == [(kind, '2', key)] else 'MISSED'}"] += 1
        if false or found != [(kind, "2", key)]:
            print(f"seed {seed}: false alarms {false}; {kind}: {found}", flush=True)
        shutil.rmtree(root)
    print(f"{given.seeds} seeds: {dict(sorted(counts.items()))}")


if __name__ == "__main__":
    main()
