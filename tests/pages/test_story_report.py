"""The demo's report, read back with an HTML parser: is what was told drawn, and can the page stand alone?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from html.parser import HTMLParser

from headstone.pages.drawing import WIDTH
from headstone.pages.story_report import PROBLEM, TITLE, report_html
from headstone.retention.policy import COORDINATED, KAFKA, RULES
from headstone.sim.batches import EMPTIED
from headstone.sim.checkers import CheckerFinding
from headstone.sim.stories import (
    STORIES,
    TRANSACTIONAL,
    VALUE,
    ReplicaView,
    StoryScene,
    Telling,
    show_table,
    tell_story,
)

VOID = {"meta", "br"}
HOSTILE = """<b>&"'</svg><script>"""


@dataclass
class Node:
    tag: str
    attributes: dict[str, str]
    children: list[Node | str] = field(default_factory=list)

    def all(self, tag: str, css: str = "") -> list[Node]:
        """Descendants of this tag that have all these classes, in the page's order."""
        return [n for n in self.walk() if n.tag == tag and set(css.split()) <= set(n.classes)]

    def one(self, tag: str, css: str = "") -> Node:
        (node,) = self.all(tag, css)
        return node

    def walk(self) -> Iterator[Node]:
        for child in self.children:
            if isinstance(child, Node):
                yield child
                yield from child.walk()

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)


class Tree(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Node("page", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Node(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parsed(page: str) -> Node:
    tree = Tree()
    tree.feed(page)
    tree.close()
    (root,) = tree.open
    return root


def step(day: int, *, expired: int, mtro: int) -> dict[str, object]:
    facts = {
        "partition": "orders-0", "bytes_before": 8_300_000, "bytes_after": 1_700_000, "records_before": 40_042,
        "records_after": 7_972, "tombstones_kept": 395 - expired, "tombstones_below": mtro,
        "reasons": {"expired tombstone": expired} if expired else {},
    }  # fmt: skip
    return {
        "day": day,
        "replica": 1,
        "lesson": "older <values> go",
        "partitions": [facts, facts | {"partition": "o-1"}],
    }


@cache
def tellings() -> tuple[Telling, ...]:
    return tuple(tell_story(story, rules) for story in STORIES for rules in RULES)


@cache
def page() -> Node:
    return parsed(report_html(tellings(), [step(1, expired=0, mtro=0), step(5, expired=395, mtro=40_042)]))


def columns() -> list[tuple[Telling, Node]]:
    return list(zip(tellings(), page().all("section", "rule"), strict=True))


def lanes() -> list[tuple[ReplicaView, Node]]:
    views = [view for telling in tellings() for scene in telling.scenes for view in scene.replicas]
    return list(zip(views, page().all("g", "lane"), strict=True))


def replica(**facts: object) -> ReplicaView:
    given = {
        "broker": 0, "alive": True, "log_start": 0, "log_end": 1, "high_watermark": 1, "lso": 1, "mcco": 0, "mxfo": 0,
        "mtro": 0, "mxro": 0, "log": ("0:k=v",), "offsets": (0,), "ends": (1,), "kinds": (VALUE,), "table": {"k": "v"},
    }  # fmt: skip
    return ReplicaView(**(given | facts))  # type: ignore[arg-type]


def told(*views: ReplicaView, **facts: object) -> Telling:
    scene = StoryScene(hours=0, title="title", lesson="lesson", replicas=views)
    given = {"variant": "a-story", "about": "about", "rules": KAFKA, "scenes": [scene]}
    return Telling(**(given | facts))  # type: ignore[arg-type]


def drawn(telling: Telling) -> Node:
    return parsed(report_html([telling], [])).one("section", "rule")


def test_the_page_opens_with_its_title_and_the_problem_in_three_sentences() -> None:
    assert page().one("h1").text == TITLE == page().all("title")[0].text
    assert page().one("p", "problem").text == " ".join(PROBLEM)
    assert len(PROBLEM) == 3


def test_every_story_has_a_column_for_each_rule_with_all_its_scenes() -> None:
    stories = [node.attributes["id"] for node in page().all("section", "story")]
    assert stories == [story.variant for story in STORIES]
    for telling, column in columns():
        assert (column.attributes["data-variant"], column.attributes["data-rules"]) == (telling.variant, telling.rules)
        titles = [f"{n}. after {scene.hours} h: {scene.title}" for n, scene in enumerate(telling.scenes, start=1)]
        assert [node.one("h4").text for node in column.all("article", "scene")] == titles
        lessons = [scene.lesson for scene in telling.scenes]
        assert [node.one("p").text for node in column.all("article", "scene")] == lessons


def test_the_verdict_names_the_finding_or_says_correct() -> None:
    for telling, column in columns():
        verdict = column.one("p", "verdict")
        assert verdict.classes[1] == ("corrupt" if telling.rules == KAFKA else "correct")
        assert ("✗ Corrupt" in verdict.text) == telling.corrupt
        assert ("✓ Correct on every replica." in verdict.text) == (not telling.corrupt)
        assert all(f"{finding.where} {finding.text}." in verdict.text for finding in telling.findings)
        assert f"should get {show_table(telling.expected)}, from every replica" in verdict.text


def test_a_lane_is_a_replica_dimmed_and_named_off_when_it_is_off() -> None:
    for telling, column in columns():
        drawings = [article.one("svg") for article in column.all("article", "scene")]
        assert [len(svg.all("g", "lane")) for svg in drawings] == [len(scene.replicas) for scene in telling.scenes]
    for view, lane in lanes():
        texts = [node.text for node in lane.all("text")]
        assert f"broker {view.broker}" in texts
        assert ("off" in lane.classes) == ("off" in texts) == (not view.alive)


def test_boxes_are_the_batches_by_kind_and_label() -> None:
    classes = {"transactional": "transactional", "COMMIT": "commit", "ABORT": "abort"}
    for view, lane in lanes():
        boxes = lane.all("g", "batch")
        assert [box.classes[1] for box in boxes] == [classes.get(kind, kind) for kind in view.kinds]
        assert [box.one("title").text for box in boxes] == list(view.log)
        labels = [text.partition(":")[2].removesuffix(" txn") for text in view.log]
        assert [box.one("text").text for box in boxes] == labels


def test_offsets_have_one_place_in_all_drawings_of_a_story() -> None:
    for story in page().all("section", "story"):
        places: dict[str, set[str]] = {}
        for box in story.all("g", "batch"):
            offset = box.one("title").text.partition(":")[0]
            places.setdefault(offset, set()).add(box.one("text").attributes["x"])
        in_order = [min(map(float, xs)) for _, xs in sorted(places.items(), key=lambda place: int(place[0]))]
        assert len(in_order) >= 2
        assert in_order == sorted(set(in_order))
        # A marker's label stands a little to the right, because its shape is pointed; no offset has both kinds.
        assert all(len(xs) == 1 for xs in places.values())


def test_marks_are_the_replicas_own_and_stand_at_their_offsets() -> None:
    for view, lane in lanes():
        marked = {}
        for label in lane.all("text", "mark"):
            names, _, offset = label.text.rpartition(" ")
            marked |= dict.fromkeys(names.split(", "), int(offset))
        assert marked == {"LSO": view.lso, "HW": view.high_watermark, "MTRO": view.mtro, "MXRO": view.mxro}
        at = {line.classes[1]: float(line.attributes["x1"]) for line in lane.all("line", "tick")}
        band = lane.one("rect", "extent").attributes
        assert at["hw"] <= float(band["x"]) + float(band["width"]) + 0.1
        assert (at["lso"] < at["hw"]) == (view.lso < view.high_watermark)
        assert (at["mtro"] == float(band["x"])) == (view.mtro == view.log_start)


def test_a_mark_never_leaves_its_offset_and_moves_right_as_it_rises() -> None:
    for variant in (story.variant for story in STORIES):
        places: dict[int, set[str]] = {}
        told_of = [view for t in tellings() if t.variant == variant for scene in t.scenes for view in scene.replicas]
        drawn_of = [lane for story in page().all("section", "story") if story.attributes["id"] == variant
                    for lane in story.all("g", "lane")]  # fmt: skip
        for view, lane in zip(told_of, drawn_of, strict=True):
            for css, offset in {
                "hw": view.high_watermark,
                "lso": view.lso,
                "mtro": view.mtro,
                "mxro": view.mxro,
            }.items():
                places.setdefault(offset, set()).add(lane.one("line", f"tick {css}").attributes["x1"])
        assert all(len(xs) == 1 for xs in places.values())
        in_order = [float(min(xs)) for _, xs in sorted(places.items())]
        assert in_order == sorted(set(in_order))


def test_beside_a_lane_stands_what_its_readers_read() -> None:
    for view, lane in lanes():
        wanted = show_table(view.table).split(", ") if view.alive else []
        assert [node.text for node in lane.all("text", "reads")] == wanted


def test_the_chart_follows_the_watermarks_scene_by_scene() -> None:
    for telling, column in columns():
        chart = column.one("figure").one("svg")
        replicas = [scene.replicas for scene in telling.scenes]
        mtro = [max(view.mtro for view in at) for at in replicas]
        mcco = [min(view.mcco for view in at) for at in replicas]
        described = chart.one("desc").text.split("; ")
        assert described[0] == f"MTRO {', '.join(map(str, mtro))}"
        assert described[2] == f"lowest MCCO {', '.join(map(str, mcco))}"
        for css, values in (("mtro", mtro), ("mcco", mcco)):
            points = chart.one("g", f"series {css}").one("polyline").attributes["points"].split()
            heights = [-float(point.partition(",")[2]) for point in points]
            assert len(points) == len(telling.scenes)
            assert [h > heights[0] for h in heights] == [value > values[0] for value in values]
        assert (mtro[-1] > 0) == (telling.rules == COORDINATED)


def test_the_chart_takes_the_highest_group_watermarks_and_the_lowest_of_the_replicas() -> None:
    one = replica(log_end=9, mcco=7, mxfo=5, mtro=3, mxro=1)
    other = replica(log_end=8, mcco=6, mxfo=8, mtro=2, mxro=4)
    chart = drawn(told(one, other)).one("figure").one("svg")
    assert chart.one("desc").text == "MTRO 3; MXRO 4; lowest MCCO 6; lowest MXFO 5; log end 9"
    assert [label.text for label in chart.all("text", "mark")] == [
        "MTRO 3", "MXRO 4", "lowest MXFO 5", "lowest MCCO 6", "log end 9",
    ]  # fmt: skip


def test_the_tour_is_a_table() -> None:
    rows = [[cell.text for cell in row.all("td")] for row in page().all("section")[0].one("tbody").all("tr")]
    numbers = ["8.3 → 1.7", "40,042 → 7,972"]
    assert rows == [
        ["1", "1", "older <values> go", "orders-0", *numbers, "395", "0", "0"],
        ["o-1", *numbers, "395", "0", "0"],
        ["5", "1", "older <values> go", "orders-0", *numbers, "0", "395", "40,042"],
        ["o-1", *numbers, "0", "395", "40,042"],
    ]


def test_the_page_needs_nothing_else() -> None:
    text = report_html(tellings(), [])
    assert not re.search(r"https?://|//\w+\.|@import|url\(", text)
    assert not {node.tag for node in page().walk()} & {"script", "link", "img", "iframe", "object", "image", "use"}
    assert not [node for node in page().walk() if "src" in node.attributes]
    links = {node.attributes["href"] for node in page().all("a")}
    assert links == {f"#{story.variant}" for story in STORIES}


def test_drawings_speak_to_those_who_do_not_see_them() -> None:
    ids = [node.attributes["id"] for node in page().walk() if "id" in node.attributes]
    assert len(ids) == len(set(ids))
    for svg in page().all("svg"):
        if svg.attributes.get("aria-hidden") == "true":
            continue
        assert svg.attributes["role"] == "img"
        title, description = svg.attributes["aria-labelledby"].split()
        assert {title, description} <= set(ids)
    for view, lane in lanes():
        words = lane.all("title")[0].text
        assert f"LSO {view.lso}, high watermark {view.high_watermark}" in words
        assert (show_table(view.table) in words) if view.alive else ("switched off" in words)


def test_nothing_is_drawn_outside_the_drawing() -> None:
    for svg in page().all("svg"):
        if "swatch" in svg.classes:
            continue
        for node in svg.walk():
            places = [float(node.attributes[name]) for name in ("x", "x1", "x2") if name in node.attributes]
            wide = 5.5 * len(node.text) if node.tag == "text" else float(node.attributes.get("width", 0))
            before = 0.0
            if node.attributes.get("text-anchor") == "end" or "end" in node.classes:
                before = wide
            elif "middle" in node.classes:
                before = wide / 2
            for x in places:
                assert x - before >= 0, (node.tag, node.attributes, node.text)
                assert x - before + wide <= WIDTH, (node.tag, node.attributes, node.text)


def test_text_from_outside_stays_text() -> None:
    view = replica(log=(f"0:{HOSTILE}={HOSTILE}",), table={HOSTILE: HOSTILE})
    scene = StoryScene(hours=1, title=HOSTILE, lesson=HOSTILE, replicas=(view,))
    finding = CheckerFinding(kind=HOSTILE, where=HOSTILE, text=HOSTILE)
    telling = told(
        variant=HOSTILE, about=HOSTILE, rules=HOSTILE, scenes=[scene], findings=[finding], expected={HOSTILE: HOSTILE}
    )
    lesson = step(1, expired=0, mtro=0) | {"lesson": HOSTILE}
    hostile = parsed(report_html([telling], [lesson]))
    assert {node.tag for node in hostile.walk()} & {"b", "script"} == set()
    column = hostile.one("section", "rule")
    assert column.attributes["data-variant"] == column.attributes["data-rules"] == HOSTILE
    assert column.one("article").one("p").text == HOSTILE
    assert f"{HOSTILE} {HOSTILE}." in column.one("p", "verdict").text
    assert column.one("g", "batch").one("title").text == f"0:{HOSTILE}={HOSTILE}"
    assert HOSTILE in hostile.all("tbody")[0].text


def test_a_long_label_is_cut_but_its_title_is_whole() -> None:
    long = "k" * 300
    column = drawn(told(replica(log=(f"0:{long}=v",), table={long: "v"})))
    box = column.one("g", "batch")
    assert box.one("title").text == f"0:{long}=v"
    assert re.fullmatch("k+…", box.one("text").text)
    assert re.fullmatch("k+…", column.one("text", "reads").text)


def test_a_batch_spans_its_offsets_and_an_emptied_one_says_so() -> None:
    views = replica(
        log_end=4, high_watermark=4, log=("0:a=1, 1:b=2 txn", "3:(emptied marker)"), offsets=(0, 3), ends=(2, 4),
        kinds=(TRANSACTIONAL, EMPTIED), table={},
    )  # fmt: skip
    data, emptied = drawn(told(views)).all("g", "batch")
    assert emptied.one("text").text == "emptied"
    assert float(data.one("rect").attributes["width"]) > float(emptied.one("rect").attributes["width"])


def test_more_keys_than_fit_are_counted() -> None:
    views = replica(table={f"k{number}": "v" for number in range(9)})
    assert [node.text for node in drawn(told(views)).all("text", "reads")] == ["k0=v", "k1=v", "k2=v", "and 6 more"]


def test_marks_close_together_turn_their_labels_away_from_each_other() -> None:
    views = replica(log_end=40, high_watermark=21, lso=20, log=(), offsets=(), ends=(), kinds=())
    lso, high = drawn(told(views)).all("text", "mark")[:2]
    assert (lso.text, lso.attributes["text-anchor"]) == ("LSO 20", "end")
    assert (high.text, high.attributes["text-anchor"]) == ("HW 21", "start")
    last = replica(log_end=40, high_watermark=40, lso=40, log=(), offsets=(), ends=(), kinds=())
    assert drawn(told(last)).all("text", "mark")[0].attributes["text-anchor"] == "end"


def test_a_correct_telling_is_not_red() -> None:
    corrupt = told(replica(), findings=[CheckerFinding(kind="kind", where="broker 0", text="serves k=v")])
    assert drawn(corrupt).one("p", "verdict").classes == ["verdict", "corrupt"]
    assert drawn(replace(corrupt, findings=[])).one("p", "verdict").classes == ["verdict", "correct"]
