"""The watermarks of one telling as an SVG line chart, scene by scene.

Owns which numbers represent a scene: the highest group watermarks that any replica knows, and the lowest MCCO and MXFO that any
replica's log proves, switched off or not. Lines that coincide stay distinguishable by width, dash and point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstone.pages.drawing import WIDTH, svg
from headstone.sim.stories import StoryScene

LEFT = 34
RIGHT = WIDTH - 150
TOP = 12
BOTTOM = 118
HEIGHT = 146
LABEL_LINE = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One offset per scene."""

    name: str
    css: str
    values: tuple[int, ...]


def series_of(scenes: Sequence[StoryScene]) -> list[Series]:
    """From the front of the drawing to its back."""
    views = [scene.replicas for scene in scenes]
    return [
        Series(name="MTRO", css="mtro", values=tuple(max(v.mtro for v in at) for at in views)),
        Series(name="MXRO", css="mxro", values=tuple(max(v.mxro for v in at) for at in views)),
        Series(name="lowest MCCO", css="mcco", values=tuple(min(v.mcco for v in at) for at in views)),
        Series(name="lowest MXFO", css="mxfo", values=tuple(min(v.mxfo for v in at) for at in views)),
        Series(name="log end", css="log-end", values=tuple(max(v.log_end for v in at) for at in views)),
    ]


def watermarks_svg(scenes: Sequence[StoryScene], end: int, scene_slots: int, name: str) -> str:
    """`end` and `scene_slots` are the axes' lengths, so that charts of one story can be compared."""
    series = series_of(scenes)
    description = "; ".join(f"{one.name} {', '.join(map(str, one.values))}" for one in series)
    scale = _Scale(end=max(1, end), scenes=max(2, scene_slots))
    body = [_frame(scale, len(scenes))]
    body += [_line(one, scale) for one in reversed(series)]
    body += _labels(series, scale)
    return svg(f"Watermarks at scenes 1 to {len(scenes)}", description, name, HEIGHT, body)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    end: int
    scenes: int

    def x(self, number: int) -> float:
        return LEFT + 12 + (RIGHT - LEFT - 24) * number / (self.scenes - 1)

    def y(self, offset: int) -> float:
        return BOTTOM - (BOTTOM - TOP) * offset / self.end


def _frame(scale: _Scale, scenes: int) -> str:
    parts = [
        f'<line class="axis" x1="{LEFT}" x2="{RIGHT}" y1="{BOTTOM}" y2="{BOTTOM}"/>',
        f'<line class="axis" x1="{LEFT}" x2="{LEFT}" y1="{TOP}" y2="{BOTTOM}"/>',
        f'<text class="note end" x="{LEFT - 5}" y="{BOTTOM + 4}">0</text>',
        f'<text class="note end" x="{LEFT - 5}" y="{TOP + 4}">{scale.end}</text>',
        f'<text class="note" x="0" y="{BOTTOM + 20}">scene</text>',
    ]
    parts += [
        f'<text class="note middle" x="{scale.x(number):.1f}" y="{BOTTOM + 20}">{number + 1}</text>'
        for number in range(scenes)
    ]
    return "".join(parts)


def _line(curve: Series, scale: _Scale) -> str:
    corners = [(scale.x(number), scale.y(value)) for number, value in enumerate(curve.values)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    parts = [f'<polyline points="{points}"/>']
    if curve.css == "mtro":
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5"/>' for x, y in corners]
    elif curve.css == "mxro":
        parts += [f'<rect x="{x - 2.5:.1f}" y="{y - 2.5:.1f}" width="5" height="5"/>' for x, y in corners]
    return f'<g class="series {curve.css}">{"".join(parts)}</g>'


def _labels(series: Sequence[Series], scale: _Scale) -> list[str]:
    """At the last point of each line. Lines that end at the same value share a label; labels that would collide move up."""
    names: dict[int, list[str]] = {}
    for curve in series:
        if curve.values:
            names.setdefault(curve.values[-1], []).append(curve.name)
    out = []
    below = float(HEIGHT)
    for value in sorted(names):
        y = scale.y(value) + 4
        x = scale.x(len(series[0].values) - 1) + 10
        lines = _wrapped(names[value], value)
        y = min(y, below - LABEL_LINE * len(lines))
        below = y
        out += [
            f'<text class="mark" x="{x:.1f}" y="{y + LABEL_LINE * number:.1f}">{line}</text>'
            for number, line in enumerate(lines)
        ]
    return out


def _wrapped(names: list[str], value: int) -> list[str]:
    """Two names a line, so that the label fits beside the chart."""
    lines = [", ".join(names[start : start + 2]) for start in range(0, len(names), 2)]
    return [*lines[:-1], f"{lines[-1]} {value}"]
