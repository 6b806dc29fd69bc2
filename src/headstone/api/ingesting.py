"""Records into a lake, from log directories and from running clusters: the verb `lake ingest` and `Lake.ingest`.

Owns the caller's choices and what is refused before anything is read. `lake/transfer/ingest.py` reads logs;
`spark/lake_stream.py` reads a cluster with Spark's own Kafka source.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headstone.api.settings import IngestSettings
from headstone.errors import UsageError
from headstone.lake.lake import Lake
from headstone.lake.topics import TopicFacts, adopt, in_directories
from headstone.lake.transfer.ingest import Ingested, Ingestion, LogIngestSettings, ingest_each
from headstone.log import codecs
from headstone.log.directory import find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Stop
from headstone.pipeline.inputs import bytes_of, in_use, of_topics
from headstone.retention.settings import known_setting
from headstone.spelling import instead
from headstone.storage.places import Place

if TYPE_CHECKING:
    from headstone.cluster.connection import Connection
    from headstone.pipeline.progress import Board
    from headstone.pipeline.runner import Runner
    from headstone.spark.session import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A partition of a cluster's topic: what was in the lake before, where it ends now, and the records added by this run."""

    partition: TopicPartition
    start: int
    end: int
    records: int


def expect_one_source(paths: Sequence[object], bootstrap: object) -> None:
    """Either log directories or a cluster."""
    if bool(paths) == bool(bootstrap):
        raise UsageError(
            "name what to ingest: log directories, or a cluster with --bootstrap HOSTS --topic T (bootstrap= and topics= in a "
            "program)"
        )


def expect_driver_here(*, connect: bool) -> None:
    if connect:
        raise UsageError(
            "ingest from a cluster commits from the driver, which must be this process, not a server of Spark Connect: use "
            "--master (a classic session in a program)"
        )


def ingest_logs(
    lake: Lake, places: Sequence[str | Place], settings: IngestSettings, runner: Runner, *, stop: Stop
) -> Ingestion:
    if settings.continuous:
        raise UsageError(
            "--continuous is for clusters (continuous= in a program); log directories are ingested once, as they are now"
        )
    directories = of_topics(find_partitions(places), settings.topics, places)
    for text in in_use([directory.log_dir for directory in directories], "what comes in"):
        runner.warn(text)
    topics = in_directories(directories)
    given = settings_of_topics(settings, topics.names)
    for topic in sorted((given.keys() & topics.facts.keys()) - lake.metastore.topics().keys()):
        facts = topics.facts[topic]
        adopt(lake, topic, replace(facts, settings={**facts.settings, **given[topic]}), policy=settings.cleanup_policy)
    with runner.engine(bytes_of(directories)) as engine, runner.progress() as progress:
        engine.begin()
        return ingest_each(
            lake, directories, clock=lake.metastore.clock, settings=LogIngestSettings(policy=settings.cleanup_policy),
            engine=engine, board=progress.board, tell=runner.tell, stop=stop,
        )  # fmt: skip


class ClusterIngest:
    """One run. Creating it asks the cluster and creates the topics; `run` needs a classic Spark session."""

    def __init__(self, lake: Lake, connection: Connection, settings: IngestSettings, runner: Runner) -> None:
        from headstone.cluster.connection import spark_source_options
        from headstone.cluster.live import LiveCluster
        from headstone.lake.transfer.live import ReadTopics, facts_of, prepare

        if not settings.topics:
            raise UsageError("name the topics with --topic, which may be repeated (topics= in a program)")
        self._lake, self._settings, self._runner = lake, settings, runner
        self._source = spark_source_options(connection)
        cluster = LiveCluster(connection, beside_spark=True)
        facts = facts_of(cluster, settings.topics)
        given = settings_of_topics(settings, facts)
        self._facts: dict[str, TopicFacts] = {
            topic: replace(fact, settings={**fact.settings, **given.get(topic, {})}) for topic, fact in facts.items()
        }
        prepare(lake, self._facts, policy=settings.cleanup_policy, tell=runner.tell)
        self._topics = ReadTopics(lake, cluster, {topic: fact.kafka_id for topic, fact in self._facts.items()})
        self._topics.confirm()
        self._before = lake.metastore.next_offsets()

    @property
    def offsets_to_come(self) -> int:
        from headstone.lake.transfer.live import offsets_to_come

        return offsets_to_come(self._lake, self._facts)

    def run(self, spark: SparkSession, *, stop: Stop, board: Board | None) -> tuple[Followed, ...]:
        from headstone import units
        from headstone.spark.lake_stream import StreamOptions, stream

        settings = self._settings
        options = StreamOptions(
            source=self._source, continuous=settings.continuous, every_ms=settings.every_ms,
            age_ms_max=settings.age_ms_max, object_bytes=settings.object_bytes,
            offsets_per_batch=settings.offsets_per_batch, offsets_per_task=settings.offsets_per_task,
            codec=codecs.NAMES.index(settings.codec), before_commit=self._topics.confirm, stop=stop,
        )  # fmt: skip
        starts = {topic: fact.starts for topic, fact in self._facts.items()}
        clock = self._lake.metastore.clock
        added = stream(self._lake, spark, starts, options, clock=clock, tell=self._runner.tell, board=board)
        if untold := self._topics.untold():
            self._runner.tell(
                f"leader epochs of {units.count(len(untold), 'partition')}, such as {untold[0]}, not told: an export makes "
                "them up"
            )
        return tuple(
            Followed(partition=name, start=self._before.get(name, 0), end=end, records=added.get(name, 0))
            for name, end in self._lake.metastore.next_offsets().items()
            if name.topic in self._facts
        )


def settings_of_topics(settings: IngestSettings, topics: Collection[str]) -> dict[str, dict[str, object]]:
    """Settings of ingested topics; another topic, or an unknown setting, is an error."""
    for topic in settings.topic_settings:
        if topic not in topics:
            raise UsageError(
                f"settings of {topic}: {topic} is not among the ingested topics{instead(topic, topics, what='that is')}"
            )
    return {
        topic: {name: str(known_setting(name).parsed(text)) for name, text in given.items()}
        for topic, given in settings.topic_settings.items()
    }


__all__ = ["ClusterIngest", "Followed", "IngestSettings", "Ingested", "ingest_logs"]
