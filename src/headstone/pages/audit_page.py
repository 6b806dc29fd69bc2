"""The audit's report: one self-contained HTML page, with a lane for each replica on a shared axis of offsets.

A pure function of the outcome. Escapes all text from outside; its styles are those of `style` and a few of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from headstone import units
from headstone.divergence.outcome import AuditedReplica, AuditOutcome, PartitionOutcome
from headstone.divergence.verdicts import Finding, FindingGroup
from headstone.log.shown import shown_bytes
from headstone.pages.style import STYLE

WIDTH, LEFT, RIGHT, LANE, TOP = 1120, 260, 40, 46, 24
MARKS = (("first_dirty", "first dirty", "--mcco"), ("lso", "LSO", "--lso"), ("high_watermark", "HW", "--hw"))
LOOKS = """
.verdict { display: inline-block; padding: 2px 12px; border-radius: 4px; font-weight: 600; }
.clean { background: var(--correct); color: var(--correct-edge); }
.diverged, .different-logs, .incomplete { background: var(--corrupt); color: var(--corrupt-edge); }
table.findings { border-collapse: collapse; width: 100%; margin: 8px 0 16px; }
table.findings td, table.findings th { border: 1px solid var(--line); padding: 4px 8px; text-align: left; vertical-align: top; }
"""
VERDICTS = {
    "clean": "Everything was read, and the replicas agree.",
    "diverged": "Replicas tell readers different stories.",
    "different-logs": "What was named are not replicas of one partition: nothing is advised.",
    "incomplete": "No difference was found, but not everything could be compared.",
}


def audit_page(outcome: AuditOutcome) -> str:
    concerned = [one for one in outcome.partitions if one.findings or one.problems or one.forecast]
    verdict = outcome.verdict
    findings = units.count(outcome.findings, "finding") if outcome.findings else "no findings"
    body = [
        "<h1>Audit of replicas</h1>",
        f'<p><span class="verdict {escape(verdict)}">{escape(verdict)}</span> {escape(VERDICTS[verdict])} '
        f"{units.count(len(outcome.partitions), 'partition')}, {findings}.</p>",
        *(_different(partition) for partition in outcome.partitions if partition.different is not None),
        _evidence(outcome),
        *(_partition(partition) for partition in concerned),
        _compared(outcome.partitions),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Headstone audit</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}{LOOKS}</style></head>'
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _different(partition: PartitionOutcome) -> str:
    why = escape(str(partition.different))
    return f"<p><strong>{escape(partition.partition)}: different logs, not replicas of one:</strong> {why}.</p>"


def _evidence(outcome: AuditOutcome) -> str:
    """When, by what and of what, also for a clean audit: a blank page would prove nothing."""
    run = outcome.run
    facts = (
        ("when", units.moment(run.time_ms)),
        ("by", f"headstone {run.version}"),
        ("command", run.command),
        ("replicas", f"{', '.join(outcome.replicas) or 'none could be compared'} (of {', '.join(run.sources)})"),
        ("compared", outcome.compared),
        ("left out", "; ".join(outcome.left_out) or "nothing"),
    )
    rows = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in facts)
    return f'<table class="findings">{rows}</table>'


def _compared(partitions: Sequence[PartitionOutcome]) -> str:
    """Every partition, with the offsets of each replica."""
    rows = "".join(
        f"<tr><td>{escape(partition.partition)}</td><td>{len(partition.findings) or 'none'}</td>"
        f"<td>{_coverage(partition)}</td><td>{'<br>'.join(map(_offsets, partition.replicas))}</td></tr>"
        for partition in partitions
    )
    head = "<tr><th>partition</th><th>findings</th><th>compared</th><th>replicas</th></tr>"
    return f'<h2>What was compared</h2><table class="findings">{head}{rows}</table>'


def _coverage(partition: PartitionOutcome) -> str:
    if partition.coverage is None:
        return "nothing"
    return f"{units.count(partition.coverage.keys, 'key')} below offset {partition.coverage.below}"


def _offsets(replica: AuditedReplica) -> str:
    return (
        f"{escape(replica.name)}: [{replica.log_start}, {replica.log_end}), LSO {replica.lso}, "
        f"{units.count(replica.records, 'record')}, {units.count(replica.live_keys, 'live key')}"
    )


def _partition(partition: PartitionOutcome) -> str:
    parts = [f"<h2>{escape(partition.partition)}</h2>"]
    if partition.replicas:
        parts.append(
            f'<figure class="wide">{lanes_svg(partition)}<figcaption>Offsets; findings are red.</figcaption></figure>'
        )
    parts += [f"<p>Not covered: {escape(text)}</p>" for text in partition.problems]
    parts += [
        f"<p>{escape(risk.replica)} is {units.count(risk.behind, 'offset')} behind; from {units.moment(risk.unsafe_ms)} on, "
        "something that it has not copied yet may be removed.</p>"
        for risk in partition.forecast
    ]
    if partition.findings:
        parts.append(_table(partition.groups))
    return "".join(parts)


def _table(groups: Sequence[FindingGroup]) -> str:
    rows = []
    for group in groups:
        first, count = group.findings[0], len(group.findings)
        steps = "".join(f"<li>{escape(step)}</li>" for step in first.repair)
        alternatives = f"<br>or {escape(group.or_kind)}<br>on {escape(str(first.or_replica))}" if group.or_kind else ""
        alternatives += f"<br>or {escape(first.else_kind)}<br>there" if first.else_kind else ""
        harmless = "" if group.misleads else ", no reader is misled"
        more = count - len(group.examples)
        rows.append(
            f"<tr><td>{escape(group.kind)}<br>on {escape(group.replica)}{alternatives}</td><td>{count}</td>"
            f"<td>{escape(group.sure)}, {escape(group.isolation)}{harmless}: {escape(first.why)}</td>"
            f"<td><ul>{''.join(map(_example, group.examples))}</ul>{f'and {more} more' if more else ''}</td>"
            f"<td><ol>{steps}</ol>{_commands(first.commands)}</td></tr>"
        )
    head = "<tr><th>what</th><th>findings</th><th>why</th><th>such as</th><th>what to do</th></tr>"
    return f'<table class="findings">{head}{"".join(rows)}</table>'


def _example(example: Finding) -> str:
    served = "".join(f"<li>{escape(name)}: {escape(state)}</li>" for name, state in example.served.items())
    place = f"<br>{escape(example.file)} at {example.position}" if example.file else ""
    key = "" if example.key is None else f"key {escape(str(shown_bytes(example.key)))}, "
    return f"<li>{key}offset {example.offset}{place}<ul>{served}</ul></li>"


def _commands(steps: Sequence[str]) -> str:
    lines = escape("\n".join(steps))
    return f"<details><summary>commands</summary><pre>{lines}</pre></details>" if steps else ""


def lanes_svg(partition: PartitionOutcome) -> str:
    replicas = partition.replicas
    low, high = min(replica.log_start for replica in replicas), max(replica.log_end for replica in replicas)
    scale = (WIDTH - LEFT - RIGHT) / max(high - low, 1)

    def x(offset: int) -> float:
        return float(round(LEFT + (offset - low) * scale, 1))

    drawn = [f'<text x="{LEFT}" y="14">{low}</text><text x="{x(high)}" y="14" text-anchor="end">{high}</text>']
    for lane, replica in enumerate(replicas):
        y = TOP + lane * LANE
        start, end = x(replica.log_start), x(replica.log_end)
        name = replica.name if len(replica.name) <= 28 else "…" + replica.name[-27:]
        drawn.append(
            f'<text x="{LEFT - 10}" y="{y + 20}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{start}" y="{y + 6}" width="{max(end - start, 1):.1f}" height="20" fill="var(--band)" '
            'stroke="var(--line)">'
            f"<title>log [{replica.log_start}, {replica.log_end})</title></rect>"
        )
        for field, label, colour in MARKS:
            offset = getattr(replica, field)
            if offset is not None:
                mark = x(min(max(offset, low), high))
                drawn.append(
                    f'<line x1="{mark}" x2="{mark}" y1="{y + 2}" y2="{y + 30}" stroke="var({colour})" stroke-width="3">'
                    f"<title>{label} {offset}</title></line>"
                )
        for finding in partition.findings:
            if finding.replica == replica.name:
                drawn.append(
                    f'<circle cx="{x(finding.offset)}" cy="{y + 16}" r="7" fill="var(--corrupt-edge)">'
                    f"<title>{escape(finding.kind)} at {finding.offset}</title></circle>"
                )
    legend_y = TOP + len(replicas) * LANE + 14
    for i, (_, label, colour) in enumerate(MARKS):
        left = LEFT + i * 130
        drawn.append(
            f'<line x1="{left}" x2="{left}" y1="{legend_y - 12}" y2="{legend_y + 4}" stroke="var({colour})" stroke-width="3"/>'
            f'<text x="{left + 8}" y="{legend_y}">{label}</text>'
        )
    height = legend_y + 14
    return f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" fill="currentColor">{"".join(drawn)}</svg>'
