"""What `compact` refuses or leaves alone in a broker's log directory. In process: no Spark is needed to refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.errors import CorruptLog, UsageError
from headstone.log.checkpoints import HIGH_WATERMARK, LOG_START, RECOVERY_POINT, read_offsets, write_offsets
from headstone.log.directory import find_partitions
from headstone.pipeline.compaction import CompactionResult
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.inspection import inspect
from headstone.retention.policy import Policy
from tests.logs import compact_here, files_of, nobody, offsets_of, write_log
from tests.oracle.files import read_partition


def run(*roots: Path, told: list[str] | None = None, **settings: object) -> CompactionResult:
    return compact_here(*roots, tell=nobody if told is None else told.append, **settings)


def as_broker(root: Path, **checkpoints: dict[tuple[str, int], int]) -> Path:
    """The files of a cleanly stopped broker; all that is there was replicated."""
    (root / "meta.properties").write_text("version=1\n")
    (root / ".kafka_cleanshutdown").write_text("{}")
    found = [path.name.rpartition("-") for path in root.iterdir() if path.is_dir()]
    write_offsets(root / HIGH_WATERMARK, {(topic, int(number)): 99 for topic, _, number in found if number.isdigit()})
    for name, offsets in checkpoints.items():
        write_offsets(root / f"{name.replace('_', '-')}-checkpoint", offsets)
    return root


def offsets(root: Path, name: str = "t-0") -> list[int]:
    return offsets_of(root / name)


def test_keyless_records_in_a_brokers_directory_stop_the_run(tmp_path: Path) -> None:
    as_broker(write_log(tmp_path, "U N[a] N[a] |"))
    with pytest.raises(UsageError, match="--drop-keyless"):
        run(tmp_path, topics=("t",))
    assert offsets(tmp_path) == [0, 1, 2]
    run(tmp_path, topics=("t",), drop_keyless=True)
    assert offsets(tmp_path) == [2]


def test_the_metadata_log_is_never_compacted_but_copied(tmp_path: Path) -> None:
    source = write_log(tmp_path / "in", "N[a] N[a] |")
    write_log(source, "N[m] N[m] |", "__cluster_metadata-0")
    (source / "__cluster_metadata-0" / "quorum-state").write_text("{}")
    run(source, out=tmp_path / "out")
    assert (offsets(tmp_path / "out"), offsets(tmp_path / "out", "__cluster_metadata-0")) == ([1], [0, 1])
    assert (tmp_path / "out" / "__cluster_metadata-0" / "quorum-state").exists()


def events_and_tables(root: Path) -> Path:
    """A topic that the cleaner knows, and one that it has never seen."""
    for name in ("events-0", "events-1", "table-0", "table-1"):
        write_log(root, "N[a] N[a] | N[b]", name)
    return as_broker(root, cleaner_offset={("table", 1): 0})


LEFT = (
    "events is left as it is (2 partitions): nothing says that it is a compacted topic; "
    "name it if it is compacted (--topic; topics in a program), or say --all-topics (all_topics)"
)


@pytest.mark.parametrize(
    ("settings", "compacted", "left"),
    [
        ({}, ["table-0", "table-1"], [LEFT]),
        ({"topics": ("events",)}, ["events-0", "events-1"], []),
        ({"all_topics": True}, ["events-0", "events-1", "table-0", "table-1"], []),
    ],
)
def test_in_a_brokers_directory_a_topic_needs_a_reason(
    settings: dict[str, object], compacted: list[str], left: list[str], tmp_path: Path
) -> None:
    told: list[str] = []
    run(events_and_tables(tmp_path), told=told, **settings)
    names = ("events-0", "events-1", "table-0", "table-1")
    assert [name for name in names if offsets(tmp_path, name) == [1, 2]] == compacted
    assert [name for name in names if offsets(tmp_path, name) == [0, 1, 2]] == [n for n in names if n not in compacted]
    assert [line for line in told if "is left as it is" in line] == left


def test_a_partition_named_by_its_path_needs_a_reason_too(tmp_path: Path) -> None:
    """`compact LOGDIR/*` names everything."""
    root = events_and_tables(tmp_path)
    with pytest.raises(UsageError, match="nothing to compact"):
        run(root / "events-0")
    run(root / "events-0", root / "table-0")
    assert (offsets(root, "events-0"), offsets(root, "table-0")) == ([0, 1, 2], [1, 2])


def test_what_is_left_is_copied_to_a_new_log_directory_with_its_offsets(tmp_path: Path) -> None:
    source = events_and_tables(tmp_path / "in")
    write_offsets(source / LOG_START, {("events", 1): 1})
    write_offsets(source / RECOVERY_POINT, {("events", 0): 2, ("table", 0): 1})
    (source / "events-0" / ".headstone-w0").mkdir()
    run(source, out=tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == [
        "events-0", "events-1", "table-0", "table-1",
    ]  # fmt: skip
    for name in ("events-0", "events-1"):
        assert files_of(tmp_path / "out" / name) == files_of(source / name)
    assert read_offsets(tmp_path / "out" / LOG_START) == {("events", 1): 1}
    assert read_offsets(tmp_path / "out" / HIGH_WATERMARK) == read_offsets(source / HIGH_WATERMARK)
    ends = {("events", 0): 2, ("table", 0): 3, ("table", 1): 3}
    assert read_offsets(tmp_path / "out" / RECOVERY_POINT) == ends


@pytest.mark.parametrize("settings", [{}, {"topics": ("t",)}, {"all_topics": True}])
def test_a_partition_with_a_copy_on_its_way_to_another_disk_is_left(
    settings: dict[str, object], tmp_path: Path
) -> None:
    for name in ("t-0", "t-1"):
        write_log(tmp_path / "1", "N[a] N[a] | N[b]", name)
    copy = "t-1." + "0" * 32 + "-future"
    write_log(tmp_path / "2", "N[a]", copy)
    told: list[str] = []
    run(tmp_path / "1", tmp_path / "2", told=told, **settings)
    assert (offsets(tmp_path / "1", "t-0"), offsets(tmp_path / "1", "t-1")) == ([1, 2], [0, 1, 2])
    assert [line for line in told if "left" in line] == [
        f"t-1 is left as it is: {tmp_path / '2' / copy} is a copy of it that is being moved there; "
        "start the broker and let it finish"
    ]


def transactional(root: Path) -> list[int]:
    return [b.last_offset for s in read_partition(root / "t-0") for b in s.batches if b.transactional and not b.control]


def test_data_of_a_transaction_in_which_a_peer_stopped_stays_transactional(tmp_path: Path) -> None:
    mine = write_log(tmp_path / "1", "P2[y] C2 P1[a] P1[b] P1[c] C1 N[z] |")
    behind = write_log(tmp_path / "2", "P2[y] C2 P1[a] P1[b]")
    run(mine, peers=(behind,))
    assert transactional(mine) == [2, 3, 4]


def test_without_peers_nothing_becomes_plain(tmp_path: Path) -> None:
    mine = write_log(tmp_path, "P1[a] C1 N[z] |")
    run(mine)
    assert transactional(mine) == [0]


def clean_stop(source: Path, *, clean: bool) -> Path:
    as_broker(source, cleaner_offset={("t", 0): 0, ("t", 1): 0})
    if not clean:
        (source / ".kafka_cleanshutdown").unlink()
    return source


@pytest.mark.parametrize("at_once", [True, False], ids=["one run", "two runs"])
@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_new_log_directory_is_clean_only_if_all_its_sources_were(
    first: bool, second: bool, at_once: bool, tmp_path: Path
) -> None:
    one = clean_stop(write_log(tmp_path / "1", "N[a] N[a] | N[b]", "t-0"), clean=first)
    two = clean_stop(write_log(tmp_path / "2", "N[a] N[a] | N[b]", "t-1"), clean=second)
    for sources in [(one, two)] if at_once else [(one,), (two,)]:
        run(*sources, out=tmp_path / "out")
    assert (tmp_path / "out" / "meta.properties").exists()
    assert (tmp_path / "out" / ".kafka_cleanshutdown").exists() == (first and second)


def test_a_tear_inside_the_log_tells_what_recovery_would_cost(tmp_path: Path) -> None:
    write_log(tmp_path, "N[a] N[b] | N[c] N[d] | N[e] | N[f]")
    victim = tmp_path / "t-0" / f"{2:020d}.log"
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(CorruptLog) as raised:
        run(tmp_path)
    assert raised.value.offset == 3
    assert raised.value.advice == (
        "restore the file from a replica: a broker that recovers the log cuts it here and deletes the 2 segments behind "
        "it, offsets from 4 on"
    )


def test_a_tear_at_the_end_of_the_log_is_what_recovery_is_for(tmp_path: Path) -> None:
    write_log(tmp_path, "N[a] N[b] | N[c] N[d]")
    victim = tmp_path / "t-0" / f"{2:020d}.log"
    size = victim.stat().st_size // 2
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(CorruptLog) as raised:
        inspect(find_partitions([tmp_path]), Policy(now_ms=0), InProcess(), None)
    assert raised.value.advice == (
        "start the broker once so that it recovers the log, or restore the file from a replica: "
        f"recovery drops the {size - 1} bytes from here on"
    )


@pytest.mark.parametrize(
    ("log", "checkpoint", "told"),
    [
        ("N[a] | N[b] | N[c]", None, None),
        ("N[a] | +4 N[b] | N[c]", None, None),
        ("N[a] +4 | N[b] | N[c]", None, "the offsets 1 to 4, and no cleaner has been there (first dirty offset 0)"),
        ("N[a] +4 | N[b] +1 | N[c]", None, "the offsets 1 to 4 (and 1 more such gaps), and"),
        ("N[a] +4 | N[b] | N[c]", 5, None),
        ("N[a] +4 | N[b] | N[c]", 4, "the offsets 1 to 4, and no cleaner has been there (first dirty offset 4)"),
    ],
)
def test_offsets_missing_between_segments_where_nothing_was_cleaned_are_told(
    log: str, checkpoint: int | None, told: str | None, tmp_path: Path
) -> None:
    write_log(tmp_path, log)
    if checkpoint is not None:
        write_offsets(tmp_path / "cleaner-offset-checkpoint", {("t", 0): checkpoint})
    facts = inspect(find_partitions([tmp_path]), Policy(now_ms=0), InProcess(), None)[0].as_json()["notes"]
    lines: list[str] = []
    run(tmp_path, told=lines)
    wanted = [] if told is None else [told]
    for notes in (facts, lines):
        gaps = [note for note in notes if "no segment holds" in note]
        assert len(gaps) == len(wanted)
        assert all(want in gap for want, gap in zip(wanted, gaps, strict=True))


DAY_MS = 24 * 3600 * 1000
WRITTEN_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("now_ms", "refused"),
    [
        (WRITTEN_MS // 1000, "lies 19,656 days before the newest record, 2023-11-14 22:13:20 UTC"),
        (WRITTEN_MS - DAY_MS - 1, "lies 1 day before the newest record"),
        (WRITTEN_MS - DAY_MS, None),
        (WRITTEN_MS + 36_525 * DAY_MS, None),
        (WRITTEN_MS * 1000, "days behind the newest record"),
    ],
)
def test_a_clock_in_another_unit_is_refused(now_ms: int, refused: str | None, tmp_path: Path) -> None:
    write_log(tmp_path, f"N[a]@{WRITTEN_MS} N[a]@{WRITTEN_MS - 5} | N[z]@{WRITTEN_MS - 9}")
    policy = Policy(now_ms=now_ms)
    if refused is None:
        run(tmp_path, policy=policy, clock_given=True)
        assert offsets(tmp_path) == [1, 2]
        return
    with pytest.raises(UsageError) as raised:
        run(tmp_path, policy=policy, clock_given=True)
    assert refused in str(raised.value)
    assert offsets(tmp_path) == [0, 1, 2]


def test_records_without_timestamps_say_nothing_about_a_clock(tmp_path: Path) -> None:
    run(write_log(tmp_path, "N[a]@-1 N[a]@-1 | N[z]@-1"), clock_given=True)
    assert offsets(tmp_path) == [1, 2]
