"""A lake of many partitions and a large one, compacted by `headstone lake compact` while executors and drivers are killed.

    python -m campaigns.lake_on_cluster --partitions 200 --small-mb 2 --large-mb 8000 --kills 2 --dir DIR

PostgreSQL, versitygw, a Spark master and two workers that share no path with the driver. Before each kill some commits must
have been made, before the last one some of the large partition; the next run goes on from there. At the end: the same table by
a slow count of batches, nothing lost of what was committed, the metastore in order, and what was read and written per byte of
log, all runs together. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from headstone.lake.format.objects import object_path, read_dead, read_extent
from headstone.lake.lake import Lake, create_lake
from headstone.lake.metastore.leases import Leases
from headstone.lake.transfer.ingest import ingest
from headstone.log.columns import KEY_AT, KEY_SIZE, OFFSET, VALUE_SIZE, decode
from headstone.log.directory import find_partitions
from headstone.log.reading import Payloads, chunk_of
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from headstone.retention.keys import HashKey, siphash_spans
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from testbed.faulty_s3 import FaultyS3, faulty_s3
from testbed.machines import environment
from testbed.postgres import postgres
from testbed.s3 import BUCKET, versitygw
from testbed.spark_cluster import APPLICATION_CONF, SparkCluster, spark_cluster

RECORD_BYTES = 214
MB = 1_000_000
COMMITS_BEFORE_A_KILL = 5
POLL_S = 0.2
HASH_KEY = HashKey(1, 2)
LARGE = TopicPartition("large", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    partitions: int
    log_bytes: int
    extents: int
    kills: int
    commits_before_kills: tuple[int, ...]
    """Over all partitions; the numbers must not fall."""
    large_commits_before_kills: tuple[int, ...]
    """Of the large partition, which must have been interrupted in the middle at least once."""
    commits: int
    seconds: float
    """Of the last run, which is not disturbed."""
    bytes_read_per_byte_of_log: float
    bytes_written_per_byte_of_log: float
    same_table: bool
    violations: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        rising = list(self.commits_before_kills) == sorted(self.commits_before_kills)
        killed = len(self.commits_before_kills) == self.kills and (
            not self.kills or self.large_commits_before_kills[-1] > 0
        )
        return self.same_table and not self.violations and rising and killed


def fill(lake: Lake, root: Path, arguments: argparse.Namespace) -> int:
    """Returns the bytes of the log."""
    sizes = {"small": (arguments.partitions, arguments.small_mb * MB), "large": (1, arguments.large_mb * MB)}
    for topic, (partitions, size) in sizes.items():
        records = size // RECORD_BYTES
        settings = SampleSettings(
            topic=topic, partitions=partitions, records=records, keys=int(records * 0.63), segment_bytes=256 << 20
        )
        write_sample(root, settings)
    ingest(lake, find_partitions([root]), clock=lake.metastore.clock, engine=InProcess(2))
    return sum(path.stat().st_size for path in root.rglob("*.log"))


def table_digest(lake: Lake, name: TopicPartition) -> str:
    """Digest of the offsets of the newest record of each key that is not deleted, counted from the batches, without lists of
    keys."""
    keys, offsets, deleted = [], [], []
    for extent in lake.metastore.partition(name).extents:
        if not extent.length:
            continue
        chunk = chunk_of(object_path(extent.object_id), read_extent(lake.store, extent))
        dead = read_dead(lake.store, extent)
        for data, spans in decode(chunk, np.flatnonzero(chunk.batches["count"] > 0), Payloads()):
            shown = spans[~np.isin(spans[:, OFFSET], dead)]
            keys.append(siphash_spans(data, shown[:, KEY_AT], shown[:, KEY_SIZE], HASH_KEY)[:, 0])
            offsets.append(shown[:, OFFSET])
            deleted.append(shown[:, VALUE_SIZE] < 0)
    if not keys:
        return ""
    key, offset, gone = np.concatenate(keys), np.concatenate(offsets), np.concatenate(deleted)
    _, newest = np.unique(key[::-1], return_index=True)
    newest = key.size - 1 - newest
    return hashlib.sha256(np.sort(offset[newest[~gone[newest]]]).tobytes()).hexdigest()


def compacting(url: str, settings: dict[str, str], cluster: SparkCluster) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headstone.cli.main", "lake", "compact", url, "--all", "--master", cluster.url]
    command += [word for name, value in settings.items() for word in ("--store-conf", f"{name}={value}")]
    command += [word for name, value in APPLICATION_CONF.items() for word in ("--spark-conf", f"{name}={value}")]
    variables = {**environment(), "PYSPARK_PYTHON": sys.executable}
    return subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, start_new_session=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commits:
    every: int
    large: int


def commits(lake: Lake) -> Commits:
    epochs = {name: partition.compaction_epoch for name, partition in lake.metastore.snapshot().items()}
    return Commits(every=sum(epochs.values()), large=epochs[LARGE])


def killed_in_the_middle(
    lake: Lake, running: subprocess.Popen[bytes], cluster: SparkCluster, enough: Callable[[Commits], bool]
) -> Commits | None:
    """What had been committed when an executor and then the driver were killed; None if the job ended before."""
    while not enough(commits(lake)):
        if running.poll() is not None:
            return None
        time.sleep(POLL_S)
    cluster.kill_executors(0)
    made = commits(lake)
    while commits(lake) == made and running.poll() is None:  # it continues without that executor
        time.sleep(POLL_S)
    if running.poll() is not None:
        return None
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    made = commits(lake)
    while Leases(lake.metastore).held(now_ms=lake.metastore.clock()):  # leases of the dead expire
        time.sleep(POLL_S)
    return made


def enough_for(number: int, arguments: argparse.Namespace) -> Callable[[Commits], bool]:
    """The last kill comes in the middle of the large partition."""
    if number + 1 == arguments.kills:
        return lambda made: made.large > 0
    return lambda made: made.every >= (number + 1) * COMMITS_BEFORE_A_KILL


def run(arguments: argparse.Namespace, here: Path, stack: ExitStack) -> Result:
    server = stack.enter_context(versitygw(here / "server"))
    url = stack.enter_context(postgres())
    proxy: FaultyS3 = stack.enter_context(faulty_s3(server))
    cluster = stack.enter_context(spark_cluster(workers=2, hidden=[here]))
    lake = create_lake(url, f"s3://{BUCKET}/lake", settings=server)
    stack.callback(lake.close)
    tell("writing and ingesting")
    size = fill(lake, here / "logs", arguments)
    names: Sequence[TopicPartition] = lake.metastore.partitions()
    extents = sum(len(partition.extents) for partition in lake.metastore.snapshot().values())
    tables = {name: table_digest(lake, name) for name in names}
    made: list[Commits] = []
    for number in range(arguments.kills):
        tell(f"compacting, until it is killed for the {number + 1}. time")
        running = compacting(url, proxy.settings, cluster)
        ended = killed_in_the_middle(lake, running, cluster, enough_for(number, arguments))
        if ended is not None:
            made.append(ended)
    tell("compacting to the end")
    started = time.monotonic()
    if compacting(url, proxy.settings, cluster).wait():
        raise SystemExit("the last run failed")
    seconds = time.monotonic() - started
    tell("counting the tables again")
    return Result(
        partitions=len(names), log_bytes=size, extents=extents, kills=arguments.kills,
        commits_before_kills=tuple(kept.every for kept in made), large_commits_before_kills=tuple(kept.large for kept in made),
        commits=commits(lake).every, seconds=round(seconds, 1),
        bytes_read_per_byte_of_log=round(proxy.counts.bytes_down / size, 3),
        bytes_written_per_byte_of_log=round(proxy.counts.bytes_up / size, 3),
        same_table=tables == {name: table_digest(lake, name) for name in names},
        violations=tuple(lake.metastore.check()),
    )  # fmt: skip


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=200, help="small ones (default %(default)s)")
    parser.add_argument("--small-mb", type=int, default=2, help="of each (default %(default)s)")
    parser.add_argument("--large-mb", type=int, default=8000, help="of the large partition (default %(default)s)")
    parser.add_argument("--kills", type=int, default=2, help="of an executor and the driver (default %(default)s)")
    parser.add_argument(
        "--dir", help="where logs and objects go: three times the logs' size (default: the temporary one)"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as here, ExitStack() as stack:
        result = run(arguments, Path(here), stack)
    print(json.dumps(asdict(result), indent=2))
    return 0 if result.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
