"""Roles of batches in transactions, against the oracle's tracker and in the corners where the two styles of marker differ."""

from __future__ import annotations

import pytest

from headstone.log.indexes import AbortedTxn
from headstone.retention.producers import ProducerState
from headstone.retention.transactions import (
    ABORTED,
    COMMITTED,
    CONTROL_IDLE,
    CONTROL_NEEDED,
    DATA,
    OPEN,
    OpenTxn,
    Tracker,
    merged_aborted,
)
from tests.logs import batch_of
from tests.oracle.batches import Batch, Record
from tests.oracle.cleaner import Pass, header_only
from tests.oracle.files import read_partition
from tests.oracle.notation import History
from tests.oracle.producers import ProducerTable
from tests.oracle.tracker import TransactionTracker
from tests.retention.stories import written
from tests.retention.walked import batches_of, random_batches, walked

NAMES = {
    DATA: "data",
    COMMITTED: "committed",
    ABORTED: "aborted",
    OPEN: "open",
    CONTROL_NEEDED: "needed",
    CONTROL_IDLE: "idle",
}
END = 2**63 - 1


def aborted(first_offset: int, last_offset: int, producer_id: int = 1) -> AbortedTxn:
    """Nothing else is open when it ends."""
    return AbortedTxn(producer_id=producer_id, first_offset=first_offset, last_offset=last_offset, lso=last_offset + 1)


def named(tracker: Tracker, batches: list[Batch]) -> list[str]:
    return [NAMES[role] for role in tracker.roles(walked(batches)).tolist()]


def roles(batches: list[Batch]) -> tuple[list[str], list[AbortedTxn]]:
    """Of a log whose abort entries and open transactions come from its own replay."""
    table = walked(batches)
    state = ProducerState(high_watermark=END)
    state.replay(table)
    open_txns = [
        OpenTxn(producer_id=int(row["producer_id"]), first_offset=int(row["txn_first_offset"]))
        for row in state.open_transactions()
    ]
    tracker = Tracker(state.aborted(), open_txns, {batch.producer_id for batch in batches if batch.producer_id >= 0})
    return [NAMES[role] for role in tracker.roles(table).tolist()], sorted(tracker.seen_aborted())


def oracle_roles(batches: list[Batch]) -> tuple[list[str], list[AbortedTxn]]:
    producers = ProducerTable()
    producers.replay(batches)
    tracker = TransactionTracker()
    tracker.load(producers.aborted)
    found: list[str] = []
    kept = []
    for batch in batches:
        if batch.control:
            discardable, entry = tracker.read_control(batch)
            found.append("idle" if discardable else "needed")
            kept += [entry] if entry else []
            continue
        first_open = producers.open_transactions().get(batch.producer_id)
        if tracker.read_data(batch):
            found.append("aborted")
        elif not batch.transactional:
            found.append("data")
        else:
            found.append("open" if first_open is not None and batch.base_offset >= first_open else "committed")
    return found, [
        AbortedTxn(producer_id=e.producer_id, first_offset=e.first_offset, last_offset=e.last_offset, lso=e.lso)
        for e in kept
    ]


@pytest.mark.parametrize("seed", range(60))
def test_random_histories_have_the_roles_that_the_oracle_gives(seed: int) -> None:
    batches = random_batches(seed)
    assert roles(batches) == oracle_roles(batches)


@pytest.mark.parametrize("seed", range(20))
def test_roles_do_not_depend_on_where_the_table_of_headers_is_cut(seed: int) -> None:
    batches = random_batches(seed)
    table = walked(batches)
    state = ProducerState(high_watermark=END)
    state.replay(table)
    ids = {batch.producer_id for batch in batches if batch.producer_id >= 0}
    at_once, by_one = Tracker(state.aborted(), (), ids), Tracker(state.aborted(), (), ids)
    one_by_one = [role for i in range(table.size) for role in by_one.roles(table[i : i + 1]).tolist()]
    assert one_by_one == at_once.roles(table).tolist()
    assert by_one.seen_aborted() == at_once.seen_aborted()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("N[a] I1[a]", ["data", "data"]),
        ("P1[a] C1", ["committed", "needed"]),
        ("P1[a] A1", ["aborted", "needed"]),
        ("P1[a] C1e1 P1e1[b] A1e2", ["committed", "needed", "aborted", "needed"]),
        ("P1[a] P2[b] A1 C2", ["aborted", "committed", "needed", "needed"]),
        ("P1[a] C1 P1[b]", ["committed", "needed", "open"]),
        ("C1 A1", ["idle", "idle"]),
        ("P1[a] C1 C1", ["committed", "needed", "idle"]),
        ("P1[a] A1 P1[b] C1 A1", ["aborted", "needed", "committed", "needed", "idle"]),
    ],
)
def test_role(text: str, expected: list[str]) -> None:
    assert roles(batches_of(text))[0] == expected


def test_a_marker_whose_data_is_gone_is_idle_and_its_abort_entry_goes() -> None:
    batches = batches_of("P1[a] A1 P2[b] C2")
    tracker = Tracker([aborted(0, 1)], (), {1, 2})
    assert named(tracker, [batches[1], batches[3]]) == ["idle", "idle"]
    assert tracker.seen_aborted() == []


def test_a_header_only_batch_still_needs_its_marker() -> None:
    data, marker = batches_of("P1[a] C1")
    assert roles([header_only(data), marker])[0] == ["committed", "needed"]


def test_an_emptied_marker_decides_nothing() -> None:
    data, marker = batches_of("P1[a] A1")
    assert named(Tracker([aborted(0, 1)], (), {1}), [data, header_only(marker)]) == ["aborted", "idle"]


def test_an_emptied_marker_inside_an_aborted_transaction_does_not_end_it() -> None:
    data, stray, more, abort = batches_of("P1[a] C1 P1[b] A1")
    found = named(Tracker([aborted(0, 3)], (), {1}), [data, header_only(stray), more, abort])
    assert found == ["aborted", "idle", "aborted", "needed"]


def test_data_after_an_abort_whose_marker_was_emptied_is_not_aborted() -> None:
    """The entry ends at its marker's offset, even where the marker can no longer say so."""
    data, marker, later, commit = batches_of("P1[a] A1e1 P1e1[b] C1e2")
    found = named(Tracker([aborted(0, 1)], (), {1}), [data, header_only(marker), later, commit])
    assert found == ["aborted", "idle", "committed", "needed"]


def test_an_aborted_transaction_that_runs_is_not_replaced_by_another_of_its_producer() -> None:
    """As Kafka's cleaner has it: the entry that came first counts until its own marker, or data would count as committed."""
    running = aborted(0, 3)
    tracker = Tracker([running, aborted(1, 2)], (), {1})
    assert named(tracker, batches_of("P1[a] N[x] P1[b] A1")) == ["aborted", "data", "aborted", "needed"]
    assert tracker.seen_aborted() == [running]


def test_entries_that_only_the_log_tells_of_are_added_to_those_of_the_index() -> None:
    indexed = aborted(0, 5)
    same_marker = aborted(3, 5)
    lost = aborted(1, 4, producer_id=2)
    assert merged_aborted([indexed], [same_marker, lost]) == ([lost, indexed], 1)
    assert merged_aborted([indexed], [same_marker]) == ([indexed], 0)


def leader_change(offset: int) -> Batch:
    """As in the metadata log of KRaft: control, but of no producer."""
    record = Record(offset=offset, timestamp=5, key=bytes.fromhex("00000002"), value=b"x")
    return batch_of(record, control=True)


@pytest.mark.parametrize("others", ["N[a]", "I1[a]", "P1[a] C1"])
def test_control_records_of_no_producer_are_not_data(others: str) -> None:
    history = History()
    for _ in range(2):
        history.append_batch(leader_change(history.next_offset))
        history.append(others)
    history.append("| N[z]")
    controls = [(b.base_offset, 1) for b in history.segments[0].batches if b.control and b.producer_id < 0]
    with written(history) as files:
        for now_ms in (10_000, 10**10, 10**11):
            files.compact(Pass(now_ms=now_ms, dirty_start=0, high_watermark=history.next_offset))
        left = [batch for segment in read_partition(files.partition) for batch in segment.batches]
    assert [(b.base_offset, b.count) for b in left if b.control and b.producer_id < 0] == controls
