"""SVG drawings of the stories: every replica's log at one scene, and the watermarks over all scenes.

Owns geometry and shapes; colours are classes that the page's style sheet defines. Pure; escapes all text from outside. Nothing
is told by colour alone: kinds also differ in shape and label, marks in side, dash and label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from headstone.sim.batches import ABORT, COMMIT, EMPTIED
from headstone.sim.stories import TOMBSTONE, TRANSACTIONAL, VALUE, ReplicaView, StoryScene, Telling, show_table

WIDTH = 560
LANE_LEFT = 64
LANE_WIDTH = 356
TABLE_LEFT = LANE_LEFT + LANE_WIDTH + 14
LANE_HEIGHT = 58
HEAD_HEIGHT = 16
FOOT_HEIGHT = 22
BOX_TOP = 17
BOX_HEIGHT = 22
CHARACTER = 6.7
"""Width of a character in a box, at the style sheet's size."""
MARK_CHARACTER = 6.0
SLOT_MAX = 100
SLOT_WEIGHT = 12
"""How many times wider an offset with a batch is than one without."""
TABLE_LINES = 4
TABLE_CHARACTERS = 17

KIND_CLASSES = {
    VALUE: "value", TOMBSTONE: "tombstone", TRANSACTIONAL: "transactional", COMMIT: "commit", ABORT: "abort",
    EMPTIED: "emptied",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Offsets [0, end), shared by all drawings of a story. Offsets at which a batch is drawn in any of them are wide."""

    drawn: frozenset[int]
    end: int

    def x(self, offset: int) -> float:
        """The left edge of an offset, where an exclusive watermark of that number stands."""
        return LANE_LEFT + self._unit() * self._weight(min(offset, self.end))

    def _weight(self, offset: int) -> int:
        return offset + (SLOT_WEIGHT - 1) * sum(drawn < offset for drawn in self.drawn)

    def _unit(self) -> float:
        return min(SLOT_MAX / SLOT_WEIGHT, LANE_WIDTH / max(1, self._weight(self.end)))


def axis_of(tellings: Sequence[Telling]) -> Axis:
    views = [view for telling in tellings for scene in telling.scenes for view in scene.replicas]
    drawn = frozenset(offset for view in views for offset in view.offsets)
    return Axis(drawn=drawn, end=max((view.log_end for view in views), default=0))


def scene_svg(scene: StoryScene, axis: Axis, name: str) -> str:
    """`name` makes the ids of this drawing unique in its page."""
    height = HEAD_HEIGHT + LANE_HEIGHT * len(scene.replicas) + FOOT_HEIGHT
    lanes = [
        _lane(view, axis, HEAD_HEIGHT + LANE_HEIGHT * number, last=number == len(scene.replicas) - 1)
        for number, view in enumerate(scene.replicas)
    ]
    description = ". ".join(lane_text(view) for view in scene.replicas)
    head = f'<text class="note" x="{TABLE_LEFT}" y="11">read_committed reads</text>'
    return svg(
        f"The logs after {scene.hours} h: {scene.title}", description, name, height, [head, *lanes, _foot(axis, height)]
    )


def lane_text(view: ReplicaView) -> str:
    """A lane in words, for readers who cannot see it."""
    log = "; ".join(view.log) or "nothing but other keys"
    reads = f"a read_committed consumer reads {show_table(view.table)}" if view.alive else "switched off"
    return (
        f"broker {view.broker}: {reads}; log: {log}; LSO {view.lso}, high watermark {view.high_watermark}, "
        f"log end {view.log_end}, MTRO {view.mtro}, MXRO {view.mxro}"
    )


def svg(title: str, description: str, name: str, height: int, body: Sequence[str]) -> str:
    label = escape(name)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{label}-title {label}-desc">'
        f'<title id="{label}-title">{escape(title)}</title><desc id="{label}-desc">{escape(description)}</desc>'
        + "".join(body)
        + "</svg>"
    )


def _lane(view: ReplicaView, axis: Axis, top: int, *, last: bool) -> str:
    middle = BOX_TOP + BOX_HEIGHT / 2
    start, end = axis.x(view.log_start), axis.x(view.log_end)
    parts = [
        f"<title>{escape(lane_text(view))}</title>",
        f'<rect class="extent" x="{start:.1f}" y="{BOX_TOP - 2}" width="{end - start:.1f}" height="{BOX_HEIGHT + 4}"/>',
        f'<text class="broker" x="0" y="{middle + 4:.0f}">broker {view.broker}</text>',
    ]
    if not view.alive:
        parts.append(f'<text class="note" x="0" y="{middle + 17:.0f}">off</text>')
    if not last:
        parts.append(f'<line class="rule-line" x1="0" x2="{WIDTH}" y1="{LANE_HEIGHT - 1}" y2="{LANE_HEIGHT - 1}"/>')
    for text, kind, offset, stop in zip(view.log, view.kinds, view.offsets, view.ends, strict=True):
        parts.append(_batch(text, kind, axis.x(offset), axis.x(stop)))
    parts += _marks({"LSO": view.lso, "HW": view.high_watermark}, axis, above=True)
    parts += _marks({"MTRO": view.mtro, "MXRO": view.mxro}, axis, above=False)
    parts += _table(view, middle)
    dimmed = "" if view.alive else " off"
    return f'<g class="lane{dimmed}" transform="translate(0 {top})">{"".join(parts)}</g>'


def _batch(text: str, kind: str, left: float, right: float) -> str:
    label = "emptied" if kind == EMPTIED else text.partition(":")[2].removesuffix(" txn")
    room = int((right - left - 4) / CHARACTER)
    middle = (left + right) / 2 + (2 if kind in (COMMIT, ABORT) else 0)
    return (
        f'<g class="batch {KIND_CLASSES[kind]}"><title>{escape(text)}</title>{shape(kind, left + 1, right - 1)}'
        f'<text x="{middle:.1f}" y="{BOX_TOP + BOX_HEIGHT / 2 + 4:.0f}">{escape(shortened(label, room))}</text></g>'
    )


def shape(kind: str, left: float, right: float, top: float = BOX_TOP, height: float = BOX_HEIGHT) -> str:
    """A tombstone has a round top, a marker points back at what it decides, everything else is a box."""
    bottom = top + height
    if kind == TOMBSTONE:
        bow = height * 0.45
        return (
            f'<path d="M{left:.1f} {bottom}V{top + bow:.1f}Q{left:.1f} {top} {left + bow:.1f} {top}'
            f'H{right - bow:.1f}Q{right:.1f} {top} {right:.1f} {top + bow:.1f}V{bottom}Z"/>'
        )
    if kind in (COMMIT, ABORT):
        tip = left + 5
        return (
            f'<path d="M{left:.1f} {top + height / 2:.1f}L{tip:.1f} {top}H{right:.1f}V{bottom}H{tip:.1f}Z"/>'
        )  # fmt: skip
    return f'<rect x="{left:.1f}" y="{top}" width="{right - left:.1f}" height="{height}"/>'


def shortened(text: str, characters: int) -> str:
    if len(text) <= characters:
        return text
    return text[: max(0, characters - 1)] + "…"


def _marks(marks: dict[str, int], axis: Axis, *, above: bool) -> list[str]:
    """Ticks with their names and numbers; those at the same offset share a label."""
    names: dict[int, list[str]] = {}
    for name, offset in marks.items():
        names.setdefault(offset, []).append(name)
    box_bottom = BOX_TOP + BOX_HEIGHT
    y1, y2, baseline = (3, box_bottom, 11) if above else (box_bottom - 2, LANE_HEIGHT - 6, LANE_HEIGHT - 8)
    out = []
    places = sorted(names)
    for number, offset in enumerate(places):
        tick_x = axis.x(offset)
        label = f"{', '.join(names[offset])} {offset}"
        wide = MARK_CHARACTER * len(label) + 6
        following = axis.x(places[number + 1]) if number + 1 < len(places) else LANE_LEFT + LANE_WIDTH + 8
        flip = tick_x + wide > following
        out += [
            f'<line class="tick {name.lower()}" x1="{tick_x:.1f}" x2="{tick_x:.1f}" y1="{y1}" y2="{y2}"/>'
            for name in names[offset]
        ]
        anchor, x = ("end", tick_x - 3) if flip else ("start", tick_x + 3)
        out.append(
            f'<text class="mark {names[offset][0].lower()}" text-anchor="{anchor}" x="{x:.1f}" y="{baseline}">{label}</text>'
        )
    return out


def _table(view: ReplicaView, middle: float) -> list[str]:
    if not view.alive:
        return [f'<text class="note" x="{TABLE_LEFT}" y="{middle + 4:.0f}">off: serves nobody</text>']
    pairs = [f"{key}={value}" for key, value in view.table.items()] or ["nothing"]
    if len(pairs) > TABLE_LINES:
        pairs = [*pairs[: TABLE_LINES - 1], f"and {len(pairs) - TABLE_LINES + 1} more"]
    top = middle + 4 - 7 * (len(pairs) - 1)
    return [
        f'<text class="reads" x="{TABLE_LEFT}" y="{top + 14 * number:.0f}">{escape(shortened(pair, TABLE_CHARACTERS))}</text>'
        for number, pair in enumerate(pairs)
    ]


def _foot(axis: Axis, height: int) -> str:
    """A ruler with a line at every offset, numbers under those with a batch, and the end."""
    y = height - FOOT_HEIGHT + 2
    end = axis.x(axis.end)
    parts = [
        f'<line class="axis" x1="{LANE_LEFT}" x2="{end:.1f}" y1="{y}" y2="{y}"/>',
        f'<text class="note" x="0" y="{y + 14}">offset</text>',
        f'<text class="note middle" x="{end:.1f}" y="{y + 14}">{axis.end}</text>',
    ]
    for offset in range(axis.end + 1):
        tick_x = axis.x(offset)
        parts.append(f'<line class="axis" x1="{tick_x:.1f}" x2="{tick_x:.1f}" y1="{y}" y2="{y + 4}"/>')
    for offset in sorted(axis.drawn):
        middle = (axis.x(offset) + axis.x(offset + 1)) / 2
        parts.append(f'<text class="note middle" x="{middle:.1f}" y="{y + 14}">{offset}</text>')
    return "".join(parts)


def legend_svg(kind: str) -> str:
    """A swatch; its words stand beside it."""
    drawn = shape(kind, 2, 34, 2, 18)
    return f'<svg class="swatch batch {KIND_CLASSES[kind]}" viewBox="0 0 36 22" aria-hidden="true">{drawn}</svg>'
