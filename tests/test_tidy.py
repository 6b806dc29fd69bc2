"""The house rules that a linter does not know, executed over src/, testbed/, campaigns/ and tests/.

A rule is a function from one source file to its findings, so that the last test can feed each rule a violation
and its innocent neighbour as strings. Which files a rule covers is the rule's own business.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
FUNCTION_LINES_MAX = 70
SRC_FILE_LINES_MAX = 450
TEST_FILE_LINES_MAX = 700
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "base"}
# Words that stand for a noun and keep it back: `at` was a partition here and an offset there, `mine` a lease, a row, a query.
PRONOUNS = {
    "at", "found", "known", "mine", "one", "other", "others", "ours", "said", "their", "theirs", "those", "told",
}  # fmt: skip
PRONOUNS_LEFT = re.compile(r"/(guard|agent|absences)")
"""Rooms and files of the guard that still have some."""
BROAD_CATCHERS = {"src/headstone/cli/main.py", "src/headstone/lake/worker.py", "src/headstone/guard/readings.py"}
SPARK_CLASSIC_NAMES = {"sparkContext", "SparkContext", "_jvm", "rdd"}
SPARK_CLASSIC_FILES = {"src/headstone/spark/session.py"}
BANNER = re.compile(r"^#+\s*[-=~*#_─═━]{4,}|[-=~*#_─═━]{4,}$")
UNFINISHED = re.compile(r"\b(TODO|FIXME)\b")
# Pictographs only: arrows, box drawing and the plain check mark are text.
EMOJI = re.compile(
    "[\U0001f000-\U0001faff\u2600-\u26ff\u2705\u270a-\u270d\u2728\u274c\u274e\u2753-\u2757\u2763\u2764"
    "\u2795-\u2797\u27b0\u2b1b\u2b1c\u2b50\u2b55\ufe0f]"
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """One Python file; `name` is its path from the repository's root. Not slotted: it caches its parse."""

    name: str
    text: str

    @property
    def path(self) -> PurePosixPath:
        return PurePosixPath(self.name)

    @property
    def in_src(self) -> bool:
        return self.path.parts[0] == "src"

    @property
    def in_tests(self) -> bool:
        return self.path.parts[0] == "tests"

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.text, filename=self.name)))

    @cached_property
    def comments(self) -> list[tuple[int, str]]:
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    line: int
    message: str


Rule = Callable[[Source], Iterable[Finding]]


def function_fits_a_screen(source: Source) -> Iterator[Finding]:
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield Finding(line=node.lineno, message=f"{node.name} has {lines} lines, over {FUNCTION_LINES_MAX}")


def file_is_one_idea(source: Source) -> Iterator[Finding]:
    lines_max = SRC_FILE_LINES_MAX if source.in_src else TEST_FILE_LINES_MAX
    if len(source.lines) > lines_max:
        yield Finding(line=lines_max + 1, message=f"{len(source.lines)} lines, over {lines_max}")


def module_says_what_it_owns(source: Source) -> Iterator[Finding]:
    if not source.in_src:
        return
    docstring = ast.get_docstring(ast.parse(source.text))
    if not docstring:
        yield Finding(line=1, message="no docstring at the top")
    elif source.path.name != "__init__.py" and len([line for line in docstring.splitlines() if line.strip()]) < 2:
        yield Finding(line=1, message="one line does not say what the module owns and what it must not know")


def name_is_not_vague(source: Source) -> Iterator[Finding]:
    for part in source.path.with_suffix("").parts:
        if part.rsplit("_", 1)[-1] in VAGUE_NAMES:
            yield Finding(line=1, message=f"{part} could hold anything; name what it owns")


def name_is_a_noun(source: Source) -> Iterator[Finding]:
    """Of variables, attributes, fields and arguments. Within a comprehension or a lambda the noun is in sight."""
    if source.in_tests or PRONOUNS_LEFT.search(source.name):
        return
    for line, name in sorted(named_in(ast.parse(source.text))):
        if name.strip("_") in PRONOUNS:
            yield Finding(line=line, message=f"{name} does not say what it is; take the noun")


def exception_is_named(source: Source) -> Iterator[Finding]:
    if source.name in BROAD_CATCHERS:
        return
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler):
            caught = list(ast.walk(node.type)) if node.type else []
            broad = not caught or bool(names_in(caught) & {"Exception", "BaseException"})
        elif isinstance(node, ast.Call) and names_in([node.func]) == {"suppress"}:
            broad = bool(names_in(node.args) & {"Exception", "BaseException"})
        else:
            continue
        if broad:
            yield Finding(line=node.lineno, message="catches everything; name the exception")


def work_is_finished(source: Source) -> Iterator[Finding]:
    for line, comment in source.comments:
        if UNFINISHED.search(comment):
            yield Finding(line=line, message="unfinished work belongs in an issue")
    for node in source.nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring and (found := UNFINISHED.search(docstring)):
                line = node.body[0].lineno + docstring.count("\n", 0, found.start())
                yield Finding(line=line, message="unfinished work belongs in an issue")


def no_test_sleeps(source: Source) -> Iterator[Finding]:
    if not source.in_tests:
        return
    for node in source.nodes:
        called = isinstance(node, ast.Attribute) and node.attr == "sleep" and names_in([node.value]) == {"time"}
        imported = isinstance(node, ast.ImportFrom) and node.module == "time" and names_in(node.names) & {"sleep"}
        if called or imported:
            yield Finding(line=node.lineno, message="sleeps; pass the clock, or wait for the event")


def spark_stays_portable(source: Source) -> Iterator[Finding]:
    if not source.name.startswith("src/headstone/spark/") or source.name in SPARK_CLASSIC_FILES:
        return
    for node in source.nodes:
        for name in sorted(names_in([node]) & SPARK_CLASSIC_NAMES):
            yield Finding(line=node.lineno, message=f"{name} does not exist on Spark Connect")


def text_has_no_emoji(source: Source) -> Iterator[Finding]:
    for line, text in enumerate(source.lines, start=1):
        if EMOJI.search(text):
            yield Finding(line=line, message="emoji")


def comment_is_not_a_banner(source: Source) -> Iterator[Finding]:
    for line, comment in source.comments:
        if BANNER.search(comment):
            yield Finding(line=line, message="a file that needs banners is two files")


def named_in(node: ast.AST) -> Iterator[tuple[int, str]]:
    """What the code below this node gives a name to, with the line; but for short-lived names, and Python's own `other`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.Lambda):
            continue
        if isinstance(child, ast.FunctionDef) and [a.arg for a in child.args.args] == ["self", "other"]:
            continue
        if isinstance(child, ast.arg):
            yield child.lineno, child.arg
        elif isinstance(child, ast.Name | ast.Attribute) and isinstance(child.ctx, ast.Store):
            yield child.lineno, child.id if isinstance(child, ast.Name) else child.attr
        elif isinstance(child, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and child.name:
            yield child.lineno, child.name
        yield from named_in(child)


def names_in(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that these nodes themselves are: plain, dotted (last part), or imported."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.alias):
            names.add(node.name)
    return names


RULES: list[Rule] = [
    function_fits_a_screen,
    file_is_one_idea,
    module_says_what_it_owns,
    name_is_not_vague,
    name_is_a_noun,
    exception_is_named,
    work_is_finished,
    no_test_sleeps,
    spark_stays_portable,
    text_has_no_emoji,
    comment_is_not_a_banner,
]


@cache
def house() -> list[Source]:
    paths = sorted(
        path for folder in ("src", "testbed", "campaigns", "tests") for path in (ROOT / folder).rglob("*.py")
    )
    return [Source(name=path.relative_to(ROOT).as_posix(), text=path.read_text(encoding="utf-8")) for path in paths]


def test_the_whole_house_is_read() -> None:
    names = {source.name for source in house()}
    assert {"src/headstone/__init__.py", "src/headstone/errors.py", "tests/test_tidy.py"} <= names


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_house_keeps(rule: Rule) -> None:
    findings = [f"{source.name}:{finding.line}: {finding.message}" for source in house() for finding in rule(source)]
    assert not findings, "\n" + "\n".join(findings)


SRC = "src/headstone/log/segment.py"
TEST = "tests/log/test_segment.py"
SPARK = "src/headstone/spark/engine.py"
DOCSTRING = '"""Owns segments.\n\nKnows nothing of compaction.\n"""\n'

# Rule, file name, text, the lines found. Each violation stands beside its nearest innocent neighbour.
SAMPLES: list[tuple[Rule, str, str, list[int]]] = [
    (function_fits_a_screen, SRC, "x = 1\ndef walk():\n" + "    step()\n" * 70, [2]),
    (function_fits_a_screen, SRC, "x = 1\ndef walk():\n" + "    step()\n" * 69, []),
    (function_fits_a_screen, TEST, "class Walk:\n    async def on(self):\n" + "        step()\n" * 70, [2]),
    (file_is_one_idea, SRC, "x = 1\n" * 451, [451]),
    (file_is_one_idea, SRC, "x = 1\n" * 450, []),
    (file_is_one_idea, TEST, "x = 1\n" * 701, [701]),
    (file_is_one_idea, TEST, "x = 1\n" * 700, []),
    (module_says_what_it_owns, SRC, "x = 1\n", [1]),
    (module_says_what_it_owns, SRC, '"""Segments."""\n', [1]),
    (module_says_what_it_owns, SRC, '"""Segments.\n\n"""\n', [1]),
    (module_says_what_it_owns, SRC, DOCSTRING, []),
    (module_says_what_it_owns, "src/headstone/log/__init__.py", '"""Bytes and columns."""\n', []),
    (module_says_what_it_owns, "src/headstone/log/__init__.py", "", [1]),
    (module_says_what_it_owns, TEST, "x = 1\n", []),
    (name_is_not_vague, "src/headstone/log/utils.py", "", [1]),
    (name_is_not_vague, "src/headstone/common/segment.py", "", [1]),
    (name_is_not_vague, "tests/spark_helpers.py", "", [1]),
    (name_is_not_vague, "src/headstone/log/base_offset.py", "", []),
    (name_is_a_noun, SRC, "x = 1\nfound = read()\n", [2]),
    (name_is_a_noun, SRC, "def walk(data, at, *, end):\n    for one in data:\n        one.step()\n", [1, 2]),
    (name_is_a_noun, SRC, "class Hold:\n    found: int\n\n    def __init__(self):\n        self._told = 0\n", [2, 5]),
    (name_is_a_noun, SRC, "with open(path) as said, x:\n    a, (b, mine) = x\n", [1, 2]),
    (name_is_a_noun, SRC, "try:\n    x()\nexcept OSError as found:\n    pass\n", [3]),
    (name_is_a_noun, "testbed/s3.py", "known = 1\n", [1]),
    (name_is_a_noun, SRC, "x = [one.at for one in rows if one.found]\ny = max(rows, key=lambda one: one.told)\n", []),
    (name_is_a_noun, SRC, "class Place:\n    def __lt__(self, other):\n        return str(self) < str(other)\n", []),
    (name_is_a_noun, SRC, "keys_found, told_s = count(found=1), row.at\n", []),
    (name_is_a_noun, TEST, "found = read()\n", []),
    (exception_is_named, SRC, "try:\n    x()\nexcept Exception:\n    pass\n", [3]),
    (exception_is_named, SRC, "try:\n    x()\nexcept (OSError, BaseException) as e:\n    pass\n", [3]),
    (exception_is_named, TEST, "try:\n    x()\nexcept:\n    pass\n", [3]),
    (exception_is_named, SRC, "with contextlib.suppress(Exception):\n    x()\n", [1]),
    (exception_is_named, SRC, "try:\n    x()\nexcept OSError:\n    pass\nwith suppress(OSError):\n    x()\n", []),
    (exception_is_named, "src/headstone/cli/main.py", "try:\n    x()\nexcept Exception:\n    pass\n", []),
    (work_is_finished, SRC, "x = 1\ny = 2  # TODO: index\n", [2]),
    (work_is_finished, SRC, 'def walk():\n    """Walk.\n\n    FIXME: bound it.\n    """\n', [4]),
    (work_is_finished, SRC, "x = 'TODO'  # a TODOIST export\n", []),
    (no_test_sleeps, TEST, "import time\n\ntime.sleep(1)\n", [3]),
    (no_test_sleeps, TEST, "from time import monotonic, sleep\n", [1]),
    (no_test_sleeps, TEST, "import time\nclock.sleep(time.monotonic())\n", []),
    (no_test_sleeps, SRC, "import time\n\ntime.sleep(1)\n", []),
    (spark_stays_portable, SPARK, "x = 1\nspark.sparkContext.parallelize([])\n", [2]),
    (spark_stays_portable, SPARK, "spark._jvm.java\n", [1]),
    (spark_stays_portable, SPARK, "frame.rdd.map(f)\n", [1]),
    (spark_stays_portable, SPARK, "from pyspark import SparkContext\n", [1]),
    (spark_stays_portable, SPARK, "frame.mapInArrow(f, 'offset long')\n", []),
    (spark_stays_portable, "src/headstone/spark/session.py", "spark.sparkContext.setLogLevel('ERROR')\n", []),
    (text_has_no_emoji, SRC, "x = 1\nprint('done \N{WHITE HEAVY CHECK MARK}')\n", [2]),
    (text_has_no_emoji, TEST, "# \N{ROCKET}\n", [1]),
    (text_has_no_emoji, SRC, "# bytes → columns ──▶ verdicts ✓\n", []),
    (comment_is_not_a_banner, SRC, "x = 1\n# ----------\n", [2]),
    (comment_is_not_a_banner, SRC, "# ==== Reading ====\n", [1]),
    (comment_is_not_a_banner, SRC, "########\n", [1]),
    (comment_is_not_a_banner, SRC, "# Reading ----\n", [1]),
    (comment_is_not_a_banner, SRC, "x = '# ----'  # a -- b, then ---- as in the dump\n", []),
]


@pytest.mark.parametrize(("rule", "name", "text", "lines"), SAMPLES)
def test_rule_tells_a_violation_from_its_neighbour(rule: Rule, name: str, text: str, lines: list[int]) -> None:
    assert [finding.line for finding in rule(Source(name=name, text=text))] == lines


def test_every_rule_has_a_violation_among_the_samples() -> None:
    assert {rule for rule, _, _, lines in SAMPLES if lines} == set(RULES)
