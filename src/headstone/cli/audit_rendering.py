"""The outcome of an audit as lines, and its findings as Parquet.

Renders values of `divergence/outcome.py`; decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headstone import units
from headstone.cli.output import BAD, GOOD, Output
from headstone.log.shown import shown_bytes

if TYPE_CHECKING:
    from headstone.divergence.outcome import AuditOutcome, PartitionOutcome
    from headstone.divergence.verdicts import FindingGroup


DIFFERENT = "nothing is advised: name the log directories of the replicas of one cluster"


def lines(outcome: AuditOutcome, output: Output) -> Iterator[str]:
    verdict = output.painted(outcome.verdict, GOOD if outcome.verdict == "clean" else BAD)
    findings = units.count(outcome.findings, "finding") if outcome.findings else "no findings"
    yield f"{verdict}: {units.count(len(outcome.partitions), 'partition')}, {findings}"
    for partition in outcome.partitions:
        if partition.different is not None:
            yield f"{partition.partition}: these are different logs, not replicas of one: {partition.different}; {DIFFERENT}"
    yield from _run_lines(outcome)
    for partition in outcome.partitions:
        for text in partition.problems:
            yield f"{partition.partition}: not covered: {text}"
        if partition.findings:
            yield from _partition_lines(partition)
        elif partition.coverage is not None and partition.different is None:
            yield f"{partition.partition}: no findings; {_compared(partition)}"
        for risk in partition.forecast:
            yield (
                f"{partition.partition}: {risk.replica} is {units.count(risk.behind, 'offset')} behind; "
                f"first unsafe removal possible at {units.moment(risk.unsafe_ms)}"
            )
    for proof in outcome.proofs:
        states = "; ".join(f"{replica}: {state}" for replica, state in proof.replicas.items()) or "absent everywhere"
        yield f"key {shown_bytes(proof.key)}{f' in {proof.partition}' if proof.partition else ''}: {states}"


def _run_lines(outcome: AuditOutcome) -> Iterator[str]:
    """What makes it evidence, whether or not anything was found."""
    run = outcome.run
    yield f"audited at {units.moment(run.time_ms)} by headstone {run.version}: {run.command}"
    yield f"replicas: {', '.join(outcome.replicas) or 'none could be compared'} (of {', '.join(run.sources)})"
    yield f"compared: {outcome.compared}"
    yield f"left out: {'; '.join(outcome.left_out) or 'nothing'}"


def _compared(partition: PartitionOutcome) -> str:
    assert partition.coverage is not None
    reached = ", ".join(
        f"{replica.name} [{replica.log_start}, {replica.log_end}) {units.count(replica.records, 'record')}"
        for replica in partition.replicas
    )
    keys = units.count(partition.coverage.keys, "key")
    return f"{keys} compared below offset {partition.coverage.below}: {reached}"


def _partition_lines(partition: PartitionOutcome) -> Iterator[str]:
    assert partition.coverage is not None  # without coverage there are no findings
    keys = units.count(partition.coverage.keys, "key")
    yield f"{partition.partition}: compared below offset {partition.coverage.below}, {keys}"
    for replica in partition.replicas:
        yield (
            f"  {replica.name}: [{replica.log_start}, {replica.log_end}), LSO {replica.lso}, "
            f"{units.count(replica.records, 'record')}, {units.count(replica.live_keys, 'live key')}, "
            f"{units.count(replica.tombstones, 'tombstone')}"
        )
    groups = partition.groups
    for group in groups:
        yield from _group_lines(group)
    advised: set[tuple[str, ...]] = set()
    for group in groups:
        steps = group.findings[0].repair
        if steps not in advised:
            yield f"  what to do about {group.kind} on {group.replica}:"
            yield from (f"    - {step}" for step in steps)
        advised.add(steps)


def _group_lines(group: FindingGroup) -> Iterator[str]:
    first, count = group.findings[0], len(group.findings)
    alternatives = f" or {group.or_kind} on {first.or_replica}" if group.or_kind else ""
    alternatives += f" or {first.else_kind} there" if first.else_kind else ""
    producer = f", producer {group.producer_id}" if group.producer_id >= 0 else ""
    harmless = "" if group.misleads else ", no reader is misled"
    yield (
        f"  {group.kind} on {group.replica}{alternatives}{producer}: {units.count(count, 'finding')} "
        f"({group.sure}, {group.isolation}{harmless})"
    )
    yield f"    {first.why}"
    for example in group.examples:
        key = f"key {shown_bytes(example.key)} " if example.key is not None else ""
        states = "; ".join(f"{replica}: {state}" for replica, state in example.served.items())
        yield f"    {key}offset {example.offset}{': ' + states if states else ''}"
    if count > len(group.examples):
        yield f"    and {count - len(group.examples)} more; --output json has all"


def write_findings(path: Path, outcome: AuditOutcome) -> None:
    import pyarrow.parquet as pq

    from headstone.api.auditing import findings_table

    pq.write_table(findings_table(outcome), path)
