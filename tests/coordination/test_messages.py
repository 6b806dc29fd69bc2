"""Polls and reports on the wire: the exact bytes, and that whatever is sent is what is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstone.coordination.messages import Message, Poll, Report, UnreadableMessageError
from headstone.coordination.replica import without_mxfo

POLL = Poll(leader=1, leader_epoch=3, mtro=40, mxro=30)
POLL_HEX = "02 00000001 00000003 0000000000000028 000000000000001e 01"
REPORT = Report(member=2, incarnation=7, leader_epoch=3, mcco=80, mxfo=60, mtro=40, mxro=30)
REPORT_HEX = (
    "02 00000002 00000003 0000000000000007 0000000000000050 0000000000000028 000000000000001e 08 000000000000003c"
)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
POLLS = st.builds(Poll, leader=INT32, leader_epoch=INT32, mtro=INT64, mxro=INT64, answer=st.booleans())
REPORTS = st.builds(
    Report, member=INT32, incarnation=INT64, leader_epoch=INT32, mcco=INT64, mxfo=st.none() | INT64,
    mtro=INT64, mxro=INT64,
)  # fmt: skip


def test_bytes_of_a_poll() -> None:
    assert POLL.encode() == bytes.fromhex(POLL_HEX)
    assert Poll.decode(bytes.fromhex(POLL_HEX)) == POLL


def test_bytes_of_a_report() -> None:
    assert REPORT.encode() == bytes.fromhex(REPORT_HEX)
    assert Report.decode(bytes.fromhex(REPORT_HEX)) == REPORT


def test_a_report_of_version_1_ends_before_mxfo() -> None:
    old = without_mxfo(REPORT)
    assert old == Report(member=2, incarnation=7, leader_epoch=3, mcco=80, mxfo=None, mtro=40, mxro=30)
    assert old.encode() == REPORT.encode()[:41] + b"\0"
    assert Report.decode(old.encode()) == old


@given(POLLS)
def test_a_poll_is_read_as_it_was_sent(poll: Poll) -> None:
    assert len(poll.encode()) == 26
    assert Poll.decode(poll.encode()) == poll


@given(REPORTS)
def test_a_report_is_read_as_it_was_sent(report: Report) -> None:
    assert len(report.encode()) == (42 if report.mxfo is None else 50)
    assert Report.decode(report.encode()) == report


@pytest.mark.parametrize("message", [POLL, REPORT, without_mxfo(REPORT)])
def test_no_part_of_a_message_is_a_message(message: Message) -> None:
    """A report cut before its MXFO must not pass for one that never had it."""
    data = message.encode()
    for size in range(len(data)):
        with pytest.raises(UnreadableMessageError):
            type(message).decode(data[:size])


@pytest.mark.parametrize("message", [POLL, REPORT, without_mxfo(REPORT)])
def test_another_version_and_bytes_too_many_are_refused(message: Message) -> None:
    data = message.encode()
    for other in (b"\x01" + data[1:], b"\x03" + data[1:], data + b"\0", without_mxfo(REPORT).encode() + b"\0" * 8):
        with pytest.raises(UnreadableMessageError):
            type(message).decode(other)
