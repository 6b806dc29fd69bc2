"""What a hold of the guard costs: from its decision to its effect, what is removed meanwhile, disk, and the time to catch up.

    python -m benchmarks.hold                                    # every version, about five minutes each
    python -m benchmarks.hold --kafka 4.3.1 --output json
    python -m benchmarks.hold --kafka 4.3.1 --steady-seconds 20 --held-seconds 10     # to try it

Three real brokers with Kafka's own pace of cleaning, a compacted topic, writes at a steady rate over the same keys. First as it
is; then broker 3 is switched off with `headstone guard --apply` beside the cluster, and the guard holds the topic; then broker
3 is back, the guard releases, and the cleaners catch up. Files are watched on the brokers' disks the whole time.
Passes: the cleaners' own summaries. Growth: a line through the sizes of the log, against the bytes written meanwhile.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cleaner import PROCESSED
from headstone.brokers.client import JavaClient
from headstone.brokers.distribution import Distribution
from headstone.brokers.outages import AWAY, BROKERS
from headstone.brokers.processes import Broker, Cluster, Machine, wait_until
from headstone.cluster.admin import Admin
from headstone.cluster.connection import Connection
from headstone.coordination.guard_values import HOLD
from headstone.errors import Unfinished
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Change
from headstone.log.checkpoints import read_offsets
from testbed.guarded import Guard
from testbed.maven import VERSIONS, kafka
from testbed.workloads import second_client

TOPIC = "bench"
MB = 1 << 20
WATCHED = tuple(number for number in BROKERS if number != AWAY)
SEGMENT_BYTES = 1 << 20
RETENTION_MS = 60_000
MARGINS = ("--poll-ms", "1000", "--effect-ms", "20000")
"""For an outage of a minute instead of a day, on a machine that runs everything."""
KAFKAS_BACKOFF_MS = 15_000
QUIET_SECONDS = 20.0
"""Nothing rewritten for this long, which is longer than a cleaner sleeps, shows that passes under way have ended."""
SECONDS_MAX = 900
DELETE_EVERY = 101
"""One record in this many is a tombstone, in every partition: a replica that misses only values needs no hold."""
FILLED = 4
"""Every key was written this often before anything is measured."""
SAMPLE_SECONDS = 0.2
ASK_SECONDS = 0.01
VALUES = os.urandom(4 << 20)


class Traffic:
    """Writes at a steady rate from its own thread. `written` counts bytes of keys and values."""

    def __init__(self, bootstrap: str, arguments: argparse.Namespace) -> None:
        self.written = 0
        self._arguments = arguments
        self._ended = threading.Event()
        self._producer = second_client(bootstrap, **{"linger.ms": 20, "acks": 1})
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._producer.flush(30)

    def _run(self) -> None:
        """Ten times a second; what was missed while the machine was busy is written the next time."""
        started, number, size = time.monotonic(), 0, self._arguments.value_bytes
        while not self._ended.wait(0.1):
            due = (time.monotonic() - started) * self._arguments.mb_per_second * MB
            while self.written < due:
                # Every key comes equally often, and neighbours in the log do not stay together.
                key = b"key-%08d" % (number * 7_368_787 % self._arguments.keys)
                begin = number * 977 % (len(VALUES) - size)
                value = None if number % DELETE_EVERY == 0 else VALUES[begin : begin + size]
                self._producer.produce(TOPIC, partition=number % self._arguments.partitions, key=key, value=value)
                self.written += len(key) + len(value or b"")
                number += 1
            self._producer.poll(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    moment: float
    written: int
    disk: Mapping[int, int]
    """Bytes of the log on every watched broker."""


@dataclass(slots=True, kw_only=True)
class Seen:
    samples: list[Sample] = field(default_factory=list)
    rewritten: list[tuple[float, int, str]] = field(default_factory=list)
    """When, on which broker, which closed segment was replaced or removed."""

    def during(self, begin: float, end: float) -> list[Sample]:
        return [sample for sample in self.samples if begin <= sample.moment <= end]

    def rewritten_during(self, begin: float, end: float) -> list[str]:
        return [f"broker {number}: {name}" for moment, number, name in self.rewritten if begin < moment <= end]


def segments(broker: Broker) -> dict[str, os.stat_result]:
    """Closed segments, by partition and base offset; leaves out one that vanishes meanwhile."""
    closed: dict[str, os.stat_result] = {}
    for folder in sorted(broker.log_dir.glob(f"{TOPIC}-*")):
        for path in sorted(folder.glob("*.log"))[:-1]:
            try:
                closed[f"{folder.name}/{path.name}"] = path.stat()
            except FileNotFoundError:
                continue
    return closed


def hashes(broker: Broker) -> dict[str, str]:
    return {name: hashlib.sha256((broker.log_dir / name).read_bytes()).hexdigest() for name in segments(broker)}


def disk_bytes(broker: Broker) -> int:
    return sum(_size(path) for path in broker.log_dir.glob(f"{TOPIC}-*/*.log"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextmanager
def watching(cluster: Cluster, traffic: Traffic) -> Iterator[Seen]:
    seen, ended = Seen(), threading.Event()

    def watch() -> None:
        before: dict[int, dict[str, os.stat_result]] = {}
        while not ended.wait(SAMPLE_SECONDS):
            for number in WATCHED:
                closed, moment = segments(cluster.brokers[number]), time.time()
                for name, status in before.get(number, {}).items():
                    if name not in closed or closed[name].st_ino != status.st_ino:
                        seen.rewritten.append((moment, number, name))
                before[number] = closed
            disk = {number: disk_bytes(cluster.brokers[number]) for number in WATCHED}
            seen.samples.append(Sample(moment=time.time(), written=traffic.written, disk=disk))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def growth(samples: Sequence[Sample]) -> float:
    """Bytes by which a broker's log grew for each byte written. Fits a line, because between passes every log grows."""
    written = [sample.written for sample in samples]
    slopes = [statistics.linear_regression(written, [s.disk[number] for s in samples]).slope for number in WATCHED]
    return statistics.mean(slopes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Of one broker at the release: what is dirty, and where its cleaner has to get to."""

    dirty_bytes: int
    ends: Mapping[str, int]


def checkpoint(broker: Broker) -> dict[str, int]:
    offsets = read_offsets(broker.log_dir / "cleaner-offset-checkpoint")
    return {str(partition): offset for partition, offset in offsets.items()}


def backlog(broker: Broker) -> Backlog:
    cleaned, dirty = checkpoint(broker), 0
    for name, status in segments(broker).items():
        folder, _, file = name.partition("/")
        if int(Path(file).stem) >= cleaned.get(folder, 0):
            dirty += status.st_size
    ends = {
        folder.name: max(int(path.stem) for path in folder.glob("*.log"))
        for folder in broker.log_dir.glob(f"{TOPIC}-*")
    }
    return Backlog(dirty_bytes=dirty, ends=ends)


def passes(broker: Broker, begin_at: int) -> list[tuple[float, float]]:
    """(MB, seconds) from the cleaner's own summaries, from that position in the broker's log on."""
    summaries = PROCESSED.findall(broker.said()[begin_at:])
    return [(float(mb.replace(",", "")), float(seconds.replace(",", ""))) for mb, seconds, _ in summaries]


def pace(summaries: Sequence[tuple[float, float]]) -> float:
    """MB per second of passes; 0 if there are none."""
    seconds = sum(seconds for _, seconds in summaries)
    return sum(mb for mb, _ in summaries) / seconds if seconds else 0.0


class Held:
    """When each broker first confirmed the hold: asked repeatedly, each on its own connection."""

    def __init__(self, bootstrap: str) -> None:
        self.since: dict[int, float] = {}
        self.question_seconds: list[float] = []
        self._threads = [threading.Thread(target=self._ask, args=(bootstrap, n), daemon=True) for n in WATCHED]
        for thread in self._threads:
            thread.start()

    def _ask(self, bootstrap: str, broker: int) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        with Admin(Connection.parse(bootstrap, {})) as admin:
            while time.monotonic() < deadline:
                asked = time.monotonic()
                configs = admin.topic_configs([TOPIC], broker=broker)[TOPIC]
                self.question_seconds.append(time.monotonic() - asked)
                if all(name in configs and configs[name].own and configs[name].value == value for name, value in HOLD):
                    self.since[broker] = time.time()
                    return
                time.sleep(ASK_SECONDS)

    def wait(self) -> None:
        for thread in self._threads:
            thread.join()
        if len(self.since) < len(WATCHED):
            raise Unfinished("not every broker has the hold")


def changes(root: Path, *, hold: bool) -> list[Change]:
    """From the journal: changes that hold the topic, or those that release it."""
    with Journal.open(root / "guard.sqlite", cluster_id=None) as journal:
        ended = [change for change in journal.changes(topic=TOPIC) if change.ended_ms is not None]
    return [change for change in ended if dict(change.new if hold else change.old) == dict(HOLD)]


def confirmed_ms(root: Path) -> int | None:
    """When the guard itself knew that every live broker has the hold."""
    with Journal.open(root / "guard.sqlite", cluster_id=None) as journal:
        hold = journal.memory(TOPIC).hold
    return None if hold is None else hold.confirmed_ms


class Run:
    """One version, phase by phase; `figures` has the results."""

    def __init__(
        self, cluster: Cluster, root: Path, arguments: argparse.Namespace, traffic: Traffic, seen: Seen
    ) -> None:
        self.cluster = cluster
        self.root = root
        self.arguments = arguments
        self.traffic = traffic
        self.seen = seen
        self.figures: dict[str, object] = {}
        self._steady = 0.0
        self._before: dict[int, int] = {}

    def steady(self) -> None:
        """Without a hold, once the cleaners have been over everything."""
        tell("writing, until the cleaners have been at every partition")
        brokers = [self.cluster.brokers[number] for number in WATCHED]
        names = {f"{TOPIC}-{number}" for number in range(self.arguments.partitions)}
        filled = FILLED * self.arguments.keys * self.arguments.value_bytes
        wait_until(
            lambda: self.traffic.written > filled and all(names <= checkpoint(broker).keys() for broker in brokers),
            "every partition is cleaned once", seconds_max=SECONDS_MAX,
        )  # fmt: skip
        tell(f"{self.arguments.steady_seconds} s as it is")
        marks = {number: len(self.cluster.brokers[number].said()) for number in WATCHED}
        begin = time.time()
        time.sleep(self.arguments.steady_seconds)
        self._steady = pace([p for n, mark in marks.items() for p in passes(self.cluster.brokers[n], mark)])
        samples = self.seen.during(begin, time.time())
        self._before = dict(samples[-1].disk)
        self.figures["growth_not_held"] = round(growth(samples), 3)
        self.figures["steady_mb_per_second"] = round(self._steady, 1)
        self.figures["mb_written_per_second"] = round(
            (samples[-1].written - samples[0].written) / MB / (samples[-1].moment - samples[0].moment), 2
        )

    def hold(self, guard: Guard) -> float:
        """Returns the moment from which on nothing was rewritten."""
        guard.start()
        held = Held(self.cluster.bootstrap)
        tell(f"broker {AWAY} is switched off")
        self.cluster.brokers[AWAY].stop()
        held.wait()
        wait_until(lambda: bool(changes(self.root, hold=True)), "the journal has it", seconds_max=60)
        decided = changes(self.root, hold=True)[0]
        wait_until(lambda: confirmed_ms(self.root) is not None, "the guard knows it", seconds_max=60)
        confirmed = confirmed_ms(self.root)
        assert decided.ended_ms is not None
        assert confirmed is not None
        tell("held; waiting for passes under way")
        wait_until(self._is_quiet, "nothing is rewritten any more", seconds_max=SECONDS_MAX)
        last = max([moment for moment, _, _ in self.seen.rewritten] + [min(held.since.values())])
        began = decided.began_ms / 1000
        self.figures["question_ms"] = round(statistics.median(held.question_seconds) * 1000, 1)
        self.figures["decided_to_accepted_ms"] = decided.ended_ms - decided.began_ms
        self.figures["decided_to_each_broker_ms"] = {n: round((m - began) * 1000) for n, m in held.since.items()}
        self.figures["decided_to_confirmed_ms"] = confirmed - decided.began_ms
        self.figures["decided_to_last_rewrite_ms"] = max(0, round((last - began) * 1000))
        return last

    def _is_quiet(self) -> bool:
        newest = max((moment for moment, _, _ in self.seen.rewritten), default=0.0)
        return time.time() - newest > QUIET_SECONDS

    def stay(self) -> None:
        """Under the hold, with the same traffic."""
        tell(f"{self.arguments.held_seconds} s under the hold")
        begin, before = time.time(), {number: hashes(self.cluster.brokers[number]) for number in WATCHED}
        time.sleep(self.arguments.held_seconds)
        samples = self.seen.during(begin, time.time())
        after = {number: hashes(self.cluster.brokers[number]) for number in WATCHED}
        self.figures["segments_compared"] = sum(map(len, before.values()))
        self.figures["segments_changed"] = sum(
            after[number].get(name) != digest for number, kept in before.items() for name, digest in kept.items()
        )
        self.figures["growth_held"] = round(growth(samples), 3)

    def release(self, quiet_since: float) -> None:
        tell(f"broker {AWAY} is switched on")
        returned = time.time()
        self.cluster.brokers[AWAY].start()
        started = time.time()
        wait_until(lambda: bool(changes(self.root, hold=False)), "the guard lets go", seconds_max=SECONDS_MAX)
        released = changes(self.root, hold=False)[0].began_ms / 1000
        backlogs = {number: backlog(self.cluster.brokers[number]) for number in WATCHED}
        marks = {number: len(self.cluster.brokers[number].said()) for number in WATCHED}
        at_release = max(disk_bytes(self.cluster.brokers[number]) for number in WATCHED)
        self.figures["rewritten_while_held"] = self.seen.rewritten_during(quiet_since, released)
        self.figures["back_to_released_seconds"] = round(released - started, 1)
        self.figures["held_seconds"] = round(returned - quiet_since, 1)
        tell("released; the cleaners catch up")
        seconds = self._caught_up(backlogs, released)
        caught = pace([p for n, mark in marks.items() for p in passes(self.cluster.brokers[n], mark)])
        megabytes = {number: left.dirty_bytes / MB for number, left in backlogs.items()}
        self.figures["backlog_mb"] = {number: round(mb, 1) for number, mb in megabytes.items()}
        self.figures["caught_up_seconds"] = {number: round(taken, 1) for number, taken in seconds.items()}
        self.figures["caught_up_seconds_per_gb"] = round(max(seconds[n] / mb * 1024 for n, mb in megabytes.items()), 1)
        self.figures["catching_up_mb_per_second"] = round(caught, 1)
        self.figures["pace_to_steady"] = round(caught / self._steady, 2) if self._steady else None
        self.figures["disk_at_release_to_before"] = round(at_release / max(self._before.values()), 2)
        after = max(disk_bytes(self.cluster.brokers[number]) for number in WATCHED)
        self.figures["disk_caught_up_to_before"] = round(after / max(self._before.values()), 2)

    def _caught_up(self, backlogs: Mapping[int, Backlog], released: float) -> dict[int, float]:
        """Seconds until each cleaner had been over everything that was closed at the release."""
        seconds: dict[int, float] = {}

        def done() -> bool:
            for number, left in backlogs.items():
                cleaned = checkpoint(self.cluster.brokers[number])
                if number not in seconds and all(cleaned.get(name, 0) >= end for name, end in left.ends.items()):
                    seconds[number] = time.time() - released
            return len(seconds) == len(backlogs)

        wait_until(done, "the cleaners have caught up", seconds_max=SECONDS_MAX)
        return seconds


def measure(distribution: Distribution, root: Path, arguments: argparse.Namespace) -> dict[str, object]:
    settings = {"log.cleaner.backoff.ms": KAFKAS_BACKOFF_MS, "log.cleaner.dedupe.buffer.size": 16 << 20}
    machine = Machine(heap="448m", java_options=())
    tell(f"starting three brokers of Kafka {distribution.version}")
    cluster = Cluster(distribution, root / "cluster", brokers=len(BROKERS), settings=settings, machine=machine)
    with cluster:
        with JavaClient(distribution, root / "client") as java:
            placed = [[1, 2, 3] if number % 2 else [2, 1, 3] for number in range(arguments.partitions)]
            java.connect(cluster.bootstrap).create_topic(TOPIC, placed, {
                "cleanup.policy": "compact", "segment.bytes": SEGMENT_BYTES, "delete.retention.ms": RETENTION_MS,
            })  # fmt: skip
        guard = Guard(cluster.bootstrap, root, *MARGINS)
        try:
            with Traffic(cluster.bootstrap, arguments) as traffic, watching(cluster, traffic) as seen:
                run = Run(cluster, root, arguments, traffic, seen)
                run.steady()
                quiet_since = run.hold(guard)
                run.stay()
                run.release(quiet_since)
        finally:
            guard.kill()
    figures = {"kafka": distribution.version, **run.figures}
    tell(json.dumps(figures))
    return figures


tell: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731


def shown(figure: object) -> str:
    return ", ".join(map(str, figure.values())) if isinstance(figure, dict) else str(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", nargs="+", default=list(VERSIONS), help="versions (default: %(default)s)")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--keys", type=int, default=5_000, help="of the whole topic")
    parser.add_argument("--value-bytes", type=int, default=1000)
    parser.add_argument("--mb-per-second", type=float, default=1.0)
    parser.add_argument("--steady-seconds", type=int, default=90)
    parser.add_argument("--held-seconds", type=int, default=60)
    parser.add_argument("--output", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    measured = []
    for version in arguments.kafka:
        with tempfile.TemporaryDirectory(prefix="headstone-bench-") as root:
            measured.append(measure(kafka(version), Path(root), arguments))
    if arguments.output == "json":
        print(json.dumps(measured, indent=2))
    else:
        for name in measured[0]:
            print(f"{name:32}" + "".join(f"{shown(figures[name]):>24}" for figures in measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
