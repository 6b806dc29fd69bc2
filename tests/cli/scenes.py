"""What the tests of this folder give to verbs, and how a verb ended."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from headstone.cli.main import main
from tests import logs

HEADSTONE = [sys.executable, "-m", "headstone.cli.main"]


def write_log(root: Path, notation: str, name: str = "orders-0") -> Path:
    return logs.write_log(root, notation, name)


def stopped_broker(root: Path) -> Path:
    """The log directory of one that ended cleanly, with one partition of which all is replicated."""
    write_log(root, "N[a] N[a] | N[b]")
    (root / "meta.properties").write_text("version=1\n")
    (root / ".kafka_cleanshutdown").write_text("{}")
    (root / "replication-offset-checkpoint").write_text("0\n1\norders 0 3\n")
    return root


def exit_code(*words: str | Path) -> int:
    """Also where argparse ends it in its own way."""
    try:
        return main([*map(str, words)])
    except SystemExit as error:
        return int(str(error.code))


def told(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 0) -> tuple[dict[str, Any], list[str]]:
    """What a verb says as JSON, and the lines beside it."""
    capsys.readouterr()
    ended = main([*map(str, words), "--output", "json"])
    captured = capsys.readouterr()
    assert ended == code, captured.err
    return json.loads(captured.out), captured.err.splitlines()


def answer(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 0) -> dict[str, Any]:
    return told(capsys, *words, code=code)[0]
