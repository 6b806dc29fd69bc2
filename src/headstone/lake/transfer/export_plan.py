"""What an export is going to write, and how far it is: a file in its first log directory until it has ended.

It names every extent of the logs when the export began, so that a run that continues an interrupted export writes the same
bytes, however the lake has changed since. Knows neither where partitions go nor how they are written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from headstone import units
from headstone.bounds import MOMENT_MS, REPLICATION_FACTOR, expect_all
from headstone.errors import UsageError
from headstone.lake.defaults import COPIES
from headstone.lake.format.objects import places
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Partition
from headstone.lake.metastore.journal import extent_of_entry
from headstone.lake.metastore.object_states import CONDEMNED
from headstone.lake.transfer.export import Exported, PartitionExport
from headstone.lake.transfer.export_places import ANEW
from headstone.log.topic_partition import TopicPartition

PLAN_FILE = "headstone-export.json"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What a command asks for. To continue an interrupted export, ask for the same."""

    topics: tuple[str, ...]
    """Empty: all topics of the lake."""
    log_dirs: tuple[str, ...]
    topic_ids: tuple[tuple[str, str], ...] = ()
    """Pairs of topic and id, sorted by topic."""
    copies: int = COPIES
    as_of_ms: int | None = None

    def __post_init__(self) -> None:
        expect_all(self, {"copies": REPLICATION_FACTOR, "as_of_ms": MOMENT_MS})

    def __str__(self) -> str:
        words = [*(self.topics or ("--all-topics",)), *(f"--log-dirs {log_dir}" for log_dir in self.log_dirs)]
        words += [f"--topic-id {topic}={topic_id}" for topic, topic_id in self.topic_ids]
        words += [f"--replication-factor {self.copies}"]
        return " ".join(words if self.as_of_ms is None else [*words, f"--as-of {self.as_of_ms}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    lake_id: str
    request: ExportRequest
    moment_ms: int
    """The lake's time when the extents were looked up, or the past moment that is exported."""
    settings: Mapping[str, Mapping[str, object]]
    """Of the topics."""
    partitions: tuple[PartitionExport, ...]
    finished: tuple[Mapping[TopicPartition, Exported], ...]
    """For each log directory, what is there for good."""

    def finishing(self, number: int, exported: list[Exported]) -> ExportPlan:
        """With these in the log directory with this number."""
        grown = {**self.finished[number], **{one.partition: one for one in exported}}
        return replace(self, finished=(*self.finished[:number], grown, *self.finished[number + 1 :]))

    def refuse_other(self, lake_id: str, request: ExportRequest) -> None:
        if lake_id != self.lake_id:
            raise UsageError(f"{self._file}: an export of lake {self.lake_id} was interrupted here; {ANEW}")
        if request != self.request:
            raise UsageError(
                f"{self._file}: another export was interrupted here; finish it first, with `headstone lake export LAKE "
                f"{self.request}`, or {ANEW}"
            )

    def refuse_collected(self, lake: Lake, left: Iterable[PartitionExport]) -> None:
        """Call under a pin of the moment: what exists now stays."""
        rows = lake.metastore.objects()
        kept = {object_id for object_id, row in rows.items() if row.state != CONDEMNED}
        for planned in left:
            needed = {one for extent in planned.extents_read for one, _ in places(planned.partition, extent)}
            if gone := sorted(needed - kept):
                raise UsageError(
                    f"{planned.partition}: {units.count(len(gone), 'object')} of its log at "
                    f"{units.exact_moment(self.moment_ms)}, when the interrupted export began, removed by gc since then, first "
                    f"{gone[0]}; {ANEW}"
                )

    @property
    def _file(self) -> str:
        return f"{self.request.log_dirs[0]}/{PLAN_FILE}"

    def content(self) -> bytes:
        document = {
            "version": VERSION, "lake_id": self.lake_id, "request": asdict(self.request), "moment_ms": self.moment_ms,
            "settings": self.settings, "partitions": [_planned_fields(planned) for planned in self.partitions],
            "finished": [[asdict(exported) for exported in some.values()] for some in self.finished],
        }  # fmt: skip
        return json.dumps(document, separators=(",", ":")).encode()


def plan_of(content: bytes, name: str) -> ExportPlan:
    """UsageError if it has another version, or is not ours."""
    try:
        document: dict[str, Any] = json.loads(content)
        if document["version"] != VERSION:
            raise UsageError(f"{name}: an export by another version of headstone was interrupted here; {ANEW}")
        request = document["request"]
        return ExportPlan(
            lake_id=document["lake_id"], moment_ms=document["moment_ms"], settings=document["settings"],
            request=ExportRequest(
                topics=tuple(request["topics"]), log_dirs=tuple(request["log_dirs"]), copies=request["copies"],
                topic_ids=tuple((topic, topic_id) for topic, topic_id in request["topic_ids"]), as_of_ms=request["as_of_ms"],
            ),
            partitions=tuple(_planned(fields) for fields in document["partitions"]),
            finished=tuple(
                {exported.partition: exported for exported in map(_exported, some)} for some in document["finished"]
            ),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{name}: not an export plan; move it away") from error


def _planned_fields(planned: PartitionExport) -> dict[str, Any]:
    """Without clean ranges and tombstones, which are not written."""
    state = planned.state
    fields = {"start": state.start_offset, "next": state.next_offset, "epoch": state.compaction_epoch}
    return {
        "partition": planned.partition, "topic_id": planned.topic_id, **fields,
        "extents": [asdict(extent) for extent in state.extents], "leader_epochs": planned.leader_epochs,
        "first_dirty": planned.first_dirty, "segment_bytes": planned.segment_bytes,
        "index_interval_bytes": planned.index_interval_bytes,
    }  # fmt: skip


def _planned(fields: Mapping[str, Any]) -> PartitionExport:
    state = Partition(
        start_offset=fields["start"], next_offset=fields["next"], compaction_epoch=fields["epoch"], cleaned=(), tombstones=(),
        extents=tuple(extent_of_entry(extent) for extent in fields["extents"]),
    )  # fmt: skip
    return PartitionExport(
        partition=TopicPartition(*fields["partition"]), topic_id=fields["topic_id"], state=state,
        leader_epochs=tuple((epoch, start) for epoch, start in fields["leader_epochs"]), first_dirty=fields["first_dirty"],
        segment_bytes=fields["segment_bytes"], index_interval_bytes=fields["index_interval_bytes"],
    )  # fmt: skip


def _exported(fields: Mapping[str, Any]) -> Exported:
    epochs = tuple((epoch, start) for epoch, start in fields["leader_epochs"])
    return Exported(**{**fields, "partition": TopicPartition(*fields["partition"]), "leader_epochs": epochs})
