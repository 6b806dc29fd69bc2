"""What a program may ask of a lake: the numbers that the command line takes, and no others."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import headstone as hs
from headstone.cli.options import Share, Whole
from headstone.lake.jobs.erasure_run import ErasureRequest
from headstone.lake.jobs.worker_run import WorkerSettings
from headstone.lake.transfer.export_plan import ExportRequest
from headstone.lake.transfer.restore_request import RestoreRequest
from tests.cli.parsers import VERBS

OPTIONS = {
    "ingest": {
        "every_ms": "every_ms", "age_ms_max": "max_age_ms", "object_bytes": "object_bytes",
        "offsets_per_task": "offsets_per_task", "offsets_per_batch": "offsets_per_batch",
    },
    "compact": {"map_bytes": "map_bytes", "dead_share_max": "dead_share_max", "dead_age_ms_max": "dead_age_ms_max"},
    "worker": {
        name: name for name in (
            "every_ms", "lease_ms", "partitions_at_once", "map_bytes", "dead_share_max", "dead_age_ms_max", "gc_every_ms",
            "gc_objects", "upkeep_bytes", "grace_ms", "upload_ms",
        )
    },
}  # fmt: skip
SETTINGS: dict[str, type[Any]] = {
    "ingest": hs.IngestSettings,
    "compact": hs.LakeCompactionSettings,
    "worker": WorkerSettings,
}
NUMBERS = [(action, name, option) for action, names in OPTIONS.items() for name, option in names.items()]


def options_of(action: str) -> dict[str, argparse.Action]:
    return {each.dest: each for each in VERBS[f"headstone lake {action}"]._actions}


@pytest.mark.parametrize(("action", "name", "option"), NUMBERS)
def test_a_setting_takes_what_its_option_takes(action: str, name: str, option: str) -> None:
    of, kind = SETTINGS[action], options_of(action)[option].type
    assert isinstance(kind, Whole | Share)
    assert [getattr(of(**{name: end}), name) for end in (kind.low, kind.high)] == [kind.low, kind.high]
    for value in (kind.low - 1, kind.high + 1, "7", True, float("nan")):
        with pytest.raises(hs.UsageError, match=f"{name} .*: expected "):
            of(**{name: value})


@pytest.mark.parametrize(("action", "name", "option"), NUMBERS)
def test_a_setting_has_the_default_of_its_option(action: str, name: str, option: str) -> None:
    (default,) = (field.default for field in fields(SETTINGS[action]) if field.name == name)
    assert options_of(action)[option].default == default
    if default is not None:
        with pytest.raises(hs.UsageError, match=f"{name} None: expected "):
            SETTINGS[action](**{name: None})


MISTAKES: list[tuple[Callable[[hs.Lake], object], str]] = [
    (lambda lake: hs.LakeCompactionSettings(topics="orders"), "topics: expected several"),
    (lambda lake: hs.IngestSettings(cleanup_policy="compcat"), "compcat"),
    (lambda lake: hs.IngestSettings(codec="zip"), "codec 'zip': there are none, gzip"),
    (lambda lake: lake.create_topic("t", partitions=0), "partitions 0: expected 1 to 100000"),
    (lambda lake: lake.create_topic("t", partitions=-3), "partitions -3: expected 1 to 100000"),
    (lambda lake: lake.create_topic("t", partitions="2"), "partitions '2': expected a whole number, 1 to 100000"),
    (lambda lake: lake.create_topic("t", 1, "retention.ms=5"), "settings: expected a mapping, such as a dict, found a string"),
    (lambda lake: lake.create_topic(5), "topic 5: expected a string, found int"),
    (lambda lake: lake.topic(5), "topic 5: expected a string, found int"),
    (lambda lake: lake.compact(settings={"level": True}), "settings: expected LakeCompactionSettings, found dict"),
    (lambda lake: lake.ingest("x", settings={"codec": "zstd"}), "settings: expected IngestSettings, found dict"),
    (lambda lake: lake.ingest(5), "paths: expected one or more paths or URLs, found 5"),
    (lambda lake: lake.ingest(bootstrap=5), "bootstrap 5: expected a string, found int"),
    (lambda lake: lake.create_topic("a/b"), "not a valid topic name"),
    (lambda lake: lake.ingest("x", settings=hs.IngestSettings(continuous=True), progress=False), "is for clusters"),
    (lambda lake: lake.ingest(progress=False), "name what to ingest"),
    (lambda lake: lake.ingest("x", bootstrap="127.0.0.1:1"), "name what to ingest"),
    (lambda lake: hs.Lake.create("postgresql://x/y"), "name the object storage with --objects"),
    (lambda lake: lake.topic("t"), "the lake has no topic t"),
    (lambda lake: lake.create_topic("kept").table(as_of_ms=-1), "as_of_ms -1: expected 0 to "),
    (lambda lake: lake.create_topic("kept").records(as_of_ms=10**15), "as_of_ms 1000000000000000: expected 0 to "),
    (lambda lake: lake.create_topic("kept").table(as_of_ms="now"), "as_of_ms 'now': expected a whole number"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "why"), MISTAKES, ids=[why for _, why in MISTAKES])
def test_a_mistake_is_told_and_changes_nothing(call: Callable[[hs.Lake], object], why: str, tmp_path: Path) -> None:
    with hs.Lake.create(tmp_path / "lake") as lake:
        with pytest.raises(hs.UsageError) as raised:
            call(lake)
        assert why in str(raised.value)
        assert [row.topic for row in lake.topics() if row.topic != "kept"] == []


REQUESTS: list[tuple[Callable[[], object], str]] = [
    (lambda: ErasureRequest(topic="t", keys=(), deadline_ms=-1), "deadline_ms -1: expected 0 to "),
    (lambda: ErasureRequest(topic="t", keys=(), grace_ms=-1), "grace_ms -1: expected 0 or more"),
    (lambda: ErasureRequest(topic="t", keys=(), upload_ms=0), "upload_ms 0: expected 1 to "),
    (lambda: ExportRequest(topics=(), log_dirs=("x",), copies=0), "copies 0: expected 1 to 32767"),
    (lambda: ExportRequest(topics=(), log_dirs=("x",), as_of_ms=-1), "as_of_ms -1: expected 0 to "),
    (lambda: RestoreRequest(topic="t", to_topic="again", copies=32768), "copies 32768: expected 1 to 32767"),
    (lambda: RestoreRequest(topic="t", to_topic="again", as_of_ms=-1), "as_of_ms -1: expected 0 to "),
    (lambda: RestoreRequest(topic="t", to_topic="again", groups="readers"), "groups: expected several"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "why"), REQUESTS, ids=[why for _, why in REQUESTS])
def test_what_nobody_can_ask_for_is_told(call: Callable[[], object], why: str) -> None:
    with pytest.raises(hs.UsageError) as raised:
        call()
    assert why in str(raised.value)
