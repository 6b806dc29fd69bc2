"""One export, from its first look at the lake to the brokers' metadata: of one moment, however often it is interrupted.

All log directories are held until its end. The plan is written before anything else, and removed after everything else; a run
that finds one continues it. Each step may be the last one before a crash, and may be done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from headstone import units
from headstone.errors import Unfinished
from headstone.lake.defaults import COPIES
from headstone.lake.lake import Lake
from headstone.lake.metastore.pins import pinned
from headstone.lake.transfer.export import Exported, PartitionExport, export, plan_export
from headstone.lake.transfer.export_cluster import (
    TargetBroker,
    new_topics,
    placed,
    refuse_known_topics,
    refuse_unknown_policies,
    write_metadata,
)
from headstone.lake.transfer.export_places import ExportPlace, TopicIds, export_place
from headstone.lake.transfer.export_plan import PLAN_FILE, ExportPlan, ExportRequest, plan_of
from headstone.log.topic_partition import partition_row
from headstone.pipeline.engine import Engine, Stop, never
from headstone.pipeline.progress import Board
from headstone.storage.places import Place

Tell = Callable[[str], None]
Placed = Sequence[tuple[PartitionExport, Sequence[TargetBroker]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportEnded:
    exported: list[Exported]
    metadata_snapshots: list[Place]
    """With which the metadata of the new brokers begins."""

    def as_json(self) -> dict[str, object]:
        return {
            "partitions": list(map(partition_row, self.exported)),
            "metadata_snapshots": [str(file) for file in self.metadata_snapshots],
        }


def requested(
    brokers: Sequence[TargetBroker], topics: Sequence[str], *, topic_ids: Mapping[str, str], copies: int = COPIES,
    as_of_ms: int | None = None,
) -> ExportRequest:  # fmt: skip
    """`topics` empty: all."""
    places = [broker.log_dir for broker in brokers]
    return ExportRequest(
        topics=tuple(dict.fromkeys(topics)), topic_ids=tuple(sorted(topic_ids.items())), copies=copies, as_of_ms=as_of_ms,
        log_dirs=tuple(str(place.absolute() if isinstance(place, Path) else place) for place in places),
    )  # fmt: skip


def planned_export(lake: Lake, request: ExportRequest) -> list[PartitionExport]:
    """As the lake is now, or at the requested moment."""
    settings = lake.metastore.topics()
    topics = request.topics or tuple(sorted(settings))
    refuse_unknown_policies({topic: settings[topic] for topic in topics if topic in settings})
    return plan_export(lake, topics, topic_ids=dict(request.topic_ids), as_of_ms=request.as_of_ms)


def planned_row(planned: PartitionExport, brokers: Sequence[TargetBroker]) -> dict[str, object]:
    """What an export would write of a partition, and where."""
    return {
        "partition": str(planned.partition), "topic_id": planned.topic_id, "start_offset": planned.state.start_offset,
        "next_offset": planned.state.next_offset, "records": planned.records, "bytes": planned.bytes,
        "log_dirs": [str(broker.log_dir) for broker in brokers],
    }  # fmt: skip


def run_export(
    lake: Lake, request: ExportRequest, brokers: Sequence[TargetBroker], engine: Engine, *, reader: str, clean: bool = False,
    board: Board | None = None, tell: Tell = lambda text: None, stop: Stop = never,
) -> ExportEnded:  # fmt: skip
    """`clean`: as in `export_place`. Unfinished if it was stopped; the next run continues there."""
    places = [export_place(broker.log_dir, clean=clean) for broker in brokers]
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(place.held(tell))
        plan = _interrupted(request, places)
        if plan is None:
            stack.enter_context(pinned(lake.metastore, reader, as_of_ms=request.as_of_ms))
            plan = _begun(lake, request, brokers, places)
        else:
            plan.refuse_other(lake.metastore.lake_id, request)
            stack.enter_context(pinned(lake.metastore, reader, as_of_ms=plan.moment_ms))
            _resume(lake, plan, brokers, places, tell)
        return _ended(lake, plan, brokers, places, engine, board, tell, stop)


def _interrupted(request: ExportRequest, places: Sequence[ExportPlace]) -> ExportPlan | None:
    """None, too, if an export has left nothing but its plan: such a plan binds no one."""
    content = places[0].read_file(PLAN_FILE)
    if content is None:
        return None
    plan = plan_of(content, f"{request.log_dirs[0]}/{PLAN_FILE}")
    names = [planned.partition for planned in plan.partitions]
    begun = any(place.has_any(names) for place in places) or any(plan.finished)
    return plan if begun or plan.request.log_dirs != request.log_dirs else None


def _begun(
    lake: Lake, request: ExportRequest, brokers: Sequence[TargetBroker], places: Sequence[ExportPlace]
) -> ExportPlan:
    moment_ms = lake.metastore.clock() if request.as_of_ms is None else request.as_of_ms
    planned = planned_export(lake, request)
    topics = {one.partition.topic for one in planned}
    refuse_known_topics(brokers, topics)
    plan = ExportPlan(
        lake_id=lake.metastore.lake_id, request=request, moment_ms=moment_ms, partitions=tuple(planned),
        settings={topic: some for topic, some in lake.metastore.topics().items() if topic in topics},
        finished=tuple({} for _ in brokers),
    )  # fmt: skip
    where = placed(planned, brokers, copies=request.copies)
    for broker, place in zip(brokers, places, strict=True):
        place.prepare(_topic_ids(_own(where, broker)), None)
    places[0].write_file(PLAN_FILE, plan.content())
    return plan


def _resume(
    lake: Lake, plan: ExportPlan, brokers: Sequence[TargetBroker], places: Sequence[ExportPlace], tell: Tell
) -> None:
    """Removes nothing before everything that is still to be written is known to exist."""
    where = placed(plan.partitions, brokers, copies=plan.request.copies)
    left: list[PartitionExport] = []
    for broker, finished in zip(brokers, plan.finished, strict=True):
        left += [one for one in _own(where, broker) if one.partition not in finished]
    plan.refuse_collected(lake, left)
    for broker, place, finished in zip(brokers, places, plan.finished, strict=True):
        place.prepare(_topic_ids(_own(where, broker)), finished.keys())
    tell(
        f"resuming an interrupted export of the lake as of {units.exact_moment(plan.moment_ms)}: "
        f"{units.count(len(left), 'partition')} left to write"
    )


def _ended(
    lake: Lake, plan: ExportPlan, brokers: Sequence[TargetBroker], places: Sequence[ExportPlace], engine: Engine,
    board: Board | None, tell: Tell, stop: Stop,
) -> ExportEnded:  # fmt: skip
    where = placed(plan.partitions, brokers, copies=plan.request.copies)
    for number, (broker, place) in enumerate(zip(brokers, places, strict=True)):
        left = [one for one in _own(where, broker) if one.partition not in plan.finished[number]]
        if board is not None:
            board.expect(sum(one.bytes for one in left))
        for done in export(lake, left, place, engine, board=board, tell=tell, stop=stop):
            plan = plan.finishing(number, done)
            places[0].write_file(PLAN_FILE, plan.content())
    wanted, written = sum(len(some) for _, some in where), sum(map(len, plan.finished))
    if written < wanted:
        raise Unfinished(
            f"stopped: {written} of {units.count(wanted, 'partition')} written, each copy counted; run the same command again "
            "to continue, as of the same time"
        )
    copies = {partition: exported for some in reversed(plan.finished) for partition, exported in some.items()}
    exported = [copies[one.partition] for one in plan.partitions]
    nodes = _nodes(where)
    snapshots: list[Place] = []
    if nodes is not None:
        highest = max((one.producer_id_max for one in exported), default=-1)
        snapshots = write_metadata(brokers, new_topics(exported, nodes, plan.settings), producer_id_max=highest)
    places[0].remove_file(PLAN_FILE)
    return ExportEnded(exported=exported, metadata_snapshots=snapshots)


def _own(where: Placed, broker: TargetBroker) -> list[PartitionExport]:
    return [one for one, some in where if broker in some]


def _topic_ids(planned: Sequence[PartitionExport]) -> TopicIds:
    return {one.partition: one.topic_id for one in planned}


def _nodes(where: Placed) -> dict[str, list[list[int]]] | None:
    """By topic the brokers of each partition; None if the brokers are unknown."""
    by_topic: dict[str, list[list[int]]] = {}
    for planned, brokers in where:
        nodes = [broker.node for broker in brokers if broker.node is not None]
        if len(nodes) < len(brokers):
            return None
        by_topic.setdefault(planned.partition.topic, []).append(nodes)
    return by_topic
