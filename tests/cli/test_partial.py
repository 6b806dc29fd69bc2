"""One bad partition hides nothing of the others: what is right, then what is not, then the exit code."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headstone.cli.main import main
from headstone.errors import CorruptLog, Unfinished, UsageError
from headstone.log.directory import is_in_use
from headstone.pipeline import inspection
from headstone.pipeline.failed_partition import FailedPartition, worst_exit_code
from headstone.pipeline.inspection import InspectWork, RecordCounts
from headstone.pipeline.progress import Meter
from tests.cli.scenes import answer, told, write_log
from tests.logs import HOLD, owner

NAMES = ("a-0", "b-0", "c-0")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for name in NAMES:
        write_log(tmp_path / "logs", "N[a] N[b] | T[a] N[c]", name)
    return tmp_path / "logs"


@pytest.fixture
def lake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["lake", "init", str(tmp_path / "lake")]) == 0
    capsys.readouterr()
    return str(tmp_path / "lake")


def spoil(partition: Path) -> Path:
    log = min(partition.glob("*.log"))
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)
    return log


def leave_unfinished(partition: Path) -> Path:
    log = partition / "00000000000000000000.log.cleaned"
    log.write_bytes(b"x")
    return log


def tear(partition: Path) -> Path:
    """The survey finds it, where the others are found by their tasks."""
    log = max(partition.glob("*.log"))
    log.write_bytes(log.read_bytes()[:-3])
    return log


def lose_a_segment(partition: Path) -> Path:
    log = max(partition.glob("*.log"))
    log.unlink()
    return log


@pytest.mark.parametrize("harm", [spoil, leave_unfinished, tear, lose_a_segment])
def test_inspect_tells_the_others_and_then_the_bad_one(
    harm: object, logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(harm)
    file = harm(logs / "b-0")
    document = answer(capsys, "inspect", logs, code=2)
    assert [(one["partition"], one["keys"]) for one in document["partitions"]] == [("a-0", 2), ("c-0", 2)]
    (failed,) = document["failed"]
    assert (failed["partition"], str(file) in failed["error"]) == ("b-0", True)
    if harm is not leave_unfinished:
        assert (failed["file"], isinstance(failed["position"], int), failed["offset"] >= 0) == (str(file), True, True)
    assert main(["inspect", str(logs)]) == 2
    captured = capsys.readouterr()
    assert [line.split()[0] for line in captured.out.splitlines() if not line.startswith(" ")] == ["a-0", "c-0"]
    assert captured.err.splitlines()[-2:] == [f"b-0: NOT read: {failed['error']}", "2 of 3 partitions read, 1 not"]


def test_inspect_of_nothing_but_bad_partitions_tells_each(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in NAMES:
        spoil(logs / name)
    document, lines = told(capsys, "inspect", logs, code=2)
    assert [one["partition"] for one in document["failed"]] == list(NAMES)
    assert len([line for line in lines if "NOT read" in line]) == 3


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ((), 0),
        ((OSError(13, "no"),), 3),
        ((Unfinished("later"), UsageError("wrong")), 2),
        ((UsageError("wrong"), OSError(5, "no")), 2),
    ],
)
def test_the_worst_of_many_failures_decides(errors: tuple[Exception, ...], code: int) -> None:
    assert worst_exit_code([FailedPartition(partition="t-0", error=error) for error in errors]) == code


def test_of_a_partition_in_shares_none_may_be_missing(
    logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each share of the keys is a reading of its own; the last one fails."""
    count, works = inspection.count_partition, inspection.inspect_works

    def in_two(*arguments: Any) -> list[InspectWork]:
        (work,) = works(*arguments)
        return [replace(work, share=share, shares=2) for share in (0, 1)]

    def failing(work: InspectWork, meter: Meter) -> RecordCounts:
        if work.share == 1 and "b-0" in work.segments[0].file.path:
            raise CorruptLog(file="f", position=1, offset=2, problem="gone bad")
        return count(work, meter)

    monkeypatch.setattr(inspection, "inspect_works", in_two)
    monkeypatch.setattr(inspection, "count_partition", failing)
    document = answer(capsys, "inspect", logs, code=2)
    assert [(one["partition"], one["keys"]) for one in document["partitions"]] == [("a-0", 2), ("c-0", 2)]


def test_what_is_appended_while_it_is_read_is_not_looked_at(
    logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A running controller appends to __cluster_metadata all the time."""
    survey = inspection.survey_each
    grown = max((logs / "b-0").glob("*.log"))

    def and_then(*arguments: object) -> object:
        surveys = survey(*arguments)  # type: ignore[arg-type]
        grown.write_bytes(grown.read_bytes() + b"half a batch")
        return surveys

    monkeypatch.setattr(inspection, "survey_each", and_then)
    document = answer(capsys, "inspect", logs, "--records")
    assert [(one["partition"], one["records"]) for one in document["partitions"]] == [(name, 4) for name in NAMES]


@pytest.mark.parametrize(
    "words",
    [
        "inspect {logs}",
        "inspect {logs}/a-0",
        "compact {logs} --out {logs}-out --engine process",
        "compact {logs} --dry-run",
        "audit {logs} {logs}-2",
        "lake ingest {lake} {logs}",
    ],
)
def test_a_running_brokers_directory_is_a_moments_view(
    words: str, logs: Path, lake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(logs, f"{logs}-2")
    with owner(HOLD, logs / ".lock"):
        assert is_in_use(logs)
        assert main(words.format(logs=logs, lake=lake).split()) == 0
    warning = f"warning: {logs}: a running broker holds {logs / '.lock'}; "
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith(warning)]


def test_nobody_is_said_to_run_where_nobody_does(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (logs / ".lock").touch()
    assert main(["inspect", str(logs)]) == 0
    assert capsys.readouterr().err == ""
    assert not is_in_use(logs)


def test_compact_tells_every_bad_partition_and_goes_on_with_the_same_command(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compact", logs, "--out", tmp_path / "out", "--engine", "process"]
    victim = logs / "b-0" / "00000000000000000000.log"
    content = victim.read_bytes()
    spoil(logs / "b-0")
    document, lines = told(capsys, *words, code=3)
    assert [one["partition"] for one in document["partitions"]] == ["a-0", "c-0"]
    assert [(one["partition"], one["file"]) for one in document["failed"]] == [("b-0", str(victim))]
    assert "b-0: NOT compacted: " in "\n".join(lines)
    assert "run the same command again" in "\n".join(lines)
    victim.write_bytes(content)
    document = answer(capsys, *words)
    assert ([one["partition"] for one in document["partitions"]], document["done_before"]) == (["b-0"], ["a-0", "c-0"])


def test_compact_of_nothing_but_bad_partitions_tells_each(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in NAMES:
        spoil(logs / name)
    assert main(["compact", str(logs), "--out", str(tmp_path / "out"), "--engine", "process"]) == 2
    said = capsys.readouterr().err
    assert [name for name in NAMES if str(logs / name) in said] == list(NAMES)


def test_ingest_tells_what_came_in_and_then_what_did_not(
    logs: Path, lake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = spoil(logs / "b-0")
    document, lines = told(capsys, "lake", "ingest", lake, logs, code=2)
    records = {one["partition"]: one["records"] for one in document["partitions"] if one["records"]}
    assert records == {"a-0": 4, "c-0": 4}
    assert [(one["partition"], one["file"]) for one in document["failed"]] == [("b-0", str(log))]
    assert f"b-0: NOT ingested completely: {log}" in "\n".join(lines)
    assert main(["lake", "ingest", lake, str(logs)]) == 2
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["a-0", "b-0", "c-0"]


def test_a_topic_that_is_another_one_keeps_no_other_out(
    logs: Path, lake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (logs / "b-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAQACAAAAAAAAAAQ")
    assert main(["lake", "ingest", lake, str(logs / "b-0")]) == 0
    (logs / "b-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAQACAAAAAAAAAAg")
    capsys.readouterr()
    assert main(["lake", "ingest", lake, str(logs)]) == 2
    captured = capsys.readouterr()
    assert [line.split(":")[0] for line in captured.out.splitlines()] == ["a-0", "c-0"]
    assert "b-0: NOT ingested completely: b: the lake has the topic with ID AAAAAAAAQACAAAAAAAAAAQ" in captured.err


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"version: 0", "no topic_id"),
        (b"version: 0\ntopic_id: AAAAAAAAQACA", "'AAAAAAAAQACA' is not a topic id"),
        (b"version: 0\n\xff", "not text"),
    ],
)
def test_a_partition_that_does_not_say_of_which_topic_it_is_keeps_no_other_out(
    content: bytes, why: str, logs: Path, lake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = logs / "b-0" / "partition.metadata"
    write_log(logs, "N[d]", "b-1")
    bad.write_bytes(content)
    document, lines = told(capsys, "lake", "ingest", lake, logs, "--topic-conf", "b:retention.ms=5", code=2)
    assert {one["partition"]: one["records"] for one in document["partitions"]} == {"a-0": 4, "b-1": 1, "c-0": 4}
    (failed,) = document["failed"]
    assert (failed["partition"], f"{bad}, line " in failed["error"], why in failed["error"]) == ("b-0", True, True)
    assert lines[-2:] == [
        f"b-0: NOT ingested completely: {failed['error']}", "3 of 4 partitions ingested completely, 1 not",
    ]  # fmt: skip
    assert '"retention.ms": "5"' in json.dumps(answer(capsys, "lake", "topics", lake, "describe", "b"))
    bad.unlink()
    capsys.readouterr()
    assert main(["lake", "ingest", lake, str(logs)]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["a-0", "b-0", "b-1", "c-0"]


def test_one_topic_with_two_ids_or_a_bad_checkpoint_keeps_no_other_out(
    logs: Path, lake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    for name, topic_id in (("b-0", "AAAAAAAAQACAAAAAAAAAAQ"), ("b-1", "AAAAAAAAQACAAAAAAAAAAg")):
        write_log(logs, "N[d]", name)
        (logs / name / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    write_log(other, "N[d]", "d-0")
    (other / "cleaner-offset-checkpoint").write_text("0\n7\nd 0 1\n")
    document = answer(capsys, "lake", "ingest", lake, logs, other, code=2)
    assert [one["partition"] for one in document["partitions"]] == ["a-0", "c-0"]
    failed = {one["partition"]: one["error"] for one in document["failed"]}
    assert sorted(failed) == ["b-0", "b-1", "d-0"]
    assert "partitions of different topics that have the same name" in failed["b-0"]
    assert str(other / "cleaner-offset-checkpoint") in failed["d-0"]


def test_audit_leaves_out_what_it_cannot_list_and_compares_the_rest(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(logs, tmp_path / "other")
    leave_unfinished(logs / "b-0")
    (tmp_path / "other" / "a-0" / "00000000000000000009.index").touch()
    document = answer(capsys, "audit", logs, tmp_path / "other", code=3)
    assert document["verdict"] == "incomplete"
    problems = {one["partition"]: len(one["problems"]) > 0 for one in document["partitions"]}
    assert problems == {"a-0": True, "b-0": True, "c-0": False}


@pytest.mark.parametrize("inside", [True, False], ids=["in its partition", "alone"])
def test_one_file_is_inspected_as_a_dump_does(
    inside: bool, logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = max((logs / "a-0").glob("*.log"), key=lambda path: path.stat().st_size)
    if not inside:
        file = Path(shutil.copy(file, tmp_path))
    (partition,) = answer(capsys, "inspect", file, "--records")["partitions"]
    assert (partition["partition"], partition["segments"]) == (f"{file.parent.name}/{file.name}", 1)
    assert {batch["file"] for batch in partition["batch_list"]} == {str(file)}
    assert sum(len(batch["records"]) for batch in partition["batch_list"]) == partition["records"] > 0


def test_a_file_of_the_current_directory_is_of_that_directory(
    logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = min((logs / "a-0").glob("*.log"))
    monkeypatch.chdir(logs / "a-0")
    assert main(["inspect", file.name]) == 0
    assert capsys.readouterr().out.startswith(f"a-0/{file.name}  ({logs / 'a-0'})")
    monkeypatch.chdir(logs / "b-0")
    document = answer(capsys, "inspect", f"../a-0/../b-0/../a-0/{file.name}")
    assert document["partitions"][0]["partition"] == f"a-0/{file.name}"


def test_one_segment_of_many_says_what_it_does_not_know(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = min((logs / "a-0").glob("*.log"))
    assert main(["inspect", str(file)]) == 0
    assert "one segment alone" in capsys.readouterr().out
