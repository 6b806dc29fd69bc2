"""What an audit says besides its findings: when, by what and of what; and that logs are not replicas of one partition."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from headstone import __version__
from headstone.cli.main import main
from headstone.divergence.identity import COMMON_MIN, different_contents, different_ids
from headstone.log.checkpoints import META_PROPERTIES, PARTITION_METADATA
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from tests.oracle.notation import History

NOW_MS = 1_795_000_000_000
HEALTHY = "N[a] N[b] T[a] N[c] | P1[d] C1 N[b] | N[e]"


def replica(root: Path, terms: str, name: str = "t-0") -> str:
    history = History()
    history.append(terms)
    history.write_partition(root, name)
    return str(root)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    return replica(tmp_path / "1", HEALTHY), replica(tmp_path / "2", HEALTHY)


def audit(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> Any:
    assert main(["audit", *words, "--engine", "process", "--output", "json", "--now-ms", str(NOW_MS)]) == code
    return json.loads(capsys.readouterr().out)


def test_a_clean_audit_is_evidence_as_text_as_json_and_as_a_page(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*pair, "--report", str(tmp_path / "audit.html")]
    document = audit(capsys, 0, *words)
    command = f"headstone audit {' '.join(words)} --engine process --output json --now-ms {NOW_MS}"
    wanted = {
        "verdict": "clean", "time_ms": NOW_MS, "time": "2026-11-18 11:06:40 UTC", "version": __version__,
        "command": command, "sources": list(pair), "left_out": [],
        "compared": {"replicas": list(pair), "partitions": 1, "keys": 5, "records": 14},
    }  # fmt: skip
    assert {name: document[name] for name in wanted} == wanted
    page = (tmp_path / "audit.html").read_text()
    text_of = (
        f"t-0: no findings; 5 keys compared below offset 8: {pair[0]} [0, 8) 7 records, {pair[1]} [0, 8) 7 records"
    )
    assert main(["audit", *words, "--engine", "process", "--now-ms", str(NOW_MS)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "clean: 1 partition, no findings",
        f"audited at 2026-11-18 11:06:40 UTC by headstone {__version__}: "
        f"headstone audit {' '.join(words)} --engine process --now-ms {NOW_MS}",
        f"replicas: {pair[0]}, {pair[1]} (of {pair[0]}, {pair[1]})",
        "compared: 5 keys, 14 records of all replicas",
        "left out: nothing",
        text_of,
    ]
    for evidence in (
        "no findings", "2026-11-18 11:06:40 UTC", f"headstone {__version__}", command, *pair, "5 keys, 14 records",
        "<th>left out</th><td>nothing</td>", "<td>t-0</td><td>none</td><td>5 keys below offset 8</td>", "[0, 8), LSO 8",
    ):  # fmt: skip
        assert evidence in page


def test_what_nobody_looked_at_is_left_out_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for root in (tmp_path / "1", tmp_path / "2"):
        for name in ("t-0", "u-0", "__cluster_metadata-0"):
            replica(root, "N[a] N[] N[b]" if name == "t-0" else "N[a]", name)
    document = audit(capsys, 0, str(tmp_path / "1"), str(tmp_path / "2"), "--topic", "t")
    assert document["left_out"][:2] == ["topic __cluster_metadata: the cluster's own", "topic u: not asked for"]
    assert [one["partition"] for one in document["partitions"]] == ["t-0"]


UNSAID = (
    "fewer than two replicas can say (written again where the others have not got to, in an open transaction, or before a "
    "log's start)"
)


def test_logs_of_which_nothing_could_be_set_against_each_other_are_not_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No offset in common, and one has written every key again behind the other's end: so may strangers have."""
    roots = [replica(tmp_path / "1", "+4 N[a] N[b] N[c]"), replica(tmp_path / "2", "N[a] N[b] N[c]")]
    document = audit(capsys, 3, *roots)
    (partition,) = document["partitions"]
    assert (document["verdict"], document["compared"]["keys"], partition["keys_unsaid"]) == ("incomplete", 0, 3)
    assert document["left_out"] == [f"3 keys: {UNSAID}"]
    nothing = (
        "nothing of it could be compared: no other replica has a record at the same offset, or can say something about the "
        "same key; if it only lags, audit again when it has caught up"
    )
    assert partition["problems"] == [f"{root}: {nothing}" for root in roots]


def test_a_stranger_beside_two_that_agree_was_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    later = "+4 N[a] N[b] N[c]"
    roots = [replica(tmp_path / name, terms) for name, terms in (("1", later), ("2", later), ("3", "N[a] N[b] N[c]"))]
    document = audit(capsys, 3, *roots)
    (partition,) = document["partitions"]
    assert (document["compared"]["keys"], document["left_out"]) == (3, [])
    assert [problem.split(": ")[:2] for problem in partition["problems"]] == [
        [roots[2], "nothing of it could be compared"]
    ]


def test_keys_that_are_written_all_the_time_are_left_out_and_leave_a_healthy_log_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One lags a little: whatever they hold in common was compared by offset."""
    roots = [replica(tmp_path / "1", "N[a] N[b] N[c] | N[a] N[b]"), replica(tmp_path / "2", "N[a] N[b] N[c]")]
    document = audit(capsys, 0, *roots)
    assert (document["compared"]["keys"], document["left_out"]) == (1, [f"2 keys: {UNSAID}"])


def test_secrets_of_the_command_are_not_evidence(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    secrets = ["--store-conf", "secret_access_key=hunter2", "--store-conf", "token=env:TOKEN", "--kafka-conf", "x=y"]
    document = audit(capsys, 0, *pair, *secrets)
    assert "--store-conf 'secret_access_key=***' --store-conf token=env:TOKEN --kafka-conf x=y" in document["command"]


IDS = ("AAAAAAAAQACAAAAAAAAAAQ", "AAAAAAAAQACAAAAAAAAAAg")


@pytest.mark.parametrize("what", ["topic", "cluster"])
def test_other_ids_are_different_logs_whatever_is_in_them(
    what: str, pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for root, number in zip(pair, IDS, strict=True):
        replica(Path(root), "N[x]", "u-0")
        if what == "topic":
            (Path(root) / "t-0" / PARTITION_METADATA).write_text(f"version: 0\ntopic_id: {number}\n")
        else:
            (Path(root) / META_PROPERTIES).write_text(f"version=1\ncluster.id={number}\nnode.id=1\n")
            (Path(root) / "replication-offset-checkpoint").write_text("0\n2\nt 0 8\nu 0 1\n")
    document = audit(capsys, 2, *pair, "--report", str(tmp_path / "audit.html"))
    assert document["verdict"] == "different-logs"
    different = {one["partition"]: one["different_logs"] for one in document["partitions"]}
    why = {"topic": "different topics of the same name: ", "cluster": "they are of different clusters: "}[what]
    assert different["t-0"].startswith(why)
    assert all(number in different["t-0"] for number in IDS)
    assert (different["u-0"] is None) == (what == "topic")
    assert all(one["findings"] == [] and one["problems"] == [] for one in document["partitions"])
    assert main(["audit", *pair, "--engine", "process"]) == 2
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("different-logs: 2 partitions")
    assert second.startswith(f"t-0: these are different logs, not replicas of one: {why}")
    page = (tmp_path / "audit.html").read_text()
    assert why in page
    uncovered = ["t-0: nothing was compared", "u-0: nothing was compared"][: 1 if what == "topic" else 2]
    assert document["left_out"] == uncovered
    compared = {"topic": "1 key, 2 records of all replicas", "cluster": "nothing"}[what]
    assert {f"compared: {compared}", f"left out: {'; '.join(uncovered)}"} < set(rest)
    assert f"<th>compared</th><td>{compared}</td>" in page


def samples(root: Path, *seeds: int) -> list[str]:
    roots = []
    for number, seed in enumerate(seeds):
        settings = SampleSettings(topic="t", records=1500, keys=300, tombstones=0.1, segment_bytes=50_000, seed=seed)
        roots.append(str(write_sample(root / str(number), settings)[0]))
        (Path(roots[-1]) / "t-0" / PARTITION_METADATA).unlink()
    return roots


def test_contents_that_differ_nearly_everywhere_are_no_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roots = samples(tmp_path, 1, 1, 2)
    document = audit(capsys, 2, *roots)
    (partition,) = document["partitions"]
    assert (document["verdict"], partition["findings"], partition["problems"]) == ("different-logs", [], [])
    assert partition["different_logs"].startswith("their contents differ nearly everywhere: at 1,")
    assert f"{roots[0]} and {roots[2]} have different records" in partition["different_logs"]
    assert main(["audit", *roots, "--engine", "process"]) == 2
    said = capsys.readouterr().out
    assert not [word for word in ("leading", "rebuild", "leader election") if word in said]


def test_findings_elsewhere_count_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roots = samples(tmp_path, 1, 2)
    replica(Path(roots[0]), "N[k] N[b] T[k] N[c] | N[z]", "u-0")
    replica(Path(roots[1]), "N[k] N[b] +1 N[c] | N[z]", "u-0")
    for root in roots:
        (Path(root) / "replication-offset-checkpoint").unlink(missing_ok=True)
    document = audit(capsys, 1, *roots)
    assert document["verdict"] == "diverged"
    assert {one["partition"]: len(one["findings"]) for one in document["partitions"]} == {"t-0": 0, "u-0": 1}


def test_a_diverged_tail_is_a_finding_and_no_other_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As after an unclean election: the same log up to some offset."""
    keys = random.Random(1).choices("abcdefgh", k=40)
    shared = " ".join(f"N[{key}]" for key in keys[:20])
    first = replica(tmp_path / "1", f"{shared} {' '.join(f'N[{key}]' for key in keys[20:])} | N[z]")
    second = replica(tmp_path / "2", f"{shared} {' '.join(f'N[{key}x]' for key in keys[20:])} | N[z]")
    document = audit(capsys, 1, first, second)
    assert (document["verdict"], document["partitions"][0]["different_logs"]) == ("diverged", None)


@pytest.mark.parametrize(
    ("common", "differing", "different"),
    [
        (COMMON_MIN, COMMON_MIN, True), (COMMON_MIN - 1, COMMON_MIN - 1, False), (1000, 900, True), (1000, 899, False),
        (0, 0, False),
    ],
)  # fmt: skip
def test_how_much_is_nearly_everywhere(common: int, differing: int, different: bool) -> None:
    assert (different_contents({("a", "b"): (1000, 0), ("a", "c"): (common, differing)}) is not None) == different


def test_what_nobody_has_told_is_no_difference() -> None:
    assert different_ids({"a": None, "b": "x"}, {"a": "t", "b": None, "c": "t"}) is None
    assert different_ids({"a": "x", "b": "y"}, {}) == (
        "they are of different clusters: a has cluster.id x, b has cluster.id y"
    )


def test_a_replica_whose_checkpoint_is_spoilt_hides_no_other_partition(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    third = str(tmp_path / "3")
    shutil.copytree(pair[0], third)
    (Path(third) / "cleaner-offset-checkpoint").write_text("nonsense")
    document = audit(capsys, 3, *pair, third)
    assert (document["verdict"], document["partitions"][0]["unread"]) == ("incomplete", [third])
    assert document["partitions"][0]["keys"] == 5
    assert document["left_out"] == [f"t-0 on {third}: not read"]
