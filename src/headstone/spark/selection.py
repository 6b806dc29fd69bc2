"""Which of the partitions found are compacted, and why the others are left.

Looks at names and small files of log directories only; the logs themselves are surveyed later. Changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headstone.errors import UsageError
from headstone.log import checkpoints
from headstone.log.directory import METADATA_TOPIC, PartitionDir, future_copies, is_broker_directory
from headstone.retention.policy import DAY_MS
from headstone.retention.survey import PartitionSurvey

CENTURY_MS = 36_525 * DAY_MS
"""Microseconds are a thousand times further away."""
NO_REASON = "nothing says that it is a compacted topic; name it with --topic if it is, or pass --all-topics"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """`left` are those that a new log directory gets as they are. Topics that were not asked for are in neither."""

    wanted: tuple[PartitionDir, ...]
    left: tuple[PartitionDir, ...]


def select(
    everything: Sequence[PartitionDir],
    *,
    paths: Sequence[str],
    topics: Sequence[str],
    all_topics: bool,
    tell: Callable[[str], None],
) -> Selection:
    """The partitions of the topics named; none named: of compacted topics, as far as a broker's directory tells."""
    unknown = sorted(set(topics) - {directory.topic for directory in everything})
    if unknown:
        raise UsageError(f"no partition of topic {unknown[0]} in {', '.join(paths)}")
    asked = [d for d in everything if d.topic != METADATA_TOPIC and (not topics or d.topic in topics)]
    moving = _moving(asked, paths)
    reasons = _left_topics(asked) if not topics and not all_topics else {}
    counts = Counter(directory.topic for directory in asked)
    for topic, reason in reasons.items():
        tell(f"{topic} is left as it is ({counts[topic]} partition{'s' if counts[topic] > 1 else ''}): {reason}")
    for directory in asked:
        if directory.path in moving and directory.topic not in reasons:
            tell(f"{directory.name} is left as it is: {moving[directory.path]}")
    metadata = [directory for directory in everything if directory.topic == METADATA_TOPIC]
    if metadata:
        tell(f"{METADATA_TOPIC} is left as it is: snapshots, not compaction, keep it small")
    wanted = [d for d in asked if d.topic not in reasons and d.path not in moving]
    if not wanted:
        raise UsageError(f"{', '.join(paths)}: nothing to compact")
    left = [d for d in asked if d.topic in reasons or d.path in moving]
    return Selection(wanted=tuple(wanted), left=(*left, *metadata))


def refuse_wrong_clock(directory: PartitionDir, survey: PartitionSurvey, now_ms: int) -> None:
    """A clock in another unit stamps horizons in 1970, or lets everything expire at once.

    Producers may be ahead of a right clock, by a day at most; how far back records go is nobody's fault.
    """
    newest = max(segment.largest_timestamp for segment in survey.segments)
    if newest < 0 or newest - DAY_MS <= now_ms <= newest + CENTURY_MS:
        return
    where = "before" if now_ms < newest else "behind"
    raise UsageError(
        f"{directory.path}: --now-ms {now_ms} lies {abs(newest - now_ms) // DAY_MS:,} days {where} the newest record "
        f"({newest}); it is in milliseconds since 1970: leave it out for this machine's clock"
    )


def _left_topics(asked: Sequence[PartitionDir]) -> dict[str, str]:
    """Topics of brokers' directories that no cleaner has ever cleaned, with the reason to leave them."""
    of_brokers = [directory for directory in asked if is_broker_directory(directory.log_dir)]
    cleaned = {
        topic
        for log_dir in {directory.log_dir for directory in of_brokers}
        for topic, _ in checkpoints.read_offsets(log_dir / checkpoints.CLEANER)
    }
    return {directory.topic: NO_REASON for directory in of_brokers if directory.topic not in cleaned}


def _moving(asked: Sequence[PartitionDir], paths: Sequence[str]) -> dict[Path, str]:
    """Partitions with a copy on its way to another log directory: a replica that lags, and that no peer tells of."""
    log_dirs = {directory.log_dir for directory in asked} | {Path(path).resolve() for path in paths}
    copies = [copy for log_dir in sorted(log_dirs) for copy in future_copies(log_dir)]
    return {
        directory.path: f"{copy.path} is a copy of it that is being moved there; start the broker and let it finish"
        for directory in asked
        for copy in copies
        if copy.is_of(directory)
    }
