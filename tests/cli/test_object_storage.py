"""Logs in object storage as a user names them: URLs instead of paths, settings by flags or by the configuration file."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headstone.cli.main import main
from testbed.s3 import BUCKET
from tests.cli.scenes import answer

NOW = ["--now-ms", "1800000000000", "--engine", "process"]


def facts(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Without where it is."""
    return [{name: value for name, value in fact.items() if name != "directory"} for fact in document["partitions"]]


def test_a_log_goes_to_object_storage_and_is_compacted_inspected_and_audited_there(
    tmp_path: Path, moto_settings: Mapping[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [word for name, value in moto_settings.items() for word in ("--store-conf", f"{name}={value}")]
    root = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    local, remote = str(tmp_path / "sample"), f"{root}/1"
    assert main(["synth", local, "--records", "400", "--keys", "50"]) == 0
    answer(capsys, "compact", local, "--out", str(tmp_path / "out"), *NOW)
    answer(capsys, "compact", local, "--out", remote, *NOW, *flags)
    wanted = facts(answer(capsys, "inspect", str(tmp_path / "out")))
    assert facts(answer(capsys, "inspect", remote, *flags)) == wanted
    answer(capsys, "compact", local, "--out", f"{root}/2", "--peer", remote, *NOW, *flags)
    assert answer(capsys, "audit", remote, f"{root}/2", *flags)["verdict"] == "clean"
    assert main(["compact", remote, "--out", f"{root}/3", "--peer", remote, *flags]) == 2
    assert "is what is compacted; name the other replicas" in capsys.readouterr().err
