"""The demo's report: one self-contained HTML page, with the tour as a table and the stories as drawings.

A pure function of measurements and stories. Owns the words and the order of the page; the styles are in `style`, the drawings
in `drawing` and `watermark_chart`. Escapes all text from outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from headstone.pages.drawing import Axis, axis_of, legend_svg, scene_svg
from headstone.pages.style import STYLE
from headstone.pages.watermark_chart import watermarks_svg
from headstone.retention.policy import KAFKA
from headstone.sim.batches import ABORT, COMMIT, EMPTIED
from headstone.sim.stories import (
    RULE_NAMES,
    TOMBSTONE,
    TRANSACTIONAL,
    VALUE,
    StoryScene,
    Telling,
    show_table,
)

TITLE = "Headstone: when a tombstone may go"
PROBLEM = (
    "Each replica of a compacted Kafka topic drops tombstones and transaction markers once delete.retention.ms has "
    "passed, on its own clock and without asking the others.",
    "A replica that was away for longer never sees them; when it becomes leader, a deleted key is back, an aborted "
    "record is committed, a committed one is hidden, or read_committed consumers stand still.",
    "By the coordinated rule a tombstone stays until every replica is compacted beyond it (MTRO), and a marker until no "
    "replica holds transactional data below it (MXRO).",
)
KINDS = {
    VALUE: "value", TOMBSTONE: "tombstone (null)", TRANSACTIONAL: "transactional data", COMMIT: "COMMIT marker",
    ABORT: "ABORT marker", EMPTIED: "batch that has lost its records",
}  # fmt: skip
TERMS = {
    "LSO": "last stable offset: read_committed consumers read up to here",
    "HW": "high watermark: every in-sync replica has it up to here",
    "MTRO": "tombstones below it may go: the lowest MCCO that every replica has reported",
    "MXRO": "markers below it may go: the lowest MXFO that every replica has reported",
    "MCCO": "up to here a replica is compacted",
    "MXFO": "below it a replica holds no transactional data",
}

Step = Mapping[str, Any]
"""A compaction of the tour: day, replica, lesson, and what `compact` reports of each partition."""


def report_html(tellings: Sequence[Telling], steps: Sequence[Step]) -> str:
    stories: dict[str, list[Telling]] = {}
    for telling in tellings:
        stories.setdefault(telling.variant, []).append(telling)
    body = [
        f"<h1>{escape(TITLE)}</h1>",
        f'<p class="problem">{escape(" ".join(PROBLEM))}</p>',
        _tour(steps),
        _overview(stories),
        _legend(),
        *(_story(told) for told in stories.values()),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en-GB">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(TITLE)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _tour(steps: Sequence[Step]) -> str:
    rows = [row for step in steps for row in _tour_rows(step)]
    return (
        '<section id="tour">\n<h2>Three replicas, compacted over five days</h2>\n'
        "<p>What <code>headstone compact --peer</code> did to the sample topic on Spark. Replica 3 is away until day 3: "
        "until it is compacted MTRO is 0, and no tombstone goes, however old it is.</p>\n"
        '<div class="wide"><table>\n<thead><tr><th scope="col">Day</th><th scope="col">Replica</th>'
        '<th scope="col">What happens</th><th scope="col">Partition</th><th scope="col">MB</th>'
        '<th scope="col">Records</th><th scope="col">Tombstones kept</th><th scope="col">Tombstones expired</th>'
        '<th scope="col">MTRO</th></tr></thead>\n<tbody>\n' + "\n".join(rows) + "\n</tbody>\n</table></div>\n</section>"
    )


def _tour_rows(step: Step) -> list[str]:
    partitions = step["partitions"]
    span = f' rowspan="{len(partitions)}"'
    shared = (
        f'<td{span} class="number">{step["day"]}</td><td{span} class="number">{step["replica"]}</td>'
        f"<td{span}>{escape(str(step['lesson']))}</td>"
    )
    rows = []
    for number, facts in enumerate(partitions):
        cells = (
            f"{facts['bytes_before'] / 1e6:.1f} → {facts['bytes_after'] / 1e6:.1f}",
            f"{facts['records_before']:,} → {facts['records_after']:,}",
            f"{facts['tombstones_kept']:,}",
            f"{facts['reasons'].get('expired tombstone', 0):,}",
            f"{facts['tombstones_below']:,}",
        )
        own = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        first = shared if number == 0 else ""
        rows.append(f"<tr>{first}<td>{escape(str(facts['partition']))}</td>{own}</tr>")
    return rows


def _overview(stories: Mapping[str, Sequence[Telling]]) -> str:
    rows = []
    for variant, tellings in stories.items():
        verdicts = "".join(
            f'<td>{escape(telling.rules)}: <strong class="{_verdict_class(telling)}">{_verdict_word(telling)}</strong></td>'
            for telling in tellings
        )
        about = escape(tellings[0].about)
        rows.append(
            f'<tr><th scope="row"><a href="#{escape(variant)}">{escape(variant)}</a></th><td>{about}</td>{verdicts}</tr>'
        )
    return (
        '<section id="stories">\n<h2>Four stories</h2>\n<p>Three brokers, one of them switched off for longer than '
        "delete.retention.ms (24 hours). The same steps are played twice: by Kafka's rule and by the coordinated one. "
        "Batches, watermarks and reads are those of a simulated cluster that runs Headstone's own code.</p>\n"
        '<div class="wide"><table>\n<tbody>\n' + "\n".join(rows) + "\n</tbody>\n</table></div>\n</section>"
    )


def _legend() -> str:
    kinds = "".join(f"<li>{legend_svg(kind)} {escape(words)}</li>" for kind, words in KINDS.items())
    terms = "".join(f"<div><dt>{name}</dt><dd>{escape(words)}</dd></div>" for name, words in TERMS.items())
    return (
        '<section id="legend">\n<h3>How to read the drawings</h3>\n<p>A lane is a replica; the grey band is its log, from '
        "start to end. Batches stand at their offsets; where the band is empty there is nothing any more, or records of "
        "other keys, which are not drawn and get little room. All marks are exclusive: they stand before the offset of "
        f'that number.</p>\n<ul class="kinds">{kinds}</ul>\n<dl class="terms">{terms}</dl>\n</section>'
    )


def _story(tellings: Sequence[Telling]) -> str:
    variant = tellings[0].variant
    axis = axis_of(tellings)
    slots = max(len(telling.scenes) for telling in tellings)
    columns = "\n".join(_column(telling, axis, slots) for telling in tellings)
    # A row for the heading, one for each scene, then verdict and chart: scenes with the same number stand side by side.
    return (
        f'<section class="story" id="{escape(variant)}">\n<h2>{escape(variant)}</h2>\n<p>{escape(tellings[0].about)}</p>\n'
        f'<div class="pair" style="--rows: {slots + 3}">\n{columns}\n</div>\n</section>'
    )


def _column(telling: Telling, axis: Axis, slots: int) -> str:
    name = f"{telling.variant}-{telling.rules}"
    scenes = "\n".join(
        _scene(scene, number, axis, f"{name}-{number}") for number, scene in enumerate(telling.scenes, start=1)
    )
    chart = watermarks_svg(telling.scenes, axis.end, slots, f"{name}-watermarks")
    unused = " Kafka's rule does not ask them." if telling.rules == KAFKA else ""
    return (
        f'<section class="rule" data-variant="{escape(telling.variant)}" data-rules="{escape(telling.rules)}">\n'
        f"<h3>{escape(RULE_NAMES.get(telling.rules, telling.rules))}</h3>\n{scenes}\n{_verdict(telling)}\n"
        f"<figure>{chart}<figcaption>Watermarks by scene: the group's, and the lowest of any replica.{unused}"
        "</figcaption></figure>\n</section>"
    )


def _scene(scene: StoryScene, number: int, axis: Axis, name: str) -> str:
    return (
        f'<article class="scene">\n<h4>{number}. <span class="hours">after {scene.hours} h:</span> {escape(scene.title)}</h4>\n'
        f"<p>{escape(scene.lesson)}</p>\n{scene_svg(scene, axis, name)}\n</article>"
    )


def _verdict(telling: Telling) -> str:
    if telling.corrupt:
        details = "".join(f"<br>{escape(finding.where)} {escape(finding.text)}." for finding in telling.findings)
    else:
        details = " on every replica."
    return (
        f'<p class="verdict {_verdict_class(telling)}"><strong>{_verdict_word(telling)}</strong>{details}<br>'
        f"A read_committed consumer should get {escape(show_table(telling.expected))}, from every replica.</p>"
    )


def _verdict_class(telling: Telling) -> str:
    return "corrupt" if telling.corrupt else "correct"


def _verdict_word(telling: Telling) -> str:
    return "✗ Corrupt" if telling.corrupt else "✓ Correct"
