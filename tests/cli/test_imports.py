"""What the command line loads before a verb runs: nothing that is slow to load, and nothing that may not be installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headstone.cli.main import VERBS

HEAVY = ("numba", "numpy", "obstore", "pyarrow", "pyspark", "sqlalchemy")
CPU_SECONDS_MAX = 1.0
"""Twice what a user should wait: a loaded machine is slower than an idle one, also in CPU time."""

ASK = f"""
import importlib.abc, resource, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
sys.meta_path.insert(0, Absent())
from headstone.cli.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as ended:
    code = ended.code
rooms = sorted(name for name in sys.modules if name.startswith("headstone.cli."))
print(resource.getrusage(resource.RUSAGE_SELF).ru_utime - before, *rooms, file=sys.stderr)
sys.exit(code)
"""


def asked(*words: str) -> tuple[str, float, set[str]]:
    """What is said to `headstone words`, the CPU seconds that it took, and the verbs that were imported."""
    done = subprocess.run([sys.executable, "-c", ASK, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seconds, *modules = done.stderr.split()
    return done.stdout, float(seconds), {name.rpartition(".")[2] for name in modules} & VERBS.keys()


@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_nothing_is_loaded_to_say_what_there_is(words: list[str]) -> None:
    said, seconds, verbs = asked(*words)
    assert "headstone" in said
    assert verbs == set()
    assert seconds < CPU_SECONDS_MAX


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_the_help_of_a_verb_needs_neither_spark_nor_kernels(verb: str) -> None:
    said, seconds, _ = asked(verb, "--help")
    assert said.startswith(f"usage: headstone {verb}")
    assert seconds < CPU_SECONDS_MAX
