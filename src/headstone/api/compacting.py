"""One compaction of log directories: the verb `compact` and `headstone.compact`.

Owns what is refused before anything is read, and what a caller is told beside the counters. `pipeline/compaction.py` does the
work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headstone import units
from headstone.api.running import CallersRunner, Paths, Reach, interruptible, reached, settings_of, some
from headstone.api.settings import CompactionSettings
from headstone.api.tables import arrow_table, frame, html_table
from headstone.bounds import of_kind
from headstone.errors import PartitionsFailed, UsageError
from headstone.log.directory import LOG, as_partition
from headstone.pipeline.compaction import CompactionRequest, CompactionResult
from headstone.pipeline.compaction import compact as compact_logs
from headstone.pipeline.inputs import in_use, log_dirs_of
from headstone.pipeline.runner import Runner
from headstone.retention.policy import COORDINATED, KAFKA, Policy, kafka_rules
from headstone.retention.settings import BY_NAME, CLEANUP_POLICY, TOPIC_SETTINGS, checked
from headstone.storage.error_texts import error_text
from headstone.storage.places import ObjectPlace, Place, children, place

if TYPE_CHECKING:
    import pandas as pd

    from headstone.spark.session import DataFrame, SparkSession

BOUNDS = ("tombstones_below", "markers_below", "plain_below")
COUNTERS = pa.schema(
    [
        ("partition", pa.string()), ("chosen", pa.bool_()), ("reason", pa.string()), ("dirty_ratio", pa.float64()),
        *(
            (name, pa.int64()) for name in (
                "dirty_start", "dirty_end", "log_start", "records_before", "records_after", "bytes_before", "bytes_after",
                "segments_before", "segments_after", "keys", "tombstones_kept", "tombstones_removed", "markers_kept",
                "markers_removed", "aborted_removed",
            )
        ),
        ("seconds", pa.float64()),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compaction:
    """What was done, by partition. A notebook shows it as a table."""

    result: CompactionResult

    @property
    def seconds(self) -> float:
        return self.result.seconds

    @property
    def done_before(self) -> tuple[str, ...]:
        """Partitions of the output that an earlier run of the same call has finished."""
        return tuple(self.result.done_before)

    def to_dicts(self) -> list[dict[str, object]]:
        return [partition.as_json() for partition in self.result.partitions]

    def to_pandas(self) -> pd.DataFrame:
        """A row for each partition; columns: `COUNTERS`."""
        return frame(arrow_table(self.to_dicts(), COUNTERS), None)

    def to_spark(self, spark: SparkSession) -> DataFrame:
        return frame(arrow_table(self.to_dicts(), COUNTERS), spark)

    def _repr_html_(self) -> str:
        return html_table(arrow_table(self.to_dicts(), COUNTERS), f"compacted in {self.seconds:.1f} s")


def compact(
    spark: SparkSession | None, paths: Paths, *, out: str | Path | None = None, in_place: bool = False,
    dry_run: bool = False, settings: CompactionSettings | None = None, store: Mapping[str, str] | None = None,
    progress: bool = True,
) -> Compaction:  # fmt: skip
    """Compacts every partition found, into a new log directory (`out`, which may be in an object store), or in place.

    Runs on `spark`, unchanged; if None, on threads of this process. The input is not touched, or swapped by the broker's own
    steps. If no partition could be compacted, raises the first one's error; if some could not, raises `PartitionsFailed`: what
    was done stands, and the same call continues there.
    """
    given, runner = some(paths), CallersRunner(spark=spark, shows_progress=progress)
    asked = settings_of(CompactionSettings, settings)
    if out is not None:
        of_kind("out", out, (str, Path))

    def work() -> CompactionResult:
        request = request_of(
            given, asked, out=out, in_place=in_place, dry_run=dry_run,
            reach=partial(reached, settings=store), progress=progress,
        )  # fmt: skip
        return carry_out(request, runner)

    compaction = Compaction(interruptible(work, spark))
    if compaction.result.failed:
        raise PartitionsFailed(
            {failure.partition: failure.error for failure in compaction.result.failed},
            done=compaction,
            text=error_text,
        )
    return compaction


def carry_out(request: CompactionRequest, runner: Runner, *, says: Callable[[str], str] = str) -> CompactionResult:
    """With the remarks that every caller gets. `says`: as in `request_of`."""
    if request.out is not None or request.dry_run:
        for text in in_use(log_dirs_of(request.paths), "what is compacted"):
            runner.warn(text)
    with runner.engine(0) as engine:
        result = compact_logs(request, engine, runner.tell)
    if not request.has_watermarks:
        flags = f"{says('tombstones_below')}, {says('markers_below')} or {says('peers')}"
        runner.tell(f"no watermarks ({flags}): no tombstone or marker goes because of its age")
    for partition in result.partitions:
        if keyless := partition.reasons.get("keyless", 0):
            runner.warn(f"warning: {partition.partition}: {units.count(keyless, 'record')} without a key dropped")
    return result


def request_of(
    paths: tuple[str | Path, ...], settings: CompactionSettings, *, out: str | Path | None, in_place: bool,
    dry_run: bool, reach: Reach, progress: bool, says: Callable[[str], str] = str,
) -> CompactionRequest:  # fmt: skip
    """`says`: how the caller writes the name of an argument, for messages that say what to change."""
    if out is None and not in_place and not dry_run:
        raise UsageError(f"say where the result goes: {says('out')} DIR, {says('in_place')}, or {says('dry_run')}")
    if out is not None and in_place:
        raise UsageError(f"{says('out')} and {says('in_place')} exclude each other; name one")
    given = [says(name) for name in BOUNDS if getattr(settings, name) is not None]
    bounds = ", ".join(map(says, BOUNDS))
    if settings.rules == KAFKA and (given or settings.peers):
        raise UsageError(f"{bounds} and {says('peers')} belong to {says('rules')} {COORDINATED}")
    if settings.peers and given:
        raise UsageError(f"{says('peers')} computes {bounds} from the replicas; leave out {given[0]}")
    return CompactionRequest(
        paths=tuple(reach(path) for path in paths),
        out=None if out is None else _out(out, reach),
        clean=settings.clean,
        policy=_policy(settings),
        dirty_from=settings.dirty_from,
        peers=tuple(_peer(paths, peer, reach, says("peers")) for peer in settings.peers),
        topics=settings.topics,
        all_topics=settings.all_topics,
        eligible_only=settings.eligible_only,
        settings_from_cluster=_fields_not_given(settings),
        clock_given=settings.now_ms is not None,
        drop_keyless=settings.drop_keyless,
        force_offline=settings.force_offline,
        dry_run=dry_run,
        path=settings.path,
        task_memory_bytes=settings.task_memory_bytes,
        progress=progress,
    )


def _out(given: str | Path, reach: Reach) -> Place:
    out = reach(given)
    return out if isinstance(out, ObjectPlace) else Path(str(out)).resolve()


def _peer(paths: tuple[str | Path, ...], given: str | Path, reach: Reach, flag: str) -> Place:
    peer = place(reach(given))
    if not peer.is_dir():
        raise UsageError(f"{flag} {given}: no such log directory")
    if any(child.name[:1].isdigit() and child.name.endswith(LOG) for child in children(peer)):
        raise UsageError(f"{flag} {given} is a partition directory; name the log directory that holds it")
    if isinstance(peer, ObjectPlace):
        same = str(given).rstrip("/") in {str(path).rstrip("/") for path in paths}
    else:
        peer = peer.resolve()
        partitions = [as_partition(Path(path)) for path in paths]
        same = peer in {partition.log_dir for partition in partitions if partition} or peer in {
            Path(path).resolve() for path in paths
        }
    if same:
        raise UsageError(f"{flag} {given} is what is compacted; name the other replicas")
    return peer


def _policy(settings: CompactionSettings) -> Policy:
    """For the `kafka` rule set, or coordinated with the given watermarks (none given: 0, nothing may go)."""
    texts = {name: checked(name, text) for name, text in settings.topic_settings.items()}
    numbers = {
        setting.field: setting.parsed(texts[setting.name])
        for setting in TOPIC_SETTINGS
        if setting.field and setting.name in texts and setting.name != CLEANUP_POLICY
    }
    policy = Policy(
        now_ms=time.time_ns() // 1_000_000 if settings.now_ms is None else settings.now_ms,
        **numbers,
        index_keys_max=settings.index_keys_max,
        cleanup_delete="delete" in texts.get(CLEANUP_POLICY, ""),
        tombstones_below=settings.tombstones_below or 0,
        markers_below=settings.markers_below or 0,
        plain_below=settings.plain_below or 0,
    )
    return kafka_rules(policy) if settings.rules == KAFKA else policy


def _fields_not_given(settings: CompactionSettings) -> frozenset[str]:
    """Fields of the policy that topics' own settings may decide."""
    given = {BY_NAME[name].field for name in settings.topic_settings}
    return frozenset(
        setting.field for setting in TOPIC_SETTINGS if setting.flag and setting.field and setting.field not in given
    )
