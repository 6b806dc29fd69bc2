"""The tour of `headstone demo`: three replicas of one topic, one of them away, compacted over three days.

Day 1 compacts replicas 1 and 2. On day 3 their tombstones are past delete.retention.ms, but replica 3 still holds the deleted
values, so they stay. Then replica 3 is compacted as well, and on day 5 they may go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headstone import units
from headstone.log.directory import find_partitions
from headstone.pipeline.compaction import CompactionRequest, compact
from headstone.pipeline.engine import Engine
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.inspection import inspect
from headstone.pipeline.report import PartitionReport
from headstone.retention.policy import Policy
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from headstone.units import DAY_MS

SAMPLE = SampleSettings(
    topic="orders", partitions=2, records=40_000, keys=8_000, transactions=0.3, tombstones=0.05, replicas=3,
    segment_bytes=1 << 20,
)  # fmt: skip
FIRST_PASS_MS = SAMPLE.start_ms + DAY_MS

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TourStop:
    """One compaction of the tour."""

    day: int
    replica: int
    lesson: str


STOPS = (
    TourStop(day=1, replica=1, lesson="older values go; tombstones are stamped and stay for delete.retention.ms"),
    TourStop(day=1, replica=2, lesson="replica 2 does the same on its own; replica 3 is away"),
    TourStop(
        day=3, replica=1, lesson="time has passed, but replica 3 still holds the values: MTRO is 0, tombstones stay"
    ),
    TourStop(day=3, replica=3, lesson="replica 3 is back and compacts"),
    TourStop(day=5, replica=1, lesson="every replica is clean: now the tombstones may go"),
)


def tour(directory: Path, engine: Engine, say: Say) -> list[dict[str, object]]:
    replicas = write_sample(directory, SAMPLE)
    say(
        f"wrote {units.count(SAMPLE.partitions, 'partition')} of topic {SAMPLE.topic!r} for 3 replicas under {directory}"
    )
    steps: list[dict[str, object]] = []
    for stop in STOPS:
        reports = _compact(replicas, stop, engine)
        partitions = [report.as_json() for report in reports]
        steps.append({"day": stop.day, "replica": stop.replica, "lesson": stop.lesson, "partitions": partitions})
        say(f"\nday {stop.day}, replica {stop.replica}: {stop.lesson}")
        for report in reports:
            say("  " + _line(report))
    return steps


def live_keys(log_dir: Path) -> int:
    facts = inspect(find_partitions([log_dir]), Policy(now_ms=0), InProcess(), None)
    return sum(fact.counts.keys for fact in facts)


def _compact(replicas: list[Path], stop: TourStop, engine: Engine) -> list[PartitionReport]:
    own = replicas[stop.replica - 1]
    request = CompactionRequest(
        paths=(str(own),),
        out=None,
        policy=Policy(now_ms=FIRST_PASS_MS + (stop.day - 1) * DAY_MS),
        dirty_from=0,
        peers=tuple(replica for replica in replicas if replica != own),
        progress=False,
    )
    return compact(request, engine, lambda text: None).partitions


def _line(report: PartitionReport) -> str:
    facts = report.as_json()
    return (
        f"{report.partition}: {units.size(report.bytes_before)} -> {units.size(report.bytes_after)}, "
        f"{report.records_before:,} -> {units.count(report.records_after, 'record')}, MTRO {report.mtro}, "
        f"tombstones {report.reasons['expired tombstone']:,} expired, {facts['tombstones_kept']:,} kept"
    )
