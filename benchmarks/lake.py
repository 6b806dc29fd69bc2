"""What compaction costs in the lake, as ratios to what is measured in the same run.

    python -m benchmarks.lake --output json
    python -m benchmarks.lake --groups first second --megabytes 1000 --codec zstd
    python -m benchmarks.lake --groups passes --keys 2000000 --map-bytes 13421772 --extent-bytes 1677721

first    ingest, then a compaction that removes half: against reading the files, and against `compact` on a copy of them
second   another compaction after 1 % more: keys that live in a few extents, and keys from everywhere
growth   a quarter, a half and the whole of the log: processor time and requests per byte, 1.0 is linear
passes   many keys in one pass, against a map of bounded size, pass after pass until nothing is dirty

Keys are 8 bytes. Shares are of the log as it was before that compaction. Counts and processor time hardly depend on what else
the machine does; seconds do, and are the best of --runs. Objects are local files, unless --objects says otherwise.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from headstone.lake.collection import collect, garbage
from headstone.lake.compaction import Compacted, compact_partition
from headstone.lake.ingest import EXTENT_BYTES, ingest
from headstone.lake.job_plan import JobOptions, map_keys_max
from headstone.lake.keyindex import section_bytes
from headstone.lake.lake import EMBEDDED, Lake, create_lake, open_lake
from headstone.log import codecs
from headstone.log.directory import LOG, PartitionDir, numbered
from headstone.log.encoding import NO_HEADERS, BatchHead, Columns, batch_bytes, encode_section
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.compaction import CompactionRequest, compact
from headstone.pipeline.inprocess import InProcess
from headstone.retention.policy import Policy, kafka_rules
from headstone.storage.stores import Traffic

MB, GB = 1_000_000, 1_000_000_000
TOPIC = "bench"
AT = TopicPartition(TOPIC, 0)
START_MS, NOW_MS = 1_700_000_000_000, 1_800_000_000_000
BATCH_BYTES = 16_384
SEGMENT_BYTES = 64 << 20
POOL_BYTES = 1 << 20
KEY_BYTES, RECORD_FIXED_BYTES = 8, 9
VALUE_BYTES = (60, 320)
SMALL_VALUE_BYTES = (8, 12)
KEYS_A_RECORD = 0.63
"""Of so many keys, drawn evenly, one record in two is superseded."""
MORE, HOT = 0.01, 0.02
"""Shares of `second`: records that are new, and the extents that hot keys live in."""
SECOND_EXTENT_BYTES = 2 << 20
"""Small, so that 2 % of the extents of some hundred megabytes are more than one."""
GROWTH = (4, 2, 1)
READ_BYTES = 2 << 20
MAP_BYTES = 128 << 20
"""What Redpanda and Kafka's cleaner give the map by default."""

Ints = npt.NDArray[np.int64]
Row = dict[str, object]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one step: by the clock, of all threads of this process, and what was asked of the store."""

    seconds: float
    processor_seconds: float
    traffic: Traffic

    @property
    def requests(self) -> int:
        return self.traffic.reads + self.traffic.writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Of compacting until nothing is dirty. `peak_bytes` is the resident memory of a process that did nothing else."""

    passes: int
    seconds: float
    processor_seconds: float
    bytes_read: int
    bytes_written: int
    requests: int
    peak_bytes: int
    idle_bytes: int
    """Resident before the first pass."""
    records_after: int


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def write_log(place: Path, drawn: Ints, values: tuple[int, int], codec: int, *, start: int = 0) -> PartitionDir:
    """A record of each of these keys, in this order, in segments from offset `start` on; the active one is empty."""
    path = place / str(AT)
    path.mkdir(parents=True)
    rng = np.random.default_rng(start)
    pool = rng.integers(97, 123, size=POOL_BYTES, dtype=np.uint8)
    count = max(1, BATCH_BYTES // (KEY_BYTES + RECORD_FIXED_BYTES + sum(values) // 2))
    parts: list[npt.NDArray[np.uint8]] = []
    base, size = start, 0
    for at in range(0, drawn.size, count):
        batch = _batch(drawn[at : at + count], start + at, pool, values, codec, rng)
        if size + batch.size > SEGMENT_BYTES:
            _write_segment(path, base, parts)
            parts, base, size = [], start + at, 0
        parts.append(batch)
        size += batch.size
    _write_segment(path, base, parts)
    _write_segment(path, start + drawn.size, [])
    return PartitionDir(path=path, topic=TOPIC, partition=0)


def _batch(
    keys: Ints, offset: int, pool: npt.NDArray[np.uint8], values: tuple[int, int], codec: int, rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    n = keys.size
    steps = np.arange(n, dtype=np.int64)
    columns = Columns(
        timestamp_deltas=steps, offset_deltas=steps, key_pool=keys.astype(">i8").view(np.uint8),
        key_starts=steps * KEY_BYTES, key_sizes=np.full(n, KEY_BYTES, dtype=np.int64), value_pool=pool,
        value_starts=rng.integers(0, POOL_BYTES - values[1], size=n),
        value_sizes=rng.integers(values[0], values[1] + 1, size=n),
        header_pool=NO_HEADERS, header_starts=np.zeros(n, dtype=np.int64), header_sizes=np.ones(n, dtype=np.int64),
    )  # fmt: skip
    head = BatchHead(
        base_offset=offset, last_offset_delta=n - 1, base_timestamp=START_MS + offset,
        max_timestamp=START_MS + offset + n - 1, codec=codec,
    )  # fmt: skip
    return batch_bytes(head, encode_section(columns), n)


def _write_segment(directory: Path, base: int, parts: list[npt.NDArray[np.uint8]]) -> None:
    with open(directory / numbered(base, LOG), "wb") as file:
        for part in parts:
            file.write(part.data)


def evenly(megabytes: float) -> Ints:
    """Keys of a log of about that size before compression, half of the records superseded."""
    records = int(megabytes * MB) // (KEY_BYTES + RECORD_FIXED_BYTES + sum(VALUE_BYTES) // 2)
    return np.random.default_rng(1).integers(0, int(records * KEYS_A_RECORD), size=records)


def log_bytes(log: PartitionDir) -> int:
    return sum(file.stat().st_size for file in log.path.glob("*" + LOG))


@contextmanager
def new_lake(root: Path, objects: str | None) -> Iterator[tuple[Lake, str]]:
    """(lake, URL of its metastore, a file under `root`). Gone afterwards, and so are its objects, wherever they were."""
    place = root / f"lake-{uuid.uuid4().hex}"
    place.mkdir()
    url = f"{objects.rstrip('/')}/{place.name}" if objects else f"file://{place / 'objects'}"
    metastore_url = f"sqlite:///{place / EMBEDDED}"
    lake = create_lake(metastore_url, url, now_ms=NOW_MS)
    try:
        yield lake, metastore_url
    finally:
        lake.store.delete(lake.store.list())
        lake.close()
        if url.startswith("file://"):
            shutil.rmtree(url.removeprefix("file://"))
        shutil.rmtree(place)


def costed(lake: Lake | None, run: Callable[[], T]) -> tuple[T, Cost]:
    before = replace(lake.store.traffic) if lake else Traffic()
    seconds, processor = time.monotonic(), time.process_time()
    result = run()
    seconds, processor = time.monotonic() - seconds, time.process_time() - processor
    after = lake.store.traffic if lake else Traffic()
    asked = {name: getattr(after, name) - getattr(before, name) for name in asdict(after)}
    return result, Cost(seconds=seconds, processor_seconds=processor, traffic=Traffic(**asked))


def best(costs: Sequence[Cost]) -> Cost:
    """The least time of all runs; what was asked of the store is the same in each."""
    return replace(
        costs[0], seconds=min(c.seconds for c in costs), processor_seconds=min(c.processor_seconds for c in costs)
    )


def compacted(lake: Lake, arguments: argparse.Namespace, map_bytes: int | None = None) -> Compacted:
    return compact_partition(
        lake, AT, InProcess(arguments.threads), now_ms=NOW_MS, options=JobOptions(map_bytes=map_bytes)
    )


def filled_and_compacted(root: Path, log: PartitionDir, arguments: argparse.Namespace) -> tuple[Compacted, Cost, Cost]:
    """(what was done, cost of ingest, cost of compaction) of a lake of its own, best of the runs."""
    fills, costs = [], []
    for _ in range(arguments.runs):
        with new_lake(root, arguments.objects) as (lake, _):
            _, fill = costed(
                lake, partial(ingest, lake, [log], clock=lambda: NOW_MS, extent_bytes=arguments.extent_bytes)
            )
            done, cost = costed(lake, partial(compacted, lake, arguments))
        fills.append(fill)
        costs.append(cost)
    return done, best(fills), best(costs)


def compacted_files(root: Path, log: PartitionDir, arguments: argparse.Namespace) -> tuple[int, Cost]:
    """(records left, cost) of the pipeline on copies of the log directory, under the policy that the lake's jobs have."""
    policy = replace(kafka_rules(Policy(now_ms=NOW_MS, segment_bytes=1)), tombstones_below=0)
    costs = []
    for _ in range(arguments.runs):
        copy = root / "copy" / log.name
        shutil.copytree(log.path, copy)
        request = CompactionRequest(paths=(str(copy),), out=None, policy=policy, progress=False)
        result, cost = costed(None, partial(compact, request, InProcess(arguments.threads), lambda text: None))
        costs.append(cost)
        shutil.rmtree(copy.parent)
    return result.partitions[0].records_after, best(costs)


def read_files(log: PartitionDir, arguments: argparse.Namespace) -> Cost:
    def read() -> None:
        for path in log.path.glob("*" + LOG):
            with open(path, "rb", buffering=0) as file:
                while file.read(READ_BYTES):
                    pass

    return best([costed(None, read)[1] for _ in range(arguments.runs)])


def first(root: Path, arguments: argparse.Namespace) -> list[Row]:
    tell(f"first: writing {arguments.megabytes} MB")
    log = write_log(root / "log", evenly(arguments.megabytes), VALUE_BYTES, codecs.NAMES.index(arguments.codec))
    size = log_bytes(log)
    reading = read_files(log, arguments)
    tell("first: the lake")
    done, fill, cost = filled_and_compacted(root, log, arguments)
    tell("first: plain files")
    left, plain = compacted_files(root, log, arguments)
    assert left == done.records_after, f"{left} records are left in the files, {done.records_after} in the lake"
    return [
        {
            "log_bytes": size, "codec": arguments.codec, "extents": done.extents,
            "records_superseded": round(1 - done.records_after / done.records_before, 3),
            "bytes_written_per_byte_removed": round(done.bytes_written / (done.bytes_before - done.bytes_after), 3),
            "bytes_read_to_log": round(cost.traffic.bytes_read / size, 3),
            "bytes_written_to_log": round(cost.traffic.bytes_written / size, 3),
            "reads_per_gb": round(cost.traffic.reads * GB / size, 1),
            "writes_per_gb": round(cost.traffic.writes * GB / size, 1),
            "commits": done.commits,
            "compaction_mb_per_s": rate(size, cost), "plain_files_mb_per_s": rate(size, plain),
            "compaction_to_plain_files": round(plain.seconds / cost.seconds, 3),
            "compaction_to_plain_files_by_processor_time": round(plain.processor_seconds / cost.processor_seconds, 3),
            "ingest_mb_per_s": rate(size, fill), "reading_mb_per_s": rate(size, reading),
            "ingest_to_reading": round(reading.seconds / fill.seconds, 4),
            "ingest_to_compaction": round(cost.seconds / fill.seconds, 3),
            "ingest_requests_per_gb": round(fill.requests * GB / size, 1),
            "ingest_bytes_written_to_log": round(fill.traffic.bytes_written / size, 3),
        }
    ]  # fmt: skip


def rate(size: int, cost: Cost) -> float:
    return round(size / MB / cost.seconds, 1)


def second(root: Path, arguments: argparse.Namespace) -> list[Row]:
    tell(f"second: writing {arguments.megabytes} MB")
    drawn, codec = evenly(arguments.megabytes), codecs.NAMES.index(arguments.codec)
    log = write_log(root / "log", drawn, VALUE_BYTES, codec)
    rows = []
    for case in ("hot", "uniform"):
        tell(f"second: {case} keys")
        with new_lake(root, arguments.objects) as (lake, _):
            ingest(lake, [log], clock=lambda: NOW_MS, extent_bytes=SECOND_EXTENT_BYTES)
            records = compacted(lake, arguments).records_after
            keys = recent_keys(lake, drawn) if case == "hot" else np.unique(drawn)
            chosen = np.random.default_rng(2).choice(keys, size=int(records * MORE))
            more = write_log(root / case, chosen, VALUE_BYTES, codec, start=drawn.size)
            ingest(lake, [more], clock=lambda: NOW_MS, extent_bytes=SECOND_EXTENT_BYTES)
            lists = sum(section_bytes(extent.keys) for extent in lake.metastore.partition(AT).extents)
            done, cost = costed(lake, partial(compacted, lake, arguments))
            rows.append({"keys": case, **shares(done, cost, new_bytes=log_bytes(more), list_bytes=lists)})
    return rows


def recent_keys(lake: Lake, drawn: Ints) -> Ints:
    """Those of which the newest record is in the last extents. After a compaction they live nowhere else."""
    extents = lake.metastore.partition(AT).extents
    start = extents[-max(1, round(len(extents) * HOT))].span.start
    return np.unique(drawn[start:])


def shares(done: Compacted, cost: Cost, *, new_bytes: int, list_bytes: int) -> Row:
    """bytes_read has what is read of the lists of keys in it: 8 of 20 bytes per record where no key is concerned."""
    size, removed = done.bytes_before, done.bytes_before - done.bytes_after
    return {
        "log_bytes": size, "new_bytes": round(new_bytes / size, 4), "extents": done.extents,
        "extents_read": round(done.extents_read / done.extents, 4),
        "extents_rewritten": round(done.extents_rewritten / done.extents, 4),
        "extents_marked": round(done.extents_marked / done.extents, 4),
        "bytes_read": round(cost.traffic.bytes_read / size, 4), "lists_of_keys": round(list_bytes / size, 4),
        "bytes_written": round(cost.traffic.bytes_written / size, 4),
        "records_removed": round(1 - done.records_after / done.records_before, 4),
        "records_marked": round(done.records_dead / done.records_before, 4), "bytes_removed": round(removed / size, 4),
        "requests": cost.requests, "seconds": round(cost.seconds, 3),
        "processor_ns_per_log_byte": round(cost.processor_seconds * 1e9 / size, 2),
    }  # fmt: skip


def growth(root: Path, arguments: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for divisor in GROWTH:
        megabytes = arguments.megabytes / divisor
        tell(f"growth: {megabytes:g} MB")
        place = root / f"growth-{divisor}"
        log = write_log(place, evenly(megabytes), VALUE_BYTES, codecs.NAMES.index(arguments.codec))
        size = log_bytes(log)
        done, fill, cost = filled_and_compacted(root, log, arguments)
        shutil.rmtree(place)
        per_byte = {
            "compaction_ns_per_byte": cost.processor_seconds * 1e9 / size,
            "ingest_ns_per_byte": fill.processor_seconds * 1e9 / size,
            "requests_per_gb": cost.requests * GB / size,
        }
        row: Row = {"log_bytes": size, "extents": done.extents, "commits": done.commits}
        for name, value in per_byte.items():
            row[name] = round(value, 2)
            row[name + "_ratio"] = round(value / float(str(rows[0][name])), 3) if rows else 1.0
        rows.append(row)
    return rows


def passes(root: Path, arguments: argparse.Namespace) -> list[Row]:
    """Each key is written twice, at places that have nothing to do with each other."""
    tell(f"passes: writing {2 * arguments.keys:,} records of {arguments.keys:,} keys")
    drawn = np.random.default_rng(3).permutation(np.repeat(np.arange(arguments.keys, dtype=np.int32), 2))
    log = write_log(root / "log", drawn, SMALL_VALUE_BYTES, codecs.NONE)
    del drawn
    size = log_bytes(log)
    ways: dict[str, Way] = {}
    for name, map_bytes in (("any number of keys", None), ("bounded map", arguments.map_bytes)):
        with new_lake(root, arguments.objects) as (lake, metastore_url):
            tell(f"passes: {name}: ingesting {size / MB:,.0f} MB")
            ingest(lake, [log], clock=lambda: NOW_MS, extent_bytes=arguments.extent_bytes)
            ways[name] = alone(metastore_url, arguments, map_bytes)
    whole, bounded = ways.values()
    assert whole.records_after == bounded.records_after == arguments.keys
    told: Row = {"keys": arguments.keys, "records": 2 * arguments.keys, "log_bytes": size}
    rows = [{"way": name, **told, **in_short(way, size)} for name, way in ways.items()]
    rows[1] |= {
        "map_bytes": arguments.map_bytes, "passes_by_keys": math.ceil(arguments.keys / map_keys_max(arguments.map_bytes)),
        "bytes_read_ratio": round(bounded.bytes_read / whole.bytes_read, 2),
        "bytes_written_ratio": round(bounded.bytes_written / whole.bytes_written, 2),
        "processor_seconds_ratio": round(bounded.processor_seconds / whole.processor_seconds, 2),
        "peak_mb_ratio": round(bounded.peak_bytes / whole.peak_bytes, 2),
    }  # fmt: skip
    return rows


def in_short(way: Way, size: int) -> Row:
    return {
        "passes": way.passes, "seconds": round(way.seconds, 1), "processor_seconds": round(way.processor_seconds, 1),
        "bytes_read": way.bytes_read, "bytes_read_to_log": round(way.bytes_read / size, 2),
        "bytes_written": way.bytes_written, "bytes_written_to_log": round(way.bytes_written / size, 2),
        "requests": way.requests, "peak_mb": way.peak_bytes >> 20, "idle_mb": way.idle_bytes >> 20,
    }  # fmt: skip


def alone(metastore_url: str, arguments: argparse.Namespace, map_bytes: int | None) -> Way:
    """In a process of its own: the peak of a process's memory never falls again."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(until_clean, metastore_url, arguments, map_bytes).result()


def until_clean(metastore_url: str, arguments: argparse.Namespace, map_bytes: int | None) -> Way:
    warm_up(arguments)
    lake, idle = open_lake(metastore_url), memory_bytes("VmRSS")
    costs, done = [], None
    while True:
        now, cost = costed(lake, lambda: compacted(lake, arguments, map_bytes))
        if not now.committed:
            break
        done = now
        costs.append(cost)
        tell(f"  pass {len(costs)}: {cost.seconds:.1f} s, {now.extents_read} of {now.extents} extents read")
        collect(lake, garbage(lake, now_ms=NOW_MS + 1, grace_ms=0))  # else the disk fills with what passes replace
    lake.close()
    assert done is not None
    return Way(
        passes=len(costs), seconds=sum(c.seconds for c in costs), processor_seconds=sum(c.processor_seconds for c in costs),
        bytes_read=sum(c.traffic.bytes_read for c in costs), bytes_written=sum(c.traffic.bytes_written for c in costs),
        requests=sum(c.requests for c in costs), peak_bytes=memory_bytes("VmHWM"), idle_bytes=idle,
        records_after=done.records_after,
    )  # fmt: skip


def memory_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def warm_up(arguments: argparse.Namespace) -> None:
    """Loads the kernels, so that the first thing measured does not pay for it."""
    with tempfile.TemporaryDirectory(prefix="headstone-bench-") as root:
        log = write_log(Path(root) / "log", evenly(1), VALUE_BYTES, codecs.NAMES.index(arguments.codec))
        with new_lake(Path(root), None) as (lake, _):
            ingest(lake, [log], clock=lambda: NOW_MS)
            compacted(lake, arguments)


GROUPS: Mapping[str, Callable[[Path, argparse.Namespace], list[Row]]] = {
    "first": first,
    "second": second,
    "growth": growth,
    "passes": passes,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--megabytes", type=int, default=300, help="of log, before compression; not of passes")
    parser.add_argument("--codec", choices=codecs.NAMES, default="none", help="not of passes")
    parser.add_argument("--extent-bytes", type=int, default=EXTENT_BYTES, help="not of second")
    parser.add_argument("--keys", type=int, default=20_000_000, help="of passes; each is written twice")
    parser.add_argument("--map-bytes", type=int, default=MAP_BYTES, help="of the bounded map")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3, help="best of; second and passes run once")
    parser.add_argument(
        "--objects",
        metavar="URL",
        help="such as s3://BUCKET/PREFIX (default: local files); passes needs one that processes share",
    )
    parser.add_argument("--output", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    warm_up(arguments)
    rows: list[Row] = []
    for group in arguments.groups:
        with tempfile.TemporaryDirectory(prefix="headstone-bench-") as root:
            rows += [{"group": group, **row} for row in GROUPS[group](Path(root), arguments)]
    if arguments.output == "json":
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        for name, value in row.items():
            print(
                f"{'' if name == 'group' else '  '}{name:44} {value if isinstance(value, str) else format(value, ',')}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
