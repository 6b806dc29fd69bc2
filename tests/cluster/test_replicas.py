"""What is taken of a broker's answers: whole batches below the end, and transactions that were aborted."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.cluster.connection import Connection
from headstone.cluster.encoding import Writer
from headstone.cluster.replicas import copy_partition, copy_replicas, whole_batches, write_aborted_index
from headstone.errors import Unfinished
from headstone.log.indexes import AbortedTxn, read_aborted
from headstone.log.topic_partition import TopicPartition
from tests.cluster.fake_brokers import FETCH, LIST_OFFSETS, Ports, Request, listening, metadata, record
from tests.oracle.notation import History


def test_batches_that_are_cut_off_are_asked_for_again() -> None:
    first, second, third = (record(offset, b"k", b"v") for offset in (4, 5, 9))
    answer = first + second + third
    assert whole_batches(answer, 4, 100) == (answer, 10)
    assert whole_batches(answer, 5, 100) == (second + third, 10)
    assert whole_batches(answer, 4, 9) == (first + second, 9)
    assert whole_batches(answer, 4, 8) == (first + second, 8)
    for cut in range(1, len(third)):
        assert whole_batches(answer[:-cut], 4, 100) == (first + second, 6)
    assert whole_batches(b"", 4, 100) == (b"", 4)
    for garbage in (bytes(100), b"\xff" * 100, first + bytes(100)):
        with pytest.raises(Unfinished, match="not a record batch"):
            whole_batches(garbage, 4, 100)


def test_aborted_transactions_end_at_their_own_marker(tmp_path: Path) -> None:
    """A broker tells producer and first offset; the end is the next ABORT of that producer, if it is in the copy."""
    history = History()
    history.append("P1[a] C1 P1[b] P2[c] A2 A1 P1[d] A1 P1[e]")
    log = history.write_partition(tmp_path, "t-0") / f"{0:020d}.log"
    log.with_suffix(".txnindex").unlink(missing_ok=True)
    write_aborted_index(log, 0, {(1, 2), (2, 3), (1, 6), (1, 8)})
    assert read_aborted(log.with_suffix(".txnindex")) == [
        AbortedTxn(producer_id=2, first_offset=3, last_offset=4, lso=3),
        AbortedTxn(producer_id=1, first_offset=2, last_offset=5, lso=2),
        AbortedTxn(producer_id=1, first_offset=6, last_offset=7, lso=6),
    ]


NAMES = ("orders", "../../x")
"""As a hostile broker tells them, whatever it was asked for; they have one empty partition each."""


def hostile(asked: Request, ports: Ports) -> Writer:
    if asked.key == LIST_OFFSETS:
        return Writer().put("i", 0).array(1).text("t").array(1).put("ihqqi", 0, 0, -1, 0, 0)
    if asked.key == FETCH:
        answer = Writer().put("ihi", 0, 0, 0).array(1).text("t").array(1).put("ihqqq", 0, 0, 0, 0, 0)
        return answer.array(0).put("i", -1).blob(b"")
    return metadata(ports, {name: [(1, 0)] for name in NAMES})


def test_a_name_that_would_leave_the_directory_is_refused_before_anything_is_copied(tmp_path: Path) -> None:
    work = tmp_path / "deep" / "work"
    invalid = r"topic \.\./\.\./x: a broker reports this topic, but the name is invalid"
    with listening([1], lambda asked: hostile(asked, ports)) as ports:
        connection = Connection.parse(f"127.0.0.1:{ports[1]}", {})
        for topics in ([], ["orders"], ["../../x"]):
            with pytest.raises(Unfinished, match=invalid):
                copy_replicas(connection, topics, work, bytes_per_second=1 << 20, tell=print)
        with pytest.raises(Unfinished, match=invalid):
            copy_partition(connection, TopicPartition("../../x", 0), work, last=1)
    assert list(tmp_path.iterdir()) == []
