"""Kafka's small text files: what is written is what the oracle writes; what cannot be right names its line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headstone.errors import UsageError
from headstone.log.checkpoints import (
    read_leader_epochs,
    read_offsets,
    read_topic_id,
    write_leader_epochs,
    write_offsets,
    write_topic_id,
)
from tests.oracle import files

OFFSETS = {("orders", 0): 17, ("orders", 12): 2**62, ("a-b.c_d", 3): 0}


def test_offsets_are_written_for_the_oracle_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "cleaner-offset-checkpoint"
    write_offsets(path, OFFSETS)
    assert path.read_text() == f"0\n3\na-b.c_d 3 0\norders 0 17\norders 12 {2**62}\n"
    assert files.read_checkpoint(path.read_text()) == OFFSETS
    assert read_offsets(path) == OFFSETS
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "c"
    write_offsets(path, OFFSETS)
    write_offsets(path, {("t", 0): 1})
    assert path.read_text() == "0\n1\nt 0 1\n"
    write_offsets(path, {})
    assert (path.read_text(), read_offsets(path)) == ("0\n0\n", {})


def test_a_writer_that_is_killed_before_the_rename_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "c"
    write_offsets(path, OFFSETS)
    code = "import pathlib, sys; from headstone.log.checkpoints import *; write_offsets(pathlib.Path(sys.argv[1]), {})"
    env = {**os.environ, "HEADSTONE_FAILPOINT": "1"}
    assert subprocess.run([sys.executable, "-c", code, str(path)], env=env, check=False).returncode == -signal.SIGKILL
    assert read_offsets(path) == OFFSETS


@pytest.mark.parametrize("text", ["0\n1\nt 0 5\n", "0\n1\nt  0\t5", " 0 \n 1 \n  t 0 5  \n\n", "0\r\n1\r\nt 0 5\r\n"])
def test_any_whitespace_is_accepted(text: str, tmp_path: Path) -> None:
    (tmp_path / "c").write_text(text)
    assert read_offsets(tmp_path / "c") == {("t", 0): 5}


def test_a_missing_or_empty_file_has_no_entries(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    assert read_offsets(tmp_path / "empty") == read_offsets(tmp_path / "missing") == {}


@pytest.mark.parametrize(
    ("content", "line", "found"),
    [
        (b"1\n0\n", 1, "unknown version '1'"),
        (b"\n", 1, "unknown version ''"),
        (b"\xff\xfe\n", 1, "not text"),
        (b"0\n", 2, "no entry count"),
        (b"0\nmany\n", 2, "'many' is not a number of 64 bits"),
        (b"0\n2\nt 0 5\n", 2, "says 2 but has 1 entry"),
        (b"0\n0\nt 0 5\n", 2, "says 0 but has 1 entry"),
        (b"0\n1\nt 5\n", 3, "expected 'topic partition offset'"),
        (b"0\n2\nt 0 5\nt 1 5 6\n", 4, "expected 'topic partition offset'"),
        (b"0\n1\nt x 5\n", 3, "'x' is not a number of 64 bits"),
        (b"0\n1\nt 0 5.0\n", 3, "'5.0' is not a number of 64 bits"),
    ],
)
def test_a_file_that_cannot_be_right_names_its_line(content: bytes, line: int, found: str, tmp_path: Path) -> None:
    path = tmp_path / "cleaner-offset-checkpoint"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_offsets(path)
    assert (
        str(caught.value)
        == f"{path}, line {line}: {found}; restore the file from a backup: what it says protects records"
    )


def test_leader_epochs_are_read_and_written_as_the_oracle_does(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    epochs = [(0, 0), (3, 100), (7, 2**40)]
    write_leader_epochs(path, epochs)
    assert path.read_text() == files.write_leader_epochs(epochs)
    assert read_leader_epochs(path) == epochs
    assert read_leader_epochs(tmp_path / "missing") == []


@pytest.mark.parametrize("line", ["3", "3 100 5"])
def test_a_leader_epoch_line_has_two_fields(line: str, tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text(f"0\n1\n{line}\n")
    with pytest.raises(UsageError):
        read_leader_epochs(path)


def test_the_topic_id_is_read_and_written_as_the_oracle_does(tmp_path: Path) -> None:
    path = tmp_path / "partition.metadata"
    write_topic_id(path, "AAAAAAAAQACAAAAAAAAAAQ")
    assert path.read_text() == files.write_partition_metadata("AAAAAAAAQACAAAAAAAAAAQ")
    assert read_topic_id(path) == "AAAAAAAAQACAAAAAAAAAAQ"
    assert read_topic_id(tmp_path / "missing") is None
    path.write_text("version: 0\n")
    with pytest.raises(UsageError, match="no topic_id"):
        read_topic_id(path)
