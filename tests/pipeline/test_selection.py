"""Topics of a stopped broker by the cluster's metadata log: which are compacted, and with whose settings. In process."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headstone.cli.compact import request
from headstone.cli.main import parser
from headstone.cli.output import Output
from headstone.errors import UsageError
from headstone.log.checkpoints import write_offsets, write_topic_id
from headstone.log.cluster_metadata import read_cluster_metadata
from headstone.log.directory import as_partition
from headstone.pipeline.compaction import CompactionResult, compact
from headstone.pipeline.inprocess import InProcess
from headstone.retention.settings import FIELDS
from tests.logs import HOLD, compact_here, nobody, offsets_of, owner, write_log
from tests.oracle.files import read_partition

CAPTURED = Path(__file__).resolve().parent.parent / "captured" / "metadata-4.3.1" / "__cluster_metadata-0"
LOG = "N[a] T[a] | N[b] | N[z]"
TOPICS = ("both", "events", "gone", "plain", "stranger", "table")
"""`stranger` is not in the metadata; see tests/log/test_cluster_metadata.py for the others."""
HINT = "name it if it is compacted (--topic; topics in a program), or say --all-topics (all_topics)"


def brokers_directory(root: Path) -> Path:
    """After a clean stop; the metadata log is elsewhere."""
    directory = as_partition(CAPTURED)
    assert directory is not None
    topic_ids = read_cluster_metadata(directory).topic_ids
    for topic in TOPICS:
        write_log(root, LOG, f"{topic}-0")
        write_topic_id(root / f"{topic}-0" / "partition.metadata", topic_ids.get(topic, "AAAAAAAAAAAAAAAAAAAAAA"))
    write_offsets(root / "replication-offset-checkpoint", {(topic, 0): 4 for topic in TOPICS})
    (root / "meta.properties").write_text("version=1\nnode.id=1\n")
    (root / ".kafka_cleanshutdown").write_text("{}")
    return root


def with_metadata(root: Path) -> Path:
    shutil.copytree(CAPTURED, root / CAPTURED.name)
    return root


def run(*arguments: str | Path) -> tuple[dict[str, list[int]], list[str]]:
    """Offsets left by topic, and what was told; options as on the command line, but no Spark."""
    given = parser().parse_args(["compact", *map(str, arguments), "--in-place", "--now-ms", "5000"])
    told: list[str] = []
    compact(request(given, Output()), InProcess(), told.append)
    left = {topic: offsets_of(Path(arguments[0]) / f"{topic}-0") for topic in TOPICS}
    return left, [line for line in told if "left as it is" in line and "__cluster_metadata" not in line]


def run_out(root: Path, out: Path) -> CompactionResult:
    given = parser().parse_args(["compact", str(root), "--out", str(out), "--now-ms", "5000"])
    return compact(request(given, Output()), InProcess(), nobody)


WHOLE, COMPACTED = [0, 1, 2, 3], [1, 2, 3]
LEFT = {
    "events": "its cleanup.policy is 'delete'; ",
    "gone": "its cleanup.policy is 'delete'; ",
    "plain": "nothing says that it is a compacted topic; ",
    "stranger": "the cluster's metadata knows no such topic; start the broker so that it removes it, or ",
}


def left_lines(*topics: str) -> list[str]:
    return [f"{topic} is left as it is (1 partition): {LEFT[topic]}{HINT}" for topic in topics]


def test_compacted_topics_are_those_of_the_metadata_log(tmp_path: Path) -> None:
    left, told = run(with_metadata(brokers_directory(tmp_path)))
    assert {topic for topic in TOPICS if left[topic] == COMPACTED} == {"both", "table"}
    assert {topic for topic in TOPICS if left[topic] == WHOLE} == set(LEFT)
    assert told == left_lines(*LEFT)


def test_the_metadata_log_may_be_in_another_directory_that_is_given(tmp_path: Path) -> None:
    left, told = run(brokers_directory(tmp_path / "1"), with_metadata(tmp_path / "2"))
    assert {topic for topic in TOPICS if left[topic] == COMPACTED} == {"both", "table"}
    assert told == left_lines(*LEFT)


def test_the_cleaner_decides_only_where_the_metadata_is_silent(tmp_path: Path) -> None:
    root = with_metadata(brokers_directory(tmp_path))
    write_offsets(root / "cleaner-offset-checkpoint", {(topic, 0): 0 for topic in TOPICS})
    left, told = run(root)
    assert {topic for topic in TOPICS if left[topic] == COMPACTED} == {"both", "plain", "table"}
    assert told == left_lines("events", "gone", "stranger")


def test_the_folder_of_a_topic_that_was_created_anew_is_left(tmp_path: Path) -> None:
    root = with_metadata(brokers_directory(tmp_path))
    write_topic_id(root / "table-0" / "partition.metadata", "AAAAAAAAAAAAAAAAAAAAAA")
    left, told = run(root)
    assert left["table"] == WHOLE
    assert f"table is left as it is (1 partition): {LEFT['stranger']}{HINT}" in told


def test_a_partition_of_nobody_knows_which_topic_keeps_no_other_out(tmp_path: Path) -> None:
    root = with_metadata(brokers_directory(tmp_path / "logs"))
    (root / "both-0" / "partition.metadata").write_text("version: 0")
    result = run_out(root, tmp_path / "out")
    assert [report.partition for report in result.partitions] == ["table-0"]
    assert [(failed.partition, "no topic_id" in str(failed.error)) for failed in result.failed] == [("both-0", True)]
    assert not (tmp_path / "out" / "both-0").exists()
    (root / "table-0" / "partition.metadata").write_text("version: 0")
    with pytest.raises(UsageError, match="no topic_id"):
        run(root)


def test_a_metadata_log_that_is_being_written_tells_what_is_whole(tmp_path: Path) -> None:
    root = with_metadata(brokers_directory(tmp_path / "logs"))
    log = max((root / CAPTURED.name).glob("*.log"))
    log.write_bytes(log.read_bytes() + log.read_bytes()[:30])
    with owner(HOLD, root / ".lock"):
        result = run_out(root, tmp_path / "out")
    assert ([report.partition for report in result.partitions], result.failed) == (["both-0", "table-0"], [])


def test_topics_that_are_named_are_compacted_whatever_the_metadata_says(tmp_path: Path) -> None:
    left, told = run(with_metadata(brokers_directory(tmp_path)), "--topic", "events", "--topic", "stranger")
    assert {topic for topic in TOPICS if left[topic] == COMPACTED} == {"events", "stranger"}
    assert told == []


def test_a_metadata_log_that_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    root = with_metadata(brokers_directory(tmp_path))
    write_offsets(root / "cleaner-offset-checkpoint", {("table", 0): 0})
    newest = max((root / CAPTURED.name).glob("*.checkpoint"))
    newest.write_bytes(newest.read_bytes()[:-1])
    left, _ = run(root)
    assert {topic for topic in TOPICS if left[topic] == COMPACTED} == {"table"}


def horizons(path: Path) -> list[int]:
    return [b.base_timestamp for s in read_partition(path) for b in s.batches if b.horizon_ms is not None]


@pytest.mark.parametrize(
    ("options", "table", "both"),
    [
        ((), 5000 + 1234, 5000 + 777),
        (("--delete-retention-ms", "86400000"), 5000 + 86_400_000, 5000 + 86_400_000),
    ],
)
def test_topics_have_their_own_settings_and_options_win(
    options: tuple[str, ...], table: int, both: int, tmp_path: Path
) -> None:
    """`table` has its own retention of tombstones, `both` that of all brokers; an option given as the default is given."""
    root = with_metadata(brokers_directory(tmp_path))
    run(root, *options)
    assert (horizons(root / "table-0"), horizons(root / "both-0")) == ([table], [both])


def test_a_call_that_asks_for_no_settings_gets_none(tmp_path: Path) -> None:
    root = with_metadata(brokers_directory(tmp_path))
    given = request(parser().parse_args(["compact", str(root), "--in-place", "--now-ms", "5000"]), Output())
    assert given.settings_from_cluster == FIELDS
    compact_here(root, policy=given.policy)
    assert horizons(root / "table-0") == [5000 + given.policy.delete_retention_ms]
