"""Do replicas tell the same story: the verb `audit` and `headstone.audit`, from log directories or from running brokers.

Owns what is compared with what, and what was left out. `pipeline/auditing.py` compares the records, `cluster/live_audit.py`
those of live replicas; `pipeline/audit_outcome.py` judges them; `divergence/` says what findings mean.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headstone import __version__, units
from headstone.api.running import CallersRunner, Reach, connected, interruptible, reached, settings_of
from headstone.api.settings import AuditSettings
from headstone.api.tables import arrow_table, frame, html_table
from headstone.bounds import several
from headstone.divergence.document import audit_document, finding_document
from headstone.divergence.outcome import AuditOutcome, AuditRun
from headstone.divergence.verdicts import Finding
from headstone.errors import UsageError
from headstone.log.directory import METADATA_TOPIC, find_partitions
from headstone.log.scratch import scratch_directory
from headstone.pipeline.audit_outcome import Judgement, judgement_of, outcome_of
from headstone.pipeline.auditing import audit_by, replicas_of
from headstone.pipeline.inputs import in_use, of_topics
from headstone.pipeline.runner import Runner
from headstone.storage.redaction import without_secrets

if TYPE_CHECKING:
    import pandas as pd

    from headstone.cluster.connection import Connection
    from headstone.spark.session import DataFrame, SparkSession

TEXTS, NUMBERS = pa.string(), pa.int64()
FINDINGS = pa.schema(
    [
        ("partition", TEXTS), ("key", TEXTS), ("served", TEXTS), ("class", TEXTS), ("replica", TEXTS), ("offset", NUMBERS),
        ("sure", TEXTS), ("why", TEXTS), ("file", TEXTS), ("position", NUMBERS), ("producer_id", NUMBERS),
        ("producer_epoch", NUMBERS), ("marker", NUMBERS), ("isolation", TEXTS), ("or_class", TEXTS),
        ("or_replica", TEXTS), ("else_class", TEXTS), ("misleads_readers", pa.bool_()),
    ]
)  # fmt: skip
"""A row for each finding; the key, and what each replica serves, are JSON."""
SHOWN_MAX = 20
"""Findings that a notebook shows."""


@dataclass(frozen=True)
class Audit:
    """The result of an audit. `verdict` is `clean`, `diverged`, `different-logs` or `incomplete`. A notebook shows a table."""

    outcome: AuditOutcome
    """Everything, as values."""

    @property
    def verdict(self) -> str:
        return self.outcome.verdict

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Of all partitions, each with its class, replica, key, offset, reason and repair."""
        return tuple(finding for partition in self.outcome.partitions for finding in partition.findings)

    def to_dict(self) -> dict[str, object]:
        """As `headstone audit --output json` prints it."""
        return audit_document(self.outcome)

    def to_html(self) -> str:
        """The page that `headstone audit --report` writes."""
        from headstone.pages.audit_page import audit_page

        return audit_page(self.outcome)

    def to_pandas(self) -> pd.DataFrame:
        """A row for each finding; columns: `FINDINGS`."""
        return frame(findings_table(self.outcome), None)

    def to_spark(self, spark: SparkSession) -> DataFrame:
        return frame(findings_table(self.outcome), spark)

    def _repr_html_(self) -> str:
        columns = ["class", "partition", "replica", "key", "offset", "why"]
        return html_table(findings_table(self.outcome).select(columns).slice(0, SHOWN_MAX), summary_of(self.outcome))


def findings_table(outcome: AuditOutcome) -> pa.Table:
    rows = []
    for partition in outcome.partitions:
        for finding in partition.findings:
            row = finding_document(finding)
            texts = {"key": json.dumps(row["key"]), "served": json.dumps(row["served"])}
            rows.append({"partition": partition.partition, **row, **texts})
    return arrow_table(rows, FINDINGS)


def summary_of(outcome: AuditOutcome) -> str:
    findings = units.count(outcome.findings, "finding") if outcome.findings else "no findings"
    return f"{outcome.verdict}: {units.count(len(outcome.partitions), 'partition')}, {findings}"


def audit(
    replicas: Sequence[str | Path] = (), *, bootstrap: str | None = None, spark: SparkSession | None = None,
    settings: AuditSettings | None = None, store: Mapping[str, str] | None = None,
    kafka: Mapping[str, str] | None = None, progress: bool = True,
) -> Audit:  # fmt: skip
    """Compares what each replica would serve to consumers: the log directories of two brokers or more (or copies of them, also
    s3://BUCKET/PREFIX), or with `bootstrap` the replicas of a running cluster, each read from its own broker.

    kafka: settings of the connection by librdkafka's names; secrets may be references. Changes nothing. Findings are a result,
    not an error: see `verdict`.
    """
    several("replicas", replicas, (str, Path))
    if bool(replicas) == (bootstrap is not None):
        raise UsageError("name the log directories of the replicas, or a cluster with bootstrap=")
    connection = None if bootstrap is None else connected(bootstrap, kafka)
    asked, runner = settings_of(AuditSettings, settings), CallersRunner(spark=spark, shows_progress=progress)

    def work() -> AuditOutcome:
        if connection is not None:
            return audit_cluster(connection, asked, runner, command="")
        return audit_directories(
            tuple(map(str, replicas)), asked, runner, reach=lambda given: reached(given, store), command=""
        )

    return Audit(interruptible(work, spark, left_behind="it has changed nothing"))


def audit_directories(
    names: Sequence[str], settings: AuditSettings, runner: Runner, *, reach: Reach, command: str
) -> AuditOutcome:
    """`names`: one for each broker, to name its replicas. `command`: recorded in the outcome."""
    if len(names) < 2:
        raise UsageError("name the log directories of at least two replicas: a single one cannot be compared")
    places = [text.rstrip("/") if "://" in text else str(Path(text).resolve()) for text in names]
    if len(set(places)) < len(places):
        raise UsageError("the same directory is named twice")
    replicas = [(name, find_partitions([reach(name)])) for name in names]
    everything = [directory for _, directories in replicas for directory in directories]
    chosen = set(of_topics(everything, settings.topics, names))
    for text in in_use([directory.log_dir for directory in everything], "what is compared"):
        runner.warn(text)
    groups = replicas_of([(name, [d for d in directories if d in chosen]) for name, directories in replicas])
    if not groups:
        raise UsageError(
            f"nothing to compare: {METADATA_TOPIC} is internal to the cluster; name directories with partitions of topics"
        )
    left = sorted({d.topic for d in everything} - {members[0][1].topic for members in groups.values()})
    run = _run(settings, names, [f"topic {topic}: {_why_left(topic)}" for topic in left], command)
    return _outcome(list(map(judgement_of, audit_by(runner, groups, wanted=settings.keys))), settings, run)


def _why_left(topic: str) -> str:
    return "the cluster's own" if topic == METADATA_TOPIC else "not asked for"


def audit_cluster(connection: Connection, settings: AuditSettings, runner: Runner, *, command: str) -> AuditOutcome:
    """Copies what each broker serves of its own replicas, and compares the copies."""
    from headstone.cluster.live_audit import audit_topics

    with scratch_directory("audit") as work:
        live = audit_topics(
            connection, settings.topics, runner, work=work, bytes_per_second=settings.bytes_per_second,
            wanted=settings.keys,
        )  # fmt: skip
    internal = [] if settings.topics else ["topics whose names begin with __: internal; --topic takes one"]
    return _outcome(list(live.judgements.values()), settings, _run(settings, [connection.address], internal, command))


def _run(settings: AuditSettings, sources: Sequence[str], left_out: Sequence[str], command: str) -> AuditRun:
    return AuditRun(
        time_ms=time.time_ns() // 1_000_000 if settings.now_ms is None else settings.now_ms, version=__version__,
        sources=tuple(map(without_secrets, sources)), command=command or "headstone.audit() in Python",
        left_out=tuple(left_out),
    )  # fmt: skip


def _outcome(judgements: Sequence[Judgement], settings: AuditSettings, run: AuditRun) -> AuditOutcome:
    return outcome_of(judgements, settings.keys, run=run, delete_retention_ms=settings.delete_retention_ms)
