"""Sample log directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.interruption import Interrupted, Request, heard_as
from headstone.log.checkpoints import HIGH_WATERMARK, RECOVERY_POINT, read_offsets
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample


def test_a_second_sample_in_the_same_directory_leaves_the_offsets_of_the_first(tmp_path: Path) -> None:
    for topic in ("t", "u"):
        write_sample(tmp_path, SampleSettings(topic=topic, records=100, keys=50))
    for name in (HIGH_WATERMARK, RECOVERY_POINT):
        assert sorted(topic for topic, _ in read_offsets(tmp_path / name)) == ["t", "u"]


def test_whoever_is_asked_to_stop_writes_no_further(tmp_path: Path) -> None:
    request = Request()
    request.give_up()
    with heard_as(request), pytest.raises(Interrupted):
        write_sample(tmp_path, SampleSettings(topic="t", records=100, keys=50))
    assert list(tmp_path.rglob("*.log")) == []
