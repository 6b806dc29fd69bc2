"""Which of the partitions found are compacted, with whose settings, and why the others are left.

Looks at names, small files and KRaft's metadata log; the logs themselves are surveyed later. Changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headstone import units
from headstone.errors import HeadstoneError, UsageError
from headstone.log import checkpoints
from headstone.log.cluster_metadata import ClusterMetadata, node_id, read_cluster_metadata
from headstone.log.directory import METADATA_TOPIC, PartitionDir, as_partition, future_copies, is_broker_directory
from headstone.pipeline.failed_partition import FailedPartition
from headstone.retention.settings import policies_of
from headstone.retention.survey import PartitionSurvey
from headstone.spelling import instead
from headstone.storage.places import Place
from headstone.storage.stores import is_remote
from headstone.units import DAY_MS

CENTURY_MS = 36_525 * DAY_MS
"""Microseconds are a thousand times further away."""
BY_NAME = "name it if it is compacted (--topic; topics in a program), or say --all-topics (all_topics)"

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """`left` are partitions that a new log directory gets as they are. Topics that were not requested are in neither.

    `failed`: partitions whose topic is unknown, and so whether they are compacted."""

    wanted: tuple[PartitionDir, ...]
    left: tuple[PartitionDir, ...]
    settings: Mapping[Place, Mapping[str, str]]
    """Settings of the topics of `wanted`, by the path of a partition, if the cluster's metadata has them."""
    failed: tuple[FailedPartition, ...] = ()

    def without(self, finished: Collection[str]) -> Selection:
        """What is left to do after an earlier run."""
        wanted = tuple(directory for directory in self.wanted if directory.name not in finished)
        return replace(self, wanted=wanted, left=tuple(d for d in self.left if d.name not in finished))


def select(
    everything: Sequence[PartitionDir], *, paths: Sequence[str], topics: Sequence[str], all_topics: bool, tell: Tell
) -> Selection:
    """The partitions of the named topics; without names, those of topics that a broker's directory shows to be compacted."""
    unknown = sorted(set(topics) - {directory.topic for directory in everything})
    if unknown:
        there = {directory.topic for directory in everything}
        raise UsageError(f"no partition of topic {unknown[0]} in {', '.join(paths)}{instead(unknown[0], there)}")
    asked = [d for d in everything if d.topic != METADATA_TOPIC and (not topics or d.topic in topics)]
    settings, failures = _cluster_settings(asked, everything, tell)
    asked = [directory for directory in asked if directory.path not in failures]
    moving = _moving(asked, paths)
    reasons = _reasons_to_leave(asked, settings) if not topics and not all_topics else {}
    for (topic, reason), count in Counter((d.topic, reasons[d.path]) for d in asked if d.path in reasons).items():
        tell(f"{topic} is left as it is ({count} partition{'s' if count > 1 else ''}): {reason}")
    for directory in asked:
        if directory.path in moving and directory.path not in reasons:
            tell(f"{directory.name} is left as it is: {moving[directory.path]}")
    metadata = [directory for directory in everything if directory.topic == METADATA_TOPIC]
    if metadata:
        tell(f"{METADATA_TOPIC} is left as it is: snapshots, not compaction, keep it small")
    wanted = [d for d in asked if d.path not in reasons and d.path not in moving]
    failed = tuple(failures.values())
    if not wanted and failed:
        raise failed[0].error
    if not wanted:
        raise UsageError(f"{', '.join(paths)}: nothing to compact")
    left = [d for d in asked if d.path in reasons or d.path in moving]
    by_path = {path: found for path, found in settings.items() if found is not None}
    return Selection(wanted=tuple(wanted), left=(*left, *metadata), settings=by_path, failed=failed)


def refuse_wrong_clock(directory: PartitionDir, survey: PartitionSurvey, now_ms: int) -> None:
    """A clock in another unit stamps horizons in 1970, or lets everything expire at once.

    Producers may be ahead of a right clock, by a day at most. Records may be of any age.
    """
    newest = max(segment.largest_timestamp for segment in survey.segments)
    if newest < 0 or newest - DAY_MS <= now_ms <= newest + CENTURY_MS:
        return
    where = "before" if now_ms < newest else "behind"
    days = units.count(abs(newest - now_ms) // DAY_MS, "day")
    raise UsageError(
        f"{directory.path}: the clock given, {units.exact_moment(now_ms)}, lies {days} {where} the newest record, "
        f"{units.exact_moment(newest)}: leave "
        "it out for this machine's clock, or give a time such as 2026-11-18T09:30:00Z"
    )


def _reasons_to_leave(
    asked: Sequence[PartitionDir], settings: Mapping[Place, Mapping[str, str] | None]
) -> dict[Place, str]:
    """Partitions of brokers' directories: the metadata decides; if it says nothing, what the cleaner has done does."""
    of_brokers = [directory for directory in asked if is_broker_directory(directory.log_dir)]
    log_dirs = {directory.log_dir for directory in of_brokers}
    cleaned = {topic for log_dir in log_dirs for topic, _ in checkpoints.read_offsets(log_dir / checkpoints.CLEANER)}
    reasons = {d.path: _reason_to_leave(d, settings.get(d.path, {}), d.topic in cleaned) for d in of_brokers}
    return {path: reason for path, reason in reasons.items() if reason is not None}


def _reason_to_leave(directory: PartitionDir, settings: Mapping[str, str] | None, cleaned: bool) -> str | None:
    if settings is None:
        return f"the cluster's metadata knows no such topic; start the broker so that it removes it, or {BY_NAME}"
    policy = settings.get("cleanup.policy")
    if policy is None:
        return None if cleaned else f"nothing says that it is a compacted topic; {BY_NAME}"
    return None if "compact" in policies_of(policy) else f"its cleanup.policy is {policy!r}; {BY_NAME}"


def _cluster_settings(
    asked: Sequence[PartitionDir], everything: Sequence[PartitionDir], tell: Tell
) -> tuple[dict[Place, Mapping[str, str] | None], dict[Place, FailedPartition]]:
    """Settings of the topics by partition, None for a topic that does not exist; empty without a metadata log. And partitions
    without the id by which the metadata would know them.

    A broker has its copy of the metadata log in one of its log directories: in this one, or in another given one.
    """
    given = [directory for directory in everything if directory.topic == METADATA_TOPIC]
    read: dict[Place, ClusterMetadata | None] = {}
    settings: dict[Place, Mapping[str, str] | None] = {}
    failed: dict[Place, FailedPartition] = {}
    log_dirs = {directory.log_dir for directory in asked if is_broker_directory(directory.log_dir)}
    for log_dir in sorted(log_dirs, key=str):
        here = as_partition(log_dir / f"{METADATA_TOPIC}-0")
        logs = [here] if here is not None else given
        for log in (log for log in logs if log.path not in read):
            read[log.path] = _read(log, tell)
        readable = [metadata for metadata in (read[log.path] for log in logs) if metadata is not None]
        if readable:
            broker = node_id(log_dir)
            for directory in (one for one in asked if one.log_dir == log_dir):
                try:
                    settings[directory.path] = _settings_in(readable[0], directory, broker)
                except (UsageError, OSError) as error:
                    failed[directory.path] = FailedPartition(partition=directory.name, error=error)
    return settings, failed


def _read(log: PartitionDir, tell: Tell) -> ClusterMetadata | None:
    try:
        metadata = read_cluster_metadata(log)
    except HeadstoneError as error:
        tell(f"warning: the settings of topics are not known: {error}")
        return None
    tell(f"settings of topics are those of {log.path}, where no option is given; server.properties is not in it")
    return metadata


def _settings_in(metadata: ClusterMetadata, directory: PartitionDir, broker: str | None) -> Mapping[str, str] | None:
    topic_id = checkpoints.read_topic_id(directory.path / checkpoints.PARTITION_METADATA)
    current_id = metadata.topic_ids.get(directory.topic)
    if current_id is None or (topic_id is not None and topic_id != current_id):
        return None
    return metadata.topic_settings(directory.topic, broker=broker)


def _moving(asked: Sequence[PartitionDir], paths: Sequence[str]) -> dict[Place, str]:
    """Partitions with a copy on its way to another log directory: a replica that lags, and that no peer reports."""
    given = {Path(path).resolve() for path in paths if not is_remote(path)}
    log_dirs = {directory.log_dir for directory in asked} | given
    copies = [copy for log_dir in sorted(log_dirs, key=str) for copy in future_copies(log_dir)]
    return {
        directory.path: f"{copy.path} is a copy of it that is being moved there; start the broker and let it finish"
        for directory in asked
        for copy in copies
        if copy.is_of(directory)
    }
