"""Numbers out of their range are refused when they are given, in one sentence, whoever gives them: the ranges stand once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import headstone as hs
from headstone.cli.main import parsed
from headstone.lake.jobs.compact_run import LakeCompactionSettings

SETTINGS = (hs.AuditSettings, hs.CompactionSettings, hs.IngestSettings, LakeCompactionSettings)

WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: hs.AuditSettings(bytes_per_second=0), "bytes_per_second 0: expected 1 or more"),
    (lambda: hs.AuditSettings(bytes_per_second=None), "bytes_per_second None: expected a whole number, 1 or more"),
    (lambda: hs.AuditSettings(now_ms=-1), "now_ms -1: expected 0 to 253402300799999"),
    (lambda: hs.AuditSettings(delete_retention_ms=-1), "delete_retention_ms -1: expected 0 or more"),
    (lambda: hs.CompactionSettings(now_ms="x"), "now_ms 'x': expected a whole number, 0 to 253402300799999"),
    (lambda: hs.CompactionSettings(index_keys_max=0), "index_keys_max 0: expected 1 or more"),
    (lambda: hs.CompactionSettings(dirty_from=1.5), "dirty_from 1.5: expected a whole number, 0 or more"),
    (lambda: hs.CompactionSettings(plain_below=True), "plain_below True: expected a whole number, 0 or more"),
    (lambda: hs.CompactionSettings(markers_below=2**63), f"markers_below {2**63}: expected 0 or more"),
    (lambda: hs.CompactionSettings(task_memory_bytes=0), "task_memory_bytes 0: expected 1 to 17592186044416"),
    (lambda: hs.IngestSettings(every_ms=0), "every_ms 0: expected 1 to 31536000000"),
    (lambda: hs.IngestSettings(object_bytes="64MB"), "object_bytes '64MB': expected a whole number, 1 or more"),
    (lambda: hs.IngestSettings(offsets_per_task=0), "offsets_per_task 0: expected 1 or more"),
    (lambda: hs.inspect("nowhere", min_compaction_lag_ms="1d"), "min_compaction_lag_ms '1d': expected a whole number"),
    (lambda: hs.inspect("nowhere", now_ms=-5), "now_ms -5: expected 0 to 253402300799999"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "why"), WRONG, ids=[why for _, why in WRONG])
def test_a_number_out_of_its_range_is_refused(call: Callable[[], object], why: str) -> None:
    with pytest.raises(hs.UsageError) as raised:
        call()
    assert str(raised.value).startswith(why)


NUMBERS_OF_SETTINGS = [
    (kind, field.name)
    for kind in SETTINGS
    for field in fields(kind)
    if field.type in ("int", "int | None", "float", "float | None")
]


@pytest.mark.parametrize(("kind", "name"), NUMBERS_OF_SETTINGS, ids=str)
def test_every_number_of_a_setting_has_a_range(kind: type[Any], name: str) -> None:
    for value in (-1, True, "7", float("nan")):
        with pytest.raises(hs.UsageError, match=f"^{name} {value!r}: expected "):
            kind(**{name: value})


def test_a_data_frames_numbers_are_numbers() -> None:
    assert hs.CompactionSettings(tombstones_below=np.int64(7)).tombstones_below == 7


def test_what_nobody_says_is_the_same_on_the_command_line_and_in_the_library() -> None:
    audit, compaction = hs.AuditSettings(), hs.CompactionSettings()
    ingest, lake = hs.IngestSettings(), LakeCompactionSettings()
    words = parsed(["compact", "x", "--dry-run"])
    assert (words.rules, words.task_memory_mb << 20, words.split) == (
        compaction.rules, compaction.task_memory_bytes, compaction.path,
    )  # fmt: skip
    words = parsed(["audit", "x", "y"])
    assert (words.bytes_per_second, words.delete_retention_ms) == (audit.bytes_per_second, audit.delete_retention_ms)
    words = parsed(["lake", "ingest", "x", "y"])
    assert (words.every_ms, words.max_age_ms, words.object_bytes, words.codec) == (
        ingest.every_ms, ingest.age_ms_max, ingest.object_bytes, ingest.codec,
    )  # fmt: skip
    assert parsed(["lake", "compact", "x"]).dead_share_max == lake.dead_share_max
    words = parsed(["inspect", "x"])
    arguments = inspect.signature(hs.inspect).parameters
    assert (words.now_ms, words.min_compaction_lag_ms) == tuple(
        arguments[name].default for name in ("now_ms", "min_compaction_lag_ms")
    )
