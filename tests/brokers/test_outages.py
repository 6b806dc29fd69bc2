"""The four corruptions on real brokers, through the command line; and the same moves without an outage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headstone.brokers.client import KafkaClient
from headstone.brokers.distribution import Distribution
from headstone.brokers.outages import STORIES, play
from headstone.cli.main import main
from headstone.divergence.findings import FROZEN
from headstone.sim.variants import VARIANTS

STANDS_STILL = "stands still"


NAMED = {
    "tombstone-divergence-0": [("deleted-reappears", "k")],
    "aborted-to-committed-0": [("aborted-as-committed", "poison")],
    "committed-to-aborted-0": [("committed-hidden", "k")],
    "stuck-read-committed-0": [("read-committed-frozen", None)],
}


@pytest.fixture
def audited_live(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], dict[str, Any]]:
    """Audits the cluster over the wire when the story is over and its brokers still run; what that said."""
    told: dict[str, Any] = {}
    close = KafkaClient.close

    def audit_first(self: KafkaClient) -> None:
        before = capsys.readouterr().out
        told["exit"] = main(["audit", "--bootstrap", self.bootstrap, "--engine", "process", "--output", "json"])
        told.update(json.loads(capsys.readouterr().out))
        print(before, end="")
        close(self)

    monkeypatch.setattr(KafkaClient, "close", audit_first)
    return lambda: told


def test_all_four_corruptions_show_and_the_audit_names_them(
    distribution: Distribution, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    audited_live: Callable[[], dict[str, Any]],
) -> None:  # fmt: skip
    home, kept = str(distribution.libs.parent), tmp_path / "kept"
    assert main(["reproduce", "--kafka-home", home, "--keep", str(kept), "--output", "json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    live = audited_live()
    assert (live["exit"], live["verdict"]) == (1, "diverged")
    assert _found(live, "3", distribution) == NAMED
    (frozen,) = [one for part in live["partitions"] for one in part["findings"] if one["class"] == FROZEN]
    assert f"the broker itself says that it is open since offset {frozen['offset']}" in frozen["why"]
    assert frozen["producer_epoch"] is not None
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
    assert main(["audit", *directories, "--engine", "process", "--output", "json"]) == 1
    audited = json.loads(capsys.readouterr().out)["partitions"]
    assert _found({"partitions": audited}, directories[2], distribution) == NAMED


def _found(told: dict[str, Any], wrong: str, distribution: Distribution) -> dict[str, list[tuple[str, str | None]]]:
    """By partition; all of it on one replica."""
    findings = {one["partition"]: one["findings"] for one in told["partitions"] if one["findings"]}
    assert {finding["replica"] for some in findings.values() for finding in some} == {wrong}
    epochs_tell = distribution.version >= "4"
    return {
        name: [(_class(name, finding, epochs_tell), finding["key"]) for finding in some]
        for name, some in findings.items()
    }


def _class(partition: str, finding: dict[str, Any], epochs_tell: bool) -> str:
    """Transactions of version 2 raise the epoch, which shows that the ABORT is gone. Before, nothing is left of it: a
    tombstone that never came would leave the same logs, and the audit must tell both and decide for neither."""
    if epochs_tell or partition != "aborted-to-committed-0":
        return str(finding["class"])
    assert {finding["class"], finding["or_class"]} == {"aborted-as-committed", "deleted-reappears"}
    assert (finding["sure"], finding["or_replica"]) == ("undecided", finding["replica"])
    return "aborted-as-committed"


def test_nothing_goes_wrong_without_the_outage(
    distribution: Distribution, tmp_path: Path, audited_live: Callable[[], dict[str, Any]]
) -> None:
    outages = play(distribution, tmp_path, VARIANTS, tell=print, away=False)
    assert [(outage.variant, outage.wrong) for outage in outages] == [(variant, []) for variant in VARIANTS]
    directories = [str(tmp_path / "cluster" / f"broker-{number}" / "logs") for number in (1, 2, 3)]
    assert main(["audit", *directories, "--engine", "process"]) == 0
    assert (audited_live()["exit"], audited_live()["verdict"]) == (0, "clean")


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
