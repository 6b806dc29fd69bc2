"""One run of `lake restore`: a topic goes back into Kafka, and the offsets of groups follow it.

Owns the order of both, and the answer. If the offset map says that the topic is there already, only groups are translated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from headstone.lake.lake import Lake
from headstone.lake.transfer.live import SourceCluster
from headstone.lake.transfer.restore import Restored, finished_map, restore, translate_group
from headstone.lake.transfer.restore_request import RestoreMeans, RestoreRequest
from headstone.log.topic_partition import partition_row

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRun:
    partitions: tuple[Restored, ...]
    """Empty if only groups were translated."""
    groups: Mapping[str, Mapping[int, tuple[int, int]]]
    """By group and partition: the offset in the lake, and in the topic."""


def run_restore(
    lake: Lake, request: RestoreRequest, cluster: SourceCluster, means: AbstractContextManager[RestoreMeans], *,
    tell: Tell, warn: Tell,
) -> RestoreRun:  # fmt: skip
    """`means`: entered only if there is anything to restore."""
    done = list[Restored]()
    finished = finished_map(lake, request) if request.groups else None
    if finished is None:
        with means as given:
            done, offsets = restore(lake, request, cluster, given, tell=tell)
    else:
        offsets = finished
        tell(f"{offsets.topic} is already restored into {offsets.to_topic}: translating groups only")
    groups = {
        group: translate_group(lake, cluster, group, offsets, again=finished is not None, tell=warn)
        for group in request.groups
    }
    return RestoreRun(partitions=tuple(done), groups=groups)


def restore_document(run: RestoreRun) -> dict[str, object]:
    rows = list(map(partition_row, run.partitions))
    return {"partitions": rows, "groups": run.groups}
