"""A partition directory before and after a swap, and what a broker would make of it in between.

`kafka_load` tells a broker's start once more, from Kafka's `LogLoader` and in plain Python, so that the swap is not judged by
its own recovery.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from headstone.pipeline import commit, compaction, outputs
from headstone.retention.policy import NO_LIMIT, Policy, kafka_rules
from tests.logs import compact_here, write_log
from tests.oracle.batches import Batch, parse_log
from tests.oracle.files import read_partition, read_segment
from tests.oracle.producers import ProducerTable
from tests.oracle.segments import AbortedTxn, Segment, make_segment

NUMBERED = re.compile(r"(\d{20})\.(log|index|timeindex|txnindex|snapshot)(\.cleaned|\.swap|\.deleted)?")
NAME = "t-0"
PARTITION = re.compile(r"[a-z]+-[0-9]+")
NOW_MS = 100_000
BROKER = (
    ("meta.properties", "version=1\n"),
    (".kafka_cleanshutdown", "{}"),
    ("replication-offset-checkpoint", "0\n1\nt 0 99\n"),
)
BROKER_FILES = ("meta.properties", ".kafka_cleanshutdown", ".lock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What readers of a directory can tell apart; of indexes, what is in them."""

    segments: tuple[Segment, ...]

    @property
    def bases(self) -> list[int]:
        return [segment.base for segment in self.segments]


def read_log(directory: Path) -> Log:
    return Log(segments=tuple(replace(segment, mtime_ms=0) for segment in read_partition(directory)))


def offset_of(name: str) -> int:
    return int(name[:20])


def kafka_load(directory: Path) -> Log:
    """A broker's start after a clean stop, in the steps of Kafka's `LogLoader.load`: changes the directory and reads it."""

    def names(stage: str) -> list[str]:
        found = (NUMBERED.fullmatch(name) for name in sorted(os.listdir(directory)))
        return [match[0] for match in found if match and (match[3] or "") == stage]

    def delete(doomed: list[str]) -> None:
        for name in doomed:
            (directory / name).unlink()

    delete(names(".deleted"))
    if names(".cleaned"):
        smallest = min(map(offset_of, names(".cleaned")))
        delete([name for name in names(".swap") if offset_of(name) >= smallest])
        delete(names(".cleaned"))
    logs = [name for name in names(".swap") if name.endswith(".log.swap")]
    if logs:
        start, end = min(map(offset_of, logs)), max(_next_offset(directory / name) for name in logs)
        delete([name for name in names("") if start <= offset_of(name) < end])
    for name in names(".swap"):
        os.replace(directory / name, directory / name.removesuffix(".swap"))
    bases = [offset_of(name) for name in names("") if name.endswith(".log")]
    delete([name for name in names("") if not name.endswith(".snapshot") and offset_of(name) not in bases])
    segments = [_loaded(directory, base, bases) for base in bases]
    stray = [name for name in names("") if name.endswith(".snapshot") and offset_of(name) not in bases]
    delete([name for name in stray if name != stray[-1] or offset_of(name) < bases[-1]])
    return Log(segments=tuple(replace(segment, mtime_ms=0) for segment in segments))


def _next_offset(swap: Path) -> int:
    return make_segment(base=offset_of(swap.name), batches=_batches(swap), mtime_ms=0).next_offset


def _batches(path: Path) -> list[Batch]:
    return parse_log(path.read_bytes())


def _loaded(directory: Path, base: int, bases: list[int]) -> Segment:
    """A segment without its offset index is recovered from its data and from the producers before it."""
    stem = f"{base:020d}"
    if (directory / f"{stem}.index").exists():
        if not (directory / f"{stem}.timeindex").exists():
            (directory / f"{stem}.timeindex").write_bytes(b"")
        return read_segment(directory, base)
    producers = ProducerTable()
    for earlier in bases:
        if earlier < base:
            producers.replay(_batches(directory / f"{earlier:020d}.log"))
    batches = _batches(directory / f"{stem}.log")
    aborted: list[AbortedTxn] = [entry for entry in map(producers.append, batches) if entry]
    return make_segment(base=base, batches=batches, mtime_ms=0, aborted=aborted)


def leftovers(directory: Path) -> list[str]:
    """Names in a partition directory and its log directory that belong to no finished log."""
    plain = re.compile(r"\d{20}\.(log|index|timeindex|txnindex|snapshot)|leader-epoch-checkpoint|partition\.metadata")
    inside = [name for name in os.listdir(directory) if not plain.fullmatch(name)]
    brokers = BROKER_FILES if (directory.parent / "meta.properties").exists() else ()
    beside = [
        name
        for name in os.listdir(directory.parent)
        if not name.endswith("-checkpoint") and not PARTITION.fullmatch(name) and name not in brokers
    ]
    bases = {name[:20] for name in os.listdir(directory) if name.endswith(".log")}
    orphans = [name for name in os.listdir(directory) if name.endswith("index") and name[:20] not in bases]
    return sorted(inside + beside + orphans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    log: str
    policy: Policy
    path: str = "whole"
    segment_bytes_max: int = outputs.SEGMENT_BYTES_MAX
    files: tuple[tuple[str, str], ...] = BROKER
    more: tuple[tuple[str, str], ...] = ()
    """Other partitions: name and log."""
    wave_partitions: int = compaction.WAVE_PARTITIONS

    @property
    def names(self) -> list[str]:
        return [NAME, *(name for name, _ in self.more)]

    def write(self, logs: Path) -> None:
        for name, log in ((NAME, self.log), *self.more):
            write_log(logs, log, name, snapshots=True)
        for name, content in self.files:
            (logs / name).write_text(content)


COMMON = Policy(now_ms=NOW_MS, delete_retention_ms=1_000, producer_id_expiration_ms=10, segment_bytes=420)
PLAIN = replace(COMMON, plain_below=NO_LIMIT)
KAFKA = kafka_rules(COMMON)
TRANSACTIONS = "P1[a,b] N[c] P2[d] | A1 N[a,~c]/zstd C2 | P1[e,f]/gzip N[b] | A1 P2[g] | N[h]/lz4 A2 C1 | I7[j] N[a]"
SMALL = "P1[a,b] N[c] | A1 N[a,~c]/zstd | P1[d] C1 | I7[j] N[a]"
SCENARIOS = {
    "kafka": Scenario(log=TRANSACTIONS, policy=KAFKA),
    "coordinated": Scenario(log=TRANSACTIONS, policy=PLAIN, path="shuffle"),
    "one output": Scenario(log=SMALL, policy=replace(KAFKA, segment_bytes=1 << 30)),
    "more segments than before": Scenario(
        log=SMALL, policy=replace(KAFKA, segment_bytes=1 << 30), segment_bytes_max=100
    ),
    # The map is full early, so that nothing holds the end of what is rewritten, and its last batches vanish.
    "trailing batches vanish": Scenario(
        log="N[a] | N[b] | U P1[b] A1 | U U | N[z] | N[a,b]", policy=replace(PLAIN, index_keys_max=2)
    ),
    "trailing segments vanish": Scenario(
        log="N[a] | U | U | U | N[b] | N[a] N[b]", policy=replace(KAFKA, index_keys_max=1)
    ),
    "log start": Scenario(
        log=SMALL, policy=KAFKA, files=(*BROKER, ("log-start-offset-checkpoint", "0\n1\nt 0 5\n"))
    ),
    "compact,delete": Scenario(log=SMALL, policy=replace(KAFKA, cleanup_delete=True, retention_ms=NOW_MS - 1_006)),
    "everything expires": Scenario(log=SMALL, policy=replace(PLAIN, cleanup_delete=True, retention_ms=1)),
    "no broker's directory": Scenario(log="N[a] | N[a] | N[b]", policy=KAFKA, files=()),
}  # fmt: skip


def run_compaction(logs: Path, scenario: Scenario) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outputs, "SEGMENT_BYTES_MAX", scenario.segment_bytes_max)
        patch.setattr(compaction, "WAVE_PARTITIONS", scenario.wave_partitions)
        compact_here(logs, drop_keyless=True, all_topics=True, policy=scenario.policy, path=scenario.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """The logs a scenario may come to: `undeleted` is the new one before retention took its oldest segments.

    `further` is what one more compaction makes of either, with the checkpoint of the old one or its own.
    """

    old: Log
    undeleted: Log
    new: Log
    further: tuple[Log, ...]

    def on_the_way(self, log: Log) -> str:
        """Which of them a broker would see after a kill, or '' for a mixture."""
        if log == self.old:
            return "old"
        whole = [self.undeleted.segments]
        if not self.undeleted.segments[-1].batches:
            whole.append(self.undeleted.segments[:-1])
        behind = [segments[k:] for segments in whole for k in range(len(segments))]
        return "new" if log.segments in behind and len(log.segments) >= len(self.new.segments) else ""


def outcomes(scenario: Scenario, place: Path) -> Outcomes:
    return outcomes_of_each(scenario, place)[NAME]


def outcomes_of_each(scenario: Scenario, place: Path) -> dict[str, Outcomes]:
    """By partition. The logs before and after stay in `old` and `new`."""

    def made(name: str, source: str) -> Path:
        shutil.copytree(place / source, place / name)
        return place / name

    scenario.write(place / "old")
    run_compaction(made("new", "old"), scenario)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "remove_segments", lambda directory, bases: None)
        run_compaction(made("undeleted", "old"), scenario)
    for source in ("new", "undeleted"):
        run_compaction(made(f"onward from {source}", source), scenario)
        (made(f"again from {source}", source) / "cleaner-offset-checkpoint").unlink()
        run_compaction(place / f"again from {source}", scenario)
    return {
        name: Outcomes(
            old=read_log(place / "old" / name),
            undeleted=read_log(place / "undeleted" / name),
            new=read_log(place / "new" / name),
            further=tuple(read_log(path / name) for path in sorted(place.glob("* from *"))),
        )
        for name in scenario.names
    }


def loaded_copy(logs: Path, partition: str = NAME) -> Log:
    """What a broker would see, which is not let near the directory itself."""
    copy = logs.with_name(logs.name + "-broker")
    shutil.copytree(logs, copy)
    log = kafka_load(copy / partition)
    assert [
        name
        for name in leftovers(copy / partition)
        if not name.startswith(".headstone") and not name.endswith(".tmp") and name != ".lock"
    ] == []
    shutil.rmtree(copy)
    return log
