"""The lists of code mutants fit today's tree; and the runner, on a tree of three files, tells what a test notices."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from campaigns import code_mutants, kernel_caches, mutant_lists
from campaigns.code_mutants import INVALID, KILLED, LIVES, Outcome
from campaigns.mutant_lists import Mutant

ROOT = Path(__file__).resolve().parents[2]
MUTANTS_MIN = 120
ROOMS_WITHOUT = {"brokers", "pages"}
"""They decide nothing about anybody's data."""
SOURCE = "def above(a, b):\n    return a > b\n\n\ndef unseen(a):\n    return a + 1\n"
TEST = (
    "from headstone.toy.order import above\n\n\ndef test_above():\n    assert above(2, 1)\n    assert not above(1, 1)\n"
)
KERNEL = """
from headstone.toy.limits import limit
from numba import njit


@njit(cache=True)
def below(a):
    return a < limit()
"""
LIMITS = "from numba import njit\n\n\n@njit(cache=True)\ndef limit():\n    return 5\n"
KERNEL_TEST = "from headstone.toy.kernels import below\n\n\ndef test_below():\n    assert not below(5)\n"


def test_lists_fit_the_tree() -> None:
    mutants, problems = mutant_lists.read_lists(ROOT)
    assert problems + mutant_lists.misfits(ROOT, mutants) == []
    assert len(mutants) >= MUTANTS_MIN
    rooms = {path.name for path in (ROOT / "src" / "headstone").iterdir() if (path / "__init__.py").exists()}
    assert {mutant.room for mutant in mutants} == rooms - ROOMS_WITHOUT


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    root = tmp_path / "toy"
    files = {
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["src"]\n',
        "src/headstone/__init__.py": "",
        "src/headstone/toy/__init__.py": "",
        "src/headstone/toy/order.py": SOURCE,
        "src/headstone/toy/limits.py": LIMITS,
        "src/headstone/toy/kernels.py": KERNEL,
        "tests/test_order.py": TEST,
        "tests/test_kernels.py": KERNEL_TEST,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def mutant(name: str, old: str, new: str, **more: object) -> Mutant:
    fields = {"file": "src/headstone/toy/order.py", "tests": ("tests/test_order.py",), **more}
    return Mutant(room="toy", name=name, old=old, new=new, **fields)  # type: ignore[arg-type]


def write_list(root: Path, text: str) -> None:
    (root / mutant_lists.LISTS).mkdir(parents=True)
    (root / mutant_lists.LISTS / "toy.toml").write_text(text)


def verdicts(outcomes: list[Outcome]) -> dict[str, tuple[str, str, bool]]:
    return {outcome.mutant.name: (outcome.verdict, outcome.by, outcome.wanted) for outcome in outcomes}


def test_runner_tells_what_a_test_notices(toy: Path) -> None:
    outcomes = code_mutants.campaign(
        toy,
        [
            mutant("noticed", "a > b", "a >= b"),
            mutant("unnoticed", "a + 1", "a + 2"),
            mutant("excused", "a + 1", "a - 1", lives="nobody calls it"),
            mutant("excuse-is-stale", "a > b", "b > a", lives="nobody calls it"),
            mutant("broken", "a > b", "a > c"),
            mutant("does-not-import", "def above(a, b)", "def beyond(a, b)"),
        ],
        jobs=2,
        tell=lambda outcome: None,
    )
    test = "tests/test_order.py::test_above"
    assert verdicts(outcomes) == {
        "noticed": (KILLED, test, True),
        "unnoticed": (LIVES, "", False),
        "excused": (LIVES, "", True),
        "excuse-is-stale": (KILLED, test, False),
        "broken": (INVALID, f"NameError in {test}", False),
        "does-not-import": (INVALID, "ImportError in tests/test_order.py", False),
    }
    assert (toy / "src/headstone/toy/order.py").read_text() == SOURCE
    by_name = {outcome.mutant.name: outcome for outcome in outcomes}
    assert [code_mutants.exit_code([by_name[name]]) for name in by_name] == [0, 1, 0, 1, 2, 2]


def test_kernel_that_calls_a_mutant_is_compiled_anew_and_the_right_one_comes_back(toy: Path) -> None:
    """The caller's own file does not change: its cached code would go on with the right limit."""
    at = {"file": "src/headstone/toy/limits.py", "tests": ("tests/test_kernels.py",)}
    outcomes = code_mutants.campaign(
        toy,
        [
            mutant("limit", "return 5", "return 6", **at),
            mutant("limit-unnoticed", "return 5", "return 4", **at),
            mutant("another-file", "a > b", "a >= b", tests=at["tests"]),
        ],
        jobs=1,
        tell=lambda outcome: None,
    )
    assert verdicts(outcomes) == {
        "limit": (KILLED, "tests/test_kernels.py::test_below", True),
        "limit-unnoticed": (LIVES, "", False),
        "another-file": (LIVES, "", False),
    }


def test_a_change_reaches_all_that_import_the_file_at_any_distance() -> None:
    reached = kernel_caches.importers(ROOT, "src/headstone/log/kernels.py")
    assert {"src/headstone/log/kernels.py", "src/headstone/retention/rewrite.py"} <= set(reached)
    assert "src/headstone/errors.py" not in reached


def test_tests_that_fail_or_run_nothing_without_any_change_tell_nothing(toy: Path) -> None:
    (toy / "tests" / "test_order.py").write_text("def test_above():\n    assert False\n")
    outcomes = code_mutants.campaign(
        toy,
        [
            mutant("fails", "a > b", "a < b"),
            mutant("nothing-runs", "a > b", "a < b", tests=("tests/test_kernels.py", "-k", "nothing")),
            mutant("fails-by-name", "a > b", "a < b", tests=("tests", "-k", "above")),
            mutant("runs-by-name", "a > b", "a < b", tests=("tests", "-k", "below")),
            mutant("other-tests", "a > b", "a < b", tests=("tests/test_kernels.py",)),
        ],
        jobs=1,
        tell=lambda outcome: None,
    )
    assert verdicts(outcomes) == {
        "fails": (INVALID, "without any change: tests/test_order.py::test_above", False),
        "nothing-runs": (INVALID, "without any change: no test ran (exit code 5)", False),
        "fails-by-name": (INVALID, "without any change: tests/test_order.py::test_above", False),
        "runs-by-name": (LIVES, "", False),
        "other-tests": (LIVES, "", False),
    }


@pytest.mark.parametrize("broken", ["from headstone.toy.order import nothing", "0 / 0"])
def test_tests_that_cannot_be_collected_kill_nothing(toy: Path, broken: str) -> None:
    """By whatever they are named; and the tests of other files are tried all the same."""
    (toy / "tests" / "test_order.py").write_text(f"{broken}\n{TEST}")
    (toy / "tests" / "test_wrong.py").write_text("def test_wrong():\n    assert False\n")
    own = {
        "by-file": ("tests/test_order.py",), "by-test": ("tests/test_order.py::test_above",),
        "by-name": ("tests/test_order.py", "-k", "above"),
    }  # fmt: skip
    others = {"other": ("tests/test_kernels.py",), "other-test": ("tests/test_kernels.py::test_below",)}
    every = {**own, **others, "wrong": ("tests/test_wrong.py",)}
    mutants = [mutant(name, "a > b", "a < b", tests=tests) for name, tests in every.items()]
    outcomes = code_mutants.campaign(toy, mutants, jobs=1, tell=lambda outcome: None)
    assert verdicts(outcomes) == {
        **dict.fromkeys(own, (INVALID, "without any change: tests/test_order.py", False)),
        **dict.fromkeys(others, (LIVES, "", False)),
        "wrong": (INVALID, "without any change: tests/test_wrong.py::test_wrong", False),
    }


def test_timeouts_and_crashes_count_as_killed() -> None:
    assert code_mutants.judged(None, "") == (KILLED, "timeout")
    assert code_mutants.judged(-11, "Fatal Python error") == (KILLED, "exit code -11")
    assert code_mutants.judged(5, "no tests ran") == (INVALID, "pytest did not run: exit code 5")


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("old = 'a > c'\nnew = 'a'", "`old` occurs 0 times in src/headstone/toy/order.py, not once"),
        ("old = 'return'\nnew = 'a'", "`old` occurs 2 times in src/headstone/toy/order.py, not once"),
        ("old = 'a > b'\nnew = 'a > '", "`new` does not parse: invalid syntax, line 2 of src/headstone/toy/order.py"),
        ("old = 'a > b'\nnew = '(a > b)'", "`new` changes nothing"),
    ],
)
def test_entry_that_cannot_be_applied_is_told(toy: Path, entry: str, problem: str) -> None:
    write_list(
        toy,
        f'[[mutant]]\nname = "m"\nfile = "src/headstone/toy/order.py"\ntests = ["tests/test_order.py"]\n{entry}\n',
    )
    mutants, problems = mutant_lists.read_lists(toy)
    assert (problems, mutant_lists.misfits(toy, mutants)) == ([], [f"toy.toml: m: {problem}"])


def test_lists_are_read_with_everything_that_is_wrong(toy: Path) -> None:
    change = 'file = "src/headstone/toy/order.py"\nold = "a > b"\nnew = "a < b"\n'
    entries = [
        f'name = "twice"\n{change}tests = ["tests/test_order.py::test_above[1-2]", "-k", "no such path"]\n',
        f'name = "twice"\n{change}tests = ["tests/test_order.py::test_below"]\nlives = " "\n',
        f'name = "nothing"\n{change}tests = ["-k", "above"]\n',
        f'name = "nowhere"\n{change}tests = ["tests/test_nowhere.py"]\n',
        f'name = "unknown"\n{change}tests = []\nreason = "x"\n',
        'name = "less"\nold = "a"\nnew = 1\ntests = []\n',
    ]
    write_list(toy, "".join(f"[[mutant]]\n{entry}" for entry in entries))
    mutants, problems = mutant_lists.read_lists(toy)
    assert [found.name for found in mutants] == ["twice", "twice", "nothing", "nowhere"]
    assert problems == [
        "toy.toml: unknown: fields reason",
        "toy.toml: less: fields file, new",
        "twice: two mutants of this name",
    ]
    assert mutant_lists.misfits(toy, mutants) == [
        "toy.toml: twice: there is no test_below in tests/test_order.py",
        "toy.toml: twice: lives without a reason",
        "toy.toml: nothing: names no tests",
        "toy.toml: nowhere: there is no tests/test_nowhere.py",
    ]


def test_command_prints_one_document_and_its_exit_code_says_what_lived(toy: Path) -> None:
    write_list(
        toy,
        '[[mutant]]\nname = "unnoticed"\nfile = "src/headstone/toy/order.py"\nold = "a + 1"\nnew = "a + 2"\n'
        'tests = ["tests/test_order.py"]\n',
    )
    done = command(toy, "--output", "json")
    out, err = done.communicate(timeout=120)
    document = json.loads(out)
    assert (done.returncode, [row["verdict"] for row in document["outcomes"]]) == (1, ["lives"])
    assert "1/1 toy           unnoticed" in err


def test_interrupt_ends_the_tests_that_run_and_leaves_no_copy(toy: Path, tmp_path: Path) -> None:
    """The test tells its process id through a pipe and then waits for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (toy / "tests" / "test_order.py").write_text(
        f"import os, signal\n\n\ndef test_above():\n    open({str(pipe)!r}, 'w').write(str(os.getpid()))\n    signal.pause()\n"
    )
    write_list(
        toy,
        '[[mutant]]\nname = "m"\nfile = "src/headstone/toy/order.py"\nold = "a > b"\nnew = "a < b"\n'
        'tests = ["tests/test_order.py"]\n',
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    running = command(toy, TMPDIR=str(scratch))
    with pipe.open() as opened:
        pid = int(opened.read())
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert list(scratch.iterdir()) == []


def command(root: Path, *arguments: str, **env: str) -> subprocess.Popen[str]:
    """The command itself, in a tree that has only the runner besides the toy."""
    folder = root / "campaigns"
    folder.mkdir(exist_ok=True)
    for path in (ROOT / "campaigns").glob("*.py"):
        (folder / path.name).write_text(path.read_text())
    return subprocess.Popen(
        [sys.executable, "-m", "campaigns.code_mutants", *arguments], cwd=root, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(root), **env},
    )  # fmt: skip
