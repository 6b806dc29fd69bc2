"""A restore in a few words, for tests: what is not said is as the program has it, on one thread, with an offset map."""

from __future__ import annotations

from typing import Any

from headstone.lake.lake import Lake
from headstone.lake.transfer.live import SourceCluster
from headstone.lake.transfer.offset_map import OffsetMap
from headstone.lake.transfer.restore import Restored, Tell, restore
from headstone.lake.transfer.restore_request import RestoreMeans, RestoreRequest
from headstone.pipeline.engine import Engine, Stop, never
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import Board


def restored(
    lake: Lake, topic: str, to_topic: str, cluster: SourceCluster, *, engine: Engine | None = None, board: Board | None = None,
    stop: Stop = never, tell: Tell = lambda text: None, groups: tuple[str, ...] = ("readers",), **asked: Any,
) -> tuple[list[Restored], OffsetMap]:  # fmt: skip
    """`groups`: somebody asks for the map; their offsets stay."""
    request = RestoreRequest(topic=topic, to_topic=to_topic, groups=groups, **asked)
    return restore(
        lake, request, cluster, RestoreMeans(engine=engine or InProcess(1), board=board, stop=stop), tell=tell
    )
