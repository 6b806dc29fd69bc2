"""The oracle against Kafka's own cases, and its codecs against themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.batches import BadLog, Batch, Record, crc32c, encode, parse_log, to_bytes, without_transactional_bit
from tests.oracle.cases import BIG, MAX, Case, parse_cases, parse_number, run_case
from tests.oracle.cleaner import INT64_MAX, Pass, clean
from tests.oracle.compression import CODECS
from tests.oracle.files import read_checkpoint, read_partition, read_snapshot, write_checkpoint, write_snapshot
from tests.oracle.notation import History
from tests.oracle.producers import InvalidTxnState, ProducerTable
from tests.oracle.reader import CrossingReader, view
from tests.oracle.segments import make_segment

CASE_FILES = sorted(Path(__file__).parent.glob("*.case"))


def cases() -> list[object]:
    return [
        pytest.param(case, id=f"{path.stem}:{case.name}")
        for path in CASE_FILES
        for case in parse_cases(path.read_text())
    ]


@pytest.mark.parametrize("case", cases())
def test_the_oracle_agrees_with_the_case(case: Case) -> None:
    run_case(case)


def batch(codec: str) -> Batch:
    records = (
        Record(offset=7, timestamp=90, key=b"", value=b"", headers=(("h", None), ("g", b"1"))),
        Record(offset=9, timestamp=100, key=None, value=b"long" * 20_000),
        Record(offset=12, timestamp=-1, key=b"k", value=None),
    )
    return Batch(
        base_offset=5,
        last_offset_delta=9,
        records=records,
        count=3,
        base_timestamp=2**62,
        horizon_ms=2**62,
        max_timestamp=100,
        leader_epoch=4,
        codec=codec,
        transactional=True,
        producer_id=2**40,
        producer_epoch=3,
        base_sequence=2**31 - 4,
    )


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_is_read_as_it_was_written(codec: str) -> None:
    first = batch(codec)
    assert parse_log(encode(first) + b"partial") == [first]


@pytest.mark.parametrize("codec", CODECS)
def test_clearing_the_transactional_bit_changes_only_attributes_and_crc(codec: str) -> None:
    before = encode(batch(codec))
    after = to_bytes(without_transactional_bit(parse_log(before)[0]))
    differing = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert set(differing) <= {17, 18, 19, 20, 22}
    assert after[22] == before[22] - 0x10
    assert not parse_log(after)[0].transactional


def test_a_flipped_bit_is_found() -> None:
    data = bytearray(encode(batch("none")))
    data[70] ^= 1
    with pytest.raises(BadLog, match="crc"):
        parse_log(bytes(data))


def test_crc32c_has_the_castagnoli_check_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_a_fresh_marker_has_78_bytes() -> None:
    history = History()
    history.append("C1")
    assert history.segments[0].size == 78


def test_sequences_wrap_to_zero() -> None:
    assert batch("none").last_sequence == 5


def test_numbers_of_cases() -> None:
    assert [parse_number(text) for text in ("12", "MAX", "BIG+dr+1", "MAX-1", "-1")] == [12, MAX, MAX, MAX - 1, -1]
    assert BIG + 86_400_000 + 1 == MAX


def test_files_are_read_as_they_were_written(tmp_path: Path) -> None:
    history = History()
    history.append("P1[a,b] N[c]/gzip A1 | " + "N[d] " * 200 + "| P2[e]")
    directory = history.write_partition(tmp_path, "topic-0", snapshots=True)
    assert read_partition(directory) == history.segments
    assert [len(segment.index) for segment in history.segments] == [0, 3, 0]
    assert read_snapshot((directory / f"{4:020d}.snapshot").read_bytes()) == history.snapshots[4]
    assert (directory / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
    offsets = {("topic", 0): 4, ("other", 2): 17}
    assert read_checkpoint(write_checkpoint(offsets)) == offsets
    assert read_snapshot(write_snapshot([])) == []


def test_appending_beside_compacted_files_writes_only_new_segments(tmp_path: Path) -> None:
    history = History()
    history.append("N[a] N[a] |")
    directory = history.write_partition(tmp_path, "topic-0")
    (directory / f"{0:020d}.log").write_bytes(b"compacted meanwhile")
    history.append("N[b] | N[c]")
    history.write_partition(tmp_path, "topic-0")
    assert (directory / f"{0:020d}.log").read_bytes() == b"compacted meanwhile"
    assert sorted(path.name[17:] for path in directory.glob("*.log")) == ["000.log", "002.log", "003.log"]
    assert [record.key for record in parse_log((directory / f"{2:020d}.log").read_bytes())[0].records] == [b"b"]


def test_abort_entries_carry_the_lso_of_their_time() -> None:
    """The interleaving of Kafka's UnifiedLogTest.testTransactionIndexUpdated."""
    runs = "P1*5 N*3 P2*2 P1*4 P3*3 N*2 P1*10 A1 P2*6 P4*3 N*10 P3*9 C3 P4*8 P2*7 A2 N*10 P4*4 C4"
    history = History()
    for run in runs.split():
        kind, _, count = run.partition("*")
        history.append(f"{kind}[{','.join('k' * int(count))}]" if count else kind)
    entries = [(a.producer_id, a.first_offset, a.last_offset, a.lso) for a in history.producers.aborted]
    assert entries == [(1, 0, 29, 8), (2, 8, 74, 36)]
    assert history.producers.open_transactions() == {}


def test_a_completed_transaction_is_unstable_until_replicated() -> None:
    history = History()
    history.append("N[a] P1[b] C1 N[c]")
    assert [history.producers.lso(watermark) for watermark in (1, 2, 3)] == [1, 1, 3]


def test_replay_of_a_compacted_log_restores_sequences() -> None:
    history = History()
    history.append("I1[1,2,3] I2[3,1,4] I3[1,4] | I4[2] |")
    cleaned = clean(history.segments, history.producers, Pass(now_ms=5000))
    table = ProducerTable()
    table.replay([batch for segment in cleaned.segments for batch in segment.batches])
    cached = {pid: producer.cached[-1] for pid, producer in table.producers.items()}
    duplicates = {
        pid: (last.last_sequence, last.last_offset - last.offset_delta, last.last_offset)
        for pid, last in cached.items()
    }
    assert duplicates == {
        1: (2, 0, 2),
        2: (2, 3, 5),
        3: (1, 6, 7),
        4: (0, 8, 8),
    }


def test_only_producers_without_an_open_transaction_expire() -> None:
    history = History()
    history.append("I1[a] P2[b] P3[c] C3@9000")
    history.producers.expire(9000, 1000)
    assert sorted(history.producers.producers) == [2, 3]


def test_a_cleared_batch_is_refused_where_its_transaction_is_still_open() -> None:
    """A snapshot, or a follower, that stands between the two batches of a committed transaction."""
    history = History()
    history.append("P1[a] | P1[b] C1 N[z] |")
    settings = Pass(now_ms=0, rules="coordinated", segment_bytes=1, plain_below=INT64_MAX)
    cleaned = clean(history.segments, history.producers, settings)
    replica = ProducerTable(history.snapshots[1])
    with pytest.raises(InvalidTxnState):
        replica.replay(list(cleaned.segments[1].batches))


def timestamped(kinds: str, timestamps: list[int]) -> History:
    """One batch of keys a, b, c, ...; `v` has a value, `t` is a tombstone."""
    records = tuple(
        Record(offset=offset, timestamp=timestamp, key=bytes([97 + offset]), value=b"v" if kind == "v" else None)
        for offset, (kind, timestamp) in enumerate(zip(kinds, timestamps, strict=True))
    )
    history = History()
    history.append_batch(
        Batch(
            base_offset=0,
            last_offset_delta=len(records) - 1,
            records=records,
            count=len(records),
            base_timestamp=timestamps[0],
            max_timestamp=max(timestamps),
            leader_epoch=7,
        )
    )
    return history


def test_a_stamped_batch_keeps_its_record_timestamps() -> None:
    history = timestamped("vtv", [5, 10, 15])
    history.append("|")
    result = clean(history.segments, history.producers, Pass(now_ms=1, delete_retention_ms=1_073_741_822))
    stamped = parse_log(to_bytes(result.segments[0].batches[0]))[0]
    assert (stamped.horizon_ms, stamped.base_timestamp, stamped.max_timestamp) == (1_073_741_823, 1_073_741_823, 15)
    assert [record.timestamp for record in stamped.records] == [5, 10, 15]
    assert stamped.leader_epoch == 7


def test_a_rebuilt_batch_keeps_its_extent_and_takes_its_survivors_timestamps() -> None:
    history = timestamped("vvvv", [5, 10, 8, 15])
    history.append("N[a] N[d] | N[z] |")
    result = clean(history.segments, history.producers, Pass(now_ms=1))
    rebuilt = parse_log(to_bytes(result.segments[0].batches[0]))[0]
    assert (rebuilt.base_offset, rebuilt.last_offset, rebuilt.count) == (0, 3, 2)
    assert (rebuilt.base_timestamp, rebuilt.max_timestamp) == (10, 10)
    assert result.segments[0].mtime_ms == 1006


def test_a_header_keeps_the_timestamp_of_what_it_held() -> None:
    history = History()
    history.append("I1[a]@77/zstd N[a] |")
    header = clean(history.segments, history.producers, Pass(now_ms=1)).segments[0].batches[0]
    assert len(to_bytes(header)) == 61
    assert (header.count, header.base_timestamp, header.max_timestamp, header.codec) == (0, -1, 77, "none")


def test_a_segment_without_timestamps_is_as_old_as_its_file() -> None:
    history = History()
    history.append("N[a]@-1")
    segment = make_segment(base=0, batches=list(history.segments[0].batches), mtime_ms=123)
    assert segment.largest_timestamp == 123


def test_the_range_never_ends_before_it_starts() -> None:
    history = History()
    history.append("N[a] | P1[b] | N[c] | N[d]")
    result = clean(history.segments, history.producers, Pass(now_ms=1, dirty_start=2))
    assert (result.first_uncleanable, result.next_dirty, result.groups) == (2, 2, [])


def test_a_plain_batch_inside_an_open_transaction_is_refused() -> None:
    history = History()
    with pytest.raises(InvalidTxnState):
        history.append("P1[a] I1[b]")


def test_a_reader_that_crosses_a_compaction_may_miss_a_deletion() -> None:
    history = History()
    history.append("N[k] T[k] N[z] |")
    reader, prompt = CrossingReader(), CrossingReader()
    reader.read(view(history.segments, history.producers), batches_max=1)
    prompt.read(view(history.segments, history.producers))
    for now_ms in (0, 1000):
        result = clean(history.segments, history.producers, Pass(now_ms=now_ms, delete_retention_ms=1000))
        history.install(result.segments)
    reader.read(view(history.segments, history.producers))
    assert reader.position == prompt.position == 3
    assert (reader.table, prompt.table) == ({b"k": b"v0", b"z": b"v2"}, {b"z": b"v2"})


def test_coordinated_rules_wait_for_every_replica() -> None:
    history = History()
    history.append("N[k] T[k] P1[m] C1e1 N[m] |")
    reasons = []
    for now_ms, mtro, mxro in [(0, 9, 9), (1000, 1, 9), (1001, 2, 9), (3000, 2, 3), (3000, 2, 4)]:
        settings = Pass(
            now_ms=now_ms, delete_retention_ms=1000, rules="coordinated", mtro=mtro, mxro=mxro, plain_below=INT64_MAX
        )
        result = clean(history.segments, history.producers, settings)
        history.install(result.segments)
        reasons.append([(verdict.offset, verdict.reason) for verdict in result.verdicts])
    assert reasons == [
        [
            (0, "superseded"),
            (1, "horizon not passed"),
            (2, "superseded"),
            (3, "control"),
            (4, "newest"),
        ],
        [(1, "above MTRO"), (3, "horizon not passed"), (4, "newest")],
        [(1, "expired tombstone"), (3, "horizon not passed"), (4, "newest")],
        [(3, "above MXRO"), (4, "newest")],
        [(3, "expired marker"), (4, "newest")],
    ]


def test_read_committed_hides_aborted_data_and_stops_at_the_lso() -> None:
    history = History()
    history.append("P1[a] P2[b] N[c] A1 C2 P1[d] N[e]")
    committed, uncommitted = CrossingReader(), CrossingReader(committed=False)
    log = view(history.segments, history.producers)
    committed.read(log)
    uncommitted.read(log)
    assert (sorted(committed.table), committed.position) == ([b"b", b"c"], 5)
    assert sorted(uncommitted.table) == [b"a", b"b", b"c", b"d", b"e"]


def test_an_abort_hides_only_its_own_transaction() -> None:
    history = History()
    history.append("P1[a] A1 P1[b] C1")
    log = view(history.segments, history.producers)
    for position in (0, 2):
        reader = CrossingReader(position=position)
        reader.read(log)
        assert (reader.table, reader.position) == ({b"b": b"v2"}, 4)


def test_committed_data_loses_its_transactional_bit_and_frees_its_marker() -> None:
    history = History()
    history.append("P1[a,b]/lz4 C1 P2[c] A2 N[z] |")
    settings = Pass(now_ms=0, delete_retention_ms=1000, rules="coordinated", plain_below=INT64_MAX)
    first = clean(history.segments, history.producers, settings)
    forms = [(result.last_offset, result.form, result.held_by) for result in first.batches]
    assert forms == [
        (1, "bit cleared", "producer's last batch"),
        (2, "copied", None),
        (3, "header only", "producer's last batch"),
        (4, "copied", None),
        (5, "copied", "end of range"),
    ]
    second = clean(first.segments, history.producers, settings)
    left = {batch.last_offset: batch for batch in second.segments[0].batches}
    assert (left[1].transactional, left[3].transactional) == (False, True)
    assert (left[2].horizon_ms, left[4].horizon_ms) == (1000, None)
