"""A lake for programs and notebooks: `headstone.Lake`, and the topics in it.

Owns no rule: each call opens what it needs, asks the lake's own packages, and returns their values. A Spark session is the
caller's; without one threads of this process do the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, overload

import pyarrow as pa

from headstone.api.ingesting import (
    ClusterIngest,
    Followed,
    Ingested,
    expect_driver_here,
    expect_one_source,
    ingest_logs,
)
from headstone.api.running import (
    CallersRunner,
    Paths,
    connected,
    interruptible,
    listed,
    reached,
    resolved,
    session_of,
    settings_of,
)
from headstone.api.settings import IngestSettings
from headstone.api.tables import frame
from headstone.bounds import MOMENT_MS, by_name, of_kind, several
from headstone.errors import PartitionsFailed, Unfinished, UsageError
from headstone.lake import topics
from headstone.lake.defaults import PARTITIONS, RECORDS, TABLE
from headstone.lake.jobs.compact_run import CompactRun, LakeCompactionSettings, agenda_of, compact_due
from headstone.lake.jobs.keeping import name_of_worker
from headstone.lake.lake import Lake as OpenLake
from headstone.lake.lake import LakeAddress, create_lake, metastore_url, new_place
from headstone.lake.metastore.catalog import TopicRow
from headstone.lake.status import LakeStatus, lake_status
from headstone.lake.topics import partitions_of, topic_row
from headstone.lake.transfer.reading import SCHEMA
from headstone.lake.transfer.views import pinned_view
from headstone.pipeline.engine import never
from headstone.storage.error_texts import error_text
from headstone.storage.redaction import without_secrets

if TYPE_CHECKING:
    import pandas as pd

    from headstone.cluster.connection import Connection
    from headstone.spark.session import DataFrame, SparkSession


class Lake:
    """An existing lake: a directory, or the URL of its metastore, or a reference to that (env:NAME, file:PATH).

    store: settings of the object store by obstore's names; secrets may be references. As a context manager it is closed at the
    end; it may be used from any thread."""

    def __init__(self, lake: str | Path, *, store: Mapping[str, str] | None = None) -> None:
        of_kind("lake", lake, (str, Path))
        settings = resolved("store", store)
        self._where, self._store = str(lake), dict(store or {})
        self._closed = False
        self._lake = LakeAddress(
            metastore_url=metastore_url(self._where),
            store_settings=settings,
        ).open()

    @classmethod
    def create(cls, lake: str | Path, *, objects: str | None = None, store: Mapping[str, str] | None = None) -> Lake:
        """A new lake: in a directory that is empty or does not exist, or with a metastore's URL and a place for `objects`."""
        of_kind("lake", lake, (str, Path))
        settings = resolved("store", store)
        create_lake(*new_place(str(lake), objects), settings=settings).close()
        return cls(lake, store=store)

    def topics(self) -> tuple[TopicRow, ...]:
        """All of them, by name, with their settings and partitions."""
        return tuple(self._opened().metastore.topic_rows())

    def topic(self, name: str) -> Topic:
        of_kind("topic", name, str)
        return Topic(name=topic_row(self._opened(), name).topic, lake=self)

    def create_topic(self, name: str, partitions: int = PARTITIONS, settings: Mapping[str, str] | None = None) -> Topic:
        """Creates an empty topic, with settings by Kafka's names."""
        of_kind("topic", name, str)
        by_name("settings", settings or {}, (str, int, float))
        topics.create_topic(self._opened(), name, partitions, settings or {})
        return self.topic(name)

    def ingest(
        self, paths: Paths = (), *, bootstrap: str | None = None, topics: Sequence[str] = (),
        spark: SparkSession | None = None, settings: IngestSettings | None = None,
        kafka: Mapping[str, str] | None = None, store: Mapping[str, str] | None = None, progress: bool = True,
    ) -> tuple[Ingested | Followed, ...]:  # fmt: skip
        """Ingests committed records of log directories or backups, up to their last stable offset; or, with `bootstrap`, topics
        of a running cluster, which needs a classic Spark session with Spark's own Kafka source.

        What is in the lake already is not read again. kafka: settings of the connection by librdkafka's names. store: settings
        of the object stores that the paths are in. Secrets may be references. Raises `PartitionsFailed` if some partitions
        could not be read to their end; the others are in the lake."""
        several("topics", topics)
        asked = settings_of(IngestSettings, settings)
        asked = replace(asked, topics=tuple(topics)) if topics else asked
        expect_one_source(listed(paths), bootstrap)
        runner = CallersRunner(spark=spark, shows_progress=progress)
        if bootstrap is not None:
            connection = connected(bootstrap, kafka)
            if spark is None:
                raise UsageError("a cluster is read with Spark's own Kafka source: pass spark=")
            return interruptible(partial(self._follow, connection, asked, runner, spark), spark)

        def work() -> tuple[Ingested, ...]:
            done = ingest_logs(
                self._opened(), [reached(path, store) for path in listed(paths)], asked, runner, stop=never
            )
            if done.failed:
                raise PartitionsFailed(
                    {failure.partition: failure.error for failure in done.failed},
                    done=done.partitions,
                    text=error_text,
                )
            if done.unfinished is not None:
                raise Unfinished(done.unfinished)
            return done.partitions

        return interruptible(work, spark)

    def _follow(
        self, connection: Connection, settings: IngestSettings, runner: CallersRunner, spark: SparkSession
    ) -> tuple[Followed, ...]:
        from headstone.pipeline.progress import OFFSETS
        from headstone.spark.session import context_of

        expect_driver_here(connect=context_of(session_of(spark)) is None)
        following = ClusterIngest(self._opened(), connection, settings, runner)
        with runner.progress(OFFSETS) as progress:
            progress.expect(following.offsets_to_come)
            return following.run(spark, stop=never, board=progress.board)

    def compact(
        self,
        spark: SparkSession | None = None,
        *,
        settings: LakeCompactionSettings | None = None,
        progress: bool = True,
    ) -> CompactRun:
        """Compacts what is due, most urgent first. Raises `PartitionsFailed` if some could not be compacted; the others are."""
        asked, runner = (
            settings_of(LakeCompactionSettings, settings),
            CallersRunner(spark=spark, shows_progress=progress),
        )

        def work() -> CompactRun:
            agenda = agenda_of(self._opened(), asked)
            with runner.engine(agenda.dirty_bytes) as engine, runner.progress() as tidying:
                return compact_due(
                    self._opened(), agenda, asked, engine, worker=name_of_worker("compact"), stop=never, tell=runner.tell,
                    progress=progress, tidying=lambda: tidying.board,
                )  # fmt: skip

        run = interruptible(work, spark)
        if run.error is not None:
            raise run.error
        if run.failed:
            raise PartitionsFailed({str(name): error for name, error in run.failed}, done=run, text=error_text)
        return run

    def status(self) -> LakeStatus:
        """Totals, partitions and why they are due or not, the queue, workers, erasures, holds."""
        return lake_status(self._opened().metastore)

    def close(self) -> None:
        """For good; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._lake.close()

    def _opened(self) -> OpenLake:
        if self._closed:
            raise UsageError(
                f"the lake {without_secrets(self._where)} was closed: open it again with headstone.Lake(...)"
            )
        return self._lake

    def __enter__(self) -> Lake:
        self._opened()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic of a lake. With a Spark session its records are a Spark DataFrame, read by the executors; without one a pandas
    DataFrame, all of it in memory here."""

    name: str
    lake: Lake

    @overload
    def table(self, spark: None = None, *, as_of_ms: int | None = None) -> pd.DataFrame: ...
    @overload
    def table(self, spark: SparkSession, *, as_of_ms: int | None = None) -> DataFrame: ...
    def table(
        self, spark: SparkSession | None = None, *, as_of_ms: int | None = None
    ) -> pd.DataFrame | DataFrame:  # fmt: skip
        """The newest record of every key that is not deleted."""
        return self._read(TABLE, spark, as_of_ms)

    @overload
    def records(self, spark: None = None, *, as_of_ms: int | None = None) -> pd.DataFrame: ...
    @overload
    def records(self, spark: SparkSession, *, as_of_ms: int | None = None) -> DataFrame: ...
    def records(
        self, spark: SparkSession | None = None, *, as_of_ms: int | None = None
    ) -> pd.DataFrame | DataFrame:  # fmt: skip
        """Every record. In a pandas DataFrame they are in offset order within a partition."""
        return self._read(RECORDS, spark, as_of_ms)

    def _read(self, view: str, spark: SparkSession | None, as_of_ms: int | None) -> pd.DataFrame | DataFrame:
        if as_of_ms is not None:
            MOMENT_MS.expect("as_of_ms", as_of_ms)
        lake = self.lake._opened()
        if spark is not None:
            return self._on_spark(view, spark, as_of_ms)
        return frame(interruptible(partial(self._here, lake, view, as_of_ms), None), None)

    def _on_spark(self, view: str, spark: SparkSession, as_of_ms: int | None) -> DataFrame:
        from headstone.spark.lake_source import lake_frame

        options = {"topic": self.name, "view": view}
        options |= {f"store.{name}": value for name, value in self.lake._store.items()}
        if as_of_ms is not None:
            options["asOf"] = str(as_of_ms)
        return lake_frame(session_of(spark), self.lake._where, options)

    def _here(self, lake: OpenLake, view: str, as_of_ms: int | None) -> pa.Table:
        partitions = partitions_of(lake, self.name)
        with (
            CallersRunner(shows_progress=False).engine(0) as engine,
            pinned_view(lake, partitions, view, engine, as_of_ms=as_of_ms) as batches,
        ):
            return pa.Table.from_batches(list(batches), schema=SCHEMA)
