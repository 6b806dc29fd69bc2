"""The four corruptions on real brokers, through the command line; and the same moves without an outage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headstone.cli.main import main
from headstone.kafka.distribution import Distribution
from headstone.kafka.outages import STORIES, play
from headstone.sim.stories import VARIANTS

STANDS_STILL = "stands still"


def test_all_four_corruptions_show_and_the_audit_names_them(
    distribution: Distribution, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, kept = str(distribution.libs.parent), tmp_path / "kept"
    assert main(["reproduce", "--kafka-home", home, "--keep", str(kept), "--output", "json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    served = {
        run["variant"]: [STANDS_STILL if replica["stuck"] else replica["table"] for replica in run["replicas"]]
        for run in runs
    }
    assert served == {
        "tombstone-divergence": [{}, {}, {"k": "v"}],
        "aborted-to-committed": [{"good": "data"}, {"good": "data"}, {"good": "data", "poison": "x"}],
        "committed-to-aborted": [{}, {}, {"k": "v"}],
        "stuck-read-committed": [{"k": "v2"}, {"k": "v2"}, STANDS_STILL],
    }
    assert all(run["corrupt"] and run["kafka"] == distribution.version and run["rules"] == "kafka" for run in runs)
    directories = [str(kept / "cluster" / f"broker-{number}" / "logs") for number in (1, 2, 3)]
    assert main(["audit", *directories, "--in-process", "--output", "json"]) == 1
    audited = json.loads(capsys.readouterr().out)["partitions"]
    found = {
        one["partition"]: [(finding["class"], directories.index(finding["replica"]) + 1, finding["key"])]
        for one in audited
        for finding in one["findings"]
    }
    assert found == {
        "tombstone-divergence-0": [("deleted-reappears", 3, "k")],
        "aborted-to-committed-0": [("aborted-as-committed", 3, "poison")],
        "committed-to-aborted-0": [("committed-hidden", 3, "k")],
        "stuck-read-committed-0": [("read-committed-frozen", 3, None)],
    }
    assert sum(len(one["findings"]) for one in audited) == 4


def test_nothing_goes_wrong_without_the_outage(distribution: Distribution, tmp_path: Path) -> None:
    outages = play(distribution, tmp_path, VARIANTS, tell=print, away=False)
    assert [(outage.variant, outage.wrong) for outage in outages] == [(variant, []) for variant in VARIANTS]
    directories = [str(tmp_path / "cluster" / f"broker-{number}" / "logs") for number in (1, 2, 3)]
    assert main(["audit", *directories, "--in-process"]) == 0


def test_real_and_simulated_stories_have_the_same_names() -> None:
    assert tuple(story.variant for story in STORIES) == VARIANTS


def test_coordinated_rules_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--kafka-home", str(tmp_path), "--rules", "coordinated"]) == 2
    assert "unmodified brokers" in capsys.readouterr().err


def test_a_folder_without_kafka_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--kafka-home", str(tmp_path)]) == 2
    assert "libs/kafka_2.13" in capsys.readouterr().err


def test_an_old_directory_is_not_reused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "kafka_2.13-4.3.1.jar").touch()
    assert main(["reproduce", "--kafka-home", str(tmp_path), "--keep", str(tmp_path)]) == 2
    assert "name a new directory" in capsys.readouterr().err
