"""Producer state by replay, against the oracle's: entries, abort entries, LSO; expiry and what holds a header."""

from __future__ import annotations

import numpy as np
import pytest

from headstone.log.indexes import AbortedTxn
from headstone.log.snapshots import ProducerEntry
from headstone.retention.producers import PRODUCER, ProducerState, active_producers, slots_of
from headstone.retention.verdicts import END_OF_RANGE, LAST_OF_PRODUCER, NOT_KEPT, kept_headers
from tests.oracle.batches import Batch
from tests.oracle.cleaner import Pass, clean, header_only
from tests.oracle.files import SnapshotEntry, read_partition
from tests.oracle.notation import History
from tests.oracle.producers import ProducerTable
from tests.retention.stories import Files, quick_directory
from tests.retention.walked import batches_of, random_batches, walked

END = 2**63 - 1
DAY_MS = 86_400_000


def replayed(batches: list[Batch], high_watermark: int = END) -> ProducerState:
    state = ProducerState(high_watermark=high_watermark)
    state.replay(walked(batches))
    return state


def oracle(batches: list[Batch]) -> ProducerTable:
    table = ProducerTable()
    table.replay(batches)
    return table


def as_entry(entry: SnapshotEntry) -> ProducerEntry:
    return ProducerEntry(
        producer_id=entry.producer_id,
        epoch=entry.producer_epoch,
        last_sequence=entry.last_sequence,
        last_offset=entry.last_offset,
        offset_delta=entry.offset_delta,
        timestamp=entry.timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        txn_first_offset=entry.txn_first_offset,
    )


@pytest.mark.parametrize("seed", range(60))
def test_random_histories_leave_the_state_that_the_oracle_leaves(seed: int) -> None:
    batches = random_batches(seed)
    expected, state = oracle(batches), replayed(batches)
    assert state.entries() == sorted(map(as_entry, expected.snapshot()), key=lambda entry: entry.producer_id)
    assert state.aborted() == [
        AbortedTxn(producer_id=e.producer_id, first_offset=e.first_offset, last_offset=e.last_offset, lso=e.lso)
        for e in expected.aborted
    ]


@pytest.mark.parametrize("seed", range(20))
def test_the_last_stable_offset_is_right_at_every_high_watermark(seed: int) -> None:
    batches = random_batches(seed)
    expected, end = oracle(batches), batches[-1].next_offset
    boundaries = [batch.base_offset for batch in batches] + [end]
    found = [replayed(batches, high).last_stable_offset(end) for high in boundaries]
    assert found == [expected.lso(high) for high in boundaries]


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_and_the_rest_of_the_log_give_the_state_of_the_whole_log(seed: int) -> None:
    batches = random_batches(seed)
    middle = len(batches) // 2
    state = ProducerState.starting_from(replayed(batches[:middle]).entries(), high_watermark=END)
    state.replay(walked(batches[middle:]))
    assert state.entries() == replayed(batches).entries()


def test_replay_follows_epochs_sequences_and_transactions() -> None:
    """A marker of the next epoch forgets the last batch; one of the same epoch does not."""
    state = replayed(batches_of("I1[a,b] P2e3[c] C2e3@77 P3[d,e] A3e1@78 P4[f]@79"))
    blank = {"last_sequence": -1, "last_offset": -1, "offset_delta": 0}
    assert state.entries() == [
        ProducerEntry(producer_id=1, epoch=0, last_sequence=1, last_offset=1, offset_delta=1, timestamp=1000,
                      coordinator_epoch=-1, txn_first_offset=-1),
        ProducerEntry(producer_id=2, epoch=3, last_sequence=0, last_offset=2, offset_delta=0, timestamp=77,
                      coordinator_epoch=0, txn_first_offset=-1),
        ProducerEntry(producer_id=3, epoch=1, timestamp=78, coordinator_epoch=0, txn_first_offset=-1, **blank),
        ProducerEntry(producer_id=4, epoch=0, last_sequence=0, last_offset=7, offset_delta=0, timestamp=79,
                      coordinator_epoch=-1, txn_first_offset=7),
    ]  # fmt: skip
    assert state.aborted() == [AbortedTxn(producer_id=3, first_offset=4, last_offset=6, lso=7)]


def test_an_emptied_marker_neither_ends_a_transaction_nor_carries_an_epoch() -> None:
    data, marker = batches_of("P1[a] C1e1")
    state = replayed([data, header_only(marker)])
    assert [(e.epoch, e.last_offset, e.txn_first_offset) for e in state.entries()] == [(0, 0, 0)]
    assert replayed([header_only(marker)]).entries() == []


def test_a_header_only_data_batch_opens_a_transaction() -> None:
    (data,) = batches_of("P1[a]")
    assert [entry.txn_first_offset for entry in replayed([header_only(data)]).entries()] == [0]


def test_sequences_wrap_to_zero() -> None:
    state = replayed(random_batches(0))
    assert all(0 <= entry.last_sequence < 2**31 or entry.last_offset == -1 for entry in state.entries())
    (batch,) = batches_of("I1[a,b,c]")
    wrapped = Batch(**{**{n: getattr(batch, n) for n in Batch.__slots__}, "base_sequence": 2**31 - 2, "raw": None})
    assert [entry.last_sequence for entry in replayed([wrapped]).entries()] == [0]


def test_kafkas_own_example_of_the_transaction_index() -> None:
    """UnifiedLogTest.testTransactionIndexUpdated, one batch per group of records."""

    def many(kind: str, count: int) -> str:
        return f"{kind}[{','.join('k' * count)}]"

    groups = [("P1", 5), ("N", 3), ("P2", 2), ("P1", 4), ("P3", 3), ("N", 2), ("P1", 10), "A1", ("P2", 6), ("P4", 3),
              ("N", 10), ("P3", 9), "C3", ("P4", 8), ("P2", 7), "A2", ("N", 10), ("P4", 4), "C4"]  # fmt: skip
    batches = batches_of(" ".join(g if isinstance(g, str) else many(*g) for g in groups))
    end = batches[-1].next_offset
    assert replayed(batches).aborted() == [
        AbortedTxn(producer_id=1, first_offset=0, last_offset=29, lso=8),
        AbortedTxn(producer_id=2, first_offset=8, last_offset=74, lso=36),
    ]
    assert [replayed(batches, high).last_stable_offset(end) for high in (30, 75, end)] == [8, 36, end]


def active_ids(text: str, *, now_ms: int, expiration_ms: int) -> list[int]:
    rows = replayed(batches_of(text)).rows
    return active_producers(rows, now_ms=now_ms, expiration_ms=expiration_ms)["producer_id"].tolist()


def test_a_producer_expires_when_it_was_idle_for_the_expiration() -> None:
    log = "I1[a]@1000 I2[a]@1001"
    assert active_ids(log, now_ms=1000 + DAY_MS - 1, expiration_ms=DAY_MS) == [1, 2]
    assert active_ids(log, now_ms=1000 + DAY_MS, expiration_ms=DAY_MS) == [2]


def test_a_producer_with_an_open_transaction_never_expires() -> None:
    assert active_ids("P1[a]@1000 P2[a]@1000 C2@1000", now_ms=END, expiration_ms=1) == [1]


def test_a_clock_at_the_end_of_time_wraps_as_in_java() -> None:
    """now - (-1) overflows to a negative idle time: not expired."""
    assert active_ids("I1[a]@-1", now_ms=END, expiration_ms=DAY_MS) == [1]


def headers_kept(text: str, *, uncleanable: int) -> list[int]:
    batches = batches_of(text)
    active = active_producers(replayed(batches).rows, now_ms=2000, expiration_ms=DAY_MS)
    return kept_headers(walked(batches), active, uncleanable=uncleanable).tolist()


def test_the_last_batch_of_a_producer_and_of_the_pass_keep_their_headers() -> None:
    kept = headers_kept("I1[a] I1[a] P2[b] C2 P3[c] A3e1 N[d] N[e]", uncleanable=7)
    last, end, none = LAST_OF_PRODUCER, END_OF_RANGE, NOT_KEPT
    assert kept == [none, last, last, none, none, last, end, none]


def test_every_marker_of_the_current_epoch_is_held_while_no_batch_is_known() -> None:
    assert headers_kept("P1[a] A1e1 C1e1 C2e5 C2e6", uncleanable=99) == [0, 1, 1, 0, 1]


def test_data_of_the_current_epoch_is_not_held_by_its_epoch() -> None:
    """A late marker of an older epoch takes the producer back to it, without any batch that would be its last."""
    assert headers_kept("P1e1[a] A1e2 C1e1", uncleanable=99) == [NOT_KEPT, NOT_KEPT, LAST_OF_PRODUCER]


def test_slots_of_ids_that_are_not_there_are_negative() -> None:
    ids = np.array([1, 5, 9], dtype=np.int64)
    assert slots_of(ids, np.array([9, 0, 5, 7, 10, -1], dtype=np.int64)).tolist() == [2, -1, 1, -1, -1, -1]
    assert slots_of(ids[:0], ids).tolist() == [-1, -1, -1]
    assert PRODUCER.names == tuple(ProducerEntry.__slots__)


def left_after_passes(high_watermark: int, passes: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(base offset, count) of every batch: ours, and the oracle's given what ours left before."""
    history, files = History(), None
    history.append("P1[k] A1e1 N[z] | N[y] N[x]")
    with quick_directory() as root:
        files = Files(root, "whole", in_place=True)
        for number in range(passes):
            files.write(history)
            settings = Pass(
                now_ms=10_000 + number * 10, dirty_start=0, high_watermark=high_watermark, delete_retention_ms=1
            )
            expected = clean(history.segments, history.producers, settings).segments
            files.compact(settings)
            found = read_partition(files.partition)
            history.install(found)
    ours = [(batch.base_offset, batch.count) for segment in found for batch in segment.batches]
    return ours, [(batch.base_offset, batch.count) for segment in expected for batch in segment.batches]


def test_an_emptied_marker_stays_while_its_producer_is_active() -> None:
    ours, expected = left_after_passes(high_watermark=5, passes=5)
    assert ours == expected == [(1, 0), (2, 1), (3, 1), (4, 1)]


def test_an_emptied_marker_stays_while_its_producer_is_active_and_the_end_is_not_replicated() -> None:
    ours, expected = left_after_passes(high_watermark=4, passes=4)
    assert ours == expected == [(1, 0), (2, 1), (3, 1), (4, 1)]
