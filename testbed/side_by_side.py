"""The same log cleaned twice: by a real broker's cleaner, and by `--rules kafka` on a copy of the bytes it started from.

What must be the same: how far it got, which segments are left, every field of every batch and record, and the abort and
offset indexes. Compressed bytes may differ: we use other encoders. `python -m testbed.side_by_side` runs many seeds.
"""

from __future__ import annotations

import argparse
import datetime
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headstone.brokers.client import JavaClient
from headstone.brokers.distribution import Distribution
from headstone.brokers.processes import Broker, Cluster
from headstone.log.checkpoints import read_offsets
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.compaction import CompactionRequest, compact
from headstone.pipeline.inprocess import InProcess
from headstone.retention.policy import Policy, kafka_rules
from testbed.dumps import dump
from testbed.maven import VERSIONS, kafka
from testbed.workloads import INDEX_INTERVAL_BYTES, SEGMENT_BYTES, Workload

RETENTION_MS = 1000
RETENTION_OF_MANY_PASSES_MS = 20_000
"""Longer than one cleaning of several passes: their exact times are unknown, so no horizon may pass between them."""
BEGAN = re.compile(r"\[(\S+ \S+?),(\d{3})\] INFO Cleaner \d+: Beginning cleaning of log (\S+) ")
HORIZON = re.compile(r"OptionalLong\[(\d+)\]")
BEHIND_MAX = 10
CLOCKS_APART_MS = 100
"""Between a pass's reading of the clock and its line in the log; a stamped horizon tells the exact time."""

TINY_MAP = {"log.cleaner.dedupe.buffer.size": (1 << 20) + 24, "log.cleaner.io.buffer.load.factor": 0.0007}
TINY_MAP_KEYS = int(((1 << 20) + 24) // 24 * 0.0007)
"""A map that is full after thirty keys: the real cleaner needs several passes."""


@dataclass(slots=True, kw_only=True)
class Comparison:
    partitions: int = 0
    passes: int = 0
    records: int = 0
    removed: int = 0
    stamped: int = 0
    header_only: int = 0
    overlooked: int = 0
    """Superseded records that the real cleaner left because it took their successors for aborted (docs/rules.md)."""
    behind: int = 0
    """How many more passes Headstone needed than the real cleaner to get as far."""
    differences: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.partitions} partitions, {self.passes} passes of the real cleaner, {self.removed} records removed, "
            f"{self.records} left, {self.stamped} stamped batches, {self.header_only} header-only, "
            f"{self.overlooked} overlooked by the real cleaner, {self.behind} passes more than it, "
            f"{len(self.differences)} differences"
        )


def compare_round(workload: Workload, work: Path, result: Comparison, *, index_keys_max: int | None = None) -> None:
    """Writes, cleans for real, cleans a copy of the same bytes, compares."""
    broker = workload.cluster.brokers[1]
    workload.write()
    our_logs, before = work / "ours", broker.output.stat().st_size
    shutil.rmtree(work, ignore_errors=True)
    _copy(broker.log_dir, our_logs, workload.partitions)
    many_passes = index_keys_max is not None
    retention_ms = RETENTION_OF_MANY_PASSES_MS if many_passes else RETENTION_MS
    workload.clean(delete_retention_ms=retention_ms)
    real_logs = work / "theirs"
    _copy(broker.log_dir, real_logs, workload.partitions)
    distribution = workload.cluster.distribution
    real = _dumped(distribution, real_logs, workload.partitions, work)
    old = _dumped(distribution, our_logs, workload.partitions, work)
    times = passes(broker, before)
    for name in workload.partitions:
        stamped = _horizons(real[name]) - _horizons(old[name])
        for began in times.get(name, ()):
            exact = min((h - retention_ms for h in stamped), key=lambda t: abs(t - began), default=began)
            now = exact if abs(exact - began) < CLOCKS_APART_MS else began
            _compact(our_logs / name, now, retention_ms, index_keys_max)
            result.passes += 1
        # What the real cleaner overlooks takes no room in its map, so one of its passes may reach farther.
        while many_passes and _behind(our_logs, real_logs, name) and result.behind < BEHIND_MAX:
            _compact(our_logs / name, now, retention_ms, index_keys_max)
            result.behind += 1
    our_dump = _dumped(distribution, our_logs, workload.partitions, work)
    for name in workload.partitions:
        result.partitions += 1
        lines = [line for some in real[name].values() for line in some]
        result.records += _records(lines)
        result.removed += _records([line for some in old[name].values() for line in some]) - _records(lines)
        result.stamped += sum("OptionalLong[" in line for line in lines)
        result.header_only += sum("count: 0 " in line for line in lines)
        differences = list(_differences(real_logs, our_logs, name, real[name], our_dump[name], many_passes=many_passes))
        if differences and many_passes and name.startswith("txn-"):
            missing, spared = _overlooked(real[name], our_dump[name])
            result.overlooked += spared
            differences = missing
        result.differences += [f"{name}: {text}" for text in differences]


def _behind(our_logs: Path, real_logs: Path, name: str) -> bool:
    return name.startswith("txn-") and (_checkpoint(our_logs, name) or 0) < (_checkpoint(real_logs, name) or 0)


def _records(lines: Sequence[str]) -> int:
    return sum(line.startswith("|") for line in lines)


def passes(broker: Broker, start: int) -> dict[str, list[int]]:
    """When each partition's passes began, according to the broker's log after `start`."""
    starts_ms: dict[str, list[int]] = {}
    with open(broker.output, "rb") as file:
        file.seek(start)
        text = file.read().decode()
    for when, milliseconds, name in BEGAN.findall(text):
        second = datetime.datetime.strptime(when, "%Y-%m-%d %H:%M:%S").astimezone()
        starts_ms.setdefault(name, []).append(int(second.timestamp()) * 1000 + int(milliseconds))
    return starts_ms


def _copy(log_dir: Path, to: Path, partitions: Sequence[str]) -> None:
    """Without the high watermark checkpoint: it is seconds behind, and on one broker everything is replicated."""
    left = shutil.ignore_patterns("*.deleted", "*.cleaned", "*.swap")
    for name in partitions:
        shutil.copytree(log_dir / name, to / name, ignore=left)
    if (log_dir / "cleaner-offset-checkpoint").exists():
        shutil.copyfile(log_dir / "cleaner-offset-checkpoint", to / "cleaner-offset-checkpoint")


def _compact(partition: Path, now_ms: int, retention_ms: int, index_keys_max: int | None) -> None:
    policy = Policy(
        now_ms=now_ms, delete_retention_ms=retention_ms, segment_bytes=SEGMENT_BYTES,
        index_interval_bytes=INDEX_INTERVAL_BYTES, index_keys_max=index_keys_max,
    )  # fmt: skip
    request = CompactionRequest(paths=(str(partition),), out=None, policy=kafka_rules(policy), progress=False)
    compact(request, InProcess(), lambda text: None)


def _dumped(
    distribution: Distribution, log_dir: Path, partitions: Sequence[str], work: Path
) -> dict[str, dict[str, list[str]]]:
    """By partition and file name; one run of the dump for all."""
    files = [file for name in partitions for file in sorted((log_dir / name).glob("*.log"))]
    lines = dump(distribution, files, work / "tools")
    by_partition: dict[str, dict[str, list[str]]] = {name: {} for name in partitions}
    for path, some in lines.items():
        by_partition[Path(path).parent.name][Path(path).name] = some
    return by_partition


def _horizons(files: Mapping[str, Sequence[str]]) -> set[int]:
    return {int(found) for lines in files.values() for line in lines for found in HORIZON.findall(line)}


def _differences(
    real_logs: Path, our_logs: Path, name: str, real: Mapping[str, Sequence[str]], our_dump: Mapping[str, Sequence[str]],
    *, many_passes: bool,
) -> Iterator[str]:  # fmt: skip
    reached, got = (_checkpoint(log_dir, name) for log_dir in (real_logs, our_logs))
    if reached != got:
        yield f"the real cleaner got to {reached}, we to {got}"
        return
    cleaned = {file for file in real if int(Path(file).stem) < (reached or 0)}
    packed = any(
        "compresscodec: none" not in line for file in cleaned for line in real[file] if line.startswith("base")
    )
    if cleaned != {file for file in our_dump if int(Path(file).stem) < (reached or 0)}:
        if not (
            packed and many_passes
        ):  # sizes after the first pass depend on the encoder, and they decide the next grouping
            yield f"segments {sorted(real)} and {sorted(our_dump)}"
        yield from _lines_differ(
            name, *([line for file in sorted(some) for line in some[file]] for some in (real, our_dump))
        )
        return
    for file in sorted(cleaned):
        yield from _lines_differ(file, real[file], our_dump[file])
        for suffix in (".txnindex",) if packed else (".log", ".index", ".timeindex", ".txnindex"):
            real_content, our_content = (
                _content((log_dir / name / file).with_suffix(suffix)) for log_dir in (real_logs, our_logs)
            )
            if real_content != our_content:
                yield f"{Path(file).with_suffix(suffix)}: {len(real_content)} and {len(our_content)} bytes, not the same"


def _lines_differ(where: str, real_lines: Sequence[str], our_lines: Sequence[str]) -> Iterator[str]:
    pairs = [(_comparable(a), _comparable(b)) for a, b in zip(real_lines, our_lines, strict=False)]
    first = next(((a, b) for a, b in pairs if a != b), None)
    if first is not None:
        yield f"{where}: the real cleaner has\n    {first[0]}\n  we have\n    {first[1]}"
    elif len(real_lines) != len(our_lines):
        yield f"{where}: the real cleaner left {len(real_lines)} batches and records, we {len(our_lines)}"


def _overlooked(real: Mapping[str, Sequence[str]], our_dump: Mapping[str, Sequence[str]]) -> tuple[list[str], int]:
    """Where passes begin in mid-segment between transactions, Headstone may have less, if all of it is superseded."""
    real_keys = _by_offset(real)
    our_keys = _by_offset(our_dump)
    newest: dict[str, int] = {}
    for offset, key in real_keys.items():
        newest[key] = max(offset, newest.get(key, -1))
    wrong = [
        f"we have {offset} ({key}), the real cleaner has not"
        for offset, key in our_keys.items()
        if offset not in real_keys
    ]
    extra = {offset: key for offset, key in real_keys.items() if offset not in our_keys}
    wrong += [f"we lost {offset} ({key})" for offset, key in extra.items() if newest[key] == offset and key != "marker"]
    return wrong, len(extra)


def _by_offset(files: Mapping[str, Sequence[str]]) -> dict[int, str]:
    """Offset to key of every record; markers have none."""
    keys = {}
    for line in (line for lines in files.values() for line in lines if line.startswith("|")):
        key = re.search(r" key: (.*?)(?: payload: |$)", line)
        keys[int(line.split()[2])] = f"key {key[1]}" if key else "marker"
    return keys


def _comparable(line: str) -> str:
    """Leaves out what other encoders may change, if something is encoded."""
    line = re.sub(r"position: \d+ ", "", line)
    return line if "compresscodec: none" in line else re.sub(r"(size|crc): \d+ ", "", line)


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _checkpoint(log_dir: Path, name: str) -> int | None:
    topic, _, number = name.rpartition("-")
    path = log_dir / "cleaner-offset-checkpoint"
    return read_offsets(path).get(TopicPartition(topic, int(number))) if path.exists() else None


def run(distribution: Distribution, root: Path, *, seed: int, rounds: int, tiny_map: bool) -> Comparison:
    result = Comparison()
    settings = TINY_MAP if tiny_map else {}
    with (
        Cluster(distribution, root / "cluster", settings=settings) as cluster,
        JavaClient(distribution, root / "client") as java,
    ):
        workload = Workload(cluster, java.connect(cluster.bootstrap), seed=seed)
        workload.create()
        for _ in range(rounds):
            compare_round(workload, root / "work", result, index_keys_max=TINY_MAP_KEYS if tiny_map else None)
        workload.close()
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m testbed.side_by_side", description=__doc__)
    parser.add_argument("--version", action="append", help="Kafka's versions (default: both)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=4, help="write and clean so often with each seed")
    arguments = parser.parse_args()
    differences = 0
    for version in arguments.version or VERSIONS:
        for seed in range(arguments.seed, arguments.seed + arguments.seeds):
            for tiny_map in (False, True):
                with tempfile.TemporaryDirectory(prefix="headstone-") as root:
                    result = run(kafka(version), Path(root), seed=seed, rounds=arguments.rounds, tiny_map=tiny_map)
                print(f"Kafka {version}, seed {seed}, {'tiny' if tiny_map else 'roomy'} map: {result}", flush=True)
                for difference in result.differences:
                    print(f"  {difference}", flush=True)
                differences += len(result.differences)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
