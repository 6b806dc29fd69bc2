"""Kafka's two encodings of the same fields, and answers that do not fit them."""

from __future__ import annotations

import pytest

from headstone.cluster.encoding import Reader, Writer
from headstone.errors import Unfinished

LONG = "x" * 300


def written(*, flexible: bool) -> bytes:
    question = Writer(flexible=flexible).put("hi", 7, -1).text("né").text(None).text(LONG).blob(b"\0\1")
    return question.array(2).numbers([1, -1]).numbers([]).tags().array(None).numbers(None).tags().data


def test_old_versions_have_plain_sizes_and_flexible_ones_compact_sizes_and_tags() -> None:
    fields = b"\0\7\xff\xff\xff\xff"
    assert written(flexible=False) == (
        fields + b"\0\3n\xc3\xa9" + b"\xff\xff" + b"\1\x2c" + LONG.encode() + b"\0\0\0\2\0\1" + b"\0\0\0\2"
        + b"\0\0\0\2\0\0\0\1\xff\xff\xff\xff" + b"\0\0\0\0" + b"\xff\xff\xff\xff" + b"\xff\xff\xff\xff"
    )  # fmt: skip
    assert written(flexible=True) == (
        fields + b"\4n\xc3\xa9" + b"\0" + b"\xad\2" + LONG.encode() + b"\3\0\1" + b"\3"
        + b"\3\0\0\0\1\xff\xff\xff\xff" + b"\1" + b"\0" + b"\0" + b"\0" + b"\0"
    )  # fmt: skip


@pytest.mark.parametrize("flexible", [False, True])
def test_what_was_written_is_read(flexible: bool) -> None:
    answer = Reader(written(flexible=flexible), flexible=flexible)
    assert answer.take("hi") == (7, -1)
    assert [answer.text(), answer.text(), answer.name()] == ["né", None, LONG]
    assert answer.blob() == b"\0\1"
    assert len(answer.array()) == 2
    assert [answer.numbers(), answer.numbers()] == [(1, -1), ()]
    assert answer.tags() == {}
    assert [len(answer.array()), answer.numbers()] == [0, ()]
    assert answer.tags() == {}
    with pytest.raises(Unfinished, match="truncated response"):
        answer.one("b")


def test_tagged_fields_are_kept_by_their_number() -> None:
    answer = Reader(b"\2\0\3abc\x85\1\0rest", flexible=True)
    assert answer.tags() == {0: b"abc", 133: b""}
    assert answer.take("4b") == tuple(b"rest")


@pytest.mark.parametrize(
    ("data", "flexible", "ask", "why"),
    [
        (b"\0\5abc", False, Reader.text, "truncated response"),
        (b"\6abc", True, Reader.text, "truncated response"),
        (b"\0\2\xff\xfe", False, Reader.text, "not UTF-8"),
        (b"\x7f\xff\xff\xff", False, Reader.array, "cannot hold 2147483647 elements"),
        (b"\xff\xff\xff\xff\7", True, Reader.array, "cannot hold 2147483646 elements"),
        (b"\xff\xff\xff\xff\xff\1", True, Reader.array, "does not end"),
        (b"\1\0\x7f", True, Reader.tags, "truncated response"),
        (b"\0\0", False, Reader.numbers, "truncated response"),
    ],
)
def test_an_answer_that_does_not_fit_is_not_believed(data: bytes, flexible: bool, ask: object, why: str) -> None:
    assert callable(ask)
    with pytest.raises(Unfinished, match=why):
        ask(Reader(data, flexible=flexible))
