"""What the metastore costs at 10,000 partitions: a decision, an append, a commit, a status; with few extents and with many.

    python -m benchmarks.metastore --extents 100000 10000000 --output json

A PostgreSQL server from the testbed, in a directory of its own, without waiting for the disk. Both lakes have the same
partitions, bytes and dirt; only the number of clean extents differs, so the ratio of two times is what extents cost. They take
turns, so that what else the machine does hits both. The smaller one is checked as `lake status --check` does.

Exits with 1 if the larger one takes more than RATIO_MAX times as long with any of them, and says with which.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from sqlalchemy import create_engine, text

from headstone.lake.format.extents import Extent
from headstone.lake.format.spans import Span
from headstone.lake.metastore import schema
from headstone.lake.metastore.catalog import requeue
from headstone.lake.metastore.commits import Append, Claim
from headstone.lake.metastore.leases import Leases
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.status import lake_status
from testbed.postgres import postgres

TOPICS = 100
OFFSETS = 10
"""Of each extent."""
DIRTY = 2
"""Extents of a partition, the last ones."""
CLEAN_BYTES, DIRTY_BYTES = 1_000_000, 600_000
"""Of a partition's clean extents together, and of each dirty one."""
EXTENTS_PER_OBJECT = 1000
STAMP_MS = 1_700_000_000_000
CHECKED_MAX = 200_000
RATIO_MAX = 1.5
"""Nothing that is timed may read unrelated extents: that would take many times as long with a hundred times as many.
docs/performance.md has up to 1.01; the rest allows for other load on the machine."""

FILL = """
    INSERT INTO extents (partition_id, span_start, span_end, object_id, position, length, records, max_timestamp_ms, checksum,
                         listed, added_ms, dead, dead_object, dead_position, oldest_timestamp_ms, dead_since_ms, dirty)
    SELECT p.partition_id, i * :offsets, (i + 1) * :offsets,
           lpad(to_hex(((p.partition_id - 1) * :each + i) / :per_object), 36, '0'),
           (((p.partition_id - 1) * :each + i) % :per_object) * :dirty_bytes,
           CASE WHEN i < :each - :dirty THEN :clean_bytes / (:each - :dirty) ELSE :dirty_bytes END,
           :offsets, :stamp, 0, -1, 1, 0, NULL, 0, :stamp, -1, CASE WHEN i < :each - :dirty THEN 0 ELSE 1 END
    FROM partitions p, generate_series(0, :each - 1) AS i
"""
OBJECTS = """
    INSERT INTO objects (object_id, state, size, changed_ms)
    SELECT lpad(to_hex(i), 36, '0'), 'committed', CAST(:size AS bigint), 1 FROM generate_series(0, :last) AS i
"""
ROWS = """
    UPDATE partitions SET next_offset = :each * :offsets, compaction_epoch = 1, changed_ms = 1, first_added_ms = 1,
        extents = :each, bytes = (:clean_bytes / (:each - :dirty)) * (:each - :dirty) + :dirty * :dirty_bytes,
        dirty_bytes = :dirty * :dirty_bytes, records = :each * :offsets, oldest_dirty_ms = :stamp, newest_dirty_ms = :stamp
"""
CLEANED = """
    INSERT INTO cleaned (partition_id, span_start, span_end)
    SELECT partition_id, 0, (:each - :dirty) * :offsets FROM partitions
"""


def fill(metastore: Metastore, partitions: int, each: int) -> None:
    """`each` extents per partition. Builds indexes at the end, which is quicker than row by row."""
    for i in range(TOPICS):
        metastore.create_topic(f"topic-{i:03}", partitions // TOPICS)
    given = {
        "each": each, "offsets": OFFSETS, "dirty": DIRTY, "clean_bytes": CLEAN_BYTES, "dirty_bytes": DIRTY_BYTES,
        "stamp": STAMP_MS, "per_object": EXTENTS_PER_OBJECT, "last": partitions * each // EXTENTS_PER_OBJECT,
        "size": EXTENTS_PER_OBJECT * DIRTY_BYTES,
    }  # fmt: skip
    indexes = sorted(schema.extents.indexes, key=lambda index: str(index.name))
    with metastore.transaction() as connection:
        connection.execute(
            text("SET LOCAL session_replication_role = replica")
        )  # foreign keys are right by construction
        for index in indexes:
            index.drop(connection)
        for statement in (OBJECTS, FILL, ROWS, CLEANED):
            wanted = {name: value for name, value in given.items() if f":{name}" in statement}
            connection.execute(text(statement), wanted)
        for index in indexes:
            index.create(connection)
        requeue(connection)
    with metastore._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
    if partitions * each <= CHECKED_MAX:
        wrong = [line for line in metastore.check() if "no extent points at it" not in line]
        assert wrong == [], wrong[:3]


class Bench:
    """The four things that are timed, each on its own partitions, so that one does not dirty what another looks at."""

    def __init__(self, metastore: Metastore, each: int) -> None:
        self.metastore, self.each, self.names = metastore, each, metastore.partitions()
        self.leases, self.round = Leases(metastore), 0

    def decision(self) -> Callable[[], object]:
        def take() -> None:
            due = self.leases.take_due("bench", 100, now_ms=0)
            assert len(due) == 100
            self.leases.release_all(due, "bench")

        return take

    def append(self) -> Callable[[], object]:
        (made,) = self.metastore.register(1)
        names = self.names[:1000]
        ends = self.metastore.next_offsets(names)
        appends = {
            name: Append(expected_next=ends[name], extents=(self._extent(ends[name], ends[name] + OFFSETS, made, 100 * i),))
            for i, name in enumerate(names)
        }  # fmt: skip
        return lambda: self.metastore.append(appends, {made: 100 * len(names)})

    def commit(self) -> Callable[[], object]:
        """Eight extents become one; two of them were dirty."""
        self.round += 1
        name, (made,) = self.names[-self.round], self.metastore.register(1)
        end = self.each * OFFSETS
        span = Span(end - 8 * OFFSETS, end)
        claim = Claim(processed=Span(0, end), cleaned=(Span(0, end),), tombstones=(Span(end - OFFSETS, end),))
        return lambda: self.metastore.replace(name, 1, [self._extent(*span, made, 0)], claim, {made: 100})

    def status(self) -> Callable[[], object]:
        return lambda: lake_status(self.metastore)

    def _extent(self, start: int, end: int, object_id: str, position: int) -> Extent:
        return Extent(
            span=Span(start, end), object_id=object_id, position=position, length=100, records=end - start,
            max_timestamp_ms=STAMP_MS, oldest_timestamp_ms=STAMP_MS, checksum=0,
        )  # fmt: skip


def lake(server: str, partitions: int, extents: int) -> Bench:
    name = f"lake_{uuid.uuid4().hex}"
    engine = create_engine(server.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
        connection.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = off"))
    engine.dispose()
    metastore = Metastore.create(server.replace("/postgres?", f"/{name}?"), location="memory://bench")
    before = time.perf_counter()
    fill(metastore, partitions, extents // partitions)
    print(f"{extents:,} extents: filled in {time.perf_counter() - before:.0f} s", file=sys.stderr, flush=True)
    return Bench(metastore, extents // partitions)


def seconds(bench: Bench, what: str) -> float:
    body = getattr(bench, what)()
    before = time.perf_counter()
    body()
    return time.perf_counter() - before


def measure(benches: list[Bench], runs: int) -> dict[str, list[float]]:
    """Seconds for each lake: the median, after one run that warms up."""
    medians = {}
    for what in ("decision", "append", "commit", "status"):
        rounds = [[seconds(bench, what) for bench in benches] for _ in range(runs + 1)][1:]
        medians[what] = [statistics.median(times) for times in zip(*rounds, strict=True)]
    return medians


def too_slow(ratios: Mapping[str, float]) -> list[str]:
    return [
        f"{what}: {ratio:.2f} times as long, over {RATIO_MAX}" for what, ratio in ratios.items() if ratio > RATIO_MAX
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--extents", type=int, nargs=2, default=[100_000, 10_000_000], metavar=("FEW", "MANY"))
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--directory", type=Path, help="of the server (default: a temporary one)")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    given = parser.parse_args()
    with postgres(given.directory) as server:
        benches = [lake(server, given.partitions, extents) for extents in given.extents]
        medians = measure(benches, given.runs)
        for bench in benches:
            bench.metastore.close()
    ratios = {what: many / few for what, (few, many) in medians.items()}
    if given.output == "json":
        print(
            json.dumps({"partitions": given.partitions, "extents": given.extents, "seconds": medians, "ratios": ratios})
        )
    else:
        counts = " and ".join(f"{count:,}" for count in given.extents)
        print(f"{given.partitions:,} partitions; seconds with {counts} extents, and the ratio")
        for what, (few, many) in medians.items():
            print(f"{what:9} {few:8.3f} {many:8.3f} {ratios[what]:6.2f}")
    for line in (slow := too_slow(ratios)):
        print(line, file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
