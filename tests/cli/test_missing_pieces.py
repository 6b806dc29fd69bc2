"""Whatever is not installed is named with the command that brings it: no traceback, and no advice that does not work.

A process in which the import finds nothing, as on a machine that has it not.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headstone.cli.main import main
from headstone.errors import Unfinished
from headstone.storage.stores import Store
from tests.cli.scenes import write_log
from tests.test_tidy import ROOT

HIDDEN = """
import os, sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] in os.environ["HIDDEN"].split(",")
        return None if hidden else super().find_spec(name, path, target)

sys.meta_path = [Without if finder is PathFinder else finder for finder in sys.meta_path]
"""
PIP = "in a checkout of Headstone: {python} -m pip install '.[{extra}]'"
SECONDS_MAX = 300


def headstone(place: Path, *words: str, hidden: str = "") -> tuple[int, list[str]]:
    (place / "sitecustomize.py").write_text(HIDDEN)
    done = subprocess.run(
        [sys.executable, "-m", "headstone.cli.main", *words], cwd=place, capture_output=True, text=True, check=False,
        timeout=SECONDS_MAX, env={**os.environ, "HIDDEN": hidden, "PYTHONPATH": str(place)},
    )  # fmt: skip
    return done.returncode, done.stderr.splitlines()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A log directory and a lake."""
    write_log(tmp_path / "logs", "N[a] | N[b]")
    assert main(["lake", "init", str(tmp_path / "lake")]) == 0
    return tmp_path


@pytest.mark.parametrize(
    ("hidden", "words", "what", "extra"),
    [
        ("psycopg", "lake init postgresql://h/l --objects file:///nowhere", "psycopg, which reaches PostgreSQL, is",
         "postgresql"),
        ("pyspark", "lake ingest lake --bootstrap h:1 --topic t", "Spark is", "spark"),
        ("grpc", "compact logs --out out --spark-remote sc://h:1", r"what Spark Connect needs (.*grpc.*) is", "connect"),
        ("confluent_kafka", "lake restore lake t --bootstrap 127.0.0.1:1",
         "librdkafka's client for Python (confluent_kafka) is", "kafka"),
    ],
)  # fmt: skip
def test_a_package_that_is_missing_is_named_with_what_brings_it(
    hidden: str, words: str, what: str, extra: str, place: Path
) -> None:
    code, said = headstone(place, *words.split(), hidden=hidden)
    advice = PIP.format(python=sys.executable, extra=extra)
    wanted = re.escape(f"{what} not installed; {advice}").replace(re.escape(".*"), ".*")
    assert (code, len(said)) == (2, 2), said
    assert re.fullmatch(rf"headstone [a-z ]+: {wanted}", said[0]), said


def test_without_pandas_compaction_goes_on(place: Path) -> None:
    code, said = headstone(place, "compact", "logs", "--out", "out", "--engine", "process", hidden="pandas,pyspark")
    assert code == 0, said


@pytest.mark.parametrize(
    ("url", "environment", "advice"),
    [
        ("s3://b/p", {"AWS_METADATA_ENDPOINT": "http://127.0.0.1:9"}, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "),
        ("az://b/p", {}, "say --store-conf account_name=NAME"),
    ],
)  # fmt: skip
def test_a_store_without_credentials_says_which_are_needed(
    url: str, environment: dict[str, str], advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_"))]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Exception, match=re.escape(advice)):
        list(Store.open(url, patient=False).children())


def test_an_endpoint_of_the_environment_may_be_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused for its scheme it would end in "builder error" before anything is asked."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"):
        with monkeypatch.context() as patched:
            patched.setenv(name, "http://127.0.0.1:9")
            with pytest.raises(Unfinished, match="error sending request"):
                list(Store.open("s3://b/p", patient=False).children())


def test_no_text_names_a_package_index_that_has_no_headstone() -> None:
    files = [*(ROOT / "src").rglob("*.py"), ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = re.compile(r"pip install ['\"]?headstone")
    assert [path.name for path in files if named.search(path.read_text())] == []
