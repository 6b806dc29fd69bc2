"""The command line as a user has it: processes, JSON on stdout, exit codes, messages that say what to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from headstone.cli.main import main
from tests.cli.scenes import HEADSTONE, answer, write_log
from tests.logs import files_of
from tests.oracle.files import read_partition

NOW = "5000"


def offsets_by_segment(partition: Path) -> list[list[int]]:
    return [[record.offset for batch in s.batches for record in batch.records] for s in read_partition(partition)]


def test_compact_out_answers_json_and_leaves_a_log_directory(tmp_path: Path) -> None:
    source = write_log(tmp_path / "in", "N[a,b] N[a] T[b] P1[c] C1 | N[d]")
    words = ["compact", source, "--out", tmp_path / "out", "--rules", "kafka", "--now-ms", NOW, "--output", "json"]
    done = subprocess.run([*HEADSTONE, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    partition = json.loads(done.stdout)["partitions"][0]
    wanted = {
        "partition": "orders-0", "dirty_start": 0, "dirty_end": 6, "records_before": 7, "records_after": 5, "keys": 3,
        "tombstones_kept": 1, "tombstones_removed": 0, "markers_kept": 1, "markers_removed": 0, "aborted_removed": 0,
    }  # fmt: skip
    assert {name: partition[name] for name in wanted} == wanted
    assert offsets_by_segment(tmp_path / "out" / "orders-0") == [[2, 3, 4, 5], [6]]
    assert (tmp_path / "out" / "cleaner-offset-checkpoint").read_text() == "0\n1\norders 0 6\n"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "cleaner-offset-checkpoint", "orders-0", "recovery-point-offset-checkpoint",
    ]  # fmt: skip


def test_coordinated_by_default_keeps_what_no_watermark_allows_to_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, first = write_log(tmp_path / "in", "N[a] T[a] | N[b]"), str(tmp_path / "1")
    words = ["--now-ms", NOW, "--delete-retention-ms", "1", "--engine", "process"]
    assert main(["compact", str(source), "--out", first, *words]) == 0
    assert "no watermarks" in capsys.readouterr().err
    later = ["--now-ms", "9000", "--dirty-from", "0", "--engine", "process"]
    for out, watermark, reason in (
        ("2", [], "tombstone: above MTRO"),
        ("3", ["--tombstones-below", "2"], "expired tombstone"),
    ):
        document = answer(capsys, "compact", first, "--out", tmp_path / out, *later, *watermark)
        assert document["partitions"][0]["reasons"][reason] == 1


def test_log_directories_may_be_called_like_partitions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("replica-1", "replica-2"):
        write_log(tmp_path / name, "N[a] T[a] | N[b]")
    document = answer(capsys, "compact", tmp_path / "replica-1", "--dry-run", "--peer", tmp_path / "replica-2")
    assert [partition["partition"] for partition in document["partitions"]] == ["orders-0"]
    assert main(["inspect", str(tmp_path)]) == 2
    assert "name them one by one (replica-1, replica-2)" in capsys.readouterr().err


def test_dry_run_and_eligible_say_why_without_writing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(tmp_path / "in", "N[a] N[a] | N[b]")
    (log / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 2\n")
    before = files_of(log)
    assert main(["compact", str(log), "--in-place", "--dry-run", "--eligible", "--rules", "kafka"]) == 0
    assert "nothing to clean: no cleanable bytes: first dirty offset 2" in capsys.readouterr().out
    assert files_of(log) == before


def test_inspect_counts_what_a_reader_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(tmp_path / "in", "N[a,b] T[b] P1[a] A1 P2[c]/zstd C2 | U P3[d]")
    facts = answer(capsys, "inspect", log)["partitions"][0]
    wanted = {
        "partition": "orders-0", "log_start": 0, "log_end": 9, "high_watermark": 9, "lso": 8, "records": 9, "keys": 2,
        "tombstones": 1, "markers": 2, "aborted_records": 1, "header_only_batches": 0, "batches": 8, "segments": 2,
        "codecs": ["none", "zstd"], "open_transactions": 1, "first_dirty": 0,
        "open_transaction_list": [{"producer_id": 3, "first_offset": 8}],
    }  # fmt: skip
    assert {name: facts[name] for name in wanted} == wanted


def test_inspect_of_a_torn_tail_names_file_position_and_offset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "in", "N[a] N[b]")
    victim = log / "orders-0" / ("0" * 20 + ".log")
    content = victim.read_bytes()
    victim.write_bytes(content[:-3])
    assert main(["inspect", str(log)]) == 2
    said = capsys.readouterr().err
    assert str(victim) in said
    assert f"position {len(content) // 2}, offset 1" in said
    assert "torn tail" in said


@pytest.mark.parametrize("codec", ["", "/zstd"])
def test_inspect_lists_only_the_records_in_the_range(
    codec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "in", f"N[a,b,c,d]{codec} N[e,f]{codec} P1[g] C1 | N[h,i]{codec}")
    listed = {}
    for chosen in ("2:5", "4:4097", ":3", "7:"):
        batches = answer(capsys, "inspect", log, "--records", "--offsets", chosen)["partitions"][0]["batch_list"]
        listed[chosen] = [
            (batch["base_offset"], batch["last_offset"], [record["offset"] for record in batch["records"]])
            for batch in batches
        ]
    first, second, data, marker = (0, 3), (4, 5, [4, 5]), (6, 6, [6]), (7, 7, [7])
    assert listed == {
        "2:5": [(*first, [2, 3]), (4, 5, [4])],
        "4:4097": [second, data, marker, (8, 9, [8, 9])],
        ":3": [(*first, [0, 1, 2])],
        "7:": [marker, (8, 9, [8, 9])],
    }


def test_inspect_of_one_offset_shows_one_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(tmp_path / "in", "N[a,b,c,d] N[e]")
    assert main(["inspect", str(log), "--records", "--offsets", "1:2"]) == 0
    said = capsys.readouterr().out
    assert "[0, 3] 4 records (1 of them in the range)" in said
    assert [line.strip().split(":")[0] for line in said.splitlines() if line.startswith("    ")] == ["1"]


def test_synth_is_deterministic(tmp_path: Path) -> None:
    for name in ("1", "2"):
        assert main(["synth", str(tmp_path / name), "--records", "500", "--transactions", "0.5", "--seed", "7"]) == 0
    assert files_of(tmp_path / "1") == files_of(tmp_path / "2")


def interrupted(source: Path) -> int:
    """Exit code of an in-place compaction that gets SIGINT as soon as it has made its work directory."""
    command = [*HEADSTONE, "compact", str(source), "--in-place"]
    # A shell starts what it puts in the background with SIGINT ignored, and children inherit that; not so a handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 60
    while not any(source.rglob(".headstone-*")) and time.monotonic() < deadline and process.poll() is None:
        os.sched_yield()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    return int(process.returncode)


def test_interrupted_in_the_middle_leaves_the_old_log_and_no_work_files(tmp_path: Path) -> None:
    """On a busy machine the signal may come when all is done: then another try, but not for ever."""
    for attempt in range(3):
        source = tmp_path / str(attempt)
        assert main(["synth", str(source), "--records", "3000"]) == 0
        before = files_of(source)
        code = interrupted(source)
        assert not list(source.rglob(".headstone-*"))
        if code == 3:
            assert files_of(source) == before
            return
        assert code == 0
    pytest.fail("three compactions ended before they could be interrupted")
