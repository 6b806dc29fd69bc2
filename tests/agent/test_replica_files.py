"""What a replica's files say while somebody changes them: the truth or less, and never an end of the reader."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from headstone.agent import replica_files
from headstone.agent.deletions import EMPTIED, MARKER, TOMBSTONE, deletions_in
from headstone.agent.replica_files import FileFacts, ReplicaReader, Unsettled
from headstone.coordination.watermarks import ReplicaWatermarks
from headstone.log import checkpoints
from headstone.log.directory import PartitionDir
from headstone.log.reading import chunk_of
from headstone.pipeline.planning import replica_watermarks, survey_directory
from headstone.sim.batches import marker_batch
from tests.agent.broker_directory import BrokerDirectory
from tests.oracle.batches import Batch, Record, encode
from tests.oracle.notation import TOPIC_ID, History

NAME = "orders-0"


@pytest.fixture
def broker(tmp_path: Path) -> BrokerDirectory:
    return BrokerDirectory(tmp_path / "logs")


def marks(mcco: int, mxfo: int) -> ReplicaWatermarks:
    return ReplicaWatermarks(mcco=mcco, mxfo=mxfo)


def test_everything_a_replica_says(broker: BrokerDirectory) -> None:
    directory = broker.append(NAME, "N[a] N[b] | N[a,c] | N[d]")
    broker.cleaned(NAME, 2)
    facts = ReplicaReader(directory).look()
    assert facts == FileFacts(
        life=facts.life, topic_id=TOPIC_ID, log_start=0, log_end=5, high_watermark=5, cleaner_checkpoint=2, free_until=5
    )
    assert facts.watermarks == marks(2, 5)


@pytest.mark.parametrize(
    "terms",
    ["N[a] | N[b]", "N[a] P1[b] C1 | N[c]", "N[a] | N[b] | P1[c] A1", "I1[a] | C1 N[b]", "P1[a] | C1", "| N[a]", ""],
)
@pytest.mark.parametrize("cleaned", [None, 0, 1, 99])
def test_a_stopped_replica_proves_the_same_to_compact(broker: BrokerDirectory, terms: str, cleaned: int | None) -> None:
    directory = broker.append(NAME, terms)
    if cleaned is not None:
        broker.cleaned(NAME, cleaned)
    survey, _ = survey_directory(directory)
    assert ReplicaReader(directory).look().watermarks == replica_watermarks(directory, survey)


def test_nothing_above_the_high_watermark_is_claimed(broker: BrokerDirectory) -> None:
    directory = broker.append(NAME, "N[a] N[b] N[c]")
    broker.checkpoint(checkpoints.HIGH_WATERMARK, NAME, 2)
    facts = ReplicaReader(directory).look()
    assert (facts.log_end, facts.watermarks) == (3, marks(0, 2))
    (broker.root / checkpoints.HIGH_WATERMARK).unlink()
    assert ReplicaReader(directory).look().watermarks == marks(0, 0)


def test_a_high_watermark_that_steps_back_takes_no_proof_back(broker: BrokerDirectory) -> None:
    reader = ReplicaReader(broker.append(NAME, "N[a] N[b] N[c]"))
    assert reader.look().watermarks.mxfo == 3
    broker.checkpoint(checkpoints.HIGH_WATERMARK, NAME, 1)
    assert reader.look().watermarks.mxfo == 3


def test_below_the_log_start_nothing_is_held(broker: BrokerDirectory) -> None:
    directory = broker.append(NAME, "P1[a] C1 | N[b]")
    broker.checkpoint(checkpoints.LOG_START, NAME, 2)
    assert ReplicaReader(directory).look().watermarks == marks(2, 2)


def test_what_is_appended_later_is_read_on(broker: BrokerDirectory) -> None:
    reader = ReplicaReader(broker.append(NAME, "N[a]"))
    assert reader.look().log_end == 1
    broker.append(NAME, "N[b] N[c] |")
    broker.append(NAME, "N[d]")
    assert (reader.look().log_end, reader.look().watermarks) == (4, marks(0, 4))
    broker.append(NAME, "P1[e]")
    assert (reader.look().log_end, reader.look().watermarks) == (5, marks(0, 4))


def test_only_what_changed_is_read_again(broker: BrokerDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = broker.append(NAME, "N[a] N[b] | N[c] N[d] | N[e]")
    reads: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: reads.append(size) or pread(fd, size, at))  # type: ignore[func-returns-value]
    reader = ReplicaReader(directory)
    reader.look()
    assert reads
    reads.clear()
    reader.look()
    assert reads == []
    broker.append(NAME, "N[f]")
    reader.look()
    assert len(reads) == 3, "the last batch is still there, the new one, its checksum"


def test_a_look_reads_so_many_headers_and_the_next_one_goes_on(broker: BrokerDirectory) -> None:
    reader = ReplicaReader(broker.append(NAME, "N[a] N[b] N[c] | N[d] N[e] | N[f]"), headers_max=2)
    assert [reader.look().watermarks.mxfo for _ in range(3)] == [2, 4, 6]


@pytest.mark.parametrize("left", [1, 20, 60, 80])
def test_a_torn_tail_is_not_there(broker: BrokerDirectory, left: int) -> None:
    directory = broker.append(NAME, "N[a] N[b]")
    file = broker.segment(NAME, 0)
    size = len(file.read_bytes()) // 2
    os.truncate(file, size + min(left, size - 1))
    facts = ReplicaReader(directory).look()
    assert (facts.log_end, facts.watermarks) == (1, marks(0, 1))


def test_a_last_batch_of_zeros_is_not_there(broker: BrokerDirectory) -> None:
    """As a file system may leave it after a crash; and as a broker preallocates files."""
    directory = broker.append(NAME, "N[a] N[b]")
    file = broker.segment(NAME, 0)
    content = file.read_bytes()
    file.write_bytes(content[:-4] + bytes(4))
    assert ReplicaReader(directory).look().log_end == 1
    file.write_bytes(content + bytes(4096))
    assert ReplicaReader(directory).look().log_end == 2


def test_a_truncated_log_proves_less_and_grows_to_another(broker: BrokerDirectory) -> None:
    reader = ReplicaReader(broker.append(NAME, "N[a] N[b] N[c]"))
    assert reader.look().watermarks.mxfo == 3
    broker.histories[NAME] = History(leader_epoch=1)
    broker.append(NAME, "N[a]")
    assert (reader.look().log_end, reader.look().watermarks) == (1, marks(0, 1))
    broker.append(NAME, "P1[b] N[c] N[d]")
    assert (reader.look().log_end, reader.look().watermarks) == (4, marks(0, 1))


def test_a_log_that_was_truncated_and_grew_between_two_looks_is_read_anew(broker: BrokerDirectory) -> None:
    reader = ReplicaReader(broker.append(NAME, "N[a] N[b] N[c]"))
    reader.look()
    broker.histories[NAME] = History(leader_epoch=1)
    broker.append(NAME, "N[a] P1[b] N[c] N[d]")
    assert (reader.look().log_end, reader.look().watermarks) == (4, marks(0, 1))


def test_cleaned_segments_are_read_anew(broker: BrokerDirectory) -> None:
    """Aborted data goes: MXFO rises."""
    reader = ReplicaReader(broker.append(NAME, "P1[a] A1 | N[b]"))
    assert reader.look().watermarks == marks(0, 0)
    clean = History()
    clean.append("+1 A1")
    replaced = clean.write_partition(broker.root.parent / "new", NAME) / "00000000000000000000.log"
    os.replace(replaced, broker.segment(NAME, 0))
    broker.cleaned(NAME, 2)
    assert reader.look().watermarks == marks(2, 3)


def test_no_list_is_the_log_while_segments_are_swapped(broker: BrokerDirectory) -> None:
    """The transactional data is in the file that is not yet in its place."""
    directory = broker.append(NAME, "P1[a] C1 | N[b]")
    reader = ReplicaReader(directory)
    os.rename(broker.segment(NAME, 0), broker.segment(NAME, 0, ".log.swap"))
    with pytest.raises(Unsettled, match="swap"):
        reader.look()
    os.rename(broker.segment(NAME, 0, ".log.swap"), broker.segment(NAME, 0))
    assert reader.look().watermarks == marks(0, 0)


def test_a_swap_in_the_middle_of_a_look_is_noticed(broker: BrokerDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment with the transaction vanishes after the first list, and is back before the last."""
    directory = broker.append(NAME, "N[a] | P1[b] C1 | N[c]")
    there, aside = broker.segment(NAME, 1), broker.root / "aside"
    listed = replica_files.segments
    calls = iter(range(100))

    def during(directory: PartitionDir) -> object:
        call = next(calls)
        if call == 0:
            os.rename(there, aside)
        found = listed(directory)
        if call == 0:
            os.rename(aside, there)
        return found

    monkeypatch.setattr(replica_files, "segments", during)
    assert ReplicaReader(directory).look().watermarks == marks(0, 1)


def test_work_files_of_the_cleaner_are_passed_over(broker: BrokerDirectory) -> None:
    directory = broker.append(NAME, "N[a] | N[b]")
    for suffix in (".log.cleaned", ".log.deleted", ".index.swap", ".snapshot"):
        broker.segment(NAME, 0, suffix).write_bytes(b"anything")
    assert ReplicaReader(directory).look().log_end == 2


def test_another_log_in_the_same_place_has_another_life(broker: BrokerDirectory) -> None:
    directory = broker.append(NAME, "N[a] N[b]")
    reader = ReplicaReader(directory)
    before = reader.look()
    shutil.rmtree(broker.root / NAME)
    with pytest.raises(FileNotFoundError):
        reader.look()
    broker.histories.clear()
    broker.append(NAME, "P1[a]")
    after = reader.look()
    assert after.life != before.life
    assert after.watermarks == marks(0, 0)


def test_a_broken_checkpoint_or_segment_proves_nothing(broker: BrokerDirectory) -> None:
    directory = broker.append(NAME, "N[a] N[b] | N[c] | N[d]")
    broker.segment(NAME, 0).write_bytes(b"\xff" * 300)
    assert ReplicaReader(directory).look().watermarks == marks(0, 0)
    broker.cleaned(NAME, 10**6)
    assert ReplicaReader(directory).look().watermarks == marks(0, 0)


def test_a_reader_beside_a_busy_writer_never_ends_and_never_says_too_much(broker: BrokerDirectory) -> None:
    """Truncates, swaps and deletes under it; what is reported as free of transactions never has one below."""
    directory = broker.append(NAME, "N[a] N[b] | N[c] P1[d] C1 | N[e]")
    content = {path: path.read_bytes() for path in sorted((broker.root / NAME).glob("*.log"))}
    ended = threading.Event()

    def write() -> None:
        for round_ in range(300):
            for path, whole in content.items():
                os.truncate(path, 1 + round_ % 69)
                fresh = path.with_suffix(".log.cleaned")
                fresh.write_bytes(whole)
                os.rename(fresh, path.with_suffix(".log.swap"))
                path.unlink()
                os.rename(path.with_suffix(".log.swap"), path)
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    reader, claims = ReplicaReader(directory), []
    while not ended.is_set():
        try:
            claims.append(reader.look().watermarks.mxfo)
        except (Unsettled, FileNotFoundError):
            continue
    writer.join()
    assert max([*claims, reader.look().watermarks.mxfo]) == 3


@pytest.mark.parametrize(
    ("offset", "held"), [(0, True), (1, True), (2, True), (3, True), (4, False), (5, True), (6, None)]
)
def test_whether_a_record_is_there(broker: BrokerDirectory, offset: int, held: bool | None) -> None:
    directory = broker.append(NAME, "N[a,b] P1[c] C1 | +1 T[d]/zstd")
    reader = ReplicaReader(directory)
    reader.look()
    assert reader.holds(offset) is held


def test_a_record_below_the_log_start_is_gone_and_of_a_torn_one_nothing_is_known(broker: BrokerDirectory) -> None:
    directory = broker.append(NAME, "N[a] | N[b]")
    broker.checkpoint(checkpoints.LOG_START, NAME, 1)
    reader = ReplicaReader(directory)
    reader.look()
    assert (reader.holds(0), reader.holds(1)) == (False, True)
    file = broker.segment(NAME, 1)
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert reader.holds(1) is None


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_tombstones_markers_and_emptied_markers_are_told_apart(codec: str) -> None:
    records = tuple(Record(offset=3 + i, timestamp=1, key=b"k", value=None if i % 2 else b"v") for i in range(4))
    data = Batch(
        base_offset=3, last_offset_delta=3, records=records, count=4, base_timestamp=1, max_timestamp=1, codec=codec
    )
    emptied = Batch(
        base_offset=9, last_offset_delta=0, records=(), count=0, base_timestamp=1, max_timestamp=1, control=True,
        transactional=True,
    )  # fmt: skip
    before, behind = (
        marker_batch(base=base, producer_id=7, producer_epoch=0, commit=True, timestamp=5, leader_epoch=0).raw
        for base in (1, 8)
    )
    assert deletions_in(chunk_of("a log", before + encode(data) + behind + encode(emptied))).tolist() == [
        [1, MARKER], [4, TOMBSTONE], [6, TOMBSTONE], [8, MARKER], [9, EMPTIED],
    ]  # fmt: skip
