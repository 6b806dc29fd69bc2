"""The house rules that a linter does not know, executed over src/, testbed/, campaigns/ and tests/.

A rule is a function from one source file to its findings, so that the last test can feed each rule a violation
and its innocent neighbour as strings. Which files a rule covers is the rule's own business.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import zip_longest
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
FUNCTION_LINES_MAX = 70
SRC_FILE_LINES_MAX = 450
TEST_FILE_LINES_MAX = 700
ROOMS_OF_PACKAGES = ("guard", "lake")
CHAIN_PACKAGES_MAX = 7
"""Who reads a package has so many below it to keep in mind."""
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "base"}
# Words that stand for a noun and keep it back: `at` was a partition here and an offset there, `mine` a lease, a row, a query.
PRONOUNS = {
    "at", "found", "known", "mine", "one", "other", "others", "ours", "said", "their", "theirs", "those", "told",
}  # fmt: skip
FOUND_IN_THE_JOURNAL = {
    "src/headstone/coordination/guard_values.py", "src/headstone/guard/acting/outcomes.py",
    "src/headstone/guard/ledger/temporary_changes.py", "src/headstone/guard/monitoring/status.py",
}  # fmt: skip
"""Values with a field `found`, what a setting was before: journals and `guard status --output json` name it so."""
BROAD_CATCHERS = {
    "src/headstone/cli/main.py", "src/headstone/api/stopping.py", "src/headstone/lake/jobs/worker.py",
    "src/headstone/guard/verification/background.py",
}  # fmt: skip
SPARK_CLASSIC_NAMES = {"sparkContext", "SparkContext", "_jvm", "rdd"}
SPARK_CLASSIC_FILES = {"src/headstone/spark/session.py"}
NOUNS = (
    "batch", "broker", "change", "day", "entry", "extent", "file", "finding", "key", "line", "marker", "message", "object",
    "offset", "partition", "producer", "range", "record", "replica", "seed", "segment", "step", "task", "tombstone", "topic",
    "violation",
)  # fmt: skip
PLURAL = re.compile(rf" ({'|'.join(NOUNS).replace('batch', 'batche').replace('entry', 'entrie')})s\b(?!/)")
WORDS = {"count", "duration", "exact_duration", "exact_moment", "moment"}
"""Of `units`: how numbers are told to people."""
MILLISECONDS_FOR_MACHINES = {
    "src/headstone/agent/authentication.py", "src/headstone/lake/transfer/export_plan.py", "src/headstone/spark/streams.py",
    "src/headstone/units.py",
}  # fmt: skip
MERGE_MARKER = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)
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
    if source.in_tests:
        return
    allowed = {"found"} if source.name in FOUND_IN_THE_JOURNAL else set()
    for line, name in sorted(named_in(ast.parse(source.text))):
        if name.strip("_") in PRONOUNS - allowed:
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


def numbers_are_told_in_words(source: Source) -> Iterator[Finding]:
    """Bare milliseconds may stand beside the words; "1 records" is nobody's English. A constant's number is known."""
    if not source.in_src or source.name in MILLISECONDS_FOR_MACHINES:
        return
    for node in source.nodes:
        if not isinstance(node, ast.JoinedStr):
            continue
        in_words = bool(names_in(ast.walk(node)) & WORDS)
        for part, text in zip_longest(node.values, node.values[1:]):
            if not isinstance(part, ast.FormattedValue):
                continue
            names = names_in(ast.walk(part.value))
            bare = not in_words and not isinstance(part.value, ast.Call)
            if bare and any(name.endswith("_ms") for name in names):
                yield Finding(line=part.lineno, message="milliseconds for people: units.exact_duration or exact_moment")
            constant = any(name.isupper() for name in names)
            if isinstance(text, ast.Constant) and PLURAL.match(str(text.value)) and not constant:
                yield Finding(line=part.lineno, message="may be one: units.count")


def default_lives_in_its_room(source: Source) -> Iterator[Finding]:
    """What an option is without a word is stated where it is used; a parser reads it there."""
    if not source.name.startswith("src/headstone/cli/"):
        return
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            for keyword in node.keywords:
                numbers = [n.value for n in ast.walk(keyword.value) if isinstance(n, ast.Constant)]
                if keyword.arg == "default" and any(type(number) in (int, float) and number > 1 for number in numbers):
                    yield Finding(line=keyword.value.lineno, message="a number that its room should state")


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
    numbers_are_told_in_words,
    default_lives_in_its_room,
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


def test_no_merge_was_committed_half() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in tracked.split("\0") if name]
    marked = [path.name for path in paths if path.is_file() and MERGE_MARKER.search(path.read_bytes())]
    assert marked == []


Packages = dict[str, set[str]]
"""Of one room: each package, or file that lies beside them, with those that it imports."""


def packages_of(room: str, sources: Iterable[Source]) -> Packages:
    """Imports for types only and those in functions count: a cycle that is hidden there is a cycle."""
    inside = [source for source in sources if source.name.startswith(f"src/headstone/{room}/")]
    packages: Packages = {part_of(source.path.with_suffix("").parts[1:]): set() for source in inside}
    for source in inside:
        importer = part_of(source.path.with_suffix("").parts[1:])
        parts = {part_of(name) for name in imported_names(source) if name[:2] == ("headstone", room)}
        packages[importer] |= parts & packages.keys() - {importer}
    return packages


def part_of(module: Sequence[str]) -> str:
    """`acting` of headstone.guard.acting.changes."""
    return module[2] if len(module) > 2 else "__init__"


def imported_names(source: Source) -> Iterator[tuple[str, ...]]:
    """Modules, and what is imported from them, which may be modules as well."""
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = source.path.parts[1 : -node.level] if node.level else ()
            module = node.module.split(".") if node.module else []
            yield from ((*above, *module, alias.name) for alias in node.names)


def longest_chain(packages: Packages) -> list[str]:
    """Each imports the next. CycleError if one imports itself by others."""
    chains: dict[str, list[str]] = {}
    for package in TopologicalSorter(packages).static_order():
        below = [chains[imported] for imported in sorted(packages[package])]
        chains[package] = [package, *max(below, key=len, default=[])]
    return max(chains.values(), key=len, default=[])


@pytest.mark.parametrize("room", ROOMS_OF_PACKAGES)
def test_packages_of_a_room_import_in_one_direction_and_not_deep(room: str) -> None:
    packages = packages_of(room, house())
    folders = {path.parent.name for path in (ROOT / "src" / "headstone" / room).glob("*/__init__.py")}
    assert len(folders) > 3
    assert folders <= packages.keys()
    chain = longest_chain(packages)
    assert len(chain) <= CHAIN_PACKAGES_MAX, " → ".join(chain)


@pytest.mark.parametrize(
    "hidden",
    [
        "from headstone.guard.loop import watcher",
        "from headstone.guard import loop",
        "import headstone.guard.loop.watcher",
        "from ..loop.watcher import Watcher",
        "if TYPE_CHECKING:\n    from headstone.guard.loop.watcher import Watcher",
        "def watch():\n    from headstone.guard.loop.watcher import Watcher",
    ],
)
def test_a_cycle_of_packages_is_found_however_it_is_hidden(hidden: str) -> None:
    texts = {
        "guard/assembly": "from headstone.guard.loop.watcher import Watcher",
        "guard/loop/watcher": "from headstone.guard.acting.changes import carry_out",
        "guard/acting/changes": "from headstone.guard.acting import outcomes\nfrom headstone.lake.loop import Lake",
    }
    down = [Source(name=f"src/headstone/{name}.py", text=text) for name, text in texts.items()]
    assert longest_chain(packages_of("guard", down)) == ["assembly", "loop", "acting"]
    around = [*down, Source(name="src/headstone/guard/acting/outcomes.py", text=hidden)]
    with pytest.raises(CycleError):
        longest_chain(packages_of("guard", around))


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
    (default_lives_in_its_room, "src/headstone/cli/synth.py", "p.add_argument('--n', default=64 << 20)\n", [1]),
    (default_lives_in_its_room, "src/headstone/cli/synth.py", "p.add_argument('--n', default=BYTES)\n", []),
    (default_lives_in_its_room, "src/headstone/cli/synth.py", "p.add_argument('--n', default=0)\n", []),
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
    (numbers_are_told_in_words, SRC, 'say(f"{left_ms} ms more")\n', [1]),
    (numbers_are_told_in_words, SRC, 'say(f"from {risk.unsafe_ms - skew_ms} on")\n', [1]),
    (numbers_are_told_in_words, SRC, 'say(f"{units.moment(at_ms)} ({at_ms})")\n', []),
    (numbers_are_told_in_words, SRC, 'say(f"{len(rows):,} records")\n', [1]),
    (
        numbers_are_told_in_words,
        SRC,
        "say(f\"{units.count(n, 'record')} and {COPIES} replicas, {rate} records/s\")\n",
        [],
    ),
    (numbers_are_told_in_words, TEST, 'say(f"{n} records, {left_ms} ms")\n', []),
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
